"""Child processes that exchange lines of JSON with their owner and never outlive it.

A child of this project reads its standard input, a pipe (:func:`end_with_owner`). It ends when its
owner closes the pipe or is killed. Another program, such as mosquitto, gets a guard process: a
shell that kills the program when a similar pipe closes.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Self

#: Time in which a child may end by itself before it is killed.
_CLOSE_SECONDS: Final = 10.0
#: Shell script that kills a program when the shell's standard input, a pipe, closes.
_GUARD_SCRIPT: Final = 'read _; kill -KILL "$1"'

OnMessage = Callable[["ChildProcess", Mapping[str, Any] | None], None]


class ChildProcess:
    """Program that runs in a separate process; a context manager.

    The process has its own process group. Ctrl-C in a terminal therefore reaches only the owner,
    which then ends its children.

    Parameters
    ----------
    name : str
        Name of the program in messages.
    command : sequence of str
        Program and arguments.
    on_message : callable, optional
        Called on a thread as ``on_message(child, document)`` for each line of standard output that
        is a JSON object, and with None after the last line. ``{"error": text}`` sets
        :attr:`error_message` instead.
    follows_input : bool, default True
        Whether the program ends when its standard input closes. Otherwise it is ended by SIGTERM,
        and gets a guard.
    captures_stderr : bool, default True
        Whether to store standard error for :meth:`wait_for_failure`; otherwise the child writes to
        the owner's standard error.
    environment : mapping, optional
        Variables in addition to the owner's. Passwords belong here, because arguments are visible
        in the list of processes.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        on_message: OnMessage | None = None,
        follows_input: bool = True,
        captures_stderr: bool = True,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self._on_message = on_message
        self.error_message = ""
        self._stderr_file = tempfile.TemporaryFile() if captures_stderr else None  # noqa: SIM115
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE if follows_input else subprocess.DEVNULL,
            stdout=subprocess.DEVNULL if on_message is None else subprocess.PIPE,
            stderr=self._stderr_file,
            env=None if environment is None else os.environ | environment,
            process_group=0,
        )
        self._guard: subprocess.Popen[bytes] | None = None
        if not follows_input:
            self._guard = subprocess.Popen(
                ["/bin/sh", "-c", _GUARD_SCRIPT, "sh", str(self.pid)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                # join the program's group, so that the id of the group stays in use
                process_group=self.pid,
            )
        self._reader: threading.Thread | None = None
        if on_message is not None:
            self._reader = threading.Thread(
                target=self._read_lines, name=f"read {name}", daemon=True
            )
            self._reader.start()

    @property
    def pid(self) -> int:
        """Id of the process."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the process is running."""
        return self._process.poll() is None

    def send(self, document: Mapping[str, Any]) -> None:
        """Write a document as one line to the child's standard input, unless it has ended."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(document).encode() + b"\n")
            self._process.stdin.flush()

    def wait_for_failure(self, n_lines: int = 1) -> str:
        """Wait until the child ends, and return its error or the last lines of standard error."""
        status = self._process.wait(_CLOSE_SECONDS)
        if self._reader is not None:
            self._reader.join()
        return self.error_message or self.last_lines(n_lines) or f"ended with status {status}"

    def stderr_text(self) -> str:
        """Return the standard error so far; empty if it is not stored."""
        if self._stderr_file is None or self._stderr_file.closed:
            return ""
        # use pread, because seeking would move the position at which the child writes
        size = os.fstat(self._stderr_file.fileno()).st_size
        return os.pread(self._stderr_file.fileno(), size, 0).decode("utf-8", "replace")

    def last_lines(self, n_lines: int = 1) -> str:
        """Return the last lines of standard error."""
        return "; ".join(self.stderr_text().strip().splitlines()[-n_lines:]).removeprefix(
            "gatewise: "
        )

    def request_end(self) -> None:
        """Request the end of the child, without waiting for it."""
        if self._guard is not None:
            self._process.terminate()
            return
        assert self._process.stdin is not None
        # the pipe is broken if the child has ended before it has read everything
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()

    def close(self, seconds: float = _CLOSE_SECONDS) -> None:
        """End the child, and kill it if it has not ended after `seconds`; may be called again."""
        try:
            self.request_end()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(max(0.0, seconds))
        finally:
            self._process.kill()
            self._process.wait()
            if self._guard is not None:
                self._guard.kill()
                self._guard.communicate()
            if self._reader is not None:
                self._reader.join()
            if self._stderr_file is not None:
                self._stderr_file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read_lines(self) -> None:
        assert self._process.stdout is not None
        assert self._on_message is not None
        with self._process.stdout as lines:
            for line in lines:
                try:
                    document = json.loads(line)
                except ValueError:
                    continue  # a line that is meant for people
                if isinstance(document, dict) and "error" in document:
                    self.error_message = str(document["error"])
                elif isinstance(document, dict):
                    self._on_message(self, document)
        self._on_message(self, None)


def close_all(children: Iterable[ChildProcess]) -> None:
    """Close several children at the same time."""
    children = list(children)
    for child in children:
        child.request_end()
    for child in children:
        child.close()


def end_with_owner(stop: Callable[[], object]) -> None:
    """Start a thread that calls `stop` once this process's standard input closes."""

    def wait_for_close() -> None:
        while os.read(0, 4096):
            pass
        stop()

    threading.Thread(target=wait_for_close, name="wait for owner", daemon=True).start()
