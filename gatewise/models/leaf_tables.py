"""Leaves of trees as small exact tables, as C99 holds them: shared rows, bytes, shared numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gatewise.models.trees import TreeEnsemble, byte_leaves

INT8 = np.dtype(np.int8).itemsize
FLOAT32 = np.dtype(np.float32).itemsize
INDICES = ("rows", "starts", "outputs", "picks")
"""Arrays of indices: C holds each in the smallest type that does for all stages."""


@dataclass(frozen=True, eq=False)
class LeafTables:
    """The numbers of leaves, each exactly as in training, in the smallest of several forms.

    The row of leaf i is ``rows[i]``, or i if `rows` is None. A row has a number for each output, or
    with `starts` the numbers ``starts[row]`` to ``starts[row + 1]``, each for one of `outputs`; the
    others get 0. Number k is ``small[k] * step``, else ``value[picks[k]]``, else ``value[k]``.
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
        """Bytes of an index in each of :data:`INDICES`."""
        arrays = (getattr(self, name) for name in INDICES)
        return tuple(1 if a is None else width(int(a.max(initial=0))) for a in arrays)

    def nbytes(self, index_widths: Sequence[int] = (1, 1, 1, 1)) -> int:
        """Bytes of the tables; indices may be wider than these need, as others share their types.

        >>> LeafTables(np.zeros((3, 2), np.float32), rows=np.arange(3)).nbytes()
        27
        """
        widths = map(max, self.index_widths, index_widths)
        arrays = (getattr(self, name) for name in INDICES)
        indices = sum(a.size * w for a, w in zip(arrays, widths, strict=True) if a is not None)
        smalls = 0 if self.small is None else INT8 * self.small.size
        return FLOAT32 * self.value.size + smalls + int(indices)


def width(largest: int) -> int:
    """Bytes of C's smallest type of unsigned integers up to `largest`."""
    return 1 if largest < 1 << 8 else 2 if largest < 1 << 16 else 4


def leaf_rows(trees: TreeEnsemble) -> tuple[NDArray[np.float32], NDArray[np.int64] | None]:
    """List the leaves' numbers, (n_leaves, 1), and each tree's output, (n_trees,).

    If some tree adds to all outputs, a leaf has a number for each of them, (n_leaves, n_outputs),
    and trees have no output of their own.
    """
    is_leaf = trees.feature < 0
    if (trees.output >= 0).all():
        return trees.value[is_leaf, :1], trees.output.astype(np.int64)
    tree = np.repeat(np.arange(trees.n_trees), np.diff(trees.roots, append=trees.n_nodes))[is_leaf]
    output = trees.output[tree]
    value = trees.value[is_leaf]
    # adding a 0 changes no sum that began as 0
    rows = np.where((output < 0)[:, None], value, np.float32(0))
    scalar = np.flatnonzero(output >= 0)
    rows[scalar, output[scalar]] = value[scalar, 0]
    return rows, None


def pack_leaves(rows: NDArray[np.float32]) -> LeafTables:
    """Choose the smallest exact form of leaves, shape (n_leaves, width).

    Forests have few distinct leaves (most hold instances of one class alone), boosted trees many.

    >>> tables = pack_leaves(np.tile(np.float32([[0.5, 0.1], [0.1, 0.5]]), (3, 1)))
    >>> tables.rows.tolist(), tables.picks.tolist(), tables.value.tolist()
    ([0, 1, 0, 1, 0, 1], [[1, 0], [0, 1]], [0.10000000149011612, 0.5])
    """
    rows = rows + np.float32(0)  # -0 becomes 0, which adds the same to sums that begin as 0
    if rows.shape[1] == 1:
        return min(_number_forms(LeafTables(rows)), key=LeafTables.nbytes)
    # distinct rows by their bytes: np.unique(axis=0) takes ten times as long
    numbers: dict[bytes, int] = {}
    row_of_leaf = np.array([numbers.setdefault(r.tobytes(), len(numbers)) for r in rows], np.int64)
    distinct = np.frombuffer(b"".join(numbers), np.float32).reshape(-1, rows.shape[1])
    row, output = np.nonzero(distinct)
    starts = np.searchsorted(row, np.arange(len(distinct) + 1)).astype(np.int64)
    shared = _number_forms(LeafTables(distinct, row_of_leaf))
    sparse = _number_forms(LeafTables(distinct[row, output], row_of_leaf, starts, output))
    return min([*map(_unshared, shared), *shared, *sparse], key=LeafTables.nbytes)


def _number_forms(form: LeafTables) -> list[LeafTables]:
    """List a form of floats, the same with bytes, if it can be, and with picks of few floats."""
    forms = [form]
    small_and_step = byte_leaves(form.value)
    if small_and_step is not None:
        small, step = small_and_step
        forms.append(replace(form, value=form.value[:0], small=small, step=step))
    values, picks = np.unique(form.value, return_inverse=True)
    return [*forms, replace(form, value=values, picks=picks.reshape(form.value.shape))]


def _unshared(form: LeafTables) -> LeafTables:
    """Give every leaf a row of its own."""
    numbers = next(name for name in ("small", "picks", "value") if getattr(form, name) is not None)
    return replace(form, rows=None, **{numbers: getattr(form, numbers)[form.rows]})
