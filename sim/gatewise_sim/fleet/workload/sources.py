"""Sources of arrivals, drawn for all devices at once, chunk of time by chunk of time.

The result does not depend on where the chunks are cut.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

_Floats = npt.NDArray[np.float64]
_Ints = npt.NDArray[np.int64]

#: What a device's random numbers are for: gaps between arrivals, marks of an arrival (thinning,
#: class, row, jitter, in this order), the states of a bursty one.
GAPS, MARKS, STATES = 0, 1, 2
_AT_ONCE: Final = 1 << 20  # numbers drawn at a time

_U64 = npt.NDArray[np.uint64]
_MASK: Final = np.uint64(0xFFFFFFFF)
_HALF: Final = np.uint64(32)
_M0, _M1 = np.uint64(0xD2E7470EE14C6C93), np.uint64(0xCA5A826395121157)
_W0, _W1 = 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B
_ROUNDS: Final = 10
_PIECE: Final = 8192  # blocks worked on at a time: they stay in the cache


def uniforms(
    root: int,
    device: npt.ArrayLike,
    block: npt.ArrayLike,
    *,
    purpose: int,
    sub: npt.ArrayLike = 0,
) -> npt.NDArray[np.float64]:
    """Four numbers in [0, 1) for each device and block: float64, shape (..., 4).

    `device`, `block` and `sub` are at least 0 and broadcast to one shape; `purpose` keeps numbers
    for different ends apart. Device ``d`` has the stream of numpy's :class:`numpy.random.Philox`
    with key ``(root, d)``; a place in it is a counter ``(block, purpose, sub, 0)``. Philox computes
    the number at a place without those before it (Salmon et al., SC 2011), so a million devices
    need no state, none of them changes another's numbers, and it does not matter how time is cut
    into chunks.
    """
    wide = np.broadcast_arrays(*(np.asarray(a, dtype=np.uint64) for a in (device, block, sub)))
    key, first, third = (a.ravel() for a in wide)
    out = np.empty((len(key), 4), dtype=np.uint64)
    for begin in range(0, len(key), _PIECE):
        piece = slice(begin, begin + _PIECE)
        _philox(first[piece], purpose, third[piece], root, key[piece], out[piece])
    drawn = (out.reshape(*wide[0].shape, 4) >> np.uint64(11)) * 2.0**-53
    return np.asarray(drawn, dtype=np.float64)


def _philox(first: _U64, second: int, third: _U64, root: int, key: _U64, out: _U64) -> None:
    """Philox4x64-10 of the counters (first, second, third, 0) with the keys (root, key)."""
    x0, x2 = first, third
    x1 = np.full_like(first, second)
    x3 = np.zeros_like(first)
    for step in range(_ROUNDS):
        key0 = np.uint64((root + step * _W0) % 2**64)
        key1 = key + np.uint64(step * _W1 % 2**64)
        high0, low0 = _product(_M0, x0)
        high1, low1 = _product(_M1, x2)
        x0, x1, x2, x3 = high1 ^ x1 ^ key0, low1, high0 ^ x3 ^ key1, low0
    out[:, 0], out[:, 1], out[:, 2], out[:, 3] = x0, x1, x2, x3


def _product(factor: np.uint64, x: _U64) -> tuple[_U64, _U64]:
    """Upper and lower 64 bits of a product of 128, from four products of 32 by 32 bits."""
    factor_high, factor_low = factor >> _HALF, factor & _MASK
    high, low = x >> _HALF, x & _MASK
    cross = low * factor_high
    middle = ((low * factor_low) >> _HALF) + (cross & _MASK) + high * factor_low
    return high * factor_high + (cross >> _HALF) + (middle >> _HALF), x * factor


class Drawn(NamedTuple):
    """Arrivals of a chunk, in no order."""

    times: _Floats
    slot: _Ints
    ordinal: _Ints
    row: _Ints | None = None


def join(parts: list[Drawn]) -> Drawn:
    """Put the parts of a chunk together."""
    if not parts:
        return Drawn(np.empty(0), np.empty(0, np.int64), np.empty(0, np.int64))
    times, slots, ordinals = (np.concatenate([part[i] for part in parts]) for i in range(3))
    rows = [part.row for part in parts if part.row is not None]
    return Drawn(times, slots, ordinals, np.concatenate(rows) if rows else None)


def _ranges(first: _Ints, n_each: _Ints) -> tuple[_Ints, _Ints]:
    """Ranges of `n_each` numbers from each of `first`, joined: index of the range, and number."""
    owner = np.repeat(np.arange(len(first)), n_each)
    return owner, np.arange(len(owner)) - (np.cumsum(n_each) - n_each - first)[owner]


class PoissonSource:
    """Poisson arrivals at one of two rates, changing at random times (Markov-modulated).

    `rates` are arrivals per second in the quiet state and in a burst, `stays` the mean stay in each
    (s); without them the first state never ends.
    """

    def __init__(
        self,
        root: int,
        ids: _Ints,
        rates: tuple[float, float],
        stays: tuple[float, float] | None = None,
    ) -> None:
        n = len(ids)
        self._root, self._ids = root, ids
        self._rates, self._stays = np.array(rates), None if stays is None else np.array(stays)
        self._last = np.zeros(n)  # the last arrival, or where the state began
        self._drawn = np.zeros(n, np.int64)  # gaps used in this state
        self._ordinal = np.zeros(n, np.int64)
        self._stay = np.zeros(n, np.int64)  # how many states there were before
        self._burst = np.zeros(n, np.int64)
        self._switch = np.full(n, np.inf)
        if self._stays is not None:
            share = self._stays[1] / self._stays.sum()
            start = uniforms(root, ids, 0, purpose=STATES)
            self._burst[:] = start[:, 1] < share
            self._switch = -np.log1p(-start[:, 0]) * self._stays[self._burst]

    def chunk(self, begin: float, end: float) -> Drawn:
        parts: list[Drawn] = []
        slots = np.arange(len(self._ids))
        while len(slots):
            for first in range(0, len(slots), _AT_ONCE // 4):
                some = slots[first : first + _AT_ONCE // 4]
                parts += self._until(some, np.minimum(end, self._switch[some]))
            slots = slots[self._switch[slots] < end]
            self._change_state(slots)
        return join(parts)

    def _change_state(self, slots: _Ints) -> None:
        if self._stays is None or not len(slots):
            return
        self._last[slots] = self._switch[slots]
        self._drawn[slots] = 0
        self._stay[slots] += 1
        self._burst[slots] = 1 - self._burst[slots]
        u = uniforms(self._root, self._ids[slots], self._stay[slots], purpose=STATES)[:, 0]
        self._switch[slots] += -np.log1p(-u) * self._stays[self._burst[slots]]

    def _until(self, slots: _Ints, bound: _Floats) -> list[Drawn]:
        """Arrivals of `slots` before `bound`, shape (len(slots),), in the state they are in."""
        parts = []
        while len(slots):
            rate, last, used = (
                self._rates[self._burst[slots]],
                self._last[slots],
                self._drawn[slots],
            )
            most = float((rate * (bound - last)).max())
            n_blocks = int(most + 4 * np.sqrt(most) + 4) // 4 + 1
            n_blocks = min(n_blocks, max(1, _AT_ONCE // (4 * len(slots))))
            block = used[:, None] // 4 + np.arange(n_blocks)
            u = uniforms(
                self._root, self._ids[slots, None], block, purpose=GAPS, sub=self._stay[slots, None]
            ).reshape(len(slots), -1)
            place = 4 * block[:, :1] + np.arange(4 * n_blocks)
            fresh = place >= used[:, None]
            steps = np.where(fresh, -np.log1p(-u) / rate[:, None], 0.0)
            # Added one after the other, so the sums do not depend on where a chunk begins.
            times = np.cumsum(np.concatenate((last[:, None], steps), axis=1), axis=1)[:, 1:]
            taken = fresh & (times < bound[:, None])
            n_taken = taken.sum(axis=1)
            at, column = np.nonzero(taken)
            ordinal = (self._ordinal[slots] - used)[at] + place[at, column]
            parts.append(Drawn(times[at, column], slots[at], ordinal))
            self._drawn[slots] += n_taken
            self._ordinal[slots] += n_taken
            self._last[slots] = np.where(taken, times, last[:, None]).max(axis=1)
            more = times[:, -1] < bound
            slots, bound = slots[more], bound[more]
        return parts


class PeriodicSource:
    """One arrival in every period, later by a part of `jitter` (s), at most the period.

    `aligned`: all devices begin at 0, instead of each somewhere in the first period.
    """

    def __init__(self, root: int, ids: _Ints, period: float, jitter: float, aligned: bool) -> None:
        self._root, self._ids = root, ids
        self._period, self._jitter = period, jitter
        phase = period * uniforms(root, ids, 0, purpose=STATES)[:, 0]
        self._phase = np.zeros(len(ids)) if aligned else phase

    def chunk(self, begin: float, end: float) -> Drawn:
        # Ordinal 0 belongs to the period before the start: its jitter may carry it over.
        first = np.floor((begin - self._jitter - self._phase) / self._period)
        first = np.maximum(first.astype(np.int64), -1)
        last = np.ceil((end - self._phase) / self._period).astype(np.int64)
        n_each = np.maximum(last - first + 1, 0)
        slot, k = _ranges(first, n_each)
        times = self._phase[slot] + k * self._period
        if self._jitter:
            marks = uniforms(self._root, self._ids[slot], k + 1, purpose=MARKS)
            times += self._jitter * marks[:, 3]
        inside = (times >= begin) & (times < end)
        return Drawn(times[inside], slot[inside], k[inside] + 1)


class TraceSource:
    """Plays a trace: device ``i`` does what recorded device ``i mod n`` did.

    With a period `every` (s) the trace comes again and again, and each device beyond the recorded
    ones begins somewhere in it, so that copies are not in step; without it, it is played once.
    """

    def __init__(
        self,
        root: int,
        ids: _Ints,
        times: list[_Floats],
        rows: list[_Ints] | None,
        every: float | None,
    ) -> None:
        self._times, self._rows, self._every = times, rows, every
        n_recorded = len(times)
        self._slots = [np.flatnonzero(ids % n_recorded == i) for i in range(n_recorded)]
        self._shift = np.zeros(len(ids))
        if every is not None:
            copies = ids >= n_recorded
            drawn = every * uniforms(root, ids, 0, purpose=STATES)[:, 0]
            self._shift[copies] = drawn[copies]
        self._cycle = np.inf if every is None else every

    def chunk(self, begin: float, end: float) -> Drawn:
        parts = []
        for which, slots in enumerate(self._slots):
            if not len(slots):
                continue
            first, last = 0, 0
            if self._every is not None:  # a device that is ahead may be one round further
                first, last = int(begin // self._cycle), int(end // self._cycle) + 1
            parts += [
                self._round(which, slots, number, begin, end) for number in range(first, last + 1)
            ]
        return join(parts)

    def _round(self, which: int, slots: _Ints, number: int, begin: float, end: float) -> Drawn:
        """Arrivals of the devices `slots` in one playing of recorded device `which`."""
        times = self._times[which]
        shift = (number * self._cycle if number else 0.0) - self._shift[slots]
        # One more to either side, then exactly by the time itself: it must not matter how the
        # difference rounds.
        low = np.maximum(np.searchsorted(times, begin - shift) - 1, 0)
        high = np.minimum(np.searchsorted(times, end - shift) + 1, len(times))
        at, place = _ranges(low, np.maximum(high - low, 0))
        moved = times[place] + shift[at]
        inside = (moved >= begin) & (moved < end)
        at, place, moved = at[inside], place[inside], moved[inside]
        rows = None if self._rows is None else self._rows[which][place]
        return Drawn(moved, slots[at], place + number * len(times), rows)
