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
TIMEOUT_S = 120.0
#: Time limit for a whole run, below the 300 s at which pytest kills a test and loses its output.
RUN_TIMEOUT_S = 290.0


def restore_default_signals() -> None:
    """Restore the signals that ``nohup`` and background jobs ignore, before a child starts."""
    for signal_number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(signal_number, signal.SIG_DFL)


def run_python(code: str, *arguments: object, stdin_text: str = "") -> str:
    """Run code in a new interpreter with `stdin_text` as standard input; return its output."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    process = subprocess.run(
        command, input=stdin_text, capture_output=True, text=True, timeout=RUN_TIMEOUT_S
    )
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
        timeout=RUN_TIMEOUT_S,
    )


@contextlib.contextmanager
def replace_standard_input(text: str) -> Iterator[None]:
    """Replace this process's standard input with `text`, which must fit into a pipe's buffer."""
    read_end, write_end = os.pipe()
    os.write(write_end, text.encode())
    os.close(write_end)
    # the file descriptor 0 itself, because child processes inherit it
    original_stdin = os.dup(0)
    os.dup2(read_end, 0)
    try:
        yield
    finally:
        os.dup2(original_stdin, 0)
        os.close(read_end)
        os.close(original_stdin)


def run_in_process(
    *arguments: object, folder: Path | None = None, stdin_text: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a ``gatewise`` command in this process, which is faster than a new interpreter.

    `stdin_text` is its standard input.
    """
    stdout = io.StringIO()
    stderr = io.StringIO()
    with (
        replace_standard_input(stdin_text),
        contextlib.chdir(folder or Path.cwd()),
        contextlib.redirect_stdout(stdout),
        contextlib.redirect_stderr(stderr),
    ):
        status = cli.main([*map(str, arguments)])
    return subprocess.CompletedProcess(arguments, status, stdout.getvalue(), stderr.getvalue())


def assert_command_refused(*arguments: object, folder: Path | None = None) -> str:
    """Assert that a command fails with status 2 and one line on standard error; return the line."""
    process = run_in_process(*arguments, folder=folder)
    outcome = (process.returncode, process.stdout, process.stderr.count("\n"))
    assert outcome == (2, "", 1), process.stderr
    return process.stderr


class Command:
    """A ``gatewise`` command in a new process; its output can be read line by line."""

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
            preexec_fn=restore_default_signals,  # noqa: PLW1509  no thread holds a lock here
        )

    def write(self, text: str) -> None:
        """Write to its standard input."""
        assert self.process.stdin is not None
        self.process.stdin.write(text)
        self.process.stdin.flush()

    def read_line(self) -> str:
        """Read the next line of standard output."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def finish(self, timeout_s: float = 60.0) -> tuple[int, str, str]:
        """Wait for the end; return exit status, standard output and standard error."""
        stdout, stderr = self.process.communicate(timeout=timeout_s)
        return self.process.returncode, stdout, stderr

    def close(self) -> None:
        """Kill the process, if it runs."""
        with self.process:
            self.process.kill()


@pytest.fixture
def command() -> Iterator[Callable[..., Command]]:
    """Fixture that starts ``gatewise`` commands in new processes; imported by conftests."""
    started_commands: list[Command] = []

    def start(*arguments: object, **options: Any) -> Command:
        started_commands.append(Command(*arguments, **options))
        return started_commands[-1]

    yield start
    for started_command in started_commands:
        started_command.close()


def _read_state_and_parent(pid: int) -> Sequence[str]:
    """Read the state and the parent id of a process; empty if it does not exist."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[:2]
    except (FileNotFoundError, ProcessLookupError):
        return ()


def is_running(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    return bool(_read_state_and_parent(pid)) and _read_state_and_parent(pid)[:1] != ["Z"]


def find_descendants(pid: int | None = None, *, excluded_pids: Collection[int] = ()) -> set[int]:
    """Find the running descendants of a process, by default of this one.

    The processes `excluded_pids` and their descendants are excluded, because a browser that tests
    share may start processes at any time.
    """
    pid = os.getpid() if pid is None else pid
    parent_by_pid = {}
    for process_folder in Path("/proc").iterdir():
        if (
            process_folder.name.isdigit()
            and (state_and_parent := _read_state_and_parent(int(process_folder.name)))
            and state_and_parent[0] != "Z"
        ):
            parent_by_pid[int(process_folder.name)] = int(state_and_parent[1])
    considered_parents = {
        child: parent for child, parent in parent_by_pid.items() if child not in excluded_pids
    }
    descendants: set[int] = set()
    while True:
        ancestors = {pid, *descendants}
        children = {child for child, parent in considered_parents.items() if parent in ancestors}
        if children <= descendants:
            return descendants
        descendants |= children


def read_command_line(pid: int) -> str:
    """Command line of a process; empty if the process has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def find_descendants_named(text: str, pid: int | None = None) -> list[int]:
    """Find the descendants of a process with `text` in their command line, the oldest first."""
    return sorted(
        child_pid for child_pid in find_descendants(pid) if text in read_command_line(child_pid)
    )


def wait_for_end(pids: Collection[int]) -> bool:
    """Wait for the end of processes; return whether they have ended in time.

    A zombie counts as ended, because its command line is empty.
    """
    return holds_within(lambda: not any(map(read_command_line, pids)), TIMEOUT_S)


def signal_and_wait(
    command: Command, signal_number: int, is_under_way: Callable[[], object]
) -> tuple[int, str, str, set[int]]:
    """Send a signal to a command once `is_under_way`, and wait for the end of its processes.

    Returns status, standard output, standard error, and the descendants that it had.
    """
    pid = command.process.pid
    child_pids = set[int]()

    def is_ready() -> bool:
        child_pids.update(find_descendants(pid))
        return bool(is_under_way()) or command.process.poll() is not None

    assert holds_within(is_ready, TIMEOUT_S, pause_s=0.05)  # listing all processes takes 10 ms
    child_pids.update(find_descendants(pid))
    command.process.send_signal(signal_number)
    status, stdout, stderr = command.finish(TIMEOUT_S)
    assert wait_for_end(child_pids)
    return status, stdout, stderr, child_pids
