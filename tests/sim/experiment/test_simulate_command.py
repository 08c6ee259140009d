"""Tests of ``gatewise simulate``."""

import json
import shlex
import shutil
import signal

import pytest

from gatewise import cli
from gatewise_sim.report.output import SIMULATION
from tests.support.processes import interrupt, named, run_gatewise, run_here

pytestmark = pytest.mark.slow

FILES = sorted(SIMULATION.files)


@pytest.fixture(scope="module")
def here(small, tmp_path_factory):
    """A folder with a bundle and rows that training has not seen."""
    from gatewise_export.bundle.repacking import repack

    folder = tmp_path_factory.mktemp("user")
    repack(small.bundle.path, folder / "digits.gwb")
    shutil.copy(small.table, folder)
    return folder


QUICK = ("simulate", "digits.gwb", "--data", "rows.csv", "--devices", "10", "--time", "10min")


@pytest.mark.usefixtures("small_fits")
def test_trained_bundle_is_simulated_with_a_report(tmp_path):
    trained = run_here("train", "wine", "--out", "bundle", folder=tmp_path)
    assert trained.returncode == 0, trained.stderr
    done = run_gatewise("simulate", "bundle", "--data", "wine", "--time", "10min", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(p.name for p in (tmp_path / "sim-out").iterdir()) == FILES
    report = json.loads((tmp_path / "sim-out" / "report.json").read_text())
    assert report["command"] == (
        "gatewise simulate bundle --data wine --time 10min --seed 0 --settings sim-out/timings.toml"
    )
    assert report["settings"]["devices"] == 100
    assert report["instances"] > 500
    for name in ("Gatewise", "All edge", "All cloud", "Confidence", "Random", "Oracle"):
        assert name in done.stdout
    assert done.stdout.splitlines()[-1] == "sim-out/report.html"


def test_command_of_a_report_repeats_it_exactly(here):
    done = run_here(*QUICK, "--outage", "cloud:+3min-+5min", "--out", "out-1", folder=here)
    assert done.returncode == 0, done.stderr
    text = (here / "out-1" / "report.json").read_bytes()
    report = json.loads(text)
    # Times of the models are measured anew unless they are given.
    words = [*shlex.split(report["command"])[1:], "--out", "out-1", "--json"]
    again = run_gatewise(*words, folder=here, PYTHONHASHSEED="2")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout) == report
    assert (here / "out-1" / "report.json").read_bytes() == text


def test_sweep_writes_a_table_a_file_and_a_plot(here):
    done = run_here(*QUICK, "--sweep", "link=wifi,4g", "--out", "sweep", folder=here)
    assert done.returncode == 0, done.stderr
    assert sorted(p.name for p in (here / "sweep").iterdir()) == ["sweep.csv", "sweep.svg"]
    assert done.stdout.splitlines()[-2:] == ["sweep/sweep.csv", "sweep/sweep.svg"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nowhere", "--data", "rows.csv"], "nowhere"),
        (["digits.gwb", "--data", "nothing.csv"], "nothing.csv does not exist"),
        (["--target", "x"], "rows.csv has no column 'x'"),
        (["digits.gwb", "--data", "iris"], "iris has no column 'x0', which the bundle needs"),
        (["--time", "5"], "time: '5' is not a span of time"),
        (["--budget", "0.001"], "no operating point costs"),
        (["--prices", "no.toml"], "price file no.toml"),
        (["--device-energy", "no.toml"], "device file no"),
        (["--settings", "no.toml"], "no.toml"),
        (["--sweep", "devices"], "write it as devices=10,100,1000"),
        (["--engine", "live", "--broker", "http://x"], "the broker's URL must begin with mqtt://"),
        (["--out", "."], "contains other files"),
        (["--out", "rows.csv"], "is a file, not a folder"),
    ],
)
def test_bad_input_exits_2_with_one_line(here, monkeypatch, capsys, args, message):
    monkeypatch.chdir(here)
    before = {p.name for p in here.iterdir()}
    if args[0].startswith("-"):
        args = ["digits.gwb", "--data", "rows.csv", *args]
    assert cli.main(["simulate", *args]) == 2
    printed = capsys.readouterr()
    lines = printed.err.strip().splitlines()
    assert message in lines[-1]
    assert lines[-1].startswith("gatewise: ")
    assert printed.out == ""
    assert {p.name for p in here.iterdir()} == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_leaves_no_files_and_processes(here, command, number):
    out = here / f"broken-{number}"
    words = ("simulate", "digits.gwb", "--data", "rows.csv", "--engine", "live", "--devices", "4")
    more = ("--time", "10min", "--workload", "poisson:2/s", "--out", out)
    run = command(*words, *more, folder=here)
    ended, told, err, children = interrupt(
        run, number, lambda: bool(named("gatewise", run.process.pid))
    )
    assert ended == (130 if number == signal.SIGINT else 128 + number), err
    assert "Traceback" not in err
    assert told == ""
    assert children
    assert not out.exists() or not list(out.iterdir())
