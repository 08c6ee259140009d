"""Rows that training saw are named, those that it has not are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_wine

from gatewise_export import Bundle
from gatewise_export.bundle.bundle import set_operating_point
from gatewise_export.bundle.repacking import repack
from gatewise_export.seen_rows import SeenRows
from tests.support.bundle_files import replace_file


def test_only_rows_that_were_seen_are_counted() -> None:
    x = load_wine().data.astype(np.float32)
    seen = SeenRows.fingerprinted(x[:100], x[100:])
    assert seen.by_chance == 0
    assert (seen.count(x[:100]), seen.count(x[100:]), seen.count(x[90:120])) == (100, 0, 10)
    nudged = x[:100].copy()
    nudged[:, 3] = np.nextafter(nudged[:, 3], np.float32(np.inf))
    assert seen.count(nudged) == 0
    assert seen.count(x[:100, ::-1]) == 0
    assert seen.remark(0, 78) is None
    assert "saw 10 of these 30 rows: figures" in str(seen.remark(10, 30))


def test_missing_values_and_zeros_are_equal_however_they_are_written() -> None:
    other_nan = np.array([0x7FC00001], np.uint32).view(np.float32)[0]
    assert np.isnan(other_nan)
    seen = SeenRows.fingerprinted(
        np.array([[np.nan, 0.0]], np.float32), np.zeros((1, 2), np.float32)
    )
    assert seen.count(np.array([[other_nan, -0.0]], np.float32)) == 1


def test_rows_that_few_values_make_equal_raise_no_alarm() -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 4, (4000, 3)).astype(np.float32)  # 64 possible rows
    seen = SeenRows.fingerprinted(x[:60], x[60:2000])
    assert 0.4 < seen.by_chance < 0.8
    alarms = [seen.remark(seen.count(part), 100) for part in np.split(x[2000:], 20)]
    assert sum(alarm is not None for alarm in alarms) <= 1
    assert seen.remark(seen.count(x[:60]), 60) is not None


@pytest.mark.parametrize("name", ["bundle", "bundle.gwb"])
def test_the_file_is_of_one_bundle_at_any_operating_point(
    name: str, tmp_path: Path, write_bundle: Callable[..., Path]
) -> None:
    made = write_bundle()
    bundle = repack(made, tmp_path / "new" / name)
    assert SeenRows.find(bundle) is None
    rows = np.eye(3, dtype=np.float32)
    SeenRows.fingerprinted(rows[:2], rows[2:]).write(bundle)
    moved = set_operating_point(bundle.path, 1 - bundle.manifest.active)
    found = SeenRows.find(moved)
    assert found is not None
    assert (found.count(rows), found.by_chance) == (2, 0.0)
    made.rename(tmp_path / "other")
    (tmp_path / "new" / "bundle-seen.npz").rename(tmp_path / "other-seen.npz")
    assert SeenRows.find(Bundle.open(tmp_path / "other")) is not None  # the same files
    stage = tmp_path / "other" / "stage_0.onnx"
    replace_file(tmp_path / "other", stage.name, b"another graph")
    assert SeenRows.find(Bundle.open(tmp_path / "other")) is None
