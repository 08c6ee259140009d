"""What a simulation's progress looks like on a terminal, and elsewhere."""

from __future__ import annotations

import itertools
import os
import pty
import subprocess
import sys
from collections.abc import Callable

import pytest

from gatewise_sim.progress import ProgressListener, Snapshot
from gatewise_sim.report.progress_display import PlainLines, shown_progress

LAST = Snapshot(at=60.0, answered=50, cloud=6, fallback=4, done=1.0)


def run(listener: ProgressListener) -> None:
    listener.begin("m/1: two devices", 60.0, 100)
    for key, name in (("system", "Gatewise"), ("edge_only", "All edge")):
        listener.policy(key, name)
        listener.fault("cloud", False, 20.0)
        listener.fault("cloud", True, 30.0)
        listener.advance(Snapshot(at=10.0, answered=5, done=0.2))
        listener.advance(Snapshot(at=25.0, answered=20, done=0.4))
        listener.advance(LAST)
    listener.end("100 instances")


def clock(step: float) -> Callable[[], float]:
    """Every reading is a little later."""
    return itertools.count(step, step).__next__


def test_without_a_terminal_there_are_lines_on_standard_error_alone(capsys):
    with shown_progress() as listener:
        run(listener)
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == ""
    assert lines[:2] == ["m/1: two devices", "  Gatewise"]
    assert "  done: Gatewise, 50 instances, 6 answered by the cloud, 4 by fallback" in lines
    assert lines[-1].endswith(": 100 instances")


def test_each_policy_has_each_fault_once(capsys):
    run(PlainLines(clock(0.01)))
    lines = capsys.readouterr().err.splitlines()
    assert lines.count("  cloud down after 20 s") == 2
    assert lines.count("  cloud back after 30 s") == 2
    assert lines.index("  cloud down after 20 s") < lines.index("  cloud back after 30 s")


@pytest.mark.parametrize(("step", "lines"), [(0.001, 0), (1.0, 9), (40.0, 100)])
def test_how_often_it_speaks(capsys, step, lines):
    """At a tenth, no more than one line in 2 s; where nothing moves, one in 30 s."""
    listener = PlainLines(clock(step))
    listener.begin("m/1", 60.0, None)
    for i in range(100):
        listener.advance(Snapshot(at=0.6 * i, answered=i, done=i / 100))
    found = [line for line in capsys.readouterr().err.splitlines() if " instances" in line]
    assert len(found) == lines


def test_a_closed_standard_error_does_not_stop_a_run(monkeypatch):
    class Closed:
        def write(self, text: str) -> int:
            raise OSError

        flush = write

        def isatty(self) -> bool:
            return False

    monkeypatch.setattr(sys, "stderr", Closed())
    with shown_progress() as listener:
        run(listener)


@pytest.mark.parametrize("ending", ["", "raise SystemExit(3)"])
def test_a_terminal_has_bars_and_is_left_as_it_was(ending):
    script = f"""
from gatewise_sim.report.progress_display import shown_progress
from tests.sim.report.test_progress_display import run
with shown_progress() as listener:
    run(listener)
    {ending}
print("result")
"""
    leader, follower = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-c", script],
        stderr=follower, stdout=subprocess.PIPE, text=True, timeout=120,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100", "PYTHONPATH": ":".join(sys.path)},
    )  # fmt: skip
    os.close(follower)
    drawn = b""
    while chunk := _read(leader):
        drawn += chunk
    os.close(leader)
    assert done.stdout == ("" if ending else "result\n")
    assert done.returncode == (3 if ending else 0)
    text = drawn.decode()
    assert "Gatewise" in text
    assert "All edge" in text
    assert "100 %" in text
    assert "cloud down after 20 s" in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")  # the cursor is there again
    assert text.endswith("\n") or text.rindex("\n") > text.rindex("100 %")


def _read(leader: int) -> bytes:
    try:
        return os.read(leader, 65536)
    except OSError:  # as Linux says that nobody writes any more
        return b""
