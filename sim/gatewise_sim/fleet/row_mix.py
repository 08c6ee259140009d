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
    weights : array-like of shape (k, n_classes)
        Weight of each class from each time on.
    is_linear : bool
        Whether to interpolate the weights between the times.

    Raises
    ------
    InputError
        If the times do not increase, a weight is invalid, or a class with a weight has no row.

    Examples
    --------
    >>> mix = RowMix.parse("linear,0s=1/0,10s=0/1", [0, 0, 1])
    >>> mix.shares_at(np.array([0.0, 5.0, 99.0])).tolist()
    [[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]]
    """

    def __init__(
        self, labels: Any, times: Sequence[float], weights: Any, *, is_linear: bool = False
    ) -> None:
        self._times = np.asarray(times, np.float64)
        class_weights = np.asarray(weights, np.float64)
        class_indices = np.asarray(labels, np.int64)
        if (np.diff(self._times) <= 0).any():
            raise InputError("class mix: its times must increase")
        if (
            not (np.isfinite(class_weights) & (class_weights >= 0)).all()
            or not class_weights.any(axis=1).all()
        ):
            raise InputError("class mix: shares must be at least 0, with one above 0 at each time")
        n_classes = class_weights.shape[1]
        if len(class_indices) and not (
            class_indices.min() >= 0 and class_indices.max() < n_classes
        ):
            raise InputError(
                f"class mix: the table has {class_indices.max() + 1} classes, not {n_classes}"
            )
        self._row_counts = np.bincount(class_indices, minlength=n_classes)
        for class_index in np.flatnonzero(class_weights.any(axis=0) & (self._row_counts == 0)):
            raise InputError(f"class mix: class {class_index} has a share but no row in the table")
        self._shares = class_weights / class_weights.sum(axis=1, keepdims=True)
        self._is_linear = is_linear
        self._rows = np.argsort(class_indices, kind="stable")  # sorted by class
        self._first_positions = np.cumsum(self._row_counts) - self._row_counts

    @classmethod
    def parse(cls, text: str, labels: Any) -> Self:
        """Parse ``steps,0s=9/1,12h=5/5`` or ``linear,...``, with the weights of all classes."""
        interpolation, *knots = text.split(",")
        if interpolation.strip() not in ("steps", "linear") or not knots:
            raise InputError(f"class mix {text!r}: write it as steps,0s=9/1,12h=5/5 or linear,...")
        times = []
        weights = []
        for knot in knots:
            time_text, _, weights_text = knot.partition("=")
            place = f"class mix {knot.strip()!r}"
            times.append(read_span(time_text, place))
            weights.append([read_number(weight, place) for weight in weights_text.split("/")])
        if len(set(map(len, weights))) > 1:
            raise InputError(f"class mix {text!r}: each time needs a share for every class")
        return cls(labels, times, weights, is_linear=interpolation.strip() == "linear")

    def shares_at(self, times: FloatArray) -> FloatArray:
        """Share of each class at `times` (s), shape (n, n_classes)."""
        if self._is_linear:
            class_shares = [np.interp(times, self._times, shares) for shares in self._shares.T]
            return np.stack(class_shares, axis=1)
        knot = np.searchsorted(self._times, times, side="right") - 1
        return np.asarray(self._shares[np.maximum(knot, 0)])

    def draw_rows(self, times: FloatArray, rng: np.random.Generator) -> IntArray:
        """Draw the row of each arrival, shape (n,)."""
        cumulative_shares = np.cumsum(self.shares_at(times), axis=1)
        random_shares = rng.random(len(times))[:, None] * cumulative_shares[:, -1:]
        # Rounding may put a draw beyond the last class that has rows.
        class_index = np.minimum(
            (random_shares >= cumulative_shares).sum(axis=1), np.flatnonzero(self._row_counts)[-1]
        )
        position = (rng.random(len(times)) * self._row_counts[class_index]).astype(np.int64)
        return np.asarray(self._rows[self._first_positions[class_index] + position], np.int64)
