"""Description of the arrays of flat models, and sums in a fixed order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

ArraySpecs: TypeAlias = Mapping[str, tuple[type[np.generic], tuple[str, ...]]]
"""Type and named dimensions of each array of a model; equal names mean equal lengths."""

#: Number of float32 values that an evaluation holds at a time.
BLOCK_NUMBERS: Final = 1 << 20


def running_sum(terms: NDArray[np.float32]) -> NDArray[np.float32]:
    """Add terms (n, n_terms, ...) one after another in float32, starting from 0.

    numpy's ``sum`` adds in another order.
    """
    if not terms.shape[1]:
        return np.zeros((len(terms), *terms.shape[2:]), np.float32)
    sums: NDArray[np.float32] = np.cumsum(terms, axis=1, dtype=np.float32)[:, -1]
    return sums + np.float32(0)


def row_blocks(n_rows: int, row_size: int) -> Iterator[slice]:
    """Yield blocks of rows with `row_size` numbers each that take little memory."""
    step = max(1, BLOCK_NUMBERS // max(row_size, 1))
    for start in range(0, n_rows, step):
        yield slice(start, start + step)
