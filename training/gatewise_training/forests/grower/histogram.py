"""Counts of a node's examples by code and class.

If a node has many rows for its range of codes, they are counted in a histogram. Most nodes of a
deep tree have few rows, which are sorted instead. Columns in which one code prevails are counted
together, from the entries that differ. The result is always an ascending list of the codes that
occur, with their class counts. Loops over i are over rows, over k over columns, and over m over
classes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

#: Maximum number of histogram bins per row; with more bins, most of them are empty, and sorting the
#: rows is faster.
MAX_BINS_PER_ROW = 4

#: Number of bits of a row's index in a key. They suffice, because at most 65,536 / MAX_BINS_PER_ROW
#: rows are sorted.
ROW_BITS = 14

#: Maximum number of rows for insertion sort, which is faster than a radix sort of few rows, because
#: it does not count digits.
MAX_INSERTION_ROWS = 16


class NodeRows(NamedTuple):
    """Rows of a node. An example is one draw of a row into the bootstrap sample."""

    rows: Any  # (n,)
    y: Any  # (n,): classes
    weight: Any  # (n,): number of draws of each row
    counts: Any  # (n_classes,): examples of each class
    n_examples: int
    impurity: float


class ColumnRows(NamedTuple):
    """One column of the rows of a node; each array is int32 of shape (n,)."""

    code: Any
    y: Any
    weight: Any


class CodeEvents(NamedTuple):
    """Codes of a column that occur at a node, ascending, and working arrays to list them.

    An event is a code that occurs.
    """

    code: Any  # (n_events,), int32
    count: Any  # (n_events, n_classes), int32: examples of each class
    keys: Any  # (n_keys,), uint32: the code of a row and, in the low bits, the row's index
    spare_keys: Any  # (n_keys,)
    histogram: Any  # (n_codes * n_classes,), int32: all 0 between two columns


class SparseCounts(NamedTuple):
    """Counts of a node in all sparse columns (:class:`.Sparse`)."""

    slots: Any  # (n_slots, n_classes), int32: all 0 between two nodes
    is_touched: Any  # (n_features,), bool: whether the column has an entry at the node
    touched_columns: Any  # (n_features,), int32: list of the columns with an entry


@numba.njit(cache=True, nogil=True)
def event_arrays(n_rows: int, n_codes: int, n_classes: int) -> Any:
    """Make the arrays of :class:`CodeEvents` for at most `n_rows` rows and `n_codes` codes."""
    # one entry more, because the prevailing code is written before it turns out to be absent
    n_events = min(n_rows, n_codes) + 1
    n_keys = min(n_rows, 1 << ROW_BITS)
    return CodeEvents(
        code=np.empty(n_events, np.int32),
        count=np.empty((n_events, n_classes), np.int32),
        keys=np.empty(n_keys, np.uint32),
        spare_keys=np.empty(n_keys, np.uint32),
        histogram=np.zeros(n_codes * n_classes, np.int32),
    )


@numba.njit(cache=True, nogil=True)
def put_all_right(node_counts: Any, left: Any, right: Any) -> float:
    """Put all examples of a node, (n_classes,), into the right child; return their number."""
    n_examples = 0.0
    for m in range(len(node_counts)):
        left[m] = 0
        right[m] = node_counts[m]
        n_examples += node_counts[m]
    return n_examples


@numba.njit(cache=True, nogil=True)
def gather_codes(column: Any, rows: Any, row_codes: Any) -> Any:
    """Copy the codes of rows of a column to `row_codes`; return the smallest and the largest."""
    low = high = np.int32(column[rows[0]])
    for i in range(len(rows)):
        code = np.int32(column[rows[i]])
        row_codes[i] = code
        low = min(low, code)
        high = max(high, code)
    return np.int64(low), np.int64(high)


@numba.njit(cache=True, nogil=True)
def list_events(rows: Any, low: int, high: int, events: Any) -> int:
    """List the codes from `low` to `high` that occur in a :class:`ColumnRows`.

    Returns the number of these codes.
    """
    width = high - low + 1
    if width <= MAX_BINS_PER_ROW * len(rows.y):
        return _list_by_histogram(rows, low, width, events)
    return _list_by_sorting(rows, low, width, events)


@numba.njit(cache=True, nogil=True)
def _list_by_histogram(rows: Any, low: int, width: int, events: Any) -> int:
    """Count rows in a histogram, list its occupied bins, and clear it."""
    row_codes, y, weight = rows
    event_code = events.code
    event_count = events.count
    histogram = events.histogram
    n_classes = event_count.shape[1]
    for i in range(len(y)):
        histogram[(row_codes[i] - low) * n_classes + y[i]] += weight[i]
    n_events = 0
    for bin_number in range(width):
        count_bits = np.int32(0)  # not 0 if any class has a count
        for m in range(n_classes):
            count_bits |= histogram[bin_number * n_classes + m]
        if count_bits:
            event_code[n_events] = low + bin_number
            for m in range(n_classes):
                event_count[n_events, m] = histogram[bin_number * n_classes + m]
                histogram[bin_number * n_classes + m] = 0
            n_events += 1
    return n_events


@numba.njit(cache=True, nogil=True)
def _list_by_sorting(rows: Any, low: int, width: int, events: Any) -> int:
    """Sort rows by their code, and count each run of equal codes."""
    row_codes, y, weight = rows
    event_code = events.code
    event_count = events.count
    keys = events.keys
    n = len(y)
    for i in range(n):
        keys[i] = np.uint32((row_codes[i] - low) << ROW_BITS | i)
    sorted_keys = _sort_keys(keys, events.spare_keys, n, width)
    event = -1
    last_code = np.int64(-1)
    for j in range(n):
        code = np.int64(sorted_keys[j] >> ROW_BITS)
        i = sorted_keys[j] & ((1 << ROW_BITS) - 1)
        if code != last_code:
            last_code = code
            event += 1
            event_code[event] = code + low
            for m in range(event_count.shape[1]):
                event_count[event, m] = 0
        event_count[event, y[i]] += weight[i]
    return event + 1


@numba.njit(cache=True, nogil=True)
def _sort_keys(keys: Any, spare_keys: Any, n: int, width: int) -> Any:
    """Sort the first `n` keys by their code, by insertion or by a radix sort of 8 bits per digit.

    The radix sort places the keys by one digit after another, from the lowest. Returns the sorted
    array, which is either `keys` or `spare_keys`.
    """
    if n <= MAX_INSERTION_ROWS:
        for i in range(1, n):
            key = keys[i]
            j = i
            while j > 0 and keys[j - 1] > key:
                keys[j] = keys[j - 1]
                j -= 1
            keys[j] = key
        return keys
    next_place = np.empty(256, np.int32)
    shift = ROW_BITS
    while (width - 1) >> (shift - ROW_BITS):
        next_place[:] = 0
        for i in range(n):
            next_place[keys[i] >> shift & 255] += 1
        n_smaller_keys = np.int32(0)
        for digit in range(256):
            digit_count = next_place[digit]
            next_place[digit] = n_smaller_keys
            n_smaller_keys += digit_count
        for i in range(n):
            digit = keys[i] >> shift & 255
            spare_keys[next_place[digit]] = keys[i]
            next_place[digit] += 1
        keys, spare_keys = spare_keys, keys
        shift += 8
    return keys


@numba.njit(cache=True, nogil=True)
def count_sparse(sparse: Any, node: Any, counts: Any) -> int:
    """Count a node's entries in all sparse columns; return the number of columns with entries."""
    _, _, entry_start, entry_slot, entry_feature = sparse
    slots, is_touched, touched_columns = counts
    rows = node.rows
    y = node.y
    weight = node.weight
    n_touched = 0
    for i in range(len(rows)):
        for entry in range(entry_start[rows[i]], entry_start[rows[i] + 1]):
            slots[entry_slot[entry], y[i]] += weight[i]
            k = entry_feature[entry]
            if not is_touched[k]:
                is_touched[k] = True
                touched_columns[n_touched] = k
                n_touched += 1
    return n_touched


