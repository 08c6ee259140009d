"""Limits of a gate's threshold, between which bounds on recall and precision hold.

A pacer moves the threshold of the last stage on the device. How far it may go is found here, on
validation rows, for each operating point.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gatewise.decision import ALWAYS_STOP, midway
from gatewise.operating_point import OperatingPoint
from gatewise_training.operating_points.class_figures import ClassBounds
from gatewise_training.operating_points.frontier import SLACK
from gatewise_training.operating_points.thresholds import CascadeRecord


def gate_limits(
    record: CascadeRecord,
    point: OperatingPoint,
    gate: int,
    bounds: ClassBounds,
    class_rows: Sequence[int],
) -> tuple[float | None, float | None] | None:
    """Find the thresholds of stage `gate` around the point's own that keep the bounds.

    From the least to the most; None in the place of one: never stops. None if the point itself
    does not keep them. One standard error stays in hand where the point has it.
    """
    measured = record.measure(point.thresholds, point.chain)
    own = bounds.margin(measured, class_rows)
    if own < 0:
        return None
    least = min(own, SLACK)
    scores = record.scores[gate]
    distinct = np.unique(scores[~np.isnan(scores)])
    pairs = zip(distinct.tolist(), distinct.tolist()[1:], strict=False)
    cuts: list[float | None] = [ALWAYS_STOP, *(midway(low, high) for low, high in pairs), None]
    good = _margins(record, point.thresholds, gate, bounds, class_rows, cuts) >= least - 1e-9
    here = point.thresholds[gate]
    place = len(cuts) - 1 if here is None else _nearest(cuts, here)
    low = high = place
    while low > 0 and good[low - 1]:
        low -= 1
    while high < len(cuts) - 1 and good[high + 1]:
        high += 1
    first, last = cuts[low], cuts[high]
    # the point's own threshold is always within
    if first is None or (here is not None and here < first):
        first = here
    if last is not None and (here is None or here > last):
        last = here
    return first, last


def _nearest(cuts: Sequence[float | None], threshold: float) -> int:
    """Place of the cut that the same rows stop at, or its neighbour."""
    values = np.array(cuts[:-1], np.float64)
    return int(np.searchsorted(values, threshold, side="right").clip(1) - 1)


def _margins(
    record: CascadeRecord,
    thresholds: Sequence[float | None],
    gate: int,
    bounds: ClassBounds,
    class_rows: Sequence[int],
    cuts: Sequence[float | None],
) -> NDArray[np.float64]:
    """Get how far inside the bounds each cut is, shape (n_cuts,), in standard errors."""
    answers, weights = record.answers, record.weights
    assert answers is not None
    n = len(weights)
    beyond = list(thresholds)
    beyond[gate] = None
    exits = record.exits(beyond)
    scores = np.where(np.isnan(record.scores[gate]), -np.inf, record.scores[gate])
    rows = np.arange(n)
    # rows that reach the gate, in the order in which a falling threshold stops them
    reaching = np.flatnonzero(exits > gate)
    order = reaching[np.argsort(-scores[reaching], kind="stable")]
    values = np.array([np.inf if c is None else c for c in cuts])
    # -inf marks NaN, which never stops
    stopped = np.searchsorted(-scores[order], -np.maximum(values, ALWAYS_STOP), side="right")
    before, at_gate = answers.given[exits, rows], answers.given[gate]
    found = np.full(len(cuts), np.inf)
    for kind, c, bound in bounds.items():
        of_class = answers.truth == c

        def path(onward: NDArray[np.bool_], here: NDArray[np.bool_]) -> NDArray[np.float64]:
            """Weighted count at each cut of rows with a property that they have by their exit."""
            steps = weights[order] * (here[order].astype(float) - onward[order])
            sums = np.concatenate([[0.0], np.cumsum(steps)])
            total: NDArray[np.float64] = weights @ onward + sums[stopped]
            return total

        hits = path(of_class & (before == c), of_class & (at_gate == c))
        every = np.full(len(cuts), weights @ of_class)
        if kind == "precision":
            every = path(before == c, at_gate == c)
        share = np.divide(hits, every, out=np.ones(len(cuts)), where=every > 1e-9)
        count = float(class_rows[c]) if kind == "recall" else every
        error = np.sqrt(bound * (1 - bound) / np.maximum(count, 1.0))
        found = np.minimum(found, (share - bound + 1e-12) / np.maximum(error, 1e-9))
    return found
