"""Child processes that exchange lines of JSON with their owner and end before it.

A child of this project reads the pipe that is its standard input (:func:`end_with_owner`) and ends
when its owner closes the pipe or is killed. Another program, such as mosquitto, gets a guard: a
shell that kills the program when the same pipe closes.
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

_CLOSE_SECONDS: Final = 10.0
#: Kills a program when the pipe that is this shell's standard input closes.
_GUARD: Final = 'read _; kill -KILL "$1"'

OnMessage = Callable[["ChildProcess", Mapping[str, Any] | None], None]


class ChildProcess:
    """A program in a process of its own; a context manager.

    It has a process group of its own, so that Ctrl-C in a terminal reaches the owner alone, which
    then ends its children.

    Parameters
    ----------
    name : str
        Name in messages.
    command : sequence of str
    on_message : callable, optional
        Called on a thread as ``on_message(child, document)`` for each line of standard output that
        is a JSON object, and with None after the last one. ``{"error": text}`` sets :attr:`error`
        instead.
    follows_input : bool, default True
        The program ends when its standard input closes. Otherwise it gets SIGTERM, and a guard.
    keep_errors : bool, default True
        Keep its standard error for :meth:`failure`; otherwise it is the owner's.
    environment : mapping, optional
        Variables in addition to the owner's, such as passwords, which must not be visible in the
        list of processes.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        on_message: OnMessage | None = None,
        follows_input: bool = True,
        keep_errors: bool = True,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self._on_message = on_message
        self.error = ""
        self._errors = tempfile.TemporaryFile() if keep_errors else None  # noqa: SIM115
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE if follows_input else subprocess.DEVNULL,
            stdout=subprocess.DEVNULL if on_message is None else subprocess.PIPE,
            stderr=self._errors,
            env=None if environment is None else os.environ | environment,
            process_group=0,
        )
        self._guard: subprocess.Popen[bytes] | None = None
        if not follows_input:
            self._guard = subprocess.Popen(
                ["/bin/sh", "-c", _GUARD, "sh", str(self.pid)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                # A member of the program's group, so that the group's id stays in use.
                process_group=self.pid,
            )
        self._reader: threading.Thread | None = None
        if on_message is not None:
            self._reader = threading.Thread(target=self._read, name=f"read {name}", daemon=True)
            self._reader.start()

    @property
    def pid(self) -> int:
        """Id of its process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def send(self, document: Mapping[str, Any]) -> None:
        """Write one line to its standard input; do nothing if it has ended."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(document).encode() + b"\n")
            self._process.stdin.flush()

    def failure(self, lines: int = 1) -> str:
        """Wait for a child that is not closed yet to end; return its own error or last lines."""
        status = self._process.wait(_CLOSE_SECONDS)
        if self._reader is not None:
            self._reader.join()
        return self.error or self.last_lines(lines) or f"ended with status {status}"

    def errors(self) -> str:
        """Its standard error so far; empty if it was not kept."""
        if self._errors is None or self._errors.closed:
            return ""
        # pread, because seeking would move the position at which the child writes.
        size = os.fstat(self._errors.fileno()).st_size
        return os.pread(self._errors.fileno(), size, 0).decode("utf-8", "replace")

    def last_lines(self, lines: int = 1) -> str:
        """The last lines of :meth:`errors`."""
        return "; ".join(self.errors().strip().splitlines()[-lines:]).removeprefix("gatewise: ")

    def release(self) -> None:
        """Request its end; return at once."""
        if self._guard is not None:
            self._process.terminate()
            return
        assert self._process.stdin is not None
        # A child that has ended does not read the rest of the buffer.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def kill(self) -> None:
        """Kill its process at once."""
        self._process.kill()

    def close(self, seconds: float = _CLOSE_SECONDS) -> None:
        """End it, by a kill after some seconds; may be called again."""
        try:
            self.release()
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
            if self._errors is not None:
                self._errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        assert self._on_message is not None
        with self._process.stdout as lines:
            for line in lines:
                try:
                    document = json.loads(line)
                except ValueError:
                    continue  # a line for people
                if isinstance(document, dict) and "error" in document:
                    self.error = str(document["error"])
                elif isinstance(document, dict):
                    self._on_message(self, document)
        self._on_message(self, None)


def close_all(children: Iterable[ChildProcess]) -> None:
    """Close several, all at the same time."""
    children = list(children)
    for child in children:
        child.release()
    for child in children:
        child.close()


def end_with_owner(stop: Callable[[], object]) -> None:
    """Call `stop`, on a thread of its own, once this process's standard input closes."""

    def follow() -> None:
        while os.read(0, 4096):
            pass
        stop()

    threading.Thread(target=follow, name="follow owner", daemon=True).start()
