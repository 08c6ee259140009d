"""Which row of a table an arrival is, when the shares of the classes drift."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from gatewise.errors import InputError
from gatewise.formats import read_number, read_span

_SHAPES: Final = ("steps", "linear")


class RowMix:
    """Draws rows so that each class has the share that it should have at the time.

    `labels` are the class indices of the table's rows, shape (n_rows,); `times` (s since the start,
    rising), shape (k,); `shares` the weight of each class at those times, shape (k, n_classes),
    scaled to sum to 1. They hold until the next time, or move evenly to it if `linear`. InputError
    if a class that is asked for has no row.

    >>> mix = RowMix.parse("linear,0s=1/0,10s=0/1", [0, 0, 1])
    >>> mix.shares(np.array([0.0, 5.0, 99.0])).tolist()
    [[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]]
    """

    def __init__(
        self,
        labels: npt.ArrayLike,
        times: npt.ArrayLike,
        shares: npt.ArrayLike,
        *,
        linear: bool = False,
    ) -> None:
        self._begin = 0.0  # on the clock of `times`
        self._times = np.asarray(times, dtype=np.float64)
        weights = np.asarray(shares, dtype=np.float64)
        label = np.asarray(labels, dtype=np.int64)
        if weights.ndim != 2 or len(weights) != len(self._times) or not len(self._times):
            raise InputError("class mix: give the shares of all classes at each time")
        if (np.diff(self._times) <= 0).any():
            raise InputError("class mix: its times must rise")
        if not (np.isfinite(weights) & (weights >= 0)).all() or not weights.any(axis=1).all():
            raise InputError("class mix: shares must be at least 0, and one above it at each time")
        n_classes = weights.shape[1]
        if len(label) and not (label.min() >= 0 and label.max() < n_classes):
            raise InputError(f"class mix: there are {label.max() + 1} classes, not {n_classes}")
        self._counts = np.bincount(label, minlength=n_classes)
        for wanted in np.flatnonzero(weights.any(axis=0) & (self._counts == 0)):
            raise InputError(f"class mix: class {wanted} has a share but no row in the table")
        self._shares = weights / weights.sum(axis=1, keepdims=True)
        self._linear = linear
        self._rows = np.argsort(label, kind="stable")  # class by class
        self._begins = np.cumsum(self._counts) - self._counts

    @classmethod
    def parse(cls, text: str, labels: Sequence[int] | npt.NDArray[np.int64]) -> Self:
        """Read ``steps,0s=9/1,12h=5/5`` or ``linear,...``: weights of all classes, in order."""
        shape, *knots = text.split(",")
        if shape.strip() not in _SHAPES or not knots:
            raise InputError(f"class mix {text!r}: write it as steps,0s=9/1,12h=5/5 or linear,...")
        times, shares = [], []
        for knot in knots:
            at, _, weights = knot.partition("=")
            times.append(read_span(at, f"class mix {knot.strip()!r}"))
            shares.append(
                [read_number(w, f"class mix {knot.strip()!r}") for w in weights.split("/")]
            )
        if len({len(each) for each in shares}) > 1:
            raise InputError(f"class mix {text!r}: each time needs a share for every class")
        return cls(labels, times, shares, linear=shape.strip() == "linear")

    def later(self, seconds: float) -> Self:
        """Same mix for a run that begins so many seconds later."""
        mix = copy.copy(self)
        mix._begin += seconds
        return mix

    @property
    def changes_at(self) -> float | None:
        """When the shares begin to change, in s since the start; None if they never do."""
        other = np.flatnonzero((self._shares != self._shares[0]).any(axis=1))
        if not len(other):
            return None
        return float(self._times[other[0] - self._linear] - self._begin)

    @property
    def n_rows(self) -> int:
        """Rows of the table."""
        return len(self._rows)

    def shares(self, times: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Share of each class at `times` (s), shape (n, n_classes)."""
        times = times + self._begin
        if self._linear:
            columns = [np.interp(times, self._times, column) for column in self._shares.T]
            return np.stack(columns, axis=1)
        at = np.searchsorted(self._times, times, side="right") - 1
        return np.asarray(self._shares[np.maximum(at, 0)])

    def rows(
        self,
        times: npt.NDArray[np.float64],
        class_draw: npt.NDArray[np.float64],
        row_draw: npt.NDArray[np.float64],
    ) -> npt.NDArray[np.int64]:
        """Row of each arrival, shape (n,), from two uniform numbers each."""
        below = np.cumsum(self.shares(times), axis=1)
        label = (class_draw[:, None] * below[:, -1:] >= below).sum(axis=1)
        label = np.minimum(label, np.flatnonzero(self._counts)[-1])  # a draw that rounds up to 1
        place = (row_draw * self._counts[label]).astype(np.int64)
        return np.asarray(self._rows[self._begins[label] + place], dtype=np.int64)
