"""Patch features: kept once made, blind to brightness, alive to where things are."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from benchmarks.data import images, problems


@pytest.fixture(scope="module")
def files():
    rng = np.random.default_rng(0)
    # smooth images of little contrast, then the same ones brighter
    coarse = rng.integers(60, 120, (50, 8, 8, 3)).repeat(4, axis=1).repeat(4, axis=2)
    found = []
    for pixels in np.concatenate([coarse, coarse + 60]).astype(np.uint8):
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "jpeg", quality=100, subsampling=0)
        found.append(np.frombuffer(buffer.getvalue(), np.uint8))
    return np.concatenate(found), np.cumsum([0, *map(len, found)])


def test_features_are_made_once_and_see_no_brightness(files, tmp_path, monkeypatch):
    kept = tmp_path / "features.npz"
    made = images.patch_features(*files, kept)
    assert made.shape == (100, 400)
    assert made.dtype == np.float32
    assert (made >= 0).all()
    gap = np.abs(made[:50] - made[50:]).mean()
    other = np.abs(made[:49] - made[1:50]).mean()
    assert gap < 0.2 * other
    monkeypatch.setattr(images, "_decode", None)
    assert np.array_equal(images.patch_features(*files, kept), made)
    assert [p.name for p in tmp_path.iterdir()] == ["features.npz"]


def test_a_quarter_sees_its_own_part_of_the_image():
    active = np.zeros((1, 14, 14, images.CENTROIDS), np.float32)
    active[0, 2, 9, 7] = 1.0  # above, to the right: the second quarter
    pooled = images._pool(active.reshape(1, -1, images.CENTROIDS))
    assert np.flatnonzero(pooled[0]).tolist() == [images.CENTROIDS + 7]


def test_cifars_classes_are_the_last_five_against_the_first_five(monkeypatch):
    """BudgetRF, section 3: "combining the first 5 classes into one class"."""
    labels = np.tile(np.arange(10), 9)
    arrays = {"jpeg": None, "offset": None, "y": labels, "part": np.repeat([0, 0, 1], 30)}
    number = np.arange(90, dtype=np.float32)[:, None]
    monkeypatch.setattr(problems, "data_arrays", lambda _name: arrays)
    monkeypatch.setattr(problems, "_sha", lambda _name: "0" * 64)
    monkeypatch.setattr(problems.images, "patch_features", lambda *_: number)
    (fold,) = problems._cifar10("cifar10").deal(0)
    for x, y in (fold.train, fold.test):
        np.testing.assert_array_equal(y, labels[x[:, 0].astype(int)] >= 5)
    assert sorted(fold.test[0][:, 0]) == list(range(60, 90))