@numba.njit(cache=True, nogil=True)
def clear_sparse(sparse: Any, counts: Any, n_touched: int) -> None:
    """Reset the counts of :func:`count_sparse` to 0, only in the columns with entries."""
    for j in range(n_touched):
        k = counts.touched_columns[j]
        counts.is_touched[k] = False
        counts.slots[sparse.offset[k] : sparse.offset[k + 1]] = 0


@numba.njit(cache=True, nogil=True)
def list_sparse_events(sparse: Any, k: int, node_counts: Any, slots: Any, events: Any) -> int:
    """List the codes of sparse column k; return their number.

    The prevailing code has the examples that have no entry.
    """
    event_code = events.code
    event_count = events.count
    begin = sparse.offset[k]
    end = sparse.offset[k + 1]
    common_code = sparse.common[k]
    n_events = 0
    for code in range(end - begin):
        count_bits = np.int32(0)  # not 0 if any class has a count
        for m in range(len(node_counts)):
            count_bits |= slots[begin + code, m]
        if code == common_code:
            for m in range(len(node_counts)):
                n_remaining = node_counts[m]
                for slot in range(begin, end):
                    n_remaining -= slots[slot, m]
                event_count[n_events, m] = n_remaining
                count_bits |= n_remaining
        else:
            for m in range(len(node_counts)):
                event_count[n_events, m] = slots[begin + code, m]
        if count_bits:
            event_code[n_events] = code
            n_events += 1
    return n_events
