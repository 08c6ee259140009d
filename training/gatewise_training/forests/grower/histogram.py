"""Counts of a node's examples by code of a column and class.

Where a node has many rows for its range of codes, they are counted into a histogram. In other
nodes, which are most nodes of a deep tree on a column of many values, the few rows are sorted.
Columns in which one code prevails are counted together from the entries that differ. The result is
always the list of the codes that occur, ascending, with their class counts.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

WIDE = 4
"""Most bins of a histogram per row."""

SORTED = 14
"""Bits of a row's number among the rows that are sorted, which are fewer than 65,536 / WIDE."""

FEW = 16
"""Up to this many rows are sorted by insertion."""


@numba.njit(cache=True, nogil=True)
def scratch(n_rows: int, most_codes: int, n_classes: int) -> Any:
    """Get working arrays: keys, sorted keys, histogram (zeros), and :func:`code_counts`' results.

    The results are codes, int32 of shape (n_events,), and counts, int32 (n_events, n_classes).
    """
    # one more, because a prevailing code may turn out to be absent only at the end
    most_events = min(n_rows, most_codes) + 1
    most_keys = min(n_rows, 1 << SORTED)
    return (
        np.empty(most_keys, np.uint32),
        np.empty(most_keys, np.uint32),
        np.zeros(most_codes * n_classes, np.int32),
        np.empty(most_events, np.int32),
        np.empty((most_events, n_classes), np.int32),
    )


@numba.njit(cache=True, nogil=True)
def all_right(whole: Any, left: Any, right: Any) -> float:
    """Put a node's examples on the right of all boundaries; returns their number."""
    n = 0.0
    for m in range(len(whole)):
        left[m] = 0
        right[m] = whole[m]
        n += whole[m]
    return n


@numba.njit(cache=True, nogil=True)
def gather(column: Any, rows: Any, code: Any) -> Any:
    """Copy the codes of some rows of a column to `code`, and get the least and the largest."""
    low = high = np.int32(column[rows[0]])
    for i in range(len(rows)):
        c = np.int32(column[rows[i]])
        code[i] = c
        low = min(low, c)
        high = max(high, c)
    return low, high


@numba.njit(cache=True, nogil=True)
def code_counts(
    code: Any, y: Any, weight: Any, low: int, high: int, n_classes: int, work: Any
) -> int:
    """Count a node's examples by code and class; returns the number of distinct codes.

    `code`, `y` and `weight` (int32, shape (n,)) are the codes of the node's rows, their classes
    and how often each was drawn, `low` and `high` the least and largest code. `work` comes from
    :func:`scratch`; its last two arrays receive the result.
    """
    keys, spare, histogram, event_code, event_count = work
    n = len(y)
    width = high - low + 1
    if width <= WIDE * n:
        for i in range(n):
            histogram[(code[i] - low) * n_classes + y[i]] += weight[i]
        n_events = 0
        for b in range(width):
            any_count = np.int32(0)
            for m in range(n_classes):
                any_count |= histogram[b * n_classes + m]
            if any_count:
                event_code[n_events] = low + b
                for m in range(n_classes):
                    event_count[n_events, m] = histogram[b * n_classes + m]
                    histogram[b * n_classes + m] = 0
                n_events += 1
        return n_events
    # a key holds a row's code and, in its low bits, the row's number
    for i in range(n):
        keys[i] = np.uint32((code[i] - low) << SORTED | i)
    ordered = _sort(keys, spare, n, width)
    event = -1
    last_code = np.int64(-1)
    for j in range(n):
        c = np.int64(ordered[j] >> SORTED)
        i = ordered[j] & ((1 << SORTED) - 1)
        if c != last_code:
            last_code = c
            event += 1
            event_code[event] = c + low
            for m in range(n_classes):
                event_count[event, m] = 0
        event_count[event, y[i]] += weight[i]
    return event + 1


@numba.njit(cache=True, nogil=True)
def _sort(keys: Any, spare: Any, n: int, width: int) -> Any:
    """Sort the first n keys by their code: by insertion, or digit by digit of eight bits."""
    if n <= FEW:
        for i in range(1, n):
            key = keys[i]
            j = i
            while j > 0 and keys[j - 1] > key:
                keys[j] = keys[j - 1]
                j -= 1
            keys[j] = key
        return keys
    next_index = np.empty(256, np.int32)
    shift = SORTED
    while (width - 1) >> (shift - SORTED):
        next_index[:] = 0
        for i in range(n):
            next_index[keys[i] >> shift & 255] += 1
        total = np.int32(0)
        for digit in range(256):
            count = next_index[digit]
            next_index[digit] = total
            total += count
        for i in range(n):
            digit = keys[i] >> shift & 255
            spare[next_index[digit]] = keys[i]
            next_index[digit] += 1
        keys, spare = spare, keys
        shift += 8
    return keys


@numba.njit(cache=True, nogil=True)
def count_sparse(
    rows: Any, y: Any, weight: Any, entry_start: Any, entry_slot: Any, entry_feature: Any,
    slots: Any, is_touched: Any, touched: Any,
) -> int:  # fmt: skip
    """Count the entries of some rows in all sparse columns (:class:`Sparse`) at once.

    `slots` (int32, zeros, shape (n_slots, n_classes)) receives the counts, `is_touched` (bool,
    False, (n_features,)) the columns with an entry, and `touched` (int32, (n_features,)) a list of
    them, the length of which is returned.
    """
    n_touched = 0
    for i in range(len(rows)):
        for e in range(entry_start[rows[i]], entry_start[rows[i] + 1]):
            slots[entry_slot[e], y[i]] += weight[i]
            k = entry_feature[e]
            if not is_touched[k]:
                is_touched[k] = True
                touched[n_touched] = k
                n_touched += 1
    return n_touched


@numba.njit(cache=True, nogil=True)
def clear_sparse(offset: Any, slots: Any, is_touched: Any, touched: Any, n_touched: int) -> None:
    """Set the counts of :func:`count_sparse` back to zero."""
    for j in range(n_touched):
        k = touched[j]
        is_touched[k] = False
        slots[offset[k] : offset[k + 1]] = 0


@numba.njit(cache=True, nogil=True)
def sparse_counts(
    slots: Any, begin: int, end: int, common: int, whole: Any, event_code: Any, event_count: Any
) -> int:
    """List the codes of one sparse column; the common one has the remaining examples.

    Returns the number of distinct codes.
    """
    n_events = 0
    for c in range(end - begin):
        any_count = np.int32(0)
        for m in range(len(whole)):
            any_count |= slots[begin + c, m]
        if c == common:
            for m in range(len(whole)):
                remaining = whole[m]
                for slot in range(begin, end):
                    remaining -= slots[slot, m]
                event_count[n_events, m] = remaining
                any_count |= remaining
        else:
            for m in range(len(whole)):
                event_count[n_events, m] = slots[begin + c, m]
        if any_count:
            event_code[n_events] = c
            n_events += 1
    return n_events
