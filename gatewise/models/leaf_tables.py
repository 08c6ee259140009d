"""Lossless compression of the leaves of trees to the tables in C99 sources."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gatewise.models.trees import TreeEnsemble, byte_leaves

INT8_BYTES = np.dtype(np.int8).itemsize
FLOAT32_BYTES = np.dtype(np.float32).itemsize
#: Names of the arrays of indices; C uses the smallest integer type that fits all stages.
INDICES = ("rows", "starts", "outputs", "picks")


@dataclass(frozen=True, eq=False)
class LeafTables:
    """Values of leaves in one of several lossless forms.

    Leaf i has the row ``rows[i]``, or row i if `rows` is None. A row has a number for each output.
    With `starts`, rows are sparse. A row then has the numbers from ``starts[row]`` to
    ``starts[row + 1] - 1``, `outputs` has the output of each number, and other outputs are 0.
    Number k is

    - ``small[k] * step`` with `small`,
    - ``value[picks[k]]`` with `picks`,
    - ``value[k]`` otherwise.
    """

    value: NDArray[np.float32]
    rows: NDArray[np.int64] | None = None
    starts: NDArray[np.int64] | None = None
    outputs: NDArray[np.int64] | None = None
    picks: NDArray[np.int64] | None = None
    small: NDArray[np.int8] | None = None
    step: np.float32 = np.float32(0)  # noqa: RUF009

    @property
    def index_widths(self) -> tuple[int, ...]:
        """Number of bytes of an index in each array of :data:`INDICES`."""
        arrays = (getattr(self, name) for name in INDICES)
        return tuple(
            1 if array is None else unsigned_bytes(int(array.max(initial=0))) for array in arrays
        )

    def nbytes(self, index_widths: Sequence[int] = (1, 1, 1, 1)) -> int:
        """Compute the size of the tables in bytes, with indices of at least `index_widths` bytes.

        >>> LeafTables(np.zeros((3, 2), np.float32), rows=np.arange(3)).nbytes()
        27
        """
        widths = map(max, self.index_widths, index_widths)
        arrays = (getattr(self, name) for name in INDICES)
        index_bytes = sum(
            array.size * n_bytes
            for array, n_bytes in zip(arrays, widths, strict=True)
            if array is not None
        )
        small_bytes = 0 if self.small is None else INT8_BYTES * self.small.size
        return FLOAT32_BYTES * self.value.size + small_bytes + int(index_bytes)


def unsigned_bytes(largest: int) -> int:
    """Return the size in bytes of the smallest unsigned integer type that can hold `largest`."""
    return 1 if largest < 1 << 8 else 2 if largest < 1 << 16 else 4


def leaf_rows(trees: TreeEnsemble) -> tuple[NDArray[np.float32], NDArray[np.int64] | None]:
    """List the values of leaves, (n_leaves, 1), and the output of each tree, (n_trees,).

    If a tree adds to all outputs, the values have shape (n_leaves, n_outputs), and the outputs are
    None.
    """
    is_leaf = trees.feature < 0
    if (trees.output >= 0).all():
        return trees.value[is_leaf, :1], trees.output.astype(np.int64)
    tree = np.repeat(np.arange(trees.n_trees), np.diff(trees.roots, append=trees.n_nodes))[is_leaf]
    output = trees.output[tree]
    value = trees.value[is_leaf]
    # fill the other outputs with 0, which does not change a sum that starts at 0
    rows = np.where((output < 0)[:, None], value, np.float32(0))
    single_output_leaves = np.flatnonzero(output >= 0)
    outputs = output[single_output_leaves]
    rows[single_output_leaves, outputs] = value[single_output_leaves, 0]
    return rows, None


def pack_leaves(rows: NDArray[np.float32]) -> LeafTables:
    """Choose the smallest lossless form of the values of leaves, shape (n_leaves, width).

    >>> tables = pack_leaves(np.tile(np.float32([[0.5, 0.1], [0.1, 0.5]]), (3, 1)))
    >>> tables.rows.tolist(), tables.picks.tolist(), tables.value.tolist()
    ([0, 1, 0, 1, 0, 1], [[1, 0], [0, 1]], [0.10000000149011612, 0.5])
    """
    rows = rows + np.float32(0)  # -0 becomes 0
    if rows.shape[1] == 1:
        return min(_list_variants(LeafTables(rows)), key=LeafTables.nbytes)
    # find distinct rows by their bytes, because np.unique(axis=0) takes ten times as long
    index_of_row: dict[bytes, int] = {}
    row_of_leaf = np.array(
        [index_of_row.setdefault(row.tobytes(), len(index_of_row)) for row in rows],
        np.int64,
    )
    distinct_rows = np.frombuffer(b"".join(index_of_row), np.float32).reshape(-1, rows.shape[1])
    # store only the numbers that are not 0
    row_index, output_index = np.nonzero(distinct_rows)
    starts = np.searchsorted(row_index, np.arange(len(distinct_rows) + 1)).astype(np.int64)
    shared_forms = _list_variants(LeafTables(distinct_rows, row_of_leaf))
    sparse_forms = _list_variants(
        LeafTables(distinct_rows[row_index, output_index], row_of_leaf, starts, output_index)
    )
    return min(
        [*map(_expand_rows, shared_forms), *shared_forms, *sparse_forms], key=LeafTables.nbytes
    )


def _list_variants(form: LeafTables) -> list[LeafTables]:
    """List the variants of a form: floats, bytes if they are exact, and indices of floats."""
    forms = [form]
    small_and_step = byte_leaves(form.value)
    if small_and_step is not None:
        small, step = small_and_step
        forms.append(replace(form, value=form.value[:0], small=small, step=step))
    distinct_numbers, picks = np.unique(form.value, return_inverse=True)
    return [*forms, replace(form, value=distinct_numbers, picks=picks.reshape(form.value.shape))]


def _expand_rows(form: LeafTables) -> LeafTables:
    """Convert a form to one row per leaf."""
    # `value` comes last, because it is never None: it is the lookup table or empty in other forms
    name = next(name for name in ("small", "picks", "value") if getattr(form, name) is not None)
    return replace(form, rows=None, **{name: getattr(form, name)[form.rows]})
