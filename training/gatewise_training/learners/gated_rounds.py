"""Compiled rounds of Adapt-GBRT for few rows: q-step, derivatives and a tree for each output.

The rounds equal those that :mod:`gatewise_training.adapt.gbrt` runs on LightGBM, but without
LightGBM's overhead of a millisecond per round.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from gatewise.costs import FeatureCosts
from gatewise.models.trees import TreeEnsemble
from gatewise_training.forests.grower.binning import Codes
from gatewise_training.forests.grower.growing import ensemble_of, unsplit_nodes
from gatewise_training.learners.boost_kernel import grow_boosted_tree, no_row_prices, work_arrays
from gatewise_training.learners.boost_records import BoostFit, FirstUse, TreeSettings
from gatewise_training.learners.losses import HESSIAN_FLOOR

Array = NDArray[np.float64]

#: Columns of the array of trees: index of the root, and the output to which the tree adds.
ROOT, OUTPUT = range(2)


class GatedLoss(NamedTuple):
    """Data and settings of Adapt's loss on the training rows."""

    target: Any  # (n, n_margins)
    weight: Any  # (n,)
    normalised_weight: Any  # (n,): weights that add up to 1
    f0_loss: Any  # (n,): log loss of the high-cost model
    p_full: float  # bound on the mean offload probability; below 0 if there is no gate
    newton: bool  # whether steps are second-order


def grow_rounds(
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
    lightgbm_settings: dict[str, Any],
) -> TreeEnsemble:
    """Grow f1 and, unless `p_full` is None, a gate.

    `rounds` are the numbers of rounds of the warm-up and of the whole fit.
    Shapes: `target` (n, n_margins), `weight, f0_loss` (n,), `base` (n_margins,).
    """
    items = costs.priced_items(strength)
    prices = FirstUse(*items, np.zeros(len(items.price), np.bool_))
    tree_settings = TreeSettings(
        float(lightgbm_settings["learning_rate"]),
        int(lightgbm_settings["num_leaves"]),
        int(lightgbm_settings["max_depth"]),
    )
    loss = GatedLoss(
        target, weight, weight / weight.sum(), f0_loss, -1.0 if p_full is None else p_full, newton
    )
    nodes, value, n_nodes, trees = _grow_rounds(codes, loss, base, rounds, prices, tree_settings)
    n_gate_outputs = int(p_full is not None)
    return ensemble_of(
        nodes,
        n_nodes,
        value[:, np.newaxis],
        roots=trees[:, ROOT].copy(),
        output=trees[:, OUTPUT].copy(),
        base=np.append(base, np.zeros(n_gate_outputs)).astype(np.float32),
        n_features=codes.n_features,
    )


@numba.njit(cache=True, nogil=True)
def _grow_rounds(
    columns: Any, loss: Any, base: Any, rounds: Any, prices: Any, tree_settings: Any
) -> Any:
    """Grow the trees of f1 round by round, and after the warm-up also the trees of the gate."""
    warm_up, n_rounds = rounds
    n, n_margins = loss.target.shape
    n_outputs = n_margins + (loss.p_full >= 0.0)
    max_nodes = n_rounds * n_outputs * (2 * tree_settings.n_leaves - 1) + 1
    nodes = unsplit_nodes(max_nodes)
    value = np.zeros(max_nodes, np.float32)
    trees = np.empty((n_rounds * n_outputs, 2), np.int32)
    # int64, because numba would otherwise compile functions a second time for Python integers
    max_codes = np.int64(1)
    n_nodes = np.int64(0)
    for k in range(len(columns.codes)):
        max_codes = max(max_codes, columns.start[k + 1] - columns.start[k])
    # start from the base margins
    work = work_arrays(n, len(columns.codes), max_codes, tree_settings.n_leaves)
    fit = BoostFit(
        columns=columns,
        prices=prices,
        settings=tree_settings,
        work=work,
        nodes=nodes,
        value=value,
        row_prices=no_row_prices(),
    )
    scores = np.zeros((n_outputs, n))
    for m in range(n_margins):
        scores[m] = base[m]
    gradient = np.empty((n_outputs, n))
    hessian = np.ones((n_outputs, n))
    n_trees = 0
    beta = 0.0
    round_number = 0
    # a round: derivatives at the best q, then a tree for each output
    while round_number < n_rounds:
        has_gate = loss.p_full > 0.0 and round_number >= warm_up
        beta = _write_derivatives(scores, loss, has_gate, beta, gradient, hessian)
        n_grown = 0
        for m in range(n_outputs if has_gate else n_margins):
            n_tree_nodes = grow_boosted_tree(fit, gradient[m], hessian[m], scores[m], n_nodes)
            if n_tree_nodes:
                trees[n_trees, ROOT] = n_nodes
                trees[n_trees, OUTPUT] = m
                n_trees += 1
                n_nodes += n_tree_nodes
                n_grown += 1
        if n_grown:
            round_number += 1
        elif loss.p_full > 0.0 and round_number < warm_up:
            round_number = warm_up  # f1 has no further split before the gate grows
        else:
            break
    return nodes, value, n_nodes, trees[:n_trees]


