"""A simulation's progress on standard error: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from gatewise.console import note
from gatewise.formats import count, duration, percent
from gatewise_sim.progress import ProgressListener, Snapshot

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_EVERY: Final = 2.0  # s between two plain lines at least,
_AFTER: Final = 30.0  # and at most, under a policy that hardly moves


@contextmanager
def shown_progress() -> Iterator[ProgressListener]:
    """Show a simulation's progress on standard error while it is entered."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.table import Column

        columns = (
            TextColumn("{task.description}", table_column=Column(no_wrap=True)),
            BarColumn(bar_width=16),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[state]}", table_column=Column(ratio=1)),
        )
        console = Console(stderr=True, highlight=False, markup=False)
        with Progress(*columns, console=console, redirect_stdout=False, expand=True) as bars:
            yield TerminalBars(bars)
    else:
        yield PlainLines()


def _state(snapshot: Snapshot) -> str:
    """Counts of a snapshot in a few words."""
    parts = [f"{count(snapshot.answered)} instances"]
    if snapshot.cloud:
        parts.append(f"{count(snapshot.cloud)} answered by the cloud")
    if snapshot.fallback:
        parts.append(f"{count(snapshot.fallback)} by fallback")
    return ", ".join(parts)


class PlainLines(ProgressListener):
    """A line now and then: at most one in 2 s, at least one in 30 s; `clock` gives s."""

    _name = ""  # of the policy; empty before the first one
    _last: Snapshot | None = None
    _tenth = 0
    _written = -math.inf

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._faults: list[tuple[float, str, bool]] = []  # to come under this policy

    def begin(self, title: str, seconds: float, expected: int | None) -> None:
        self._close()
        self._began = self._clock()
        self._write(title)
        self._open(title.partition(":")[0], a_policy=False)

    def policy(self, key: str, name: str) -> None:
        self._close()
        self._faults.clear()
        self._open(name, a_policy=True)

    def advance(self, snapshot: Snapshot) -> None:
        for fault in sorted(f for f in self._faults if f[0] <= snapshot.at):
            at, part, up = fault
            self._write(f"  {part} {'back' if up else 'down'} after {duration(at)}")
            self._faults.remove(fault)
        self._show(snapshot)

    def fault(self, part: str, up: bool, at: float) -> None:
        self._faults.append((at, part, up))

    def end(self, text: str) -> None:
        self._close()
        took = duration(round(self._clock() - self._began))
        self._write(f"  ended after {took}: {text}" if text else f"  ended after {took}")

    def _write(self, line: str) -> None:
        with suppress(OSError, ValueError):  # a closed standard error is no reason to stop a run
            note(line)

    def _open(self, name: str, *, a_policy: bool) -> None:
        self._name, self._last = name if a_policy else "", None
        self._tenth, self._written = 0, self._clock()
        if a_policy:
            self._write(f"  {name}")

    def _show(self, snapshot: Snapshot) -> None:
        self._last = snapshot
        tenth, since = int(10 * snapshot.done), self._clock() - self._written
        if (tenth > self._tenth and since >= _EVERY) or since >= _AFTER:
            self._tenth, self._written = tenth, self._clock()
            self._write(f"  {percent(snapshot.done, 0)}, {_state(snapshot)}")

    def _close(self) -> None:
        if self._name and self._last is not None:
            self._write(f"  done: {self._name}, {_state(self._last)}")


class TerminalBars(PlainLines):
    """A bar for each policy, with a text field ``state``; faults are lines above them."""

    def __init__(self, bars: Progress) -> None:
        super().__init__()
        self._bars = bars
        self._task: TaskID | None = None

    def _write(self, line: str) -> None:
        self._bars.console.print(line)

    def _open(self, name: str, *, a_policy: bool) -> None:
        self._task = self._bars.add_task(name, total=1.0, state="")

    def _show(self, snapshot: Snapshot) -> None:
        if self._task is not None:
            self._bars.update(self._task, completed=snapshot.done, state=_state(snapshot))

    def _close(self) -> None:
        """Complete the current bar; one without any progress goes away."""
        if self._task is not None:
            task = next(task for task in self._bars.tasks if task.id == self._task)
            self._bars.update(task.id, completed=1.0, visible=task.completed > 0)
        self._task = None
