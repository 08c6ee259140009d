"""Processes that tests start, watch and signal."""

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

#: Seconds to wait for a process, which may start slowly on a busy machine.
PATIENCE = 120.0


def default_signals() -> None:
    """Restore the signals that ``nohup`` and background jobs ignore, before a child starts."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def run_python(code: str, *arguments: object, given: str = "") -> str:
    """Run code in a new interpreter with `given` as standard input; return its output."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    process = subprocess.run(command, input=given, capture_output=True, text=True, timeout=240)
    assert process.returncode == 0, process.stderr
    return process.stdout.strip()


def run_gatewise(
    *arguments: object, folder: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a ``gatewise`` command in a new process, in a folder."""
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
    """Replace this process's standard input by a text."""
    read_end, write_end = os.pipe()
    os.write(write_end, text.encode())
    os.close(write_end)
    original = os.dup(0)
    os.dup2(read_end, 0)
    try:
        yield
    finally:
        os.dup2(original, 0)
        os.close(read_end)
        os.close(original)


def run_here(
    *arguments: object, folder: Path | None = None, given: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a ``gatewise`` command in this process, which is faster than a new interpreter.

    `given` is its standard input.
    """
    out = io.StringIO()
    err = io.StringIO()
    with (
        standard_input(given),
        contextlib.chdir(folder or Path.cwd()),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        status = cli.main([*map(str, arguments)])
    return subprocess.CompletedProcess(arguments, status, out.getvalue(), err.getvalue())


def refused(*arguments: object, folder: Path | None = None) -> str:
    """Assert that a command fails with status 2 and one line on standard error; return the line."""
    process = run_here(*arguments, folder=folder)
    outcome = (process.returncode, process.stdout, process.stderr.count("\n"))
    assert outcome == (2, "", 1), process.stderr
    return process.stderr


class Command:
    """A ``gatewise`` command in a new process, whose output can be read line by line."""

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
            preexec_fn=default_signals,  # noqa: PLW1509  no thread holds a lock here
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
        """Wait for the end; return exit status, standard output and standard error."""
        out, err = self.process.communicate(timeout=seconds)
        return self.process.returncode, out, err

    def close(self) -> None:
        """Kill the process, if it runs."""
        with self.process:
            self.process.kill()


@pytest.fixture
def command() -> Iterator[Callable[..., Command]]:
    """Fixture that starts ``gatewise`` commands in new processes; imported by conftests."""
    started: list[Command] = []

    def start(*arguments: object, **options: Any) -> Command:
        started.append(Command(*arguments, **options))
        return started[-1]

    yield start
    for started_command in started:
        started_command.close()


def _stat(pid: int) -> Sequence[str]:
    """State and parent id of a process; empty if it does not exist."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[:2]
    except (FileNotFoundError, ProcessLookupError):
        return ()


def running(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    return bool(_stat(pid)) and _stat(pid)[:1] != ["Z"]


def below(pid: int | None = None, *, aside: Collection[int] = ()) -> set[int]:
    """Find the running descendants of a process, by default of this one.

    The processes `aside` and their descendants are excluded, because a browser that tests share may
    start processes at any time.
    """
    pid = os.getpid() if pid is None else pid
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (stat := _stat(int(entry.name))) and stat[0] != "Z":
            parents[int(entry.name)] = int(stat[1])
    candidates = {p: parent for p, parent in parents.items() if p not in aside}
    descendants: set[int] = set()
    while (
        children := {p for p, parent in candidates.items() if parent in {pid, *descendants}}
        - descendants
    ):
        descendants |= children
    return descendants


def command_line(pid: int) -> str:
    """Command line of a process; empty if the process has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def named(part: str, pid: int | None = None) -> list[int]:
    """Find the descendants of a process whose command line contains `part`, the oldest first."""
    return sorted(p for p in below(pid) if part in command_line(p))


def all_end(pids: Collection[int]) -> bool:
    """Wait for the end of processes; return whether they have ended in time."""
    return holds_within(lambda: not any(map(command_line, pids)), PATIENCE)


def interrupt(
    run: Command, number: int, under_way: Callable[[], object]
) -> tuple[int, str, str, set[int]]:
    """Send a signal to a command once `under_way` is true, and wait for the end of its processes.

    Returns status, standard output, standard error, and the descendants that it had.
    """
    pid = run.process.pid
    children = set[int]()

    def ready() -> bool:
        children.update(below(pid))
        return bool(under_way()) or run.process.poll() is not None

    assert holds_within(ready, PATIENCE, pause=0.05)  # listing all processes takes 10 ms
    children.update(below(pid))
    run.process.send_signal(number)
    status, out, err = run.finish(PATIENCE)
    assert all_end(children)
    return status, out, err, children
