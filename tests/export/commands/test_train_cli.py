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
from gatewise_export.packing.verification import graph_outcome
from tests.support.bundle_files import read_contents
from tests.support.wine_table import COSTS, load_wine_table, set_cell, write_changed_table

pytestmark = pytest.mark.slow  # fits models or starts processes

Run = Callable[..., tuple[int, str, str]]
Refused = Callable[..., str]


def test_training_prints_its_result_as_json(home: Path) -> None:
    result = json.loads((home / "result.json").read_text())
    assert result["bundle"] == str(home / "bundle")
    assert result["test"]["rows"] == 36
    assert result["verify"]["differing_decisions"] == 0
    assert result["test"]["cloud_only"]["cost"] == pytest.approx(1 + 0.5 + 0.25 + 2 + 0.1 + 1.5)
    manifest = Bundle.open(home / "bundle").manifest
    assert (manifest.name, manifest.version) == ("wine", "1")
    assert set(manifest.classes) == {"north", "middle", "south"}
    assert [g.name for g in manifest.groups] == ["lab"]
    assert result["operating_point"]["expected_cost"] == manifest.active_point.cost


def measure_labels(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(cultivar=frame.ash + 0.001)


def count_labels(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(cultivar=(1000 * frame.ash + 100 * frame.hue).astype(int))


def double_a_column(frame: pd.DataFrame) -> pd.DataFrame:
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
    (lambda f: f.assign(hue=f.hue.map("{} deg".format)), "'hue' is not numbers: 78 different"),
    (
        lambda f: f.assign(hue="2025-01-03"),
        "'hue' holds dates (as '2025-01-03') (--column hue=time",
    ),
    (
        lambda f: f.assign(hue="13.04.2025"),
        "'hue' holds dates (as '13.04.2025') (--column hue=time:%d.%m.%Y",
    ),
    (
        lambda f: f.assign(hue="03/04/2025 08:30"),
        "(--column 'hue=time:%d/%m/%Y %H:%M' or --column 'hue=time:%m/%d/%Y %H:%M' or --drop ",
    ),
    (
        lambda f: f.assign(ash=np.nan, hue="x"),
        "To mend all: --drop ash --column hue=category; or have `gatewise init`",
    ),
    (set_cell("cultivar", "moon"), "class 'moon' has only one row"),
    (set_cell("cultivar", np.nan), "'cultivar' is missing in 1 row"),
    (double_a_column, "column name 'ash' stands twice"),
    (lambda f: f.head(0), "has no rows"),
    (lambda f: f[f.cultivar == "north"], "only one class"),
    (lambda f: f[["cultivar"]], "no column beside the label"),
    (
        measure_labels,
        "label type: continuous. This learns classes: bin measured values into classes",
    ),
    (count_labels, "of them once, as measured values have. This learns classes: bin the values"),
]


@pytest.mark.parametrize(
    ("edit", "message"), INVALID_TABLES, ids=[message for _, message in INVALID_TABLES]
)
def test_invalid_tables_are_refused(
    home: Path, refused: Refused, tmp_path: Path, edit: Callable[[pd.DataFrame], Any], message: str
) -> None:
    out = tmp_path / "bundle"
    assert message in refused(
        "train", write_changed_table(home, edit), "--target", "cultivar", "--out", out
    )
    assert list(tmp_path.iterdir()) == []


INVALID_COSTS = [
    (COSTS.replace("hue = 0.1", "hue = -0.1"), "features.hue: must be a number of at least"),
    (COSTS.replace("hue = 0.1", ""), "no price for feature 'hue'"),
    (COSTS.replace("hue", "hew"), "'hue'"),
    (COSTS.replace("hue = 0.1", "hue = 0.1\nflavour = 1"), "unknown feature 'flavour'"),
    (COSTS.replace("1.5", "nan"), "groups.lab: must be a number of at least 0, not NaN"),
    ("[features", "prices.toml"),
]


@pytest.mark.parametrize(
    ("costs", "message"), INVALID_COSTS, ids=[message for _, message in INVALID_COSTS]
)
def test_invalid_costs_are_refused(
    home: Path, refused: Refused, tmp_path: Path, costs: str, message: str
) -> None:
    file = tmp_path / "prices.toml"
    file.write_text(costs)
    args = ["train", home / "wine.csv", "--target", "cultivar", "--costs", file]
    assert message in refused(*args, "--out", tmp_path / "bundle")
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
    home: Path, refused: Refused, tmp_path: Path, options: str, message: str
) -> None:
    arguments = ["--target", "cultivar", *options.split()] if options else []
    assert message in refused("train", home / "wine.csv", *arguments, "--out", tmp_path / "bundle")
    assert list(tmp_path.iterdir()) == []


