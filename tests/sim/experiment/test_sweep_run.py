import importlib
import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from markupsafe import Markup

from gatewise.errors import InputError
from gatewise_sim.experiment.sweep.run import run_sweep
from gatewise_sim.report.plots import figure_strips, sweep_plots
from gatewise_sim.report.sweep.views import print_sweep
from tests.support.processes import PATIENCE, all_end, below, named, run_here
from tests.support.waiting import holds_within

pytestmark = pytest.mark.slow  # processes start

HERE = Path(__file__).parents[1]


@pytest.fixture
def jobs(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))
    return importlib.import_module("sweep_jobs")


@pytest.fixture
def made(jobs, tmp_path, monkeypatch):
    """A made-up job; its sweeps have pages of words alone: plots take their time."""
    for module in (sweep_plots, figure_strips):
        monkeypatch.setattr(module, "draw", lambda paint, **how: Markup("<svg/>"))
    return jobs.Made(str(tmp_path / "log"))


def ran(made) -> list[int]:
    log = Path(f"{made.log}.txt")
    return sorted(map(int, log.read_text().split())) if log.exists() else []


def files(folder: Path) -> dict[str, bytes]:
    found = {p.relative_to(folder).as_posix(): p for p in folder.rglob("*") if p.is_file()}
    return {name: path.read_bytes() for name, path in sorted(found.items())}


def test_points_come_in_the_sweeps_order_whatever_ends_first(made, tmp_path):
    told = []
    result = run_sweep(
        made, ["devices=3,1,2", "workers=1,2"], folder=tmp_path / "out", jobs=3,
        progress=lambda done, total, what="": told.append((done, total)),
    )  # fmt: skip
    assert [(p.settings["devices"], p.settings["workers"]) for p in result.points] == [
        (3, 1), (3, 2), (1, 1), (1, 2), (2, 1), (2, 2),
    ]  # fmt: skip
    assert [p.report["settings"]["devices"] for p in result.points] == [3, 3, 1, 1, 2, 2]
    assert told == [(i, 6) for i in range(1, 7)]
    assert result.failed == 0
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "points", "sweep.csv", "sweep.html", "sweep.json",
    ]  # fmt: skip
    assert not named("spawn_main")


def test_parallel_is_serial_byte_for_byte(jobs, tmp_path):
    made = jobs.Made(str(tmp_path / "log"))
    for jobs_, name in ((1, "serial"), (3, "parallel")):
        run_sweep(made, ["devices=1,2,3", "link=wifi,4g"], folder=tmp_path / name, jobs=jobs_)
    assert files(tmp_path / "serial") == files(tmp_path / "parallel")
    assert len(files(tmp_path / "serial")) == 6 + 3


def test_finished_points_are_not_run_again_and_are_shared(made, tmp_path):
    out = tmp_path / "out"
    run_sweep(made, ["devices=1,2"], folder=out)
    before = {p.name: p.stat().st_mtime_ns for p in (out / "points").iterdir()}
    wider = run_sweep(made, ["devices=2,3,1"], folder=out)
    assert ran(made) == [1, 2, 3]
    assert [p.kept for p in wider.points] == [True, False, True]
    after = {p.name: p.stat().st_mtime_ns for p in (out / "points").iterdir()}
    assert before.items() <= after.items()
    run_sweep(replace(made, scenario=made.scenario.changed(seed=5)), ["devices=1"], folder=out)
    assert ran(made) == [1, 1, 2, 3]  # another seed is another point


def test_a_point_that_fails_is_shown_and_the_others_go_on(jobs, made, tmp_path, capfd):
    values = f"devices=1,{jobs.BAD},{jobs.DEADLY},{jobs.BUGGY},{jobs.LOUD}"
    result = run_sweep(made, [values], folder=tmp_path / "out", jobs=2)
    errors = [p.error for p in result.points]
    assert errors[0] == errors[4] == ""
    assert errors[1] == "thirteen devices"
    assert errors[2] == "its process ended suddenly (out of memory?)"
    assert errors[3] == "unexpected ZeroDivisionError"
    assert result.failed == 3
    out, err = capfd.readouterr()
    assert f"devices={jobs.BAD}: thirteen devices\n" in err
    assert (out, "loud\n" in err) == ("", True)  # what a point prints does not get between
    print_sweep(result.document, result.folder)
    shown = capfd.readouterr().out
    assert "2 failed: thirteen devices" in shown
    assert "3 of 5 settings failed." in shown
    # Only what failed is tried again.
    again = run_sweep(made, [values], folder=tmp_path / "out")
    assert [p.kept for p in again.points] == [True, False, False, False, True]


