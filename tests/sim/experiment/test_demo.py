"""Tests of ``gatewise demo``: its report, interruptions and errors."""

import json
import re
import shutil
import signal
from pathlib import Path

import msgspec
import pytest

from gatewise_cloud.broker.broker import MosquittoBroker
from gatewise_sim.experiment.demo import training_settings
from gatewise_sim.experiment.demo_settings import DemoSettings
from gatewise_sim.report.document import Report
from gatewise_sim.report.output import DEMO
from tests.support.demo_report import check_report
from tests.support.processes import (
    assert_command_refused,
    find_descendants_named,
    run_in_process,
    signal_and_wait,
)


@pytest.mark.slow
@pytest.mark.usefixtures("small_fits")
def test_second_run_with_two_workers_gives_the_same_report(quick_demo, tmp_path):
    report = json.loads(quick_demo.output)
    check_report(report)
    msgspec.json.decode(quick_demo.output, type=Report)
    assert report["instances"] == 40
    shutil.copytree(quick_demo.folder, tmp_path / "demo-out")
    with MosquittoBroker() as broker:
        worker_options = ("--broker", broker.url, "--workers", "2")
        process = run_in_process(*quick_demo.arguments, *worker_options, folder=tmp_path)
    assert process.returncode == 0, process.stderr
    repeated_report = json.loads(process.stdout)
    check_report(repeated_report)
    for key in ("accuracy", "feature_cost", "offload_rate", "frontier"):
        assert repeated_report[key] == report[key]
    assert {path.name for path in (tmp_path / "demo-out").iterdir()} == set(DEMO.files)
    assert repeated_report["transport"] == {"kind": "mqtt", "broker": broker.url, "link": "none"}
    assert repeated_report["run"]["workers"]["answered"] == repeated_report["answers"]["cloud"]


@pytest.mark.slow
def test_interrupted_demo_leaves_no_files_or_processes(tmp_path, command):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    demo = command(
        "demo", "--dataset", "iris", "--method", "confidence", "--devices", "2",
        "--link", "satellite", "--out", "out",
        folder=tmp_path, environment={"TMPDIR": str(scratch)},
    )  # fmt: skip
    status, output, error_output, children = signal_and_wait(
        demo,
        signal.SIGINT,
        lambda: bool(find_descendants_named("gatewise edge", demo.process.pid)),
    )
    assert (status, output) == (130, ""), error_output  # 130 is the status for SIGINT
    assert len(children) >= 3  # broker, worker, devices
    assert not (tmp_path / "out").exists()
    assert list(scratch.iterdir()) == []


# -- invalid input -----------------------------------------------------------------------------


def make_csv(n_rows: int = 30, **columns: object) -> str:
    """Make a CSV text of two features and a label; `columns` overrides or adds columns."""
    columns_by_name: dict = {
        "a": [0.1 * row for row in range(n_rows)],
        "b": [row % 7 for row in range(n_rows)],
        "label": [row % 2 for row in range(n_rows)],
    } | columns
    lines = [",".join(columns_by_name)]
    lines += [
        ",".join(str(column[row]) for column in columns_by_name.values()) for row in range(n_rows)
    ]
    return "\n".join(lines) + "\n"


INVALID_TABLES = {
    "a column of one word": (make_csv(b=["w"] * 30), "'b' has the text 'w' in all rows"),
    "a column of words": (make_csv(b=["v", "w"] * 15), "'b' is not numbers"),
    "a missing value": (make_csv(a=["", *range(29)]), "'a' is empty"),
    "one class only": (make_csv(label=[0] * 30), "class"),
}


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """An empty folder, in which the test runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("table_name", INVALID_TABLES)
def test_invalid_table_gives_one_line_and_no_files(folder, table_name):
    content, message = INVALID_TABLES[table_name]
    Path("data.csv").write_text(content)
    line = assert_command_refused("demo", "--dataset", "data.csv")
    assert re.search(message, line), line
    assert [path.name for path in folder.iterdir()] == ["data.csv"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dataset", "nowhere.csv"], "nowhere.csv is neither a file nor a bundled set"),
        (["--dataset", "data.csv", "--target", "z"], "has no column 'z'"),
        (["--dataset", "data.csv", "--costs", "nowhere.toml"], "nowhere.toml does not exist"),
        (["--dataset", "data.csv", "--costs", "unknown.toml"], "unknown feature 'c'"),
        (["--dataset", "data.csv", "--method", "magic"], "no method 'magic'"),
        (
            ["--dataset", "data.csv", "--method", "adapt-lin", "--allow-missing"],
            "does not accept missing values",
        ),
        (["--dataset", "data.csv", "--instances", "99"], "9 rows are held out"),  # of 30
        (["--dataset", "data.csv", "--budget", "1", "--offload-rate", "0.1"], "--budget and"),
        (["--link", "wlan"], "unknown link 'wlan'"),
        (["--broker", "mqtt://127.0.0.1:9"], "127.0.0.1:9 cannot be reached"),
        (["--devices", "0"], "--devices"),
        (["--out", "data.csv"], "data.csv is a file"),
        (["--out", "."], "contains other files"),
    ],
)
def test_invalid_setting_gives_one_line_and_no_files(folder, arguments, message):
    Path("data.csv").write_text(make_csv())
    Path("unknown.toml").write_text("[features]\na = 1\nb = 1\nc = 1\n")
    names_before = {path.name for path in folder.iterdir()}
    assert message in assert_command_refused("demo", *arguments)
    assert {path.name for path in folder.iterdir()} == names_before


def test_only_bundled_data_sets_use_the_fast_search():
    def parameter_names(**options) -> set[str]:
        return set(training_settings(DemoSettings(**options), Path("bundle")).parameters)

    search_settings = {"max_bytes", "high_cost_model", "n_stages", "families"}
    assert parameter_names() == parameter_names(dataset="wine") == search_settings
    assert parameter_names(dataset="data.csv") == {"max_bytes"}
    assert parameter_names(allow_missing=True) == {"max_bytes"}
    assert parameter_names(method="adapt-lin") == set()


def test_command_repeats_the_run_without_the_password():
    assert DemoSettings().command() == "gatewise demo --dataset digits --method staged --seed 0"
    settings = DemoSettings(
        dataset="my data.csv",
        broker="mqtt://me:secret@host:1884",
        max_loss=0.02,
        allow_missing=True,
        out=Path("elsewhere"),
    )
    assert settings.command() == (
        "gatewise demo --dataset 'my data.csv' --method staged --broker mqtt://host:1884 "
        "--max-loss 0.02 --allow-missing --seed 0 --out elsewhere"
    )