def test_a_truncated_file_is_refused(home: Path, refused: Refused, tmp_path: Path) -> None:
    text = (home / "wine.csv").read_text()
    (tmp_path / "cut.csv").write_text(text[: text.rindex(",") - 9])
    err = refused("train", tmp_path / "cut.csv", "--target", "cultivar", "--out", tmp_path / "b")
    assert "line 179: 4 cells under 6 columns; is the file cut short?" in err
    assert "neither a file nor a bundled set" in refused("train", "x.csv", "--out", tmp_path / "b")


def test_semicolons_and_decimal_commas_give_the_same_bundle(run: Run, tmp_path: Path) -> None:
    frame = load_wine_table().assign(soil="clay; loam")  # quoted, between semicolons
    frame.loc[:9, "soil"] = "1,5 m sand"
    european = {"index": False, "sep": ";", "decimal": ","}
    simulation = ["--time", "2min", "--out", tmp_path / "sim"]
    answers = []
    for name, form in (("points", {"index": False}), ("commas", european)):
        data, out = tmp_path / name / "wine.csv", tmp_path / name / "b"
        data.parent.mkdir()
        frame.to_csv(data, **form)
        frame[:40].rename(columns={"cultivar": "label"}).to_csv(data.parent / "rows.csv", **form)
        args = ["--target", "cultivar", "--column", "soil=category", "--method", "adapt-gbrt"]
        assert run("train", data, *args, "--max-loss", "0.02", "--out", out)[0] == 0
        rows = ["--data", data.parent / "rows.csv"]
        edge = [json.loads(line) for line in run("edge", out, *rows)[1].splitlines()]
        assert run("verify", out, *rows)[0] == 0
        _, simulated, _ = run("simulate", out, *rows, *simulation, "--json")
        answers.append(
            (
                {n: f.sha256 for n, f in Bundle.open(out).manifest.files.items()},
                [(a["label"], a["probabilities"], a["route"], a["cost"]) for a in edge],
                json.loads(simulated)["accuracy"],
            )
        )
    assert answers[0] == answers[1]
    assert len(answers[0][1]) == 40


def test_an_occupied_path_is_refused_before_the_fit(
    home: Path, refused: Refused, tmp_path: Path
) -> None:
    out = tmp_path / "thesis"
    out.mkdir()
    (out / "chapter.txt").write_text("one")
    err = refused("train", home / "wine.csv", "--target", "cultivar", "--out", out)
    assert "is not a bundle" in err
    assert read_contents(out) == {"chapter.txt": b"one"}


def test_max_bytes_limits_the_stages(
    home: Path, run: Run, refused: Refused, tmp_path: Path
) -> None:
    out = tmp_path / "small"
    data = [home / "wine.csv", "--target", "cultivar"]
    status, text, _ = run("train", *data, "--max-bytes", "2KB", "--out", out, "--json")
    assert status == 0
    manifest = Bundle.open(out).manifest
    assert json.loads(text)["operating_point"]["bytes"] == manifest.active_point.bytes
    assert all(p.bytes <= 2048 for p in manifest.operating_points)
    single = ["--method", "greedy-miser", "--max-bytes", "2KB", "--out", tmp_path / "none"]
    assert "--max-bytes" in refused("train", *data, *single)


