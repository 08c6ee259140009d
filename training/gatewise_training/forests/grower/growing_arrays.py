"""Writes into arrays of the compiled growers, element by element.

numba compiles the assignment of a slice for one to two seconds, most of it for an error's text.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np


@numba.njit(cache=True, nogil=True)
def put_row(rows: Any, at: int, a: int, b: int, c: int, d: int) -> int:
    """Write four integers into a row, shape (size, 4); returns the number of the next row."""
    rows[at, 0], rows[at, 1], rows[at, 2], rows[at, 3] = a, b, c, d
    return at + 1


@numba.njit(cache=True, nogil=True)
def copy_into(array: Any, at: int, source: Any, n: int) -> None:
    """Copy the first values of a source to a place of an array, both of one dimension."""
    for i in range(n):
        array[at + i] = source[i]


@numba.njit(cache=True, nogil=True)
def wider(array: Any, size: int) -> Any:
    """Copy an array into one of more rows; the further ones are not set."""
    more = np.empty((size, *array.shape[1:]), array.dtype)
    copy_into(more.reshape(-1), 0, array.reshape(-1), array.size)
    return more
