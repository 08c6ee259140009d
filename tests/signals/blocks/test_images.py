from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gatewise_signals as sig
from gatewise.errors import InputError
from tests.support.signal_blocks import picture_blocks, random_picture

PIXELS = sig.Pixels()


def features(block, pictures):
    return sig.SignalGraph([block]).transform(pictures)


def cells(size, parts):
    return [slice(k * size // parts, (k + 1) * size // parts) for k in range(parts)]


@pytest.fixture(scope="module")
def pictures():
    rng = np.random.default_rng(5)
    return rng.integers(0, 256, (6, 23, 17), np.uint8)


def test_cells_are_means_deviations_and_extremes(pictures):
    x = pictures.astype(float)
    parts = [x[:, r, c] for r in cells(23, 4) for c in cells(17, 5)]
    mean, std, low, high = (
        np.stack([f(p, axis=(1, 2)) for p in parts], -1) for f in (np.mean, np.std, np.min, np.max)
    )
    thumbnail = sig.Thumbnail(PIXELS, 4, 5)
    np.testing.assert_allclose(features(thumbnail, pictures), mean, rtol=1e-6)
    assert thumbnail.names[6] == "thumbnail(image, 4, 5).mean.r1c1"
    result = features(sig.BlockStatistics(PIXELS, 4, 5), pictures)
    np.testing.assert_allclose(result, np.concatenate([std, low, high], axis=1), rtol=1e-5)


def test_the_histogram_is_numpys(pictures):
    expected = np.stack([np.histogram(p, 8, (0, 256))[0] for p in pictures]) / (23 * 17)
    np.testing.assert_allclose(features(sig.GreyHistogram(PIXELS, 8), pictures), expected)
    strange = np.asarray([[[np.nan, -5, -np.inf, 300], [np.inf, 0, 1, 255.9]]])
    result = features(sig.GreyHistogram(PIXELS, 4), strange)
    np.testing.assert_allclose(result, [[5 / 8, 0, 0, 3 / 8]])


@pytest.mark.parametrize("directions", [4, 8, 16])
def test_edges_are_those_of_a_loop_over_pixels(pictures, directions):
    result = features(sig.Edges(PIXELS, 3, 2, directions), pictures)
    for p, row in zip(pictures.astype(int), result, strict=True):
        sums = np.zeros((3, 2, directions))
        sizes = np.zeros((3, 2, 1))
        change = np.zeros(2)
        for r in range(22):
            for c in range(16):
                dx, dy = p[r][c + 1] - p[r][c], p[r + 1][c] - p[r][c]
                change += abs(dx), abs(dy)
                cell = next(
                    (i, j)
                    for i, rows in enumerate(cells(22, 3))
                    for j, columns in enumerate(cells(16, 2))
                    if rows.start <= r < rows.stop and columns.start <= c < columns.stop
                )
                k = round(math.atan2(dy, dx) * directions / math.pi) % directions
                sums[(*cell, k)] += math.hypot(dx, dy)
                sizes[cell] += 1
        np.testing.assert_allclose(row[:2], change / (22 * 16), rtol=1e-6)
        np.testing.assert_allclose(row[2:], (sums / sizes).ravel(), rtol=1e-5)


def test_colours_become_grey_and_counts_get_their_unit():
    rng = np.random.default_rng(6)
    colour = rng.integers(0, 256, (3, 6, 8, 3), np.uint8)
    grey = colour @ np.asarray([0.299, 0.587, 0.114]) / 255
    result = features(sig.Thumbnail(sig.Pixels(scale=1 / 255), 6, 8), colour)
    np.testing.assert_allclose(result, grey.reshape(3, -1), rtol=1e-5)


def test_the_difference_of_two_frames(pictures):
    frames = np.stack([pictures, pictures[::-1]], axis=1)
    change = sig.FrameDifference(sig.Frame(0), sig.Frame(1))
    expected = np.abs(frames[:, 1].astype(float) - frames[:, 0])
    result = features(sig.Thumbnail(change, 23, 17), frames)
    np.testing.assert_array_equal(result, expected.reshape(6, -1))
    assert change.label == "difference(image[0], image[1])"


@pytest.mark.parametrize("shape", [(28, 28), (6, 7, 3), (2, 9, 8), (2, 2), (5, 3)])
def test_standard_blocks_of_any_shape(shape):
    blocks = sig.standard_image_blocks(shape, scale=1 / 255)
    pictures = np.random.default_rng(0).integers(0, 256, (3, *shape), np.uint8)
    graph = sig.SignalGraph(blocks)
    assert np.isfinite(graph.transform(pictures)).all()
    assert len(set(graph.feature_names)) == len(graph.feature_names)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(6, 30), st.integers(6, 30), st.integers(1, 5))
def test_a_picture_has_the_same_bits_alone_as_among_others(seed, height, width, n):
    rng = np.random.default_rng(seed)
    change = sig.FrameDifference(sig.Frame(1), sig.Frame(0, scale=0.5))
    graph = sig.SignalGraph([*picture_blocks(sig.Frame(1)), *picture_blocks(change)])
    x = random_picture(rng, n, 2, height, width)
    together, alone = graph.transform(x), np.concatenate([graph.transform(p[None]) for p in x])
    same = (together.view(np.uint32) == alone.view(np.uint32)) | (
        np.isnan(together) & np.isnan(alone)
    )
    assert same.all()


def test_strange_pictures_give_an_array_or_an_input_error():
    rng = np.random.default_rng(8)
    graph = sig.SignalGraph(picture_blocks(PIXELS))
    refused = 0
    for _ in range(250):
        shape = rng.choice([0, 1, 3, 6, 9, 28], rng.choice([2, 3], p=[0.8, 0.2]))
        try:
            result = graph.transform(random_picture(rng, 4, *shape))
        except InputError:
            refused += 1
            continue
        assert result.shape == (4, len(graph.feature_names))
    assert 60 < refused < 230