def test_losses_by_class_hold_with_and_without_another_goal(
    home: Path, run: Run, refused: Refused, tmp_path: Path
) -> None:
    out = tmp_path / "b"
    loss_options = ["--max-loss", "north=0.3", "--max-loss", "south=0.5"]
    train_command = [
        "train",
        home / "wine.csv",
        "--target",
        "cultivar",
        "--method",
        "adapt-gbrt",
        *loss_options,
    ]
    for goal in ([], ["--budget", "5"], ["--max-loss", "0.05"]):
        status, _, err = run(*train_command, *goal, "--out", out, "--json")
        assert (status, err) == (0, "")
        manifest = Bundle.open(out).manifest
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
    err = refused("frontier", out, "--budget", "0.001")
    assert "remove one with --min-recall LABEL=0 or --min-precision LABEL=0" in err
    err = refused("frontier", out, "--budget", "0.001", "--min-recall", "north=0")
    assert "remove one" not in err
    single_model_options = ["--method", "greedy-miser", *loss_options, "--out", tmp_path / "none"]
    assert "'max_loss'" in refused(
        "train", home / "wine.csv", "--target", "cultivar", *single_model_options
    )


def test_a_lazy_bundle_works_with_all_commands(home: Path, run: Run, tmp_path: Path) -> None:
    out = tmp_path / "lazy.gwb"
    train_command = ["train", home / "wine.csv", "--target", "cultivar", "--method", "cegb"]
    status, text, err = run(*train_command, "--costs", home / "prices.toml", "--out", out, "--json")
    assert (status, err) == (0, "")
    report = json.loads(text)["verify"]
    assert report["rows"] == 45
    assert {k for k, v in report.items() if v} <= {"rows", "cloud_probability_max_difference"}
    data = ["--data", home / "wine.csv", "--target", "cultivar"]
    status, text, _ = run("verify", out, *data, "--json")
    document = json.loads(text)
    assert (status, document["agrees"], document["data"]["max_margin_difference"]) == (0, True, 0)
    status, text, _ = run("inspect", out)
    assert status == 0
    assert "lazy" in text
    assert "up to" in text
    status, text, _ = run(
        "edge", out, "--data", home / "wine.csv", "--policy", "edge-only", "--json"
    )
    assert status == 0
    *answers, summary_line = (json.loads(line) for line in text.splitlines())
    assert summary_line["summary"]["answers"]["edge"] == len(answers) == 178
    opened_bundle = Bundle.open(out)
    rows = load_wine_table()[list(opened_bundle.manifest.feature_names)].to_numpy(np.float32)
    expected = graph_outcome(opened_bundle, rows)
    is_answered = expected.exits < len(opened_bundle.manifest.stages)
    assert is_answered.any()
    for answer, cost, exit_index, is_answered_by_stage in zip(
        answers, expected.costs.tolist(), expected.exits.tolist(), is_answered, strict=True
    ):
        if is_answered_by_stage:
            assert (answer["cost"], answer["stage"]) == (round(cost, 9), exit_index)


def test_a_bundle_without_a_cloud_works_with_all_commands(
    home: Path, run: Run, tmp_path: Path
) -> None:
    out = tmp_path / "alone"
    train = ["train", home / "wine.csv", "--target", "cultivar", "--method", "greedy-miser"]
    train += ["--name", "cellar", "--bundle-version", "3", "--seed", "1", "--out", out]
    status, text, err = run(*train)
    assert status == 0
    assert "on 45 test rows" in text
    assert "<- active" in text
    assert "100%" in err
    assert err.splitlines().index(f"pack and verify {out}") > 1
    assert "cloud_only" not in text
    *_, promised, reached, accuracy, verdict, advice = text.splitlines()
    assert promised.startswith("promised: an accuracy of at least 0.")
    assert reached.startswith("reached on 45 rows held out: accuracy 0.")
    assert "; on validation rows 0." in accuracy
    assert verdict.startswith(("kept", "not kept"))
    assert advice.startswith("what to do: ")
    assert re.search(r"^always middle +0\.4000", text, re.M)
    assert "0 of 45 decisions" in text
    status, text, _ = run(*train, "--json")
    test = json.loads(text)["test"]
    assert (test["cloud_only"], test["system"]["offload_rate"]) == (None, 0.0)
    manifest = Bundle.open(out).manifest
    assert (manifest.name, manifest.version, manifest.cloud) == ("cellar", "3", None)
    for command in ("inspect", "verify", "frontier"):
        assert run(command, out)[0] == 0
    status, text, _ = run("edge", out, "--data", home / "wine.csv", "--json")
    assert status == 0
    assert json.loads(text.splitlines()[-1])["summary"]["answers"]["edge"] == 178


