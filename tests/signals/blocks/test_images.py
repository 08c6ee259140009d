"""Blocks of pictures, compared with numpy and loops over pixels."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gatewise_signals as sig
from gatewise.errors import InputError
from tests.support.signal_blocks import draw_image, make_image_blocks

PIXELS = sig.Pixels()


def compute_features(block, pictures):
    return sig.SignalGraph([block]).transform(pictures)


def split_into_cells(size, n_cells):
    """Split the pixels of a side into cells of sizes that differ by one at most."""
    return [slice(k * size // n_cells, (k + 1) * size // n_cells) for k in range(n_cells)]


@pytest.fixture(scope="module")
def pictures():
    rng = np.random.default_rng(5)
    return rng.integers(0, 256, (6, 23, 17), np.uint8)


def test_cells_are_means_deviations_and_extremes(pictures):
    x = pictures.astype(float)
    cells = [
        x[:, rows, columns]
        for rows in split_into_cells(23, 4)
        for columns in split_into_cells(17, 5)
    ]
    means, deviations, minima, maxima = (
        np.stack([function(cell, axis=(1, 2)) for cell in cells], -1)
        for function in (np.mean, np.std, np.min, np.max)
    )
    thumbnail = sig.Thumbnail(PIXELS, 4, 5)
    np.testing.assert_allclose(compute_features(thumbnail, pictures), means, rtol=1e-6)
    assert thumbnail.names[6] == "thumbnail(image, 4, 5).mean.r1c1"
    features = compute_features(sig.BlockStatistics(PIXELS, 4, 5), pictures)
    np.testing.assert_allclose(
        features, np.concatenate([deviations, minima, maxima], axis=1), rtol=1e-5
    )


def test_the_histogram_equals_numpys(pictures):
    expected_shares = np.stack([np.histogram(x, 8, (0, 256))[0] for x in pictures]) / (23 * 17)
    np.testing.assert_allclose(
        compute_features(sig.GreyHistogram(PIXELS, 8), pictures), expected_shares
    )
    special_values = np.asarray([[[np.nan, -5, -np.inf, 300], [np.inf, 0, 1, 255.9]]])
    # values outside the range count in the outer bins, and NaN in the first
    shares = compute_features(sig.GreyHistogram(PIXELS, 4), special_values)
    np.testing.assert_allclose(shares, [[5 / 8, 0, 0, 3 / 8]])


@pytest.mark.parametrize("n_directions", [4, 8, 16])
def test_edges_equal_a_loop_over_pixels(pictures, n_directions):
    features = compute_features(sig.Edges(PIXELS, 3, 2, n_directions), pictures)
    for picture, picture_features in zip(pictures.astype(int), features, strict=True):
        strengths = np.zeros((3, 2, n_directions))
        pixel_counts = np.zeros((3, 2, 1))
        gradient_sums = np.zeros(2)
        for row in range(22):
            for column in range(16):
                dx = picture[row][column + 1] - picture[row][column]
                dy = picture[row + 1][column] - picture[row][column]
                gradient_sums += abs(dx), abs(dy)
                cell = next(
                    (i, j)
                    for i, rows in enumerate(split_into_cells(22, 3))
                    for j, columns in enumerate(split_into_cells(16, 2))
                    if rows.start <= row < rows.stop and columns.start <= column < columns.stop
                )
                direction = round(math.atan2(dy, dx) * n_directions / math.pi) % n_directions
                strengths[(*cell, direction)] += math.hypot(dx, dy)
                pixel_counts[cell] += 1
        np.testing.assert_allclose(picture_features[:2], gradient_sums / (22 * 16), rtol=1e-6)
        np.testing.assert_allclose(
            picture_features[2:], (strengths / pixel_counts).ravel(), rtol=1e-5
        )


def test_colours_become_grey_and_values_are_scaled():
    rng = np.random.default_rng(6)
    colour = rng.integers(0, 256, (3, 6, 8, 3), np.uint8)
    grey = colour @ np.asarray([0.299, 0.587, 0.114]) / 255
    thumbnails = compute_features(sig.Thumbnail(sig.Pixels(scale=1 / 255), 6, 8), colour)
    np.testing.assert_allclose(thumbnails, grey.reshape(3, -1), rtol=1e-5)


def test_frame_difference_is_the_absolute_difference(pictures):
    frames = np.stack([pictures, pictures[::-1]], axis=1)
    frame_difference = sig.FrameDifference(sig.Frame(0), sig.Frame(1))
    expected_difference = np.abs(frames[:, 1].astype(float) - frames[:, 0])
    difference_pixels = compute_features(sig.Thumbnail(frame_difference, 23, 17), frames)
    np.testing.assert_array_equal(difference_pixels, expected_difference.reshape(6, -1))
    assert frame_difference.label == "difference(image[0], image[1])"


@pytest.mark.parametrize("shape", [(28, 28), (6, 7, 3), (2, 9, 8), (2, 2), (5, 3)])
def test_standard_blocks_compute_finite_features_for_any_shape(shape):
    blocks = sig.standard_image_blocks(shape, scale=1 / 255)
    pictures = np.random.default_rng(0).integers(0, 256, (3, *shape), np.uint8)
    graph = sig.SignalGraph(blocks)
    assert np.isfinite(graph.transform(pictures)).all()
    assert len(set(graph.feature_names)) == len(graph.feature_names)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(6, 30), st.integers(6, 30), st.integers(1, 5))
def test_features_of_a_picture_do_not_depend_on_the_batch(seed, height, width, n_pictures):
    rng = np.random.default_rng(seed)
    gradient_sums = sig.FrameDifference(sig.Frame(1), sig.Frame(0, scale=0.5))
    graph = sig.SignalGraph([*make_image_blocks(sig.Frame(1)), *make_image_blocks(gradient_sums)])
    x = draw_image(rng, n_pictures, 2, height, width)
    batch_features = graph.transform(x)
    single_features = np.concatenate([graph.transform(picture[None]) for picture in x])
    is_same = (batch_features.view(np.uint32) == single_features.view(np.uint32)) | (
        np.isnan(batch_features) & np.isnan(single_features)
    )
    assert is_same.all()


def test_random_pictures_give_features_or_an_input_error():
    rng = np.random.default_rng(8)
    graph = sig.SignalGraph(make_image_blocks(PIXELS))
    n_refused = 0
    for _ in range(250):
        shape = rng.choice([0, 1, 3, 6, 9, 28], rng.choice([2, 3], p=[0.8, 0.2]))
        try:
            features = graph.transform(draw_image(rng, 4, *shape))
        except InputError:
            n_refused += 1
            continue
        assert features.shape == (4, len(graph.feature_names))
    assert 60 < n_refused < 230  # many are refused, and many are not
