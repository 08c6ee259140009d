"""Tests of ``gatewise demo``: its report, interruptions and errors."""

import json
import shutil
import signal
from pathlib import Path

import msgspec
import pytest

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
def test_second_run_gives_the_same_report(quick_demo, tmp_path):
    report = json.loads(quick_demo.output)
    check_report(report)
    msgspec.json.decode(quick_demo.output, type=Report)
    assert report["instances"] == 40
    shutil.copytree(quick_demo.folder, tmp_path / "demo-out")
    process = run_in_process(*quick_demo.arguments, folder=tmp_path)
    assert process.returncode == 0, process.stderr
    repeated_report = json.loads(process.stdout)
    check_report(repeated_report)
    for key in ("accuracy", "feature_cost", "offload_rate", "frontier"):
        assert repeated_report[key] == report[key]
    assert {path.name for path in (tmp_path / "demo-out").iterdir()} == set(DEMO.files)
    assert repeated_report["transport"]["link"] == "none"
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


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """An empty folder, in which the test runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dataset", "data.csv"], "'data.csv' is not one of breast_cancer"),
        (["--method", "magic"], "no method 'magic'"),
        (["--dataset", "iris", "--instances", "99"], "45 rows are held out"),  # of 150
        (["--link", "wlan"], "unknown link 'wlan'"),
        (["--devices", "0"], "--devices"),
        (["--out", "data.csv"], "data.csv is a file"),
        (["--out", "."], "contains other files"),
    ],
)
def test_invalid_setting_gives_one_line_and_no_files(folder, arguments, message):
    Path("data.csv").write_text("a,label\n1,0\n2,1\n")
    names_before = {path.name for path in folder.iterdir()}
    assert message in assert_command_refused("demo", *arguments)
    assert {path.name for path in folder.iterdir()} == names_before


def test_only_staged_cascades_use_the_fast_search():
    def parameter_names(**options) -> set[str]:
        return set(training_settings(DemoSettings(**options), Path("bundle")).parameters)

    search_settings = {"max_bytes", "high_cost_model", "n_stages", "families"}
    assert parameter_names() == parameter_names(dataset="wine") == search_settings
    assert parameter_names(method="adapt-lin") == set()


def test_command_repeats_the_run():
    assert DemoSettings().command() == "gatewise demo --dataset digits --method staged --seed 0"
    settings = DemoSettings(dataset="wine", devices=2, out=Path("else where"))
    assert settings.command() == (
        "gatewise demo --dataset wine --method staged --devices 2 --seed 0 --out 'else where'"
    )