def test_figures_of_few_rows_have_intervals(run: Run, refused: Refused, tmp_path: Path) -> None:
    data = tmp_path / "few.csv"
    frame = load_wine_table()[::5]
    frame.loc[frame.index[[1, 30]], "cultivar"] = "moon"
    frame.to_csv(data, index=False)
    train_command = [
        "train",
        data,
        "--target",
        "cultivar",
        "--method",
        "adapt-gbrt",
        "--drop",
        "hue",
    ]
    status, text, _ = run(*train_command, "--slack", "0", "--out", tmp_path / "b")
    assert status == 0  # both rows of a class of two are training rows
    assert re.search(r"^system +0\.\d\d to \d\.\d\d \(", text, re.M)
    assert re.search(r"^reached on 9 rows held out: .*\(on these rows ", text, re.M)
    assert "hue" not in Bundle.open(tmp_path / "b").manifest.feature_names
    frame.assign(cultivar=np.where(np.arange(36) == 7, "moon", "north")).to_csv(data, index=False)
    assert "class 'moon' has only one row" in refused(*train_command, "--out", tmp_path / "c")


def machine_log(seed: int = 0) -> pd.DataFrame:
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
    run: Run, refused: Refused, tmp_path: Path
) -> None:
    log = tmp_path / "log.csv"
    frame = machine_log()
    frame.to_csv(log, index=False)
    train_command = ["train", log, "--target", "state", "--method", "cegb", "--json"]
    status, text, _ = run(
        *train_command, "--groups", "machine", "--column", "when=drop", "--out", tmp_path / "a"
    )
    result = json.loads(text)
    assert (status, result["test"]["groups"]) == (0, 4)
    assert result["operating_point"]["validation_groups"] == 12
    held_out_rows = pd.read_csv(tmp_path / "a-test.csv")
    assert [*held_out_rows] == ["temp", "vibration", "label"]  # without the machine
    groups = frame.machine[frame.temp.isin(held_out_rows.temp)].value_counts()
    assert sorted(groups) == [25, 25, 25, 25]
    manifest = Bundle.open(tmp_path / "a").manifest
    assert [f.name for f in manifest.features] == ["temp", "vibration"]
    assert run("verify", tmp_path / "a", "--data", tmp_path / "a-test.csv")[0] == 0

    # `init` lists every column; an option that drops a column also ignores its price
    assert run("init", log, "--target", "state", "--out", tmp_path / "prices.toml")[0] == 0
    train_command += ["--costs", tmp_path / "prices.toml"]
    split_options = ["--time-split", "when=%d.%m.%Y %H:%M", "--column", "machine=drop"]
    assert run(*train_command, *split_options, "--out", tmp_path / "b")[0] == 0
    held_out_rows = pd.read_csv(tmp_path / "b-test.csv")
    assert held_out_rows.temp.tolist() == pytest.approx(frame.temp[-100:].tolist())

    for options, message in [
        (["--groups", "who"], "'who' is named, but there is no such column"),
        (["--groups", "machine", "--time-split", "when"], "is not a date"),
    ]:
        assert message in refused(
            *train_command, *options, "--column", "when=drop", "--out", tmp_path / "c"
        )
