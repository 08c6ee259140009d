"""Train a bundle from a table, as ``gatewise train`` and the demo do."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from msgspec.structs import replace
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier

import gatewise as gw
from gatewise.errors import GatewiseError, InputError
from gatewise_edge.sensors.table import read_table
from gatewise_export import training_run
from gatewise_export.packing.verification import verify
from gatewise_export.training_data import load_dataset, split_rows
from gatewise_export.training_run import neighbour_path, train_bundle
from gatewise_export.training_settings import TrainingSettings
from tests.support.machine_table import draw_machines

#: Parameters for a fast fit; by default several kinds of models are tried.
FAST_PARAMETERS = {
    "high_cost_model": LogisticRegression(max_iter=3000),
    "low_cost_model": "linear",
    "n_subsets": 3,
}


@pytest.fixture
def settings(tmp_path: Path) -> TrainingSettings:
    return TrainingSettings(
        dataset="iris", out=tmp_path / "bundle", method="confidence", parameters=FAST_PARAMETERS
    )


def test_a_run_returns_the_system_the_bundle_and_the_test_rows(settings: TrainingSettings) -> None:
    run = train_bundle(replace(settings, test_rows=20), quiet=True)
    assert run.verification.rows == len(run.split.test) == len(run.test_labels) == 20
    assert run.verification.agrees
    assert run.bundle.path == settings.out
    assert list(run.seconds) == ["load", "train", "pack"]
    assert run.measure()["rows"] == 20
    assert list(run.test_table.columns) == list(run.bundle.manifest.feature_names)
    header, *lines = run.test_csv().splitlines()
    assert header.split(",") == [*run.data.feature_names, "label"]
    csv_rows = np.array([line.split(",")[:-1] for line in lines], np.float32)
    assert np.array_equal(csv_rows, run.data.X[run.split.test])
    assert [line.split(",")[-1] for line in lines] == run.test_labels.tolist()


def test_the_split_of_a_data_set_is_used(settings: TrainingSettings, tmp_path: Path) -> None:
    X, y = load_iris(return_X_y=True)
    part = np.arange(len(y)) % 3  # 0 for training, 1 for validation, 2 for test rows
    np.savez(tmp_path / "table.npz", X=X, y=y, part=part, subject=part)
    settings = replace(settings, dataset=str(tmp_path / "table.npz"))
    for groups in (None, "subject"):  # every subject is in one part
        settings = replace(settings, groups=groups)
        split = split_rows(load_dataset(settings), settings)
        for part_number, rows in enumerate((split.training, split.validation, split.test)):
            assert rows.tolist() == np.flatnonzero(part == part_number).tolist()


@pytest.mark.parametrize(
    ("part_name", "change", "message"),
    [
        ("mixed", {"groups": "subject"}, r"--groups subject: .* rows of one group in two parts"),
        ("mixed", {"time_split": "day"}, r"--time-split day: .* later than test rows"),
        ("thirds", {"time_split": "day"}, "already has validation rows"),
        ("ones", {}, "the array 'part' marks no training rows"),
        ("zeros", {}, "the array 'part' marks no test rows"),
    ],
)
def test_part_array_that_contradicts_the_options_is_refused(
    settings: TrainingSettings, tmp_path: Path, part_name: str, change: dict[str, Any], message: str
) -> None:
    X, y = load_iris(return_X_y=True)
    row_numbers = np.arange(len(y))
    part_arrays = {
        "mixed": row_numbers % 4 == 0,
        "thirds": row_numbers // 50,
        "ones": row_numbers >= 0,
        "zeros": row_numbers < 0,
    }
    np.savez(
        tmp_path / "t.npz",
        X=X,
        y=y,
        part=part_arrays[part_name],
        subject=row_numbers // 10,
        day=row_numbers,
    )
    settings = replace(settings, dataset=str(tmp_path / "t.npz"), **change)
    with pytest.raises(InputError, match=message):
        split_rows(load_dataset(settings), settings)


@pytest.mark.parametrize("test_share", [0.1, 0.25, 0.4, 0.45, 0.6, 0.75])
def test_whole_groups_are_held_out_near_the_share(
    settings: TrainingSettings, tmp_path: Path, test_share: float
) -> None:
    X, y = load_iris(return_X_y=True)
    subject = np.arange(len(y)) // 2
    y[subject == 3] = 9  # only one group has this class
    np.savez(tmp_path / "t.npz", X=X, y=y, subject=subject)
    change = {"dataset": str(tmp_path / "t.npz"), "groups": "subject", "test_size": test_share}
    settings = replace(settings, **change)  # type: ignore[arg-type]
    split = split_rows(load_dataset(settings), settings)
    # Groups of two rows, and the same share of each class.
    assert len(split.test) == pytest.approx(test_share * len(y), abs=8)
    assert not np.isin(subject[split.training], subject[split.test]).any()
    assert set(y[split.training]) == {0, 1, 2, 9}
    assert sorted([*split.training, *split.test]) == list(range(len(y)))


@pytest.mark.parametrize(
    "change", [{"test_rows": 1000}, {"test_rows": 0}, {"test_size": 1.5}, {"test_size": 0.001}]
)
def test_impossible_shares_of_test_rows_are_refused(
    settings: TrainingSettings, change: dict[str, float]
) -> None:
    settings = replace(settings, **change)  # type: ignore[arg-type]
    with pytest.raises(InputError):
        split_rows(load_dataset(settings), settings)


def test_needs_cloud_refuses_a_method_without_a_cloud(settings: TrainingSettings) -> None:
    with pytest.raises(InputError, match="cegb"):
        train_bundle(replace(settings, method="cegb", needs_cloud=True, parameters={}), quiet=True)


def test_unreachable_budget_gives_the_nearest_point(settings: TrainingSettings) -> None:
    settings = replace(settings, budget=0.5)
    run = train_bundle(settings, quiet=True)
    (trouble,) = run.troubles
    assert "no operating point costs at most 0.5; the cheapest costs" in trouble
    assert run.bundle.manifest.active_point.cost == run.system.frontier_.points[0].cost


@pytest.mark.slow
@pytest.mark.parametrize("is_folder_writable", [True, False])
def test_a_system_is_saved_when_packing_fails_and_can_be_packed_later(
    settings: TrainingSettings,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    *,
    is_folder_writable: bool,
) -> None:
    folder = tmp_path / "folder"
    settings = replace(settings, out=folder / "bundle")
    obstacle = settings.out if is_folder_writable else folder

    # The run checks the path before it splits the rows, and writes to it only after the fit.
    def split_rows_and_break_packing(*arguments: Any, **options: Any) -> Any:
        obstacle.parent.mkdir(exist_ok=True)
        obstacle.write_text("in the way")
        return split_rows(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(training_run, "split_rows", split_rows_and_break_packing)
        with pytest.raises(
            GatewiseError,
            match="exists and is a file" if is_folder_writable else "cannot be written",
        ):
            train_bundle(settings, quiet=True)
    obstacle.unlink()
    assert (folder / "bundle-fitted.joblib").is_file() is is_folder_writable
    note = capsys.readouterr().err
    advice = re.search(r"saved to (?P<file>.+); pack it in Python with (?P<call>gw\.pack.+)", note)
    assert advice is not None, note
    bundle = eval(advice["call"], {"gw": gw, "joblib": joblib})  # users copy this call
    assert bundle.path == settings.out
    system = joblib.load(advice["file"])["system"]
    assert verify(system, bundle, load_dataset(settings).X).agrees


@pytest.mark.slow
def test_a_request_larger_than_a_message_is_refused(settings: TrainingSettings) -> None:
    # A request of the four features of iris: 69 bytes and 4 float32.
    with pytest.raises(InputError, match="would have 85 bytes, more than max_message=84"):
        train_bundle(replace(settings, max_message=84), quiet=True)
    assert train_bundle(replace(settings, max_message=85), quiet=True).verification.agrees


@pytest.mark.parametrize(
    "change", [{"name": "a/b"}, {"name": ""}, {"name": "ä" * 33}, {"version": "v" * 65}]
)
def test_invalid_bundle_names_are_refused_before_the_fit(
    settings: TrainingSettings, change: dict[str, Any]
) -> None:
    with pytest.raises(InputError, match=r"cannot be a level of MQTT topics: give 1 to 64"):
        train_bundle(replace(settings, **{"dataset": "nothing"} | change), quiet=True)


def test_invalid_column_names_are_refused_before_the_fit(
    settings: TrainingSettings, tmp_path: Path
) -> None:
    rows = np.arange(40.0).reshape(20, 2)
    table = tmp_path / "table.npz"
    for column_names, message in (
        (["Temp\n(C)", "x" * 300], r"cannot hold: 'Temp\\n\(C\)' .*; 'x{64}' .* not 300"),
        (["a", " b"], "cannot hold: ' b' begins or ends with a space"),
    ):
        np.savez(table, X=rows, y=np.arange(20) % 2, feature_names=np.array(column_names))
        with pytest.raises(InputError, match=message):
            train_bundle(replace(settings, dataset=str(table)), quiet=True)


def test_unusable_paths_are_refused_before_the_data_is_read(
    settings: TrainingSettings, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    rows_file = tmp_path / "rows.csv"
    rows_file.write_text("mine\n")
    for change, message in (
        ({"out": tmp_path / "file" / "bundle"}, "cannot be written: Not a directory"),
        ({"out": Path()}, "a bundle needs a name"),
        ({"out": tmp_path / ".."}, "a bundle needs a name"),
        ({"out": tmp_path / ("x" * 250)}, "cannot be written: File name too long"),
        ({"rows": rows_file}, r"the test rows would overwrite .*rows\.csv: move"),
        ({"rows": rows_file, "dataset": str(rows_file)}, "the test rows would overwrite the data"),
    ):
        with pytest.raises(GatewiseError, match=message):
            train_bundle(replace(settings, **{"dataset": "nothing"} | change), quiet=True)
    assert rows_file.read_text() == "mine\n"


@pytest.mark.slow
def test_the_bundle_of_a_raw_table_reads_raw_columns(tmp_path: Path) -> None:
    frame, y = draw_machines()
    # a dropped column holds carriage returns, as free text may
    frame["serial"] += "\rnew"
    frame.assign(state=y).to_csv(tmp_path / "log.csv", index=False, quoting=csv.QUOTE_NONNUMERIC)
    (tmp_path / "prices.toml").write_text(
        'default = 2\n[features]\nserial = {kind = "drop"}\nwhen = {own = 1, kind = "time"}\n'
        "[cloud]\nrequest = 3\n"
    )
    settings = TrainingSettings(
        dataset=str(tmp_path / "log.csv"), out=tmp_path / "bundle", target="state",
        method="confidence", parameters=FAST_PARAMETERS, costs=tmp_path / "prices.toml",
        rows=neighbour_path(tmp_path / "bundle", "test.csv"),
        column=("supplier=category",), impute=True,
    )  # fmt: skip
    run = train_bundle(settings, quiet=True)
    assert run.verification.agrees
    manifest = run.bundle.manifest
    assert manifest.column_names == ("supplier", "when", "mass", "heat", "ok")
    assert manifest.feature_costs().total == 9.0  # when 1, and the default 2 for four others
    assert manifest.cloud_prices().request == 3.0
    test_csv = read_table(tmp_path / "bundle-test.csv", manifest.column_names, manifest.encoder)
    assert test_csv.ignored_columns == ("serial", "label")
    assert np.array_equal(manifest.encoder.rows(test_csv.rows), run.data.X[run.split.test])
    without_impute = replace(settings, impute=False)
    with pytest.raises(InputError, match=r"'heat' is empty \(NaN\).*--impute or --allow-missing"):
        train_bundle(without_impute, quiet=True)


@pytest.mark.slow
def test_a_remark_names_a_high_cost_model_that_the_stages_surpass(
    settings: TrainingSettings, tmp_path: Path
) -> None:
    X = np.random.default_rng(0).normal(size=(600, 6))
    np.savez(tmp_path / "sums.npz", X=X, y=X.sum(axis=1) > 0)
    settings = replace(settings, dataset=str(tmp_path / "sums.npz"))
    assert not any("high-cost model" in remark for remark in train_bundle(settings).remarks)
    weak_model = FAST_PARAMETERS | {"high_cost_model": DecisionTreeClassifier(max_depth=1)}
    run = train_bundle(replace(settings, parameters=weak_model), quiet=True)
    (remark,) = (text for text in run.remarks if "high-cost model" in text)
    command = remark.partition("gatewise frontier ")[2].partition(")")[0]
    path_text, option, budget = command.split()
    assert (path_text, option) == (str(settings.out), "--budget")
    # the budget of the advice allows the most accurate point, which is not the active one
    best_point = max(run.system.frontier_.points, key=lambda point: point.accuracy)
    assert run.system.at(budget=float(budget)).operating_point_ == best_point
    assert best_point.accuracy > run.system.operating_point_.accuracy + 0.02
    budget_run = train_bundle(replace(settings, parameters=weak_model, budget=float(budget)))
    assert not any("high-cost model" in text for text in budget_run.remarks)


def test_a_split_by_time_reads_dates_that_look_like_numbers_in_their_format(tmp_path):
    months = [f"{month:02}.{year}" for year in (2023, 2024) for month in range(1, 13)]
    lines = [f"{row % 7},{month},{row % 2}" for row, month in enumerate(months)]
    path = tmp_path / "months.csv"
    path.write_text("\n".join(["a,month,y", *lines]) + "\n")
    settings = TrainingSettings(
        dataset=str(path), out=tmp_path / "bundle", target="y", time_split="month=%m.%Y"
    )
    split = split_rows(load_dataset(settings), settings)
    assert split.test.tolist() == list(range(24 - len(split.test), 24))
