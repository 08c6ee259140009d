"""The way from a table to a bundle that the command ``train`` and the demo share."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

from gatewise.errors import GatewiseError, InputError
from gatewise_edge.sensors.table import read_cells
from gatewise_export import Bundle, training_run
from gatewise_export.training_run import (
    TrainingSettings,
    load_dataset,
    recipe_version,
    rows_beside,
    split_rows,
    topic_level,
    train_bundle,
)
from gatewise_training.data.table_columns import ColumnOptions
from tests.support.machine_table import machine_table


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


#: In a moment; without it several kinds of high-cost model are tried.
QUICK = {"high_cost_model": LogisticRegression(max_iter=3000)}


def test_a_goal_out_of_reach_loses_no_training(settings: TrainingSettings) -> None:
    settings = replace(settings, goal={"budget": 0.5}, parameters=QUICK)
    run = train_bundle(settings, quiet=True)
    (trouble,) = run.troubles
    assert "no operating point costs at most 0.5; the cheapest costs" in trouble
    assert run.bundle.manifest.active_point.expected_cost == run.system.frontier_.points[0].cost


def test_a_place_that_vanishes_while_training_loses_nothing(
    settings: TrainingSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(*args: Any, **more: Any) -> Any:
        settings.out.mkdir()
        (settings.out / "notes.txt").write_text("mine")
        return split_rows(*args, **more)

    monkeypatch.setattr(training_run, "split_rows", fill)
    run = train_bundle(replace(settings, parameters=QUICK), quiet=True)
    (trouble,) = run.troubles
    assert str(run.bundle.path) in trouble
    assert Bundle.open(run.bundle.path).manifest == run.bundle.manifest
    assert (settings.out / "notes.txt").read_text() == "mine"


def test_places_that_cannot_be_are_refused_before_the_data_is_read(
    settings: TrainingSettings, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    rows = tmp_path / "rows.csv"
    rows.write_text("mine\n")
    for change, says in (
        ({"out": tmp_path / "file" / "bundle"}, "cannot be written: Not a directory"),
        ({"out": tmp_path / ("x" * 250)}, "cannot be written: File name too long"),
        ({"rows": rows}, "rows.csv exists, where the test rows would be written"),
        ({"rows": rows, "dataset": str(rows)}, "the data itself"),
    ):
        with pytest.raises(GatewiseError, match=says):
            train_bundle(replace(settings, **{"dataset": "nothing"} | change), quiet=True)
    assert rows.read_text() == "mine\n"


def test_a_raw_table_becomes_a_bundle_that_takes_it(tmp_path: Path) -> None:
    frame, y = machine_table()
    frame.assign(state=y).to_csv(tmp_path / "log.csv", index=False)
    (tmp_path / "prices.toml").write_text(
        'default = 2\n[features]\nserial = {kind = "drop"}\nwhen = {own = 1, kind = "time"}\n'
        "[cloud]\nrequest = 3\n"
    )
    settings = TrainingSettings(
        dataset=str(tmp_path / "log.csv"), out=tmp_path / "bundle", target="state",
        method="confidence", parameters=QUICK, costs=tmp_path / "prices.toml",
        rows=rows_beside(tmp_path / "bundle"),
        columns=ColumnOptions(categorical=("supplier",), impute=True),
    )  # fmt: skip
    run = train_bundle(settings, quiet=True)
    assert run.verification.agrees
    manifest, test = run.bundle.manifest, run.split.test
    assert manifest.column_names == ("supplier", "when", "mass", "heat", "ok")
    assert manifest.feature_costs().total == 9.0
    assert manifest.cloud_prices().request == 3.0
    cells, others = read_cells(tmp_path / "bundle-test.csv", manifest.encoder)
    assert others == ("serial", "state")
    assert np.array_equal(manifest.encoder.rows(cells), run.data.X[test])
    again = replace(settings, columns=ColumnOptions(categorical=("supplier",)))
    with pytest.raises(InputError, match=r"'heat' is empty \(NaN\).*--impute or --allow-missing"):
        train_bundle(again, quiet=True)
