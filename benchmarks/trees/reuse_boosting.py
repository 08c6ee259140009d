"""Boosting that pays for the first use of a feature and of a threshold, so that trees share both.

The prices are those of ToaD (Herrmann et al., Boosted Trees on a Diet, ICLR 2026): a split's gain
is less by one price where no tree has used its feature yet, by another where none has used its
threshold. Growth, gains and steps are LightGBM's: leaf by leaf, the best split first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from gatewise.models.trees import LEAF, TreeEnsemble
from gatewise_training.forests.grower.binning import Codes, between
from gatewise_training.forests.grower.growing_arrays import copy_into
from gatewise_training.learners.boost_kernel import MIN_HESSIAN, MIN_ROWS, count_codes
from gatewise_training.learners.boosting import LARGE_ROWS, PATIENCE
from gatewise_training.learners.losses import (
    log_loss,
    log_loss_gradient,
    log_loss_hessian,
    one_hot,
    prior_margins,
)
from gatewise_training.learners.stage_bounds import LARGEST_STEP_OF_FEW, TreeShape

Table = tuple[NDArray[np.float32], NDArray[np.int64]]


@dataclass(frozen=True)
class Prices:
    """What the first use of a threshold and of a feature take off a split's gain.

    A gain is LightGBM's: twice the drop of the summed loss.
    """

    threshold: float = 0.0
    feature: float = 0.0


@dataclass(frozen=True, eq=False)
class Boosted:
    """Boosted trees round by round; `best` is the number of rounds that validation rows keep."""

    trees: TreeEnsemble
    ends: NDArray[np.int64]  # (n_rounds,): trees after each round
    best: int

    def first(self, rounds: int) -> TreeEnsemble:
        """Trees of the first rounds."""
        return self.trees.select_trees(np.arange(self.ends[rounds - 1]))[0]


def boost(
    train: Table, n_classes: int, shape: TreeShape, prices: Prices, *, codes: Codes, max_bytes: int,
    validation: Table | None = None,
) -> Boosted:  # fmt: skip
    """Boost until C's tables of so many bytes are surely full, or validation rows end it.

    Shapes: rows (n, n_features) and class indices (n,), without NaN; `codes` are those of the
    training rows.
    """
    x, y = train
    state = _State(codes, one_hot(y, n_classes), shape, prices)
    parts: list[TreeEnsemble] = []
    base = state.scores[0].astype(np.float32)
    best, lowest, kept = 0, np.inf, 0
    patience, fall = PATIENCE[len(x) > LARGE_ROWS]
    if validation is not None:
        margins = np.tile(state.scores[0], (len(validation[0]), 1))
        target = one_hot(validation[1], n_classes)
    while state.least_bytes <= max_bytes:
        part = state.round()
        if not part.n_trees:
            break
        parts.append(part)
        kept = len(parts)
        if validation is not None:
            margins += part.margins(validation[0])
            loss = float(log_loss(margins, target).mean())
            if lowest - loss > fall:
                lowest, best = loss, kept
            if kept - best >= patience:
                break
    ends = np.cumsum([part.n_trees for part in parts], dtype=np.int64)
    trees = TreeEnsemble.join(parts, base, codes.n_features)
    return Boosted(trees, ends, kept if validation is None else best)


@dataclass(eq=False)
class _State:
    """Scores of the training rows, and what is in use already."""

    codes: Codes
    target: NDArray[np.float64]  # (n, n_outputs)
    shape: TreeShape
    prices: Prices
    scores: NDArray[np.float64] = field(init=False)  # (n, n_outputs)
    # (n_codes.sum(),) and (n_features,)
    threshold_used: NDArray[np.bool_] = field(init=False)
    feature_used: NDArray[np.bool_] = field(init=False)
    work: Any = field(init=False)
    n_inner: int = 0
    n_trees: int = 0

    def __post_init__(self) -> None:
        n, n_features, leaves = self.codes.n_rows, self.codes.n_features, self.shape.leaves
        self.scores = np.tile(prior_margins(self.target, np.ones(n)), (n, 1))
        self.threshold_used = np.zeros(self.codes.start[-1], np.bool_)
        self.feature_used = np.zeros(n_features, np.bool_)
        self.work = (
            np.zeros((leaves, n_features, int(self.codes.n_codes.max()), 3)),
            np.empty((leaves, n_features)),
            np.zeros((leaves, n_features), np.int64),
            np.empty(n, np.int64),
            np.empty(n, np.int64),
        )

    @property
    def least_bytes(self) -> int:
        """Bytes of C's tables that the trees take at least: a node's numbers are bytes."""
        thresholds = min(3 * self.n_inner, 4 * int(self.threshold_used.sum()))
        return 3 * self.n_inner + self.n_inner + self.n_trees + thresholds

    def round(self) -> TreeEnsemble:
        """Grow a tree for each output that has anything to split; the scores move on."""
        n_outputs = self.target.shape[1]
        gradient = np.ascontiguousarray(log_loss_gradient(self.scores, self.target).T)
        # as LightGBM has it: the softmax's diagonal is too small a curvature
        factor = n_outputs / (n_outputs - 1.0) if n_outputs > 1 else 1.0
        hessian = np.ascontiguousarray(log_loss_hessian(self.scores).T) * factor
        codes, grown, none = self.codes, [], np.zeros(n_outputs, np.float32)
        for m in range(n_outputs):
            feature, threshold, left, right, value, steps = _grow_tree(
                codes.codes, codes.start, codes.lower, codes.upper, gradient[m], hessian[m],
                self.prices.threshold, self.prices.feature, self.threshold_used, self.feature_used,
                self.shape.rate, LARGEST_STEP_OF_FEW if n_outputs > 1 else np.inf, *self.work,
            )  # fmt: skip
            if len(feature) > 1:
                tree = TreeEnsemble(
                    feature, threshold, left, right, np.zeros(len(feature), np.bool_),
                    value[:, None], np.zeros(1, np.int32), np.array([m], np.int32), none,
                    codes.n_features,
                )  # fmt: skip
                grown.append(tree)
                self.scores[:, m] += steps
                self.n_inner += len(feature) // 2
        self.n_trees += len(grown)
        return TreeEnsemble.join(grown, none, codes.n_features)


@numba.njit(cache=True, nogil=True)
def _grow_tree(
    codes: Any, start: Any, lower: Any, upper: Any, gradient: Any, hessian: Any,
    threshold_price: float, feature_price: float, threshold_used: Any, feature_used: Any,
    rate: float, largest_step: float, sums: Any, gains: Any, cuts: Any, rows: Any, spare: Any,
) -> Any:  # fmt: skip
    """Grow a tree and note what it uses; returns its nodes and each row's step.

    Shapes: `codes` (n_features, n), `gradient, hessian, rows, spare` (n,), `sums` (n_leaves,
    n_features, most codes, 3), `gains, cuts` (n_leaves, n_features); returns `feature, threshold,
    left, right, value` (n_nodes,) and `steps` (n,).
    """
    n_leaves, n_features, n = len(sums), len(codes), len(gradient)
    feature = np.full(2 * n_leaves - 1, LEAF, np.int32)
    threshold, value = np.zeros(len(feature), np.float32), np.zeros(len(feature), np.float32)
    left, right = feature.copy(), feature.copy()
    leaf = np.zeros((n_leaves, 3), np.int64)  # first row, end, node
    total = np.zeros((n_leaves, 2))
    for i in range(n):
        rows[i] = i
        total[0, 0] += gradient[i]
        total[0, 1] += hessian[i]
    leaf[0, 1] = n
    active = np.arange(n_features)
    count_codes(codes, rows, 0, n, gradient, hessian, active, sums[0])
    for k in range(n_features):
        gains[0, k], cuts[0, k] = _best_cut(
            sums[0, k], total[0], n, largest_step, threshold_price, feature_price,
            threshold_used[start[k] : start[k + 1]], feature_used[k],
        )  # fmt: skip
    n_open = 1
    while n_open < n_leaves:
        at, k = -1, -1
        for s in range(n_open):
            for j in range(n_features):
                if gains[s, j] > 1e-9 and (at < 0 or gains[s, j] > gains[at, k]):
                    at, k = s, j
        if at < 0:
            break
        new, cut, begin, end, node = n_open, cuts[at, k], leaf[at, 0], leaf[at, 1], leaf[at, 2]
        middle, back = begin, 0
        g = h = 0.0
        for i in range(begin, end):
            r = rows[i]
            if codes[k, r] <= cut:
                rows[middle] = r
                middle += 1
                g += gradient[r]
                h += hessian[r]
            else:
                spare[back] = r
                back += 1
        copy_into(rows, middle, spare, back)
        edge = start[k] + cut
        feature[node], threshold[node] = k, between(upper[edge], lower[edge + 1])
        left[node], right[node] = 2 * n_open - 1, 2 * n_open
        leaf[at, 1], leaf[at, 2] = middle, left[node]
        leaf[new, 0], leaf[new, 1], leaf[new, 2] = middle, end, right[node]
        total[new, 0], total[new, 1] = total[at, 0] - g, total[at, 1] - h
        total[at, 0], total[at, 1] = g, h
        n_open += 1
        cheaper = not threshold_used[edge] or not feature_used[k]
        threshold_used[edge] = feature_used[k] = True
        if n_open == n_leaves:
            break
        # count the smaller side, and subtract it from what the parent had
        small, large = (at, new) if middle - begin <= end - middle else (new, at)
        if small == at:
            copy_into(sums[new].reshape(-1), 0, sums[at].reshape(-1), sums[at].size)
        count_codes(
            codes, rows, leaf[small, 0], leaf[small, 1], gradient, hessian, active, sums[small]
        )
        part, other = sums[large].reshape(-1), sums[small].reshape(-1)
        for i in range(len(part)):
            part[i] -= other[i]
        for s in range(n_open):
            counted = s in (at, new)
            for j in range(n_features):
                # what was paid is cheaper from here on, in the other leaves too
                if counted or (cheaper and j == k):
                    gains[s, j], cuts[s, j] = _best_cut(
                        sums[s, j], total[s], leaf[s, 1] - leaf[s, 0], largest_step,
                        threshold_price, feature_price, threshold_used[start[j] : start[j + 1]],
                        feature_used[j],
                    )  # fmt: skip
    steps = np.empty(n)
    for s in range(n_open):
        step = np.float32(rate * _step(total[s, 0], total[s, 1], largest_step))
        value[leaf[s, 2]] = step
        for i in range(leaf[s, 0], leaf[s, 1]):
            steps[rows[i]] = step
    n_nodes = 2 * n_open - 1
    return (
        feature[:n_nodes],
        threshold[:n_nodes],
        left[:n_nodes],
        right[:n_nodes],
        value[:n_nodes],
        steps,
    )


@numba.njit(cache=True, nogil=True)
def _best_cut(
    sums: Any, total: Any, n: int, largest_step: float, threshold_price: float,
    feature_price: float, threshold_used: Any, feature_used: bool,
) -> Any:  # fmt: skip
    """Gain of a column's best split less its prices, and its last code on the left."""
    whole = _gain(total[0], total[1], largest_step)
    if not feature_used:
        whole += feature_price
    best, cut = -np.inf, -1
    g = h = count = 0.0
    for c in range(len(threshold_used) - 1):
        g += sums[c, 0]
        h += sums[c, 1]
        count += sums[c, 2]
        if n - count < MIN_ROWS or total[1] - h < MIN_HESSIAN:
            break
        if count < MIN_ROWS or h < MIN_HESSIAN:
            continue
        # codes without rows here are tried too: of equal splits one may be free
        gain = _gain(g, h, largest_step) + _gain(total[0] - g, total[1] - h, largest_step) - whole
        if not threshold_used[c]:
            gain -= threshold_price
        if gain > best:
            best, cut = gain, c
    return best, cut


@numba.njit(cache=True, nogil=True)
def _step(g: float, h: float, largest: float) -> Any:
    """Newton's step of a leaf, at most so large."""
    return min(largest, max(-largest, -g / h))


@numba.njit(cache=True, nogil=True)
def _gain(g: float, h: float, largest: float) -> Any:
    """Twice the drop of the quadratic loss by a leaf's step."""
    step = _step(g, h, largest)
    return -(2.0 * g + h * step) * step
