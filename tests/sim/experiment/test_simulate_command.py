"""Test the command ``gatewise simulate``: its files, repetitions, refusals and interruptions."""

import json
import shlex
import shutil
import signal

import pytest

from gatewise import cli
from gatewise_export.bundle.repacking import repack
from gatewise_sim.report.output import SIMULATION
from tests.support.processes import (
    find_descendants_named,
    run_gatewise,
    run_in_process,
    signal_and_wait,
)

# starts processes
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick_timings")]

#: Start of the command, with the bundle and the rows in `folder`.
SIMULATE = ("simulate", "digits.gwb", "--data", "rows.csv")
#: Simulation of ten minutes of ten devices, which takes little time.
QUICK_COMMAND = (*SIMULATE, "--devices", "10", "--time", "10min")


@pytest.fixture(scope="module")
def folder(digits, tmp_path_factory):
    """A folder with a bundle in one file, and with rows that training has not seen.

    The tests of this file share it, so each writes to its own ``--out``.
    """
    path = tmp_path_factory.mktemp("user")
    repack(digits.bundle.path, path / "digits.gwb")
    shutil.copy(digits.table, path)
    return path


def test_command_writes_a_report_whose_command_repeats_it_exactly(folder):
    process = run_in_process(
        *QUICK_COMMAND, "--outage", "cloud:+3min-+5min", "--out", "out-1", folder=folder
    )
    assert process.returncode == 0, process.stderr
    assert {path.name for path in (folder / "out-1").iterdir()} == set(SIMULATION.files)
    for policy_name in ("Gatewise", "All edge", "All cloud", "Confidence", "Random", "Oracle"):
        assert policy_name in process.stdout
    assert process.stdout.splitlines()[-1] == "out-1/report.html"
    report_bytes = (folder / "out-1" / "report.json").read_bytes()
    report = json.loads(report_bytes)
    assert report["command"] == (
        "gatewise simulate digits.gwb --data rows.csv --devices 10 --time 10min "
        "--outage cloud:+3min-+5min --seed 0 --settings out-1/timings.toml"
    )
    # The command names the file of timings, so that the models are not timed again. Another
    # PYTHONHASHSEED changes the order of sets, which must not matter.
    arguments = [*shlex.split(report["command"])[1:], "--out", "out-1", "--json"]
    repeated_process = run_gatewise(*arguments, folder=folder, PYTHONHASHSEED="2")
    assert repeated_process.returncode == 0, repeated_process.stderr
    assert json.loads(repeated_process.stdout) == report
    assert (folder / "out-1" / "report.json").read_bytes() == report_bytes


def test_sweep_writes_a_table_a_file_and_a_plot(folder):
    sweep_command = (*QUICK_COMMAND, "--sweep", "link=wifi,4g", "--out", "sweep")
    process = run_in_process(*sweep_command, folder=folder)
    assert process.returncode == 0, process.stderr
    assert sorted(path.name for path in (folder / "sweep").iterdir()) == [
        "sweep.csv", "sweep.json", "sweep.svg",
    ]  # fmt: skip
    assert process.stdout.splitlines()[-2:] == ["sweep/sweep.csv", "sweep/sweep.svg"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["simulate", "nowhere", "--data", "rows.csv"], "nowhere"),
        (["simulate", "digits.gwb", "--data", "nothing.csv"], "nothing.csv does not exist"),
        (["simulate", "digits.gwb", "--data", "iris"], "iris has no column 'x0', which the bundle"),
        ([*SIMULATE, "--target", "x"], "rows.csv has no column 'x'"),
        ([*SIMULATE, "--budget", "0.001"], "no operating point costs"),
        ([*SIMULATE, "--prices", "no.toml"], "price file no.toml"),
        ([*SIMULATE, "--device-energy", "no.toml"], "device file no"),
        ([*SIMULATE, "--settings", "no.toml"], "no.toml"),
        ([*SIMULATE, "--engine", "live", "--broker", "http://x"], "URL must begin with mqtt://"),
    ],
)
def test_invalid_input_exits_2_with_one_line(folder, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(folder)
    names_before = {path.name for path in folder.iterdir()}
    assert cli.main(arguments) == 2
    output, error_output = capsys.readouterr()
    last_line = error_output.strip().splitlines()[-1]  # progress may come before
    assert message in last_line
    assert last_line.startswith("gatewise: ")
    assert output == ""
    assert {path.name for path in folder.iterdir()} == names_before


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_leaves_no_files_or_processes(folder, command, signal_number):
    out_folder = folder / f"interrupted-{signal_number}"
    # ten minutes in real time, so that the run lasts until the signal
    options = ("--engine", "live", "--devices", "4", "--time", "10min")
    options += ("--workload", "poisson:2/s", "--out", out_folder)
    simulation = command(*SIMULATE, *options, folder=folder)
    # the signal comes as soon as the run has started processes of its own
    exit_status, output, error_output, children = signal_and_wait(
        simulation,
        signal_number,
        lambda: bool(find_descendants_named("gatewise", simulation.process.pid)),
    )
    assert exit_status == 128 + signal_number, error_output  # as shells report signals
    assert "Traceback" not in error_output
    assert output == ""
    assert children
    assert not out_folder.exists() or not list(out_folder.iterdir())
