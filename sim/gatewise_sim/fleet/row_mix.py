"""Class mix, which draws rows of instances with shares of the classes that change over time."""

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
    """Random rows of a table, with shares of the classes that change over time.

    The rows of a class are equally likely. The first weights also apply before the first time, and
    the last ones after the last time.

    Parameters
    ----------
    labels : array-like of shape (n_rows,)
        Class index of each row of the table, from 0 to n_classes - 1.
    times : sequence of float, of length k
        Increasing times, in s since the start of the run.
    weights : array-like of shape (k, n_classes)
        Weight of each class from each time on.
    is_linear : bool
        Whether to interpolate the shares of the classes between the times.

    Raises
    ------
    InputError
        If the times do not increase, a weight or a class index is invalid, or a class with a weight
        has no row.

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
        if len(class_indices) and class_indices.min() < 0:
            raise InputError("class mix: a row of the table has no class")
        if len(class_indices) and class_indices.max() >= n_classes:
            raise InputError(
                f"class mix: the table has {class_indices.max() + 1} classes, not {n_classes}; "
                "give each a share"
            )
        self._n_rows_by_class = np.bincount(class_indices, minlength=n_classes)
        has_weight = class_weights.any(axis=0)
        for class_index in np.flatnonzero(has_weight & (self._n_rows_by_class == 0)):
            raise InputError(f"class mix: class {class_index} has a share but no row in the table")
        self._shares = class_weights / class_weights.sum(axis=1, keepdims=True)
        self._is_linear = is_linear
        # The rows of a class are a slice of the rows sorted by class. A stable sort gives the same
        # draws on each platform.
        self._rows_by_class = np.argsort(class_indices, kind="stable")
        self._first_positions = np.cumsum(self._n_rows_by_class) - self._n_rows_by_class

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
            error_subject = f"class mix {knot.strip()!r}"
            times.append(read_span(time_text, error_subject))
            weights.append(
                [read_number(weight, error_subject) for weight in weights_text.split("/")]
            )
        if len(set(map(len, weights))) > 1:
            raise InputError(f"class mix {text!r}: each time needs a share for every class")
        return cls(labels, times, weights, is_linear=interpolation.strip() == "linear")

    def shares_at(self, times: FloatArray) -> FloatArray:
        """Compute the share of each class at `times` (s), shape (n, n_classes)."""
        if self._is_linear:
            shares_by_class = [np.interp(times, self._times, shares) for shares in self._shares.T]
            return np.stack(shares_by_class, axis=1)
        knot_indices = np.searchsorted(self._times, times, side="right") - 1
        return np.asarray(self._shares[np.maximum(knot_indices, 0)])

    def draw_rows(self, times: FloatArray, rng: np.random.Generator) -> IntArray:
        """Draw the row of each arrival, shape (n,)."""
        # The class of a draw u from [0, s_M) is the first one with u < s_k, where s_k is the sum of
        # the shares of the classes up to k. By rounding, s_M may differ from 1.
        cumulative_shares = np.cumsum(self.shares_at(times), axis=1)
        draws = rng.random(len(times))[:, None] * cumulative_shares[:, -1:]
        class_indices = (draws >= cumulative_shares).sum(axis=1)
        # A draw that is rounded up to s_M would belong to no class.
        class_indices = np.minimum(class_indices, np.flatnonzero(self._n_rows_by_class)[-1])
        positions_in_class = (rng.random(len(times)) * self._n_rows_by_class[class_indices]).astype(
            np.int64
        )
        positions = self._first_positions[class_indices] + positions_in_class
        return np.asarray(self._rows_by_class[positions], np.int64)