@pytest.mark.parametrize("blow", [signal.SIGINT, signal.SIGKILL])
def test_a_sweep_that_was_broken_off_goes_on_where_it_stopped(jobs, made, tmp_path, blow):
    """Two processes: one point after another is finished, and one point does not end."""
    out, sweep = tmp_path / "out", f"devices=1,2,{jobs.SLOW},3,4,5,6"
    command = [sys.executable, str(HERE / "sweep_jobs.py"), made.log, str(out), sweep]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        kept = lambda: sorted((out / "points").glob("*.json"))  # noqa: E731
        assert holds_within(lambda: len(kept()) == 6, PATIENCE)
        children = below(child.pid)
        assert children
        child.send_signal(blow)
        _, said = child.communicate(timeout=60)
    finally:
        child.kill()
    assert child.returncode != 0
    assert all_end(children)
    if blow == signal.SIGINT:
        assert f"stopped: 6 of 7 points are kept in {out / 'points'}; the same command" in said
    assert not (out / "sweep.json").exists()
    assert ran(made) == [1, 2, 3, 4, 5, 6, jobs.SLOW]
    before = {p.name: p.stat().st_mtime_ns for p in kept()}
    Path(f"{made.log}.go").touch()
    result = run_sweep(made, [sweep], folder=out)
    assert ran(made) == [1, 2, 3, 4, 5, 6, jobs.SLOW, jobs.SLOW]
    assert sum(p.kept for p in result.points) == 6
    assert before.items() <= {p.name: p.stat().st_mtime_ns for p in kept()}.items()
    run_sweep(made, [sweep], folder=tmp_path / "unbroken")
    assert files(out) == files(tmp_path / "unbroken")


def test_points_that_are_the_same_are_run_once(made, tmp_path):
    same = replace(made, scenario=made.scenario.changed(budget=4.0))
    result = run_sweep(same, ["budget=none,4"], folder=tmp_path / "out")
    digests = {p.digest for p in result.points}
    assert len(digests) == len(ran(made))
    assert result.failed == 0


def test_a_sweep_that_cannot_be_is_refused_before_anything_runs(made, tmp_path):
    with pytest.raises(InputError, match="jobs is 0"):
        run_sweep(made, ["devices=1"], folder=tmp_path / "out", jobs=0)
    with pytest.raises(InputError, match="no setting 'divices'"):
        run_sweep(made, ["divices=1"], folder=tmp_path / "out")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    with pytest.raises(InputError, match="mine holds other files"):
        run_sweep(made, ["devices=1"], folder=tmp_path / "mine")
    assert ran(made) == []


# -- the real thing ------------------------------------------------------------------------


def simulate(small, *more: object) -> subprocess.CompletedProcess[str]:
    return run_here("simulate", small.bundle.path, "--data", small.table, *more)


SWEEP = (
    "--time", "10min", "--devices", "5", "--no-baselines", "--sweep", "link=wifi,4g", "--sweep",
    "workers=1,2", "--jobs", "1",
)  # fmt: skip


def test_a_real_sweep_from_the_command_line(small, tmp_path):
    done = simulate(small, *SWEEP, "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert "4 points, cheapest first" in done.stdout
    document = json.loads((tmp_path / "out" / "sweep.json").read_text())
    assert [p["settings"]["link"] for p in document["points"]] == ["wifi", "wifi", "4g", "4g"]
    for point in document["points"]:
        figures = point["figures"]
        assert figures["accuracy"]["low"] <= figures["accuracy"]["value"] <= 1
        report = json.loads((tmp_path / "out" / "points" / f"{point['digest']}.json").read_text())
        assert report["report"]["settings"]["workers"] == point["settings"]["workers"]
    wifi, lte = document["points"][0]["figures"], document["points"][2]["figures"]
    assert wifi["offloaded_p95"]["value"] < lte["offloaded_p95"]["value"]
    # A point is what the same simulation gives alone.
    alone = simulate(small, *SWEEP[:5], "--link", "4g", "--workers", "2", "--json",
                     "--out", str(tmp_path / "alone"))  # fmt: skip
    assert alone.returncode == 0, alone.stderr
    assert json.loads(alone.stdout) == report["report"]
    as_json = simulate(small, *SWEEP, "--out", str(tmp_path / "out"), "--json")
    assert json.loads(as_json.stdout) == document
