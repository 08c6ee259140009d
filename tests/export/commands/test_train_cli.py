"""``gatewise train``: results, refused inputs, and bundles that work with all commands."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from gatewise_export import Bundle
from gatewise_export.packing.verification import graph_decisions
from gatewise_sim.experiment.rows import Rows
from tests.support.bundle_files import read_contents
from tests.support.wine_table import COSTS, load_wine_table, set_cell, write_changed_table

pytestmark = pytest.mark.slow  # fits models or starts processes

RunCommand = Callable[..., tuple[int, str, str]]
AssertRefused = Callable[..., str]


def test_training_prints_its_result_as_json(wine_folder: Path) -> None:
    summary = json.loads((wine_folder / "result.json").read_text())
    assert summary["bundle"] == str(wine_folder / "bundle")
    assert summary["test"]["rows"] == 36  # a fifth of 178
    assert summary["verify"]["differing_decisions"] == 0
    # The cloud reads all features: their prices, and that of the group.
    assert summary["test"]["cloud_only"]["cost"] == pytest.approx(1 + 0.5 + 0.25 + 2 + 0.1 + 1.5)
    manifest = Bundle.open(wine_folder / "bundle").manifest
    assert (manifest.name, manifest.version) == ("wine", "1")
    assert set(manifest.classes) == {"north", "middle", "south"}
    assert [group.name for group in manifest.groups] == ["lab"]
    assert summary["operating_point"]["expected_cost"] == manifest.active_point.cost


def label_by_measures(frame: pd.DataFrame) -> pd.DataFrame:
    """Replace the labels by numbers that are not whole."""
    return frame.assign(cultivar=frame.ash + 0.001)


def label_by_whole_numbers(frame: pd.DataFrame) -> pd.DataFrame:
    """Replace the labels by whole numbers; most of them occur once."""
    return frame.assign(cultivar=(1000 * frame.ash + 100 * frame.hue).astype(int))


def repeat_column(frame: pd.DataFrame) -> pd.DataFrame:
    frame.columns = ["ash", *frame.columns[1:]]
    return frame


INVALID_TABLES: list[tuple[Callable[[pd.DataFrame], Any], str]] = [
    (
        set_cell("ash", np.nan),
        "'ash' is empty (NaN) in 1 of 178 rows (--impute or --allow-missing)",
    ),
    (set_cell("hue", np.inf), "'hue' has infinite values"),
    (
        set_cell("hue", "red"),
        "'hue' is not numbers in 1 row (as 'red') (--na red --impute or --drop hue",
    ),
    (
        lambda frame: frame.assign(hue=frame.hue.map("{} deg".format)),
        "'hue' is not numbers: 78 different",
    ),
    (
        lambda frame: frame.assign(hue="2025-01-03"),
        "'hue' holds dates (as '2025-01-03') (--column hue=time",
    ),
    (
        lambda frame: frame.assign(hue="13.04.2025"),
        "'hue' holds dates (as '13.04.2025') (--column hue=time:%d.%m.%Y",
    ),
    (
        lambda frame: frame.assign(hue="03/04/2025 08:30"),
        "(--column 'hue=time:%d/%m/%Y %H:%M' or --column 'hue=time:%m/%d/%Y %H:%M' or --drop ",
    ),
    (
        lambda frame: frame.assign(ash=np.nan, hue="x"),
        "To mend all: --drop ash --drop hue; or have `gatewise init`",
    ),
    (set_cell("cultivar", "moon"), "class 'moon' has only one row"),
    (set_cell("cultivar", np.nan), "'cultivar' is missing (empty, NA, null) in 1 row"),
    (repeat_column, "column 'ash' occurs twice"),
    (lambda frame: frame.head(0), "has no rows"),
    (lambda frame: frame[frame.cultivar == "north"], ".csv has only one class, 'north'"),
    (lambda frame: frame[["cultivar"]], "no column besides the label"),
    (
        label_by_measures,
        ".csv: Unknown label type: continuous. This learns classes: bin measured values into",
    ),
    (
        label_by_whole_numbers,
        "of them once, as measured values have. This learns classes: bin the values",
    ),
]


@pytest.mark.parametrize(
    ("edit", "message"), INVALID_TABLES, ids=[message for _, message in INVALID_TABLES]
)
def test_invalid_tables_are_refused(
    wine_folder: Path,
    assert_refused: AssertRefused,
    tmp_path: Path,
    edit: Callable[[pd.DataFrame], Any],
    message: str,
) -> None:
    bundle_path = tmp_path / "bundle"
    assert message in assert_refused(
        "train",
        write_changed_table(wine_folder, edit),
        "--target",
        "cultivar",
        "--out",
        bundle_path,
    )
    assert list(tmp_path.iterdir()) == []


def test_prices_of_other_columns_are_refused(
    wine_folder: Path, assert_refused: AssertRefused, tmp_path: Path
) -> None:
    price_file = tmp_path / "prices.toml"
    price_file.write_text(COSTS.replace("hue", "hew"))
    command = ["train", wine_folder / "wine.csv", "--target", "cultivar", "--costs", price_file]
    message = assert_refused(*command, "--out", tmp_path / "bundle")
    assert "no price for feature 'hue'" in message
    assert "prices an unknown feature 'hew'" in message
    assert not (tmp_path / "bundle").exists()


#: Options and part of the error message. All but the first follow ``--target cultivar``.
INVALID_OPTIONS = [
    ("", "say which column is the label"),
    ("--target grape", "no column 'grape'"),
    ("--budget 3 --max-loss 0.1", "only one of"),
    ("--budget -3", "--budget: must be a number of at least 0"),
    ("--budget 9 --max-loss 0.1 --max-loss north=0.1", "only one of"),
    ("--max-loss much", "--max-loss much: give a number, or a class"),
    ("--max-loss 0.1 --max-loss 0.2", "give one loss over all rows"),
    ("--max-loss moon=0.1", "max_loss: there is no class 'moon'"),
    ("--max-loss north=2", "max_loss: 'north' has 2.0"),
    ("--min-recall north=0.1 --min-recall north=0.2", "north=0.2: the class already has a number"),
    ("--method magic", "no method 'magic'"),
    ("--budget 0.5", "below the price of the cheapest feature"),
    ("--column hue=time:%A", "'%A' is not a format of a time"),
    ("--column huge=category", "'huge' is named, but there is no such"),
    ("--column hue=ordinal --column hue=boolean", "hue=boolean: the column has two kinds"),
    ("--column hue=boolean", "'hue' is not true or false in "),
    ("--costs nowhere.toml", "does not exist"),
    ("--method adapt-lin --allow-missing", "does not accept missing"),
]


@pytest.mark.parametrize(
    ("options", "message"), INVALID_OPTIONS, ids=[message for _, message in INVALID_OPTIONS]
)
def test_invalid_options_are_refused(
    wine_folder: Path, assert_refused: AssertRefused, tmp_path: Path, options: str, message: str
) -> None:
    arguments = ["--target", "cultivar", *options.split()] if options else []
    assert message in assert_refused(
        "train", wine_folder / "wine.csv", *arguments, "--out", tmp_path / "bundle"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_truncated_file_is_refused(
    wine_folder: Path, assert_refused: AssertRefused, tmp_path: Path
) -> None:
    table_text = (wine_folder / "wine.csv").read_text()
    (tmp_path / "cut.csv").write_text(table_text[: table_text.rindex(",") - 9])
    message = assert_refused(
        "train", tmp_path / "cut.csv", "--target", "cultivar", "--out", tmp_path / "b"
    )
    assert "line 179: 4 cells under 6 columns; is the file cut short?" in message


def test_semicolons_and_decimal_commas_give_the_same_bundle(
    run_command: RunCommand, tmp_path: Path
) -> None:
    frame = load_wine_table().assign(soil="clay; loam")  # quoted, between semicolons
    frame.loc[:9, "soil"] = "1,5 m sand"
    european = {"index": False, "sep": ";", "decimal": ","}
    outcomes = []
    for name, csv_options in (("points", {"index": False}), ("commas", european)):
        folder = tmp_path / name
        folder.mkdir()
        table, rows, bundle = folder / "wine.csv", folder / "rows.csv", folder / "b"
        frame.to_csv(table, **csv_options)
        frame[:40].rename(columns={"cultivar": "label"}).to_csv(rows, **csv_options)
        arguments = ["--target", "cultivar", "--column", "soil=category", "--method", "adapt-gbrt"]
        command = ["train", table, *arguments, "--max-loss", "0.02", "--out", bundle]
        assert run_command(*command)[0] == 0
        assert run_command("verify", bundle, "--data", rows)[0] == 0
        _, edge_output, _ = run_command("edge", bundle, "--data", rows)
        field_names = ("label", "probabilities", "route", "cost")
        answers = [
            [json.loads(line)[field_name] for field_name in field_names]
            for line in edge_output.splitlines()
        ]
        manifest = Bundle.open(bundle).manifest
        simulated_rows = Rows.load(str(rows), manifest)
        hashes = {file_name: spec.sha256 for file_name, spec in manifest.files.items()}
        outcomes.append((hashes, answers, simulated_rows.X.tolist(), simulated_rows.truth.tolist()))
        assert len(answers) == 40
    assert outcomes[0] == outcomes[1]


def test_an_occupied_path_is_refused_before_the_fit(
    wine_folder: Path, assert_refused: AssertRefused, tmp_path: Path
) -> None:
    thesis_folder = tmp_path / "thesis"
    thesis_folder.mkdir()
    (thesis_folder / "chapter.txt").write_text("one")
    message = assert_refused(
        "train", wine_folder / "wine.csv", "--target", "cultivar", "--out", thesis_folder
    )
    assert "is not a bundle" in message
    assert read_contents(thesis_folder) == {"chapter.txt": b"one"}


def test_max_bytes_limits_the_stages(
    wine_folder: Path, run_command: RunCommand, assert_refused: AssertRefused, tmp_path: Path
) -> None:
    bundle_path = tmp_path / "small"
    data_arguments = [wine_folder / "wine.csv", "--target", "cultivar"]
    status, output, _ = run_command(
        "train", *data_arguments, "--max-bytes", "2KB", "--out", bundle_path, "--json"
    )
    assert status == 0
    manifest = Bundle.open(bundle_path).manifest
    assert json.loads(output)["operating_point"]["bytes"] == manifest.active_point.bytes
    assert all(point.bytes <= 2048 for point in manifest.operating_points)
    miser_options = ["--method", "greedy-miser", "--max-bytes", "2KB", "--out", tmp_path / "none"]
    assert "--max-bytes" in assert_refused("train", *data_arguments, *miser_options)


def test_losses_by_class_hold_with_and_without_another_goal(
    wine_folder: Path, run_command: RunCommand, assert_refused: AssertRefused, tmp_path: Path
) -> None:
    bundle_path = tmp_path / "b"
    loss_options = ["--max-loss", "north=0.3", "--max-loss", "south=0.5"]
    train_command = [
        "train", wine_folder / "wine.csv", "--target", "cultivar", "--method", "adapt-gbrt",
        *loss_options,
    ]  # fmt: skip
    for goal in ([], ["--budget", "5"], ["--max-loss", "0.05"]):
        status, _, message = run_command(*train_command, *goal, "--out", bundle_path, "--json")
        assert (status, message) == (0, "")
        manifest = Bundle.open(bundle_path).manifest
        point = manifest.active_point
        reference_recall = manifest.reference_recall
        middle, north, south = range(3)
        assert point.recall[north] >= reference_recall[north] - 0.3 - 1e-6
        assert point.recall[south] >= reference_recall[south] - 0.5 - 1e-6
        # a bundle stores losses of recall as the remaining recalls
        assert manifest.min_recall[middle] is None
        assert manifest.min_recall[north] == pytest.approx(reference_recall[north] - 0.3, abs=1e-5)
        if "--budget" in goal:
            assert point.cost <= 5
        if "0.05" in goal:
            assert point.accuracy >= manifest.reference_accuracy - 0.05
    best_recall = max(point.recall[south] for point in manifest.operating_points)
    bound_options = ["--min-recall", f"south={best_recall - 1e-6}"]
    assert run_command("frontier", bundle_path, "--budget", "100", *bound_options)[0] == 0
    # the cheapest point is within this budget, but not within the bounds
    message = assert_refused("frontier", bundle_path, "--budget", "1.01")
    assert "remove one with --min-recall LABEL=0 or --min-precision LABEL=0" in message
    for goal in (["--budget", "0.001"], ["--offload-rate", "2"]):  # impossible without bounds too
        assert "remove one" not in assert_refused("frontier", bundle_path, *goal)
    single_model_options = ["--method", "greedy-miser", *loss_options, "--out", tmp_path / "none"]
    assert "'max_loss'" in assert_refused(
        "train", wine_folder / "wine.csv", "--target", "cultivar", *single_model_options
    )


def test_a_lazy_bundle_works_with_all_commands(
    wine_folder: Path, run_command: RunCommand, tmp_path: Path
) -> None:
    bundle_path = tmp_path / "lazy.gwb"
    train_command = ["train", wine_folder / "wine.csv", "--target", "cultivar", "--method", "cegb"]
    status, output, message = run_command(
        *train_command, "--costs", wine_folder / "prices.toml", "--out", bundle_path, "--json"
    )
    assert (status, message) == (0, "")
    report = json.loads(output)["verify"]
    assert report["rows"] == 45
    nonzero_counts = {name for name, count in report.items() if count}
    assert nonzero_counts <= {"rows", "cloud_probability_max_difference"}
    data_options = ["--data", wine_folder / "wine.csv", "--target", "cultivar"]
    status, output, _ = run_command("verify", bundle_path, *data_options, "--json")
    document = json.loads(output)
    assert (status, document["agrees"], document["data"]["max_margin_difference"]) == (0, True, 0)
    status, output, _ = run_command("inspect", bundle_path)
    assert status == 0
    assert "lazy" in output
    assert "up to" in output
    bundle = Bundle.open(bundle_path)
    rows = load_wine_table()[list(bundle.manifest.feature_names)].to_numpy(np.float32)
    status, output, _ = run_command(
        "edge", bundle_path, "--data", wine_folder / "wine.csv", "--policy", "edge-only", "--json"
    )
    assert status == 0
    *answers, summary_line = (json.loads(line) for line in output.splitlines())
    assert summary_line["summary"]["answers"]["edge"] == len(answers) == 178
    expected_answers = graph_decisions(bundle, rows)
    assert [answer["stage"] for answer in answers] == expected_answers.exits.tolist()
    expected_costs = np.round(expected_answers.costs, 9).tolist()
    assert [answer["cost"] for answer in answers] == expected_costs


def test_a_bundle_without_a_cloud_works_with_all_commands(
    wine_folder: Path, run_command: RunCommand, tmp_path: Path
) -> None:
    bundle_path = tmp_path / "alone"
    train = ["train", wine_folder / "wine.csv", "--target", "cultivar", "--method", "greedy-miser"]
    train += ["--name", "cellar", "--bundle-version", "3", "--seed", "1", "--out", bundle_path]
    status, output, message = run_command(*train)
    assert status == 0
    assert "on 45 test rows" in output
    assert "<- active" in output
    assert "100%" in message
    assert message.splitlines().index(f"pack and verify {bundle_path}") > 1
    assert "cloud_only" not in output
    *_, promised, reached, accuracy, verdict, advice = output.splitlines()
    assert promised.startswith("promised: an accuracy of at least 0.")
    assert reached.startswith("reached on 45 rows held out: accuracy 0.")
    assert "; on validation rows 0." in accuracy
    assert verdict.startswith(("kept", "not kept"))
    assert advice.startswith("what to do: ")
    assert re.search(r"^always middle +0\.4000", output, re.M)
    assert "0 of 45 decisions" in output
    status, output, _ = run_command(*train, "--json")
    test_figures = json.loads(output)["test"]
    assert (test_figures["cloud_only"], test_figures["system"]["offload_rate"]) == (None, 0.0)
    manifest = Bundle.open(bundle_path).manifest
    assert (manifest.name, manifest.version, manifest.cloud) == ("cellar", "3", None)
    for command in ("inspect", "verify", "frontier"):
        assert run_command(command, bundle_path)[0] == 0
    status, output, _ = run_command(
        "edge", bundle_path, "--data", wine_folder / "wine.csv", "--json"
    )
    assert status == 0
    assert json.loads(output.splitlines()[-1])["summary"]["answers"]["edge"] == 178


def test_figures_of_few_rows_have_intervals(run_command: RunCommand, tmp_path: Path) -> None:
    table_path = tmp_path / "few.csv"
    frame = load_wine_table()[::5]
    frame.loc[frame.index[[1, 30]], "cultivar"] = "moon"
    frame.to_csv(table_path, index=False)
    train_command = [
        "train", table_path, "--target", "cultivar", "--method", "adapt-gbrt", "--drop", "hue"
    ]  # fmt: skip
    status, output, _ = run_command(*train_command, "--slack", "0", "--out", tmp_path / "b")
    assert status == 0  # both rows of a class of two are training rows
    assert re.search(r"^system +0\.\d\d to \d\.\d\d \(", output, re.M)
    assert re.search(r"^reached on 9 rows held out: .*\(on these rows ", output, re.M)
    assert "hue" not in Bundle.open(tmp_path / "b").manifest.feature_names


def make_machine_log(seed: int = 0) -> pd.DataFrame:
    """Make a log of 16 machines with 25 successive rows each."""
    rng = np.random.default_rng(seed)
    offset = np.repeat(rng.normal(size=16), 25)
    is_fault = rng.random(400) < 0.5
    hours = pd.date_range("2024-01-01", periods=400, freq="h")
    return pd.DataFrame(
        {
            "machine": np.repeat([f"m{i:02}" for i in range(16)], 25),
            "when": hours.strftime("%d.%m.%Y %H:%M"),
            "temp": 1.2 * is_fault + offset + 0.5 * rng.normal(size=400),
            "vibration": 1.2 * is_fault + 0.6 * rng.normal(size=400),
            "state": np.where(is_fault, "fault", "ok"),
        }
    )


def test_whole_groups_or_the_latest_rows_are_held_out(
    run_command: RunCommand, assert_refused: AssertRefused, tmp_path: Path
) -> None:
    log = tmp_path / "log.csv"
    frame = make_machine_log()
    frame.to_csv(log, index=False)
    train_command = ["train", log, "--target", "state", "--method", "cegb", "--json"]
    status, output, _ = run_command(
        *train_command, "--groups", "machine", "--column", "when=drop", "--out", tmp_path / "a"
    )
    summary = json.loads(output)
    assert (status, summary["test"]["groups"]) == (0, 4)
    assert summary["operating_point"]["validation_groups"] == 12
    held_out_rows = pd.read_csv(tmp_path / "a-test.csv")
    assert [*held_out_rows] == ["temp", "vibration", "label"]  # without the machine
    groups = frame.machine[frame.temp.isin(held_out_rows.temp)].value_counts()
    assert sorted(groups) == [25, 25, 25, 25]
    manifest = Bundle.open(tmp_path / "a").manifest
    assert [feature.name for feature in manifest.features] == ["temp", "vibration"]
    assert run_command("verify", tmp_path / "a", "--data", tmp_path / "a-test.csv")[0] == 0

    # `init` lists every column; an option that drops a column also ignores its price.
    assert run_command("init", log, "--target", "state", "--out", tmp_path / "prices.toml")[0] == 0
    train_command += ["--costs", tmp_path / "prices.toml"]
    split_options = ["--time-split", "when=%d.%m.%Y %H:%M", "--column", "machine=drop"]
    assert run_command(*train_command, *split_options, "--out", tmp_path / "b")[0] == 0
    held_out_rows = pd.read_csv(tmp_path / "b-test.csv")
    # The latest quarter of 400 rows.
    assert held_out_rows.temp.tolist() == pytest.approx(frame.temp[-100:].tolist())

    for options, message in [
        (["--groups", "who"], "'who' is named, but there is no such column"),
        (["--groups", "machine", "--time-split", "when"], "is not a date"),
    ]:
        assert message in assert_refused(
            *train_command, *options, "--column", "when=drop", "--out", tmp_path / "c"
        )
