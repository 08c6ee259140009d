"""Growth of Adapt-GBRT's trees: the margins of f1 and the gate g in one booster.

f1 is the low-cost model and f0 the high-cost model, and the gate g decides which rows go to f0. The
first outputs of the booster are the margins of f1, and the last output is g. A feature is therefore
charged once, when a tree of either first uses it. With the offload probabilities q of the q-step,
the loss of the M-step is ``(1 - q) loss(f1, y) + cross-entropy(q, sigmoid(g))``. Its derivatives
are ::

    f1:  gradient (1 - q)(p - y),    hessian (1 - q) p (1 - p)
    g:   gradient sigmoid(g) - q,    hessian sigmoid(g) (1 - sigmoid(g))

The booster is LightGBM. On up to 5,000 rows LightGBM spends most of its time on overhead, so a
compiled booster of this package (:mod:`gatewise_training.learners.gated_rounds`) is used, which is
about five times as fast.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import lightgbm as lgb
import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from gatewise.models.trees import TreeEnsemble
from gatewise_training.adapt.qstep import q_step
from gatewise_training.adapt.sample import Sample
from gatewise_training.learners.boosting import (
    MAX_SMALL_ROWS,
    FirstUsePrices,
    has_varying_column,
    objective_of,
    tree_params,
)
from gatewise_training.learners.gated_rounds import grow_rounds
from gatewise_training.learners.growth_settings import (
    LEAVES_OF_SMALL_TABLES,
    Growth,
    tree_settings,
)
from gatewise_training.learners.losses import (
    HESSIAN_FLOOR,
    log_loss,
    log_loss_gradient,
    log_loss_hessian,
    one_hot,
    prior_margins,
    softplus,
)

Array = NDArray[np.float64]

#: Largest number of rows on which trees have FEW_LEAVES. Larger trees overfit few rows so badly
#: that their margins say nothing about errors.
FEW_ROWS = 1000

#: Number of leaves of a tree on few rows.
FEW_LEAVES = 8


def grow_gated_trees(
    sample: Sample,
    growth: Growth,
    gamma: float,
    *,
    p_full: float | None,
    warm_up: int = 0,
    seed: int,
) -> TreeEnsemble:
    """Grow f1 and, unless `p_full` is None, a gate.

    `p_full` bounds the mean offload probability. At 0 the gate exists, but never changes. At a
    positive value it changes in the rounds after `warm_up`.

    For n rows, the term ``gamma * cost`` next to a mean loss is a LightGBM penalty of ``2 n
    gamma``, because the gain of LightGBM has no factor 1/2.
    """
    mean_price = max(sample.costs.total / sample.costs.n_features, 1e-12)
    # costs count in mean prices, so that a gamma means the same whatever the unit of cost
    strength = 2.0 * len(sample.x) * gamma / mean_price
    tree_shape = sample.tree_shape
    settings = tree_settings(
        growth,
        len(sample.x),
        sample.n_classes,
        few_leaves=FEW_LEAVES if len(sample.x) <= FEW_ROWS else LEAVES_OF_SMALL_TABLES,
        best_leaves=None if tree_shape is None else tree_shape.n_leaves,
    )
    # if the gate never changes, all rounds are warm-up
    rounds = warm_up if p_full else growth.n_rounds, growth.n_rounds
    prices = FirstUsePrices(sample.costs, strength)
    if len(sample.x) > MAX_SMALL_ROWS:
        params = tree_params(seed) | settings | prices.params
        return _grow_by_lightgbm(sample, p_full, rounds, growth.newton, params, prices)
    target = one_hot(sample.y, sample.n_classes)
    return grow_rounds(
        sample.codes,
        target,
        sample.weight,
        sample.f0_loss,
        prior_margins(target, sample.weight),
        sample.costs,
        p_full=p_full,
        rounds=rounds,
        strength=strength,
        newton=growth.newton,
        lightgbm_settings=settings,
    )


def _grow_by_lightgbm(
    sample: Sample,
    p_full: float | None,
    rounds: tuple[int, int],
    newton: bool,
    params: dict[str, Any],
    prices: FirstUsePrices,
) -> TreeEnsemble:
    """Grow the trees by LightGBM; `rounds` counts the rounds of the warm-up and of all growth.

    Within one round, each tree may pay the shared price of a group once.
    """
    target = one_hot(sample.y, sample.n_classes)
    base_margins = prior_margins(target, sample.weight)
    n_outputs = len(base_margins) + (p_full is not None)
    params = params | {"objective": "none", "num_class": n_outputs}
    dataset = lgb.Dataset(sample.x, np.zeros(len(sample.x)), params=params, free_raw_data=True)
    booster = lgb.Booster(params, dataset)
    has_splits = has_varying_column(sample.x)
    # the gate may not offload during the warm-up
    warm_up, n_all_rounds = rounds
    for phase_p_full, n_rounds in ((0.0, warm_up), (p_full or 0.0, n_all_rounds - warm_up)):
        derivatives = partial(
            _compute_derivatives, sample, target, base_margins, phase_p_full, newton
        )
        for _ in range(n_rounds if has_splits else 0):
            is_finished = booster.update(fobj=objective_of(derivatives))
            prices.update(booster)
            if is_finished:
                break
    trees = TreeEnsemble.from_lightgbm(booster)
    return replace(
        trees,
        base=np.append(base_margins, np.zeros(n_outputs - len(base_margins))).astype(np.float32),
    )


def _compute_derivatives(
    sample: Sample, target: Array, base_margins: Array, p_full: float, newton: bool, scores: Array
) -> tuple[Array, Array]:
    """Compute gradient and hessian of the M-step's loss at the best q.

    If `p_full` is 0, the gate has no gradient.
    """
    n_margins = len(base_margins)
    f1 = scores[:, :n_margins] + base_margins
    gradient = np.zeros_like(scores)
    hessian = np.ones_like(scores)
    f1_weight = sample.weight
    # the gate's derivatives; f1 then counts with weight 1 - q
    if p_full > 0.0:
        g = scores[:, -1]
        q = q_step(
            log_loss(f1, target) + softplus(g), sample.f0_loss + softplus(-g), p_full, sample.weight
        )
        f1_weight = (1.0 - q) * sample.weight
        gate_probability = expit(g)
        gradient[:, -1] = sample.weight * (gate_probability - q)
        hessian[:, -1] = sample.weight * gate_probability * (1.0 - gate_probability)
    gradient[:, :n_margins] = f1_weight[:, None] * log_loss_gradient(f1, target)
    if not newton:  # trees fitted to the negative gradient by least squares
        return gradient, np.ones_like(gradient)
    hessian[:, :n_margins] = f1_weight[:, None] * log_loss_hessian(f1)
    return gradient, np.maximum(hessian, HESSIAN_FLOOR)
