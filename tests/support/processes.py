"""Processes that tests start and watch, with the signals of a terminal's shell."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from gatewise import cli
from tests.support.waiting import holds_within

#: Seconds: a busy machine may take long to start a process.
PATIENCE = 120.0


def default_signals() -> None:
    """Restore what ``nohup`` and background jobs have ignored; for a child before it begins."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def run_python(code: str, *arguments: object, given: str = "") -> str:
    """Run code in a fresh interpreter with `given` as standard input; what it printed."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def run_gatewise(
    *arguments: object, folder: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a ``gatewise`` command in a process of its own, in a folder, to its end."""
    return subprocess.run(
        [sys.executable, "-m", "gatewise", *map(str, arguments)],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=290,
    )


@contextlib.contextmanager
def standard_input(text: str) -> Iterator[None]:
    """Put a text in the place of this process's standard input."""
    out, into = os.pipe()
    os.write(into, text.encode())
    os.close(into)
    before = os.dup(0)
    os.dup2(out, 0)
    try:
        yield
    finally:
        os.dup2(before, 0)
        os.close(out)
        os.close(before)


def run_here(
    *arguments: object, folder: Path | None = None, given: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a ``gatewise`` command in this process, in a folder: no interpreter has to start.

    `given` is its standard input.
    """
    out, err = io.StringIO(), io.StringIO()
    with (
        standard_input(given),
        contextlib.chdir(folder or Path.cwd()),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        status = cli.main([*map(str, arguments)])
    return subprocess.CompletedProcess(arguments, status, out.getvalue(), err.getvalue())


def refused(*arguments: object, folder: Path | None = None) -> str:
    """Run a command that must end with status 2 and one line on standard error: that line."""
    done = run_here(*arguments, folder=folder)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    return done.stderr


class Command:
    """A ``gatewise`` command in a process of its own; its lines as they come."""

    def __init__(
        self,
        *arguments: object,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gatewise", *map(str, arguments)],
            cwd=folder,
            env=os.environ | (environment or {}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=default_signals,  # noqa: PLW1509  no thread of ours holds a lock here
        )

    def write(self, text: str) -> None:
        """Write to its standard input."""
        assert self.process.stdin is not None
        self.process.stdin.write(text)
        self.process.stdin.flush()

    def line(self) -> str:
        """Read the next line of standard output."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def finish(self, seconds: float = 60.0) -> tuple[int, str, str]:
        """Wait for the end: exit status, standard output, standard error."""
        out, err = self.process.communicate(timeout=seconds)
        return self.process.returncode, out, err

    def close(self) -> None:
        """Kill it if it runs."""
        with self.process:
            self.process.kill()


@pytest.fixture
def command() -> Iterator[Callable[..., Command]]:
    """Start a ``gatewise`` command in a process of its own; for conftests to import."""
    started: list[Command] = []

    def start(*arguments: object, **options: Any) -> Command:
        started.append(Command(*arguments, **options))
        return started[-1]

    yield start
    for one in started:
        one.close()


def _stat(pid: int) -> Sequence[str]:
    """State and parent of a process; empty if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[:2]
    except (FileNotFoundError, ProcessLookupError):
        return ()


def running(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    return bool(_stat(pid)) and _stat(pid)[:1] != ["Z"]


def below(pid: int | None = None, *, aside: Collection[int] = ()) -> set[int]:
    """Processes below one (this one by default) that have not ended.

    Left out are those `aside`, and what runs below them: a browser that tests share starts
    processes of its own at any time.
    """
    pid = os.getpid() if pid is None else pid
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (stat := _stat(int(entry.name))) and stat[0] != "Z":
            parents[int(entry.name)] = int(stat[1])
    candidates = {p: parent for p, parent in parents.items() if p not in aside}
    found: set[int] = set()
    while more := {p for p, parent in candidates.items() if parent in {pid, *found}} - found:
        found |= more
    return found


def command_line(pid: int) -> str:
    """Command line of a process; empty of one that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def named(part: str, pid: int | None = None) -> list[int]:
    """Processes below one whose command line has this part, the oldest first."""
    return sorted(p for p in below(pid) if part in command_line(p))


def all_end(pids: Collection[int]) -> bool:
    """Wait until processes have ended; whether they did."""
    return holds_within(lambda: not any(map(command_line, pids)), PATIENCE)


def interrupt(
    run: Command, number: int, under_way: Callable[[], object]
) -> tuple[int, str, str, set[int]]:
    """Send a command a signal once it is under way: status, outputs, and what ran below it.

    All of that has ended.
    """
    pid, children = run.process.pid, set[int]()

    def ready() -> bool:
        children.update(below(pid))
        return bool(under_way()) or run.process.poll() is not None

    assert holds_within(ready, PATIENCE, pause=0.05)  # a look at all processes takes 10 ms
    children.update(below(pid))
    run.process.send_signal(number)
    status, out, err = run.finish(PATIENCE)
    assert all_end(children)
    return status, out, err, children
