"""Arrivals that were recorded, played again."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gatewise.errors import InputError
from gatewise_sim.fleet.workload.streams import Streams
from gatewise_sim.fleet.workload.times import STATES, Drawn

__all__ = ["Trace", "TraceSource", "read_trace"]

_Floats = npt.NDArray[np.float64]
_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Trace:
    """Recorded arrivals of each device: sorted times (s), and rows if recorded."""

    times: list[_Floats]
    rows: list[_Ints] | None = None

    @property
    def last(self) -> float:
        """Time of the last arrival, in s."""
        return max(float(times[-1]) for times in self.times)


def read_trace(path: str | Path) -> Trace:
    """Read a CSV file with the columns ``time`` (s), and ``device`` and ``row`` if there are any.

    Raises
    ------
    InputError
        Which names the file, the line and the column.
    """
    path = Path(path)
    found: dict[str, list[tuple[float, int]]] = {}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file, skipinitialspace=True)
            columns = reader.fieldnames or ()
            if "time" not in columns:
                raise InputError(f"trace {path}: no column 'time'")
            for name in columns:
                if name not in ("time", "device", "row"):
                    raise InputError(f"trace {path}: unknown column {name!r}")
            for line in reader:
                where = f"trace {path}, line {reader.line_num}"
                time = _time(line["time"], where)
                row = _row(line["row"], where) if "row" in columns else 0
                found.setdefault(line.get("device") or "", []).append((time, row))
    except OSError as error:
        raise InputError(f"trace {path}: {error.strerror or error}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"trace {path}: {error}") from error
    if not found:
        raise InputError(f"trace {path}: it holds no arrivals")
    times, rows = [], []
    for events in found.values():
        events.sort(key=lambda event: event[0])
        times.append(np.array([time for time, _ in events]))
        rows.append(np.array([row for _, row in events], dtype=np.int64))
    return Trace(times, rows if "row" in columns else None)


def _time(text: str | None, where: str) -> float:
    try:
        time = float(text or "")
    except ValueError:
        time = math.nan
    if not (math.isfinite(time) and time >= 0):
        raise InputError(f"{where}: time {text!r} is not a number of seconds, at least 0")
    return time


def _row(text: str | None, where: str) -> int:
    if text is None or not text.isdecimal():
        raise InputError(f"{where}: row {text!r} is not the number of a row, from 0")
    return int(text)


class TraceSource:
    """Plays a trace: device ``i`` does what recorded device ``i mod n`` did.

    With a period `every` (s) the trace comes again and again, and each device beyond the recorded
    ones begins somewhere in it, so that copies are not in step; without it, it is played once.
    """

    def __init__(self, streams: Streams, ids: _Ints, trace: Trace, every: float | None) -> None:
        self._trace, self._every = trace, every
        n_recorded = len(trace.times)
        self._slots = [np.flatnonzero(ids % n_recorded == i) for i in range(n_recorded)]
        self._shift = np.zeros(len(ids))
        if every is not None:
            copies = ids >= n_recorded
            drawn = every * streams.uniforms(ids, 0, purpose=STATES)[:, 0]
            self._shift[copies] = drawn[copies]
        self._cycle = np.inf if every is None else every

    def chunk(self, begin: float, end: float) -> Drawn:
        parts: list[tuple[_Floats, _Ints, _Ints, _Ints]] = []
        for which, slots in enumerate(self._slots):
            if not len(slots):
                continue
            first, last = 0, 0
            if self._every is not None:  # a device that is ahead may be one round further
                first, last = int(begin // self._cycle), int(end // self._cycle) + 1
            parts += [
                self._round(which, slots, number, begin, end) for number in range(first, last + 1)
            ]
        if not parts:
            return Drawn(np.empty(0), np.empty(0, np.int64), np.empty(0, np.int64))
        times, slot, ordinal, row = (
            np.concatenate([np.asarray(part[i]) for part in parts]) for i in range(4)
        )
        recorded = None if self._trace.rows is None else row.astype(np.int64)
        return Drawn(times, slot.astype(np.int64), ordinal.astype(np.int64), recorded)

    def _round(
        self, which: int, slots: _Ints, number: int, begin: float, end: float
    ) -> tuple[_Floats, _Ints, _Ints, _Ints]:
        """Arrivals of the devices `slots` in one playing of recorded device `which`."""
        times = self._trace.times[which]
        shift = (number * self._cycle if number else 0.0) - self._shift[slots]
        # One more to either side, then exactly by the time itself: it must not matter how the
        # difference rounds.
        low = np.maximum(np.searchsorted(times, begin - shift) - 1, 0)
        high = np.minimum(np.searchsorted(times, end - shift) + 1, len(times))
        n_each = np.maximum(high - low, 0)
        at = np.repeat(np.arange(len(slots)), n_each)
        ends = np.cumsum(n_each)
        place = np.arange(ends[-1]) - np.repeat(ends - n_each, n_each) + low[at]
        moved = times[place] + shift[at]
        inside = (moved >= begin) & (moved < end)
        at, place, moved = at[inside], place[inside], moved[inside]
        rows = place if self._trace.rows is None else self._trace.rows[which][place]
        return moved, slots[at], place + number * len(times), rows
