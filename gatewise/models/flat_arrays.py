"""Array descriptions of flat models, sums in a fixed order, and blocks of rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

#: Type and named dimensions of each array of a model; equal names mean equal lengths.
ArraySpecs: TypeAlias = Mapping[str, tuple[type[np.generic], tuple[str, ...]]]

#: Number of float32 values in the intermediate arrays of a block of rows, 4 MiB.
MAX_BLOCK_VALUES: Final = 1 << 20


def running_sum(terms: NDArray[np.float32]) -> NDArray[np.float32]:
    """Add terms, (n, n_terms, ...), one after another in float32, starting from 0.

    numpy's ``sum`` adds them in another order.
    """
    if not terms.shape[1]:
        return np.zeros((len(terms), *terms.shape[2:]), np.float32)
    sums: NDArray[np.float32] = np.cumsum(terms, axis=1, dtype=np.float32)[:, -1]
    return sums + np.float32(0)


def row_blocks(n_rows: int, row_size: int) -> Iterator[slice]:
    """Yield blocks of rows that need little memory if each row needs `row_size` values."""
    step = max(1, MAX_BLOCK_VALUES // max(row_size, 1))
    for start in range(0, n_rows, step):
        yield slice(start, start + step)
