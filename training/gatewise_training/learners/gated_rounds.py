"""The rounds of Adapt-GBRT on few rows, compiled: q-step, derivatives and a tree for each output.

The same as the rounds of :mod:`gatewise_training.adapt.gbrt` on LightGBM, without its overhead of a
millisecond each.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from gatewise.costs import FeatureCosts
from gatewise.models.trees import LEAF, TreeEnsemble
from gatewise_training.forests.grower.binning import Codes
from gatewise_training.learners.boost_kernel import grow_boosted_tree, scratch
from gatewise_training.learners.losses import HESSIAN_FLOOR

Array = NDArray[np.float64]


def boost(
    codes: Codes,
    target: Array,
    weight: Array,
    f0_loss: Array,
    base: Array,
    costs: FeatureCosts,
    *,
    p_full: float | None,
    rounds: tuple[int, int],
    strength: float,
    newton: bool,
    settings: dict[str, Any],
) -> TreeEnsemble:
    """Grow f1 and, unless `p_full` is None, a gate; `rounds` are those of the warm-up and all.

    Shapes: `target` (n, n_margins), `weight, f0_loss` (n,), `base` (n_margins,).
    """
    nodes, n_nodes, roots, output, n_trees = _boost(
        codes.codes, codes.start, codes.lower, codes.upper, target, weight, f0_loss,
        base, -1.0 if p_full is None else p_full, rounds[0], rounds[1], strength * costs.own,
        np.asarray(costs.group, np.int64), strength * costs.shared, newton,
        float(settings["learning_rate"]), int(settings["num_leaves"]), int(settings["max_depth"]),
    )  # fmt: skip
    feature, threshold, left, right, nan_left, value = (each[:n_nodes].copy() for each in nodes)
    start = np.append(base, np.zeros(int(p_full is not None))).astype(np.float32)
    return TreeEnsemble(
        feature, threshold, left, right, nan_left, value[:, None], roots[:n_trees].copy(),
        output[:n_trees].copy(), start,        codes.n_features,
    )  # fmt: skip


@numba.njit(cache=True, nogil=True)
def _boost(
    codes: Any, start: Any, lower: Any, upper: Any, target: Any, weight: Any, f0_loss: Any,
    base: Any, p_full: float, warm_up: int, n_rounds: int, own: Any, group: Any, shared: Any,
    newton: bool, rate: float, n_leaves: int, max_depth: int,
) -> Any:  # fmt: skip
    n, n_margins = target.shape
    n_outputs = n_margins + (p_full >= 0.0)
    most = n_rounds * n_outputs * (2 * n_leaves - 1) + 1
    nodes = (
        np.full(most, LEAF, np.int32), np.zeros(most, np.float32), np.full(most, LEAF, np.int32),
        np.full(most, LEAF, np.int32), np.zeros(most, np.bool_), np.zeros(most, np.float32),
    )  # fmt: skip
    roots = np.empty(n_rounds * n_outputs, np.int32)
    output = np.empty(len(roots), np.int32)
    # of a type of their own, plain integers make numba compile what takes them twice
    widest, n_nodes = np.int64(1), np.int64(0)
    for k in range(len(codes)):
        widest = max(widest, start[k + 1] - start[k])
    work = scratch(n, len(codes), widest, n_leaves)
    paid = np.zeros(len(own) + len(shared), np.bool_)
    scores = np.zeros((n_outputs, n))
    for m in range(n_margins):
        scores[m] = base[m]
    gradient, hessian = np.empty((n_outputs, n)), np.ones((n_outputs, n))
    share = weight / weight.sum()
    n_trees = 0
    beta = 0.0
    t = 0
    while t < n_rounds:
        gated = p_full > 0.0 and t >= warm_up
        beta = _derivatives(
            scores, target, weight, share, f0_loss, p_full if gated else 0.0, newton, beta,
            gradient, hessian,
        )  # fmt: skip
        grown = 0
        for m in range(n_outputs if gated else n_margins):
            found = grow_boosted_tree(
                codes, start, lower, upper, gradient[m], hessian[m], own, group, shared, paid,
                rate, n_leaves, max_depth, work, nodes, n_nodes, scores[m],
            )  # fmt: skip
            if found:
                roots[n_trees], output[n_trees] = n_nodes, m
                n_trees += 1
                n_nodes += found
                grown += 1
        if grown:
            t += 1
        elif p_full > 0.0 and t < warm_up:
            t = warm_up  # f1 has nothing more to split before there is a gate
        else:
            break
    return nodes, n_nodes, roots, output, n_trees


@numba.njit(cache=True, nogil=True)
def _derivatives(
    scores: Any, target: Any, weight: Any, share: Any, f0_loss: Any, p_full: float, newton: bool,
    beta: float, gradient: Any, hessian: Any,
) -> float:  # fmt: skip
    """Gradient and hessian of every output at the best q; returns the q-step's multiplier."""
    n, n_margins = target.shape
    gain, kept = np.empty(n), weight.copy()
    for i in range(n):
        gain[i] = log_loss(scores[:, i], target[i], gradient[:n_margins, i])
    if p_full > 0.0:
        for i in range(n):
            gain[i] = gain[i] - f0_loss[i] + scores[n_margins, i]
        beta = multiplier(gain, share, p_full, beta)
        for i in range(n):
            q, gate = _expit(gain[i] - beta), _expit(scores[n_margins, i])
            kept[i] *= 1.0 - q
            gradient[n_margins, i] = weight[i] * (gate - q)
            if newton:
                hessian[n_margins, i] = max(weight[i] * gate * (1.0 - gate), HESSIAN_FLOOR)
    for m in range(n_margins):
        for i in range(n):
            p = gradient[m, i]
            gradient[m, i] = kept[i] * (p - target[i, m])
            if newton:
                hessian[m, i] = max(kept[i] * p * (1.0 - p), HESSIAN_FLOOR)
    return beta


