"""Child processes that speak JSON, one document a line, and never outlive their owner."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from gatewise_sim.errors import RunError

__all__ = ["Child", "close_all"]

_CLOSE_SECONDS = 10.0

Hear = Callable[["Child", Mapping[str, Any] | None], None]


class Child:
    """A Python module run in a process of its own; a context manager.

    Its standard input stays open while the owner lives: a child that sees it close ends. It
    is in a session of its own, so that Ctrl-C in a terminal reaches the owner alone, which
    then ends it in good order.

    Parameters
    ----------
    name : str
        What it is, for messages.
    module : str
        Run as ``python -m module``.
    hear : callable
        ``hear(child, document)`` for each line it prints that is a JSON object, and
        ``hear(child, None)`` once it prints no more. Called on a thread of this object.

    Attributes
    ----------
    name : str
    """

    def __init__(self, name: str, module: str, hear: Hear) -> None:
        self.name = name
        self._hear = hear
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed with the child
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, name=f"read {name}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether it has ended, by itself or not."""
        return self._process.poll() is not None

    def tell(self, document: Mapping[str, Any]) -> None:
        """Write one line to its standard input; a child that is gone hears nothing."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its reader says that it is gone
            self._process.stdin.write(json.dumps(document).encode() + b"\n")
            self._process.stdin.flush()

    def failure(self) -> RunError:
        """What it said last, once it has ended by itself."""
        status = self._process.wait(_CLOSE_SECONDS)
        self._errors.seek(0)
        lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        last = lines[-1].removeprefix("gatewise: ") if lines else f"ended with status {status}"
        return RunError(self.name, last)

    def kill(self) -> None:
        """Kill it, without a warning."""
        self._process.kill()

    def release(self) -> None:
        """Close its input, so that it ends; return at once."""
        assert self._process.stdin is not None
        # What is still in the buffer cannot be written to a child that is gone.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def close(self) -> None:
        """End it: close its input, and kill it if it has not ended by itself in 10 s."""
        process = self._process
        try:
            self.release()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_CLOSE_SECONDS)
        finally:
            process.kill()
            process.wait()
            self._reader.join()
            self._errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                try:
                    document = json.loads(line)
                except ValueError:
                    continue  # a line for people
                if isinstance(document, dict):
                    self._hear(self, document)
        self._hear(self, None)


def close_all(children: Iterable[Child]) -> None:
    """Close several, all at the same time."""
    several = list(children)
    for child in several:
        child.release()
    for child in several:
        child.close()
