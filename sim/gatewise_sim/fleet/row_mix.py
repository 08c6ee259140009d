"""Class mix: which rows of the table the instances have, with shares of classes that change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise.formats import read_number, read_span

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class RowMix:
    """Draw of rows with shares of the classes that change over time.

    Parameters
    ----------
    labels : array-like of shape (n_rows,)
        Class index of each row of the table.
    times : sequence of float, of length k
        Increasing times, in s since the start of the run.
    shares : array-like of shape (k, n_classes)
        Weight of each class from each time on.
    linear : bool
        Whether to interpolate the weights between the times.

    Raises
    ------
    InputError
        If the times do not increase, a weight is invalid, or a class with a weight has no row.

    Examples
    --------
    >>> mix = RowMix.parse("linear,0s=1/0,10s=0/1", [0, 0, 1])
    >>> mix.shares(np.array([0.0, 5.0, 99.0])).tolist()
    [[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]]
    """

    def __init__(
        self, labels: Any, times: Sequence[float], shares: Any, *, linear: bool = False
    ) -> None:
        self._times = np.asarray(times, np.float64)
        weights = np.asarray(shares, np.float64)
        label = np.asarray(labels, np.int64)
        if (np.diff(self._times) <= 0).any():
            raise InputError("class mix: its times must increase")
        if not (np.isfinite(weights) & (weights >= 0)).all() or not weights.any(axis=1).all():
            raise InputError("class mix: shares must be at least 0, with one above 0 at each time")
        n_classes = weights.shape[1]
        if len(label) and not (label.min() >= 0 and label.max() < n_classes):
            raise InputError(f"class mix: the table has {label.max() + 1} classes, not {n_classes}")
        self._counts = np.bincount(label, minlength=n_classes)
        for index in np.flatnonzero(weights.any(axis=0) & (self._counts == 0)):
            raise InputError(f"class mix: class {index} has a share but no row in the table")
        self._shares = weights / weights.sum(axis=1, keepdims=True)
        self._linear = linear
        self._rows = np.argsort(label, kind="stable")  # sorted by class
        self._begins = np.cumsum(self._counts) - self._counts

    @classmethod
    def parse(cls, text: str, labels: Any) -> Self:
        """Parse ``steps,0s=9/1,12h=5/5`` or ``linear,...``, with the weights of all classes."""
        shape, *knots = text.split(",")
        if shape.strip() not in ("steps", "linear") or not knots:
            raise InputError(f"class mix {text!r}: write it as steps,0s=9/1,12h=5/5 or linear,...")
        times = []
        shares = []
        for knot in knots:
            time, _, weights = knot.partition("=")
            context = f"class mix {knot.strip()!r}"
            times.append(read_span(time, context))
            shares.append([read_number(weight, context) for weight in weights.split("/")])
        if len(set(map(len, shares))) > 1:
            raise InputError(f"class mix {text!r}: each time needs a share for every class")
        return cls(labels, times, shares, linear=shape.strip() == "linear")

    def shares(self, times: FloatArray) -> FloatArray:
        """Share of each class at `times` (s), shape (n, n_classes)."""
        if self._linear:
            columns = [np.interp(times, self._times, column) for column in self._shares.T]
            return np.stack(columns, axis=1)
        knot = np.searchsorted(self._times, times, side="right") - 1
        return np.asarray(self._shares[np.maximum(knot, 0)])

    def rows(self, times: FloatArray, rng: np.random.Generator) -> IntArray:
        """Draw the row of each arrival, shape (n,)."""
        upper = np.cumsum(self.shares(times), axis=1)
        draw = rng.random(len(times))[:, None] * upper[:, -1:]
        label = np.minimum((draw >= upper).sum(axis=1), np.flatnonzero(self._counts)[-1])
        number = (rng.random(len(times)) * self._counts[label]).astype(np.int64)
        return np.asarray(self._rows[self._begins[label] + number], np.int64)
