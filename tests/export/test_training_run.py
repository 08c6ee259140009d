"""The way from a table to a bundle that the command ``train`` and the demo share."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_iris

from gatewise.errors import InputError
from gatewise_export.training_run import (
    TrainingSettings,
    load_dataset,
    recipe_version,
    split_rows,
    topic_level,
    train_bundle,
)


@pytest.fixture
def settings(tmp_path: Path) -> TrainingSettings:
    return TrainingSettings(dataset="iris", out=tmp_path / "bundle", method="confidence")


def test_a_run_hands_over_the_system_its_bundle_and_the_test_rows(
    settings: TrainingSettings,
) -> None:
    run = train_bundle(replace(settings, test_rows=20, version=None), quiet=True)
    assert run.verification.rows == len(run.split.test) == len(run.test_labels) == 20
    assert run.verification.agrees
    assert run.bundle.path == settings.out
    assert list(run.seconds) == ["load", "train", "pack"]
    assert run.measure()["rows"] == 20
    assert list(run.test_table.columns) == list(run.bundle.manifest.feature_names)
    header, *lines = run.test_csv().splitlines()
    assert header.split(",") == [*run.data.feature_names, "label"]
    values = np.array([line.split(",")[:-1] for line in lines], np.float32)
    assert np.array_equal(values, run.data.X[run.split.test])
    assert [line.split(",")[-1] for line in lines] == run.test_labels.tolist()
    assert len(run.bundle.manifest.version) == 12


def test_equal_settings_and_data_share_a_version(settings: TrainingSettings) -> None:
    data = load_dataset(settings)
    elsewhere = replace(settings, out=settings.out.with_name("other"))
    other = replace(settings, seed=1)
    assert recipe_version(data, settings) == recipe_version(data, elsewhere)
    assert recipe_version(data, settings) != recipe_version(data, other)


def test_a_data_set_s_own_split_is_kept(settings: TrainingSettings, tmp_path: Path) -> None:
    x, y = load_iris(return_X_y=True)
    part = np.arange(len(y)) % 3
    np.savez(tmp_path / "table.npz", X=x, y=y, part=part)
    settings = replace(settings, dataset=str(tmp_path / "table.npz"))
    split = split_rows(load_dataset(settings), settings)
    for number, rows in enumerate((split.training, split.validation, split.test)):
        assert rows.tolist() == np.flatnonzero(part == number).tolist()


@pytest.mark.parametrize("change", [{"test_rows": 1000}, {"test_rows": 0}, {"test_size": 1.5}])
def test_test_rows_that_cannot_be_held_out(
    settings: TrainingSettings, change: dict[str, float]
) -> None:
    settings = replace(settings, **change)  # type: ignore[arg-type]
    with pytest.raises(InputError):
        split_rows(load_dataset(settings), settings)


def test_a_method_without_a_cloud_is_refused_where_one_is_needed(
    settings: TrainingSettings,
) -> None:
    with pytest.raises(InputError, match="cegb"):
        train_bundle(replace(settings, method="cegb", needs_cloud=True, goal={}), quiet=True)


@pytest.mark.parametrize(
    ("name", "level"), [("wine", "wine"), ("a/b+c#", "a-b-c-"), ("", "model"), ("x" * 80, "x" * 64)]
)
def test_a_name_becomes_a_topic_level(name: str, level: str) -> None:
    assert topic_level(name) == level
