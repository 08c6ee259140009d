"""When instances come, at which device, and which rows they are.

A workload is written as ``KIND:RATE:option=value``::

    poisson:1/min
    periodic:10s:jitter=1s                    (or a rate, 6/min; aligned=yes: all in step)
    bursty:1/min:ratio=20:burst=30s:every=10min
    diurnal:1/min:peak=14:00:ratio=5
    replay:trace.csv:every=1day               (CSV of time[,device][,row])

Rates are of one device. :func:`draw_arrivals` draws them for a fleet.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from gatewise.errors import InputError
from gatewise.formats import read_clock, read_number, read_rate, read_span
from gatewise_sim.fleet.workload.kinds import (
    Bursty,
    Diurnal,
    Periodic,
    Poisson,
    Replay,
    Workload,
    read_trace,
)
from gatewise_sim.fleet.workload.row_mix import RowMix
from gatewise_sim.fleet.workload.sources import (
    MARKS,
    PeriodicSource,
    PoissonSource,
    TraceSource,
    uniforms,
)

_Floats = npt.NDArray[np.float64]
_Ints = npt.NDArray[np.int64]
_CHUNK: Final = 1_000_000  # arrivals in a chunk, about


class Arrivals(NamedTuple):
    """A chunk of arrivals, sorted by time (s), then device; arrays of shape (n,)."""

    times: _Floats
    device: _Ints
    row: _Ints


def parse(text: str, *, day_begins: float = 0.0) -> Workload:
    """Read a workload as the module's head shows; `day_begins` is the time of day (s) at the start.

    >>> parse("poisson:30/min")
    Poisson(rate=0.5)
    >>> parse("bursty:1/s:ratio=9:burst=10s:every=100s").mean_rate
    1.0
    """
    kind, _, rest = text.strip().partition(":")
    if kind not in _KINDS:
        raise InputError(f"workload {text!r}: choose one of {', '.join(_KINDS)}, as poisson:1/min")
    make, first, read, readers = _KINDS[kind]
    # Colons stand in times of day as well: an option begins with its name.
    main, *given = re.split(r":(?=[a-z]+=)", rest)
    where, options = f"workload {kind}", dict[str, Any]()
    for option in given:
        name, _, value = option.partition("=")
        if name not in readers:
            known = ", ".join(readers) or "none"
            raise InputError(f"{where}: unknown option {name!r}; there are {known}")
        if name in options:
            raise InputError(f"{where}: {name} is given twice")
        options[name] = readers[name](value, f"{where}: {name}")
    if not main:
        raise InputError(f"workload {text!r}: a {first} must follow {kind}:")
    if kind == "diurnal":
        options["day_begins"] = day_begins
    return make(read(main, where), **options)


def _read_period(text: str, what: str) -> float:
    return 1 / read_rate(text, what) if "/" in text else read_span(text, what)


def _read_yes(text: str, what: str) -> bool:
    if text not in ("yes", "no"):
        raise InputError(f"{what} is {text!r}; say yes or no")
    return text == "yes"


_Reader = Callable[[str, str], Any]
#: Of each kind its class, what follows the name and the options: how each is read.
_KINDS: Final[Mapping[str, tuple[Callable[..., Workload], str, _Reader, dict[str, _Reader]]]] = {
    "poisson": (Poisson, "rate (1/min)", read_rate, {}),
    "periodic": (
        Periodic, "period (10s)", _read_period, {"jitter": read_span, "aligned": _read_yes},
    ),
    "bursty": (
        Bursty, "rate (1/min)", read_rate,
        {"ratio": read_number, "burst": read_span, "every": read_span},
    ),
    "diurnal": (Diurnal, "rate (1/min)", read_rate, {"peak": read_clock, "ratio": read_number}),
    "replay": (
        Replay, "file (trace.csv)", lambda path, _: read_trace(path), {"every": read_span},
    ),
}  # fmt: skip


def draw_arrivals(
    spec: Workload | str,
    devices: int | npt.ArrayLike,
    seconds: float,
    rng: np.random.Generator,
    *,
    rows: int | RowMix = 1,
    chunk_s: float | None = None,
) -> Iterator[Arrivals]:
    """Draw the arrivals of a fleet in ``[0, seconds)``, chunk by chunk of time that has any.

    >>> for times, device, row in draw_arrivals("periodic:10s:aligned=yes", 2, 15.0,
    ...                                          np.random.default_rng(0)):
    ...     print(times, device, row)
    [ 0. 0. 10. 10.] [0 1 0 1] [0 0 0 0]
    """
    workload = parse(spec) if isinstance(spec, str) else spec
    ids = np.arange(devices) if isinstance(devices, int) else np.asarray(devices, dtype=np.int64)
    if not len(ids) or ids.min() < 0:
        raise InputError("workload: give at least one device, numbered from 0")
    if not seconds > 0:
        raise InputError(f"workload: {seconds} s must be above 0")
    if isinstance(rows, int) and rows < 1:
        raise InputError("workload: the table has no rows")
    if chunk_s is None:
        chunk_s = min(seconds, _CHUNK / (workload.mean_rate * len(ids)))
    root = int(rng.integers(0, 2**64, dtype=np.uint64))
    return _chunks(workload, ids.astype(np.int64), seconds, root, rows, chunk_s)


def _chunks(
    workload: Workload,
    ids: _Ints,
    seconds: float,
    root: int,
    rows: int | RowMix,
    chunk_s: float,
) -> Iterator[Arrivals]:
    source = _make_source(workload, root, ids)
    end, number = 0.0, 0
    while end < seconds:
        begin, number = end, number + 1
        end = min(number * chunk_s, seconds)
        times, slot, ordinal, row = source.chunk(begin, end)
        order = np.lexsort((ids[slot], times))
        times, device, ordinal = times[order], ids[slot[order]], ordinal[order]
        marks = uniforms(root, device, ordinal, purpose=MARKS)
        if row is not None:
            row = row[order]
            _check_rows(row, rows)
        elif isinstance(rows, RowMix):
            row = rows.rows(times, marks[:, 1], marks[:, 2])
        else:
            row = (marks[:, 2] * rows).astype(np.int64)
        kept = workload.keep(times, marks[:, 0])
        if kept is not None:
            times, device, row = times[kept], device[kept], row[kept]
        if len(times):
            yield Arrivals(times, device, row)


def _make_source(
    workload: Workload, root: int, ids: _Ints
) -> PeriodicSource | PoissonSource | TraceSource:
    """Source of the arrivals of the devices `ids`, shape (n,), before thinning."""
    match workload:
        case Periodic(period, jitter, aligned):
            return PeriodicSource(root, ids, period, jitter, aligned)
        case Replay(trace, every):
            return TraceSource(root, ids, trace.times, trace.rows, every)
        case Bursty():
            stays = workload.every - workload.burst, workload.burst
            return PoissonSource(root, ids, workload.rates, stays)
        case Diurnal():
            highest = workload.rate * (1 + workload.swing)
            return PoissonSource(root, ids, (highest, highest))
        case _:
            return PoissonSource(root, ids, (workload.mean_rate, workload.mean_rate))


def _check_rows(row: _Ints, rows: int | RowMix) -> None:
    there = rows if isinstance(rows, int) else rows.n_rows
    if len(row) and row.max() >= there:
        raise InputError(f"trace: row {row.max()} is asked for, the table has {there}")