@numba.njit(cache=True, nogil=True)
def _expit(m: float) -> Any:
    if m >= 0.0:
        return 1.0 / (1.0 + np.exp(-m))
    e = np.exp(m)
    return e / (1.0 + e)


@numba.njit(cache=True, nogil=True)
def log_loss(margins: Any, target: Any, p: Any) -> Any:
    """Log loss of one row's margins, the first ones of `margins`; its probabilities into `p`.

    As in :mod:`gatewise_training.learners.losses`, whose calls of numpy take seven times as long
    on few rows.
    """
    if len(p) == 1:
        m = margins[0]
        e = np.exp(-abs(m))
        p[0] = (1.0 if m >= 0.0 else e) / (1.0 + e)
        return max(m, 0.0) + np.log1p(e) - target[0] * m
    top = margins[0]
    for c in range(1, len(p)):
        top = max(top, margins[c])
    total = own = 0.0
    for c in range(len(p)):
        below = margins[c] - top
        p[c] = np.exp(below)
        total += p[c]
        own += target[c] * below
    for c in range(len(p)):
        p[c] /= total
    return np.log(total) - own


@numba.njit(cache=True, nogil=True)
def multiplier(gain: Any, share: Any, p_full: float, near: float) -> Any:
    """Least ``beta >= 0`` with ``sum(share * sigmoid(gain - beta)) <= p_full``, by Newton."""
    low, high = 0.0, max(gain.max() - np.log(p_full), 0.0)
    beta = 0.0
    for step in range(100):
        excess, slope = -p_full, 1e-300
        for i in range(len(gain)):
            p = _expit(gain[i] - beta)
            excess += share[i] * p
            slope += share[i] * p * (1.0 - p)
        if abs(excess) <= 1e-12 or (step == 0 and excess < 0.0):
            break
        if excess > 0.0:
            low = beta
        else:
            high = beta
        ahead = near if step == 0 and near > 0.0 else beta + excess / slope
        if not low < ahead < high:
            ahead = 0.5 * (low + high)
        if high - low <= 1e-13 * max(high, 1.0):
            break
        beta = ahead
    return beta
