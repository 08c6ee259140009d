import json
import os
import shlex
import shutil
import signal
from pathlib import Path

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
def test_from_training_to_the_report_as_a_new_user_goes(tmp_path):
    trained = run_here("train", "wine", "--out", "bundle", folder=tmp_path)
    assert trained.returncode == 0, trained.stderr
    done = run_gatewise("simulate", "bundle", "--data", "wine", "--time", "10min", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(p.name for p in (tmp_path / "sim-out").iterdir()) == FILES
    report = json.loads((tmp_path / "sim-out" / "report.json").read_text())
    assert report["command"] == "gatewise simulate bundle --data wine --time 600s --seed 0"
    assert report["settings"]["devices"] == 100
    assert report["instances"] > 500
    assert "Training saw 133 of these 178 rows" in "".join(report["notes"])
    for name in ("Gatewise", "All edge", "All cloud", "Confidence", "Random", "Oracle"):
        assert name in done.stdout
    assert done.stdout.splitlines()[-1] == "sim-out/report.html"
    assert report["command"] in (tmp_path / "sim-out" / "report.html").read_text()


def test_the_same_command_writes_the_same_bytes(here):
    outputs = []
    for number, seed in enumerate(("1", "2")):
        out = f"out-{number}"
        done = run_gatewise(
            *QUICK, "--outage", "cloud:+3min-+5min", "--out", out, "--jobs", seed,
            folder=here, PYTHONHASHSEED=seed,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        outputs.append({p.name: p.read_bytes() for p in (here / out).iterdir()})
    assert sorted(outputs[0]) == FILES
    assert outputs[0] == outputs[1]
    # and so does the command that it tells
    report = json.loads(outputs[0]["report.json"])
    again = run_here(*shlex.split(report["command"])[1:], "--out", "out-2", "--json", folder=here)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout) == report
    assert (here / "out-2" / "report.json").read_bytes() == outputs[0]["report.json"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nowhere", "--data", "rows.csv"], "nowhere"),
        (["digits.gwb", "--data", "nothing.csv"], "nothing.csv does not exist"),
        (["--target", "x"], "rows.csv has no column 'x'"),
        (["digits.gwb", "--data", "iris"], "iris has no column 'x0', which the bundle needs"),
        (["--time", "5"], "--time: '5' is not a span of time"),
        (["--mix", "steps,0s=1/1,1h"], "class mix"),
        (["--budget", "0.001"], "no operating point costs"),
        (["--prices", "no.toml"], "price file no.toml"),
        (["--device-energy", "no.toml"], "device file no"),
        (["--calibration", "no.json"], "calibration file no"),
        (
            ["--calibration", "x.json", "--calibrate"],
            "give --calibrate or --calibration",
        ),
        (
            ["--engine", "live", "--broker", "http://x"],
            "the broker's URL must begin with mqtt://",
        ),
        (["--out", "."], "holds other files"),
        (["--out", "rows.csv"], "is a file, not a folder"),
    ],
)
def test_bad_input_is_one_line_and_2(here, monkeypatch, capsys, args, message):
    monkeypatch.chdir(here)
    before = {p.name for p in here.iterdir()}
    if args[0].startswith("-"):
        args = ["digits.gwb", "--data", "rows.csv", *args]
    assert cli.main(["simulate", *args]) == 2
    told = capsys.readouterr()
    lines = told.err.strip().splitlines()
    assert message in lines[-1]
    assert lines[-1].startswith("gatewise: ")
    assert told.out == ""
    assert {p.name for p in here.iterdir()} == before


LIVE = ("--engine", "live", "--devices", "4", "--time", "10min", "--workload", "poisson:2/s")
LONG = ("--devices", "40000", "--workers", "20", "--time", "1day", "--jobs", "2")


LOADED_SECONDS = 3.0


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has used; 0 if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize(
    ("options", "number", "status"),
    [
        pytest.param(LIVE, signal.SIGINT, 130, id="live"),
        pytest.param(LONG, signal.SIGTERM, 128 + signal.SIGTERM, id="virtual"),
    ],
)
def test_whoever_breaks_it_off_finds_nothing_left(here, command, options, number, status):
    out = here / f"broken-{number}-{options[1]}"
    words = ("simulate", "digits.gwb", "--data", "rows.csv", *options, "--out", out)
    run = command(*words, folder=here)

    def under_way() -> bool:
        if options is LIVE:
            return bool(named("device_process", run.process.pid))
        # A process of the pool that is still loading says so when it is ended.
        return any(cpu_seconds(pid) > LOADED_SECONDS for pid in named("loky", run.process.pid))

    ended, told, err, children = interrupt(run, number, under_way)
    assert ended == status, err
    assert "Traceback" not in err
    assert told == ""
    assert children
    assert not out.exists() or not list(out.iterdir())
