"""Tests that patch features are cached, ignore brightness and depend on position."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from benchmarks.data import images, problems


@pytest.fixture(scope="module")
def jpeg_images():
    """Bytes of 50 images and of 50 brighter copies, and where each image begins."""
    rng = np.random.default_rng(0)
    # smooth images with low contrast, then brighter copies of them
    dark_images = rng.integers(60, 120, (50, 8, 8, 3)).repeat(4, axis=1).repeat(4, axis=2)
    encoded_images = []
    for pixels in np.concatenate([dark_images, dark_images + 60]).astype(np.uint8):
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "jpeg", quality=100, subsampling=0)
        encoded_images.append(np.frombuffer(buffer.getvalue(), np.uint8))
    return np.concatenate(encoded_images), np.cumsum([0, *map(len, encoded_images)])


@pytest.mark.slow
def test_features_are_cached_and_ignore_brightness(jpeg_images, tmp_path, monkeypatch):
    cache_file = tmp_path / "features.npz"
    features = images.patch_features(*jpeg_images, cache_file)
    assert features.shape == (100, 4 * images.N_CENTROIDS)  # one part for each quarter
    assert features.dtype == np.float32
    assert (features >= 0).all()
    brightness_gap = np.abs(features[:50] - features[50:]).mean()
    image_gap = np.abs(features[:49] - features[1:50]).mean()
    # compression changes the copies a little, but far less than images differ
    assert brightness_gap < 0.2 * image_gap
    monkeypatch.setattr(images, "_decode", None)
    assert np.array_equal(images.patch_features(*jpeg_images, cache_file), features)
    assert [path.name for path in tmp_path.iterdir()] == ["features.npz"]


def test_each_quarter_pools_its_part_of_the_image():
    activation = np.zeros((1, 14, 14, images.N_CENTROIDS), np.float32)
    activation[0, 2, 9, 7] = 1.0  # above, to the right: the second quarter
    pooled = images._pool(activation.reshape(1, -1, images.N_CENTROIDS))
    assert np.flatnonzero(pooled[0]).tolist() == [images.N_CENTROIDS + 7]


def test_cifar_combines_the_first_and_the_last_five_classes(monkeypatch):
    """BudgetRF, section 3: "combining the first 5 classes into one class"."""
    labels = np.tile(np.arange(10), 9)
    arrays = {"jpeg": None, "offset": None, "y": labels, "part": np.repeat([0, 0, 1], 30)}
    row_numbers = np.arange(90, dtype=np.float32)[:, None]
    monkeypatch.setattr(problems, "data_arrays", lambda _name: arrays)
    monkeypatch.setattr(problems, "_hash_data_file", lambda _name: "0" * 64)
    monkeypatch.setattr(problems.images, "patch_features", lambda *_: row_numbers)
    (fold,) = problems._make_cifar10("cifar10").make_folds(0)
    for X, y in (fold.train, fold.test):
        np.testing.assert_array_equal(y, labels[X[:, 0].astype(int)] >= 5)
    assert sorted(fold.test[0][:, 0]) == list(range(60, 90))