@numba.njit(cache=True, nogil=True)
def _write_derivatives(
    scores: Any, loss: Any, has_gate: bool, beta: float, gradient: Any, hessian: Any
) -> float:
    """Write gradient and hessian of every output at the best q; return the q-step's multiplier.

    `beta` is the multiplier of the previous round. The equations are in
    :mod:`gatewise_training.adapt.gated_trees`.
    """
    n, n_margins = loss.target.shape
    gain = np.empty(n)
    local_weight = loss.weight.copy()
    for i in range(n):
        gain[i] = log_loss(scores[:, i], loss.target[i], gradient[:n_margins, i])
    if has_gate:
        # A_i - B_i, because softplus(g) - softplus(-g) = g
        for i in range(n):
            gain[i] = gain[i] - loss.f0_loss[i] + scores[n_margins, i]
        beta = find_multiplier(gain, loss.normalised_weight, loss.p_full, beta)
        for i in range(n):
            q = _compute_sigmoid(gain[i] - beta)
            gate = _compute_sigmoid(scores[n_margins, i])
            local_weight[i] *= 1.0 - q
            gradient[n_margins, i] = loss.weight[i] * (gate - q)
            if loss.newton:
                hessian[n_margins, i] = max(loss.weight[i] * gate * (1.0 - gate), HESSIAN_FLOOR)
    # gradient weight (1 - q) (p - y), hessian weight (1 - q) p (1 - p)
    for m in range(n_margins):
        for i in range(n):
            p = gradient[m, i]
            gradient[m, i] = local_weight[i] * (p - loss.target[i, m])
            if loss.newton:
                hessian[m, i] = max(local_weight[i] * p * (1.0 - p), HESSIAN_FLOOR)
    return beta


@numba.njit(cache=True, nogil=True)
def _compute_sigmoid(margin: float) -> Any:
    if margin >= 0.0:
        return 1.0 / (1.0 + np.exp(-margin))
    exp_margin = np.exp(margin)
    return exp_margin / (1.0 + exp_margin)


@numba.njit(cache=True, nogil=True)
def log_loss(margins: Any, target: Any, probabilities: Any) -> Any:
    """Compute the log loss of a row, and write its probabilities to `probabilities`.

    Only the first ``len(probabilities)`` margins are used; a gate may follow them.

    On few rows :mod:`gatewise_training.learners.losses`, which uses numpy, takes seven times as
    long.
    """
    if len(probabilities) == 1:
        margin = margins[0]
        exp_term = np.exp(-abs(margin))
        probabilities[0] = (1.0 if margin >= 0.0 else exp_term) / (1.0 + exp_term)
        return max(margin, 0.0) + np.log1p(exp_term) - target[0] * margin
    largest = margins[0]
    for m in range(1, len(probabilities)):
        largest = max(largest, margins[m])
    exp_sum = target_term = 0.0
    for m in range(len(probabilities)):
        shifted_margin = margins[m] - largest
        probabilities[m] = np.exp(shifted_margin)
        exp_sum += probabilities[m]
        target_term += target[m] * shifted_margin
    for m in range(len(probabilities)):
        probabilities[m] /= exp_sum
    return np.log(exp_sum) - target_term


@numba.njit(cache=True, nogil=True)
def find_multiplier(gain: Any, normalised_weight: Any, p_full: float, previous_beta: float) -> Any:
    """Find the smallest ``beta >= 0`` with ``sum(w * sigmoid(gain - beta)) <= p_full``.

    w is `normalised_weight`.
    """
    # excess(beta) = sum(w * sigmoid(gain - beta)) - p_full is decreasing, so its root is found
    # by Newton's method within a bracket; at `high` each term is at most w * p_full, because
    # sigmoid(m) <= exp(m)
    low = 0.0
    high = max(gain.max() - np.log(p_full), 0.0)
    beta = 0.0
    for iteration in range(100):
        excess = -p_full
        negative_slope = 1e-300  # not 0, because excess is divided by it
        for i in range(len(gain)):
            probability = _compute_sigmoid(gain[i] - beta)
            excess += normalised_weight[i] * probability
            negative_slope += normalised_weight[i] * probability * (1.0 - probability)
        if abs(excess) <= 1e-12 or (iteration == 0 and excess < 0.0):
            break
        if excess > 0.0:
            low = beta
        else:
            high = beta
        # after beta = 0, the multiplier of the previous round is close to the root
        next_beta = beta + excess / negative_slope
        if iteration == 0 and previous_beta > 0.0:
            next_beta = previous_beta
        if not low < next_beta < high:
            next_beta = 0.5 * (low + high)
        if high - low <= 1e-13 * max(high, 1.0):  # float64 cannot divide the bracket much further
            break
        beta = next_beta
    return beta
