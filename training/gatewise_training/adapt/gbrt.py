"""Adapt-GBRT: gate and low-cost model as boosted trees that share their features.

Nan & Saligrama, NIPS 2017, Algorithm 2. One booster grows both: its first outputs are f1's margins,
its last is g, so that a feature is charged the first time any tree of either uses it. Instead of
the paper's alternation between long fits, q is renewed before each round; the objective is the
same. Without a gate, or with one that may never offload, every row is f1's: that is GreedyMiser (Xu
et al., ICML 2012), and the trees of f1 are the same ones in both cases.

The booster is LightGBM's, and up to 5,000 rows, where its rounds are mostly overhead, a compiled
one of our own that grows such trees some five times as fast.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral, Real
from typing import Any, ClassVar

import lightgbm as lgb
import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.utils._param_validation import Interval

from gatewise.errors import InputError
from gatewise.models.stage import Stage
from gatewise.models.trees import TreeEnsemble
from gatewise_training.adapt.base import Adapt
from gatewise_training.adapt.qstep import q_step
from gatewise_training.adapt.sample import Sample
from gatewise_training.data.input_checks import Constraints
from gatewise_training.feature_selection.penalty_search import spread_penalties
from gatewise_training.learners.boosting import (
    LARGE_ROWS,
    FirstUsePrices,
    link_of,
    objective_of,
    tree_params,
    varies,
)
from gatewise_training.learners.gated_rounds import boost
from gatewise_training.learners.growth_settings import Growth, tree_settings
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

FEWEST_ROWS, FEW_LEAVES = 1000, 8
"""Leaves of a tree up to so many rows: larger ones learn these by heart, and margins are void."""

FEW_FITS, MANY_FITS = 16, 8
"""Penalties of a search on few rows and on many."""

PROBE_ROWS, PROBE_ROUNDS = 2000, 0.25
"""Rows at most, and share of the rounds, of the fits that only find out what a penalty buys."""


@dataclass(eq=False, repr=False, kw_only=True)
class AdaptGBRT(Growth, Adapt):
    """Boosted gate and low-cost model, learned together under a feature penalty.

    Nan & Saligrama, "Adaptive classification for prediction under a budget", NIPS 2017,
    algorithm 2.

    Parameters
    ----------
    high_cost_model, feature_costs, blocks, high_cost_input, cloud_prices
        As for :class:`StagedCascade`.
    budget, max_loss, offload_rate, min_recall, min_precision, class_weight, guarantee
        As for :class:`StagedCascade`.
    max_bytes, max_instance_cost
        As for :class:`StagedCascade`.
    allow_missing, random_state, n_jobs, verbose
        As for :class:`StagedCascade`.
    p_full : sequence of float, optional
        Bounds on the mean offload probability, swept: by default 0.1 and 0.5, and on more than
        5,000 training rows 0.1, 0.3, 0.5 and 0.7. At 0 f1 is :class:`GreedyMiser`'s
        model, tree for tree, and the gate never leaves 0.
    penalties : sequence of float, optional
        ``gamma``: nats of mean loss that a feature of mean price must save, swept: by default 16
        values, and on more than 5,000 training rows 8, searched for each `p_full` by short fits
        whose features cover the range from none to all.
    stop : {"auto", "gate", "margin"}, default "auto"
        Whose score stops an instance: the gate's, as in the paper, or the margin of f1, which then
        stands alone, without the gate's features. With "auto" each fit gives both stages, and
        every operating point has the one that is better on validation rows; so has a single model
        of the same family on nested feature sets, stopped by its margin.
    n_rounds : int, default 100
        Boosting rounds; each grows a tree for every output.
    warm_up : int, default 20
        First rounds with q = 0 and the gate at rest (the paper starts f1 by GreedyMiser).
    prefixes : sequence of float, default (0.25, 0.5, 1.0)
        Shares of a fit's trees, the first ones, that are stages of their own: cheaper ones, and
        such as have not learned the training rows by heart.
    num_leaves : int, optional
        By default 8; on more than 1,000 training rows 31; on more than 5,000 127, or 63 for more
        than two classes, or twice as many as are best for boosted trees on validation rows (31 at
        least).
    max_depth : int, optional
        Bound on the trees' depth, as in the paper; none by default.
    learning_rate : float, optional
        By default 0.1, or 0.2 for two classes on more than 5,000 training rows.
    newton : bool, default True
        Second-order steps; False gives the paper's first-order ones.

    Notes
    -----
    With ``q`` fixed, f1's gradient is ``(1 - q)(p - y)`` and the gate's ``sigmoid(g) - q``;
    q is renewed before each round.
    """

    penalties: Sequence[float] | None = None
    warm_up: int = 20
    prefixes: Sequence[float] = (0.25, 0.5, 1.0)
    allow_missing: bool = False
    _family = "boosting"

    _parameter_constraints: ClassVar[Constraints] = {
        "warm_up": [Interval(Integral, 0, None, closed="left")],
        "penalties": ["array-like", None],
        "prefixes": ["array-like"],
    }

    def _check_settings(self) -> None:
        super()._check_settings()
        above_0 = Interval(Real, 0, 1, closed="right")
        if not (len(self.prefixes) and all(map(above_0.is_satisfied_by, self.prefixes))):
            raise InputError(f"prefixes must be shares in (0, 1], not {list(self.prefixes)}")

    def _shared(self, sample: Sample, p_full: float) -> Sequence[float]:
        if self.penalties is not None:
            return self.penalties
        return spread_penalties(
            partial(_probed_cost, _probe_rows(sample), self, p_full),
            sample.costs,
            FEW_FITS if len(sample.x) <= LARGE_ROWS else MANY_FITS,
        )

    def _fit_path(
        self, sample: Sample, p_full: float, seed: int, shared: Sequence[Any] = ()
    ) -> list[Stage]:
        stages = []
        for gamma in shared:
            trees = grow(sample, self, gamma, p_full=p_full, warm_up=self.warm_up, seed=seed)
            for share in self.prefixes:
                first, _ = trees.select_trees(range(round(share * trees.n_trees)))
                stages.append(as_stage(first, sample.n_classes))
        return stages


def _probe_rows(sample: Sample) -> Sample:
    if len(sample.x) <= PROBE_ROWS:
        return sample
    rows = np.random.default_rng(0).choice(len(sample.x), PROBE_ROWS, replace=False)
    return sample.take(np.sort(rows))


def _probed_cost(sample: Sample, method: AdaptGBRT, p_full: float, gamma: float) -> float:
    """Price of the features that a short fit under a penalty uses."""
    short, warm_up = copy.copy(method), round(PROBE_ROUNDS * method.warm_up)
    short.n_rounds = max(1, round(PROBE_ROUNDS * method.n_rounds))
    trees = grow(sample, short, gamma, p_full=p_full, warm_up=warm_up, seed=0)
    return sample.costs.price(trees.used())


def as_stage(trees: TreeEnsemble, n_classes: int) -> Stage:
    """Turn outputs (f1..., g) into a stage with the stop score -g as its last column."""
    gate = trees.output == trees.n_outputs - 1
    ends = np.append(trees.roots[1:], trees.n_nodes)
    value = trees.value.copy()
    for t in np.flatnonzero(gate):
        value[trees.roots[t] : ends[t]] *= -1
    return Stage.from_model(replace(trees, value=value), link_of(n_classes), "column")


def grow(
    sample: Sample,
    growth: Growth,
    gamma: float,
    *,
    p_full: float | None,
    warm_up: int = 0,
    seed: int,
) -> TreeEnsemble:
    """Grow f1 and, unless `p_full` is None, a gate, which rests in the rounds of `warm_up`.

    A mean loss plus ``gamma * cost`` over n rows is a LightGBM penalty of ``2 n gamma``, since
    its gain has no factor 1/2. On few rows LightGBM's rounds are mostly overhead: trees are
    grown by :func:`.boost`.
    """
    target = one_hot(sample.y, sample.n_classes)
    base = prior_margins(target, sample.weight)
    unit = max(sample.costs.total / sample.costs.n_features, 1e-12)
    strength = 2.0 * len(sample.x) * gamma / unit
    few = {"few_leaves": FEW_LEAVES} if len(sample.x) <= FEWEST_ROWS else {}
    shape = sample.tree_shape
    settings = tree_settings(
        growth,
        len(sample.x),
        sample.n_classes,
        best_leaves=None if shape is None else shape.leaves,
        **few,
    )
    warm_up = warm_up if p_full else growth.n_rounds
    if len(sample.x) <= LARGE_ROWS:
        return boost(
            sample.codes,
            target,
            sample.weight,
            sample.f0_loss,
            base,
            sample.costs,
            p_full=p_full,
            rounds=(warm_up, growth.n_rounds),
            strength=strength,
            newton=growth.newton,
            settings=settings,
        )
    # with a group's shared price, all trees of one round may each pay it once
    prices, n_outputs = FirstUsePrices(sample.costs, strength), len(base) + (p_full is not None)
    params = tree_params(seed) | {"objective": "none", "num_class": n_outputs}
    params |= settings | prices.params
    data = lgb.Dataset(sample.x, np.zeros(len(sample.x)), params=params, free_raw_data=True)
    booster, grows = lgb.Booster(params, data), varies(sample.x)
    for bound, rounds in ((0.0, warm_up), (p_full or 0.0, growth.n_rounds - warm_up)):
        derivatives = partial(_derivatives, sample, target, base, bound, growth.newton)
        for _ in range(rounds if grows else 0):
            finished = booster.update(fobj=objective_of(derivatives))
            prices.after(booster)
            if finished:
                break
    trees = TreeEnsemble.from_lightgbm(booster)
    return replace(trees, base=np.append(base, np.zeros(n_outputs - len(base))).astype(np.float32))


def _derivatives(
    sample: Sample, target: Array, base: Array, p_full: float, newton: bool, scores: Array
) -> tuple[Array, Array]:
    """Gradient and hessian of the M-step's loss at the q that is best for the current models.

    With `p_full` 0 every row is f1's, and a gate rests.
    """
    n_margins = len(base)
    f1 = scores[:, :n_margins] + base
    gradient, hessian = np.zeros_like(scores), np.ones_like(scores)
    kept = sample.weight
    if p_full > 0.0:
        g = scores[:, -1]
        q = q_step(
            log_loss(f1, target) + softplus(g),
            sample.f0_loss + softplus(-g),
            p_full,
            sample.weight,
        )
        kept = (1.0 - q) * sample.weight
        gate = expit(g)
        gradient[:, -1] = sample.weight * (gate - q)
        hessian[:, -1] = sample.weight * gate * (1.0 - gate)
    gradient[:, :n_margins] = kept[:, None] * log_loss_gradient(f1, target)
    if not newton:  # trees fitted to the negative gradient by least squares
        return gradient, np.ones_like(gradient)
    hessian[:, :n_margins] = kept[:, None] * log_loss_hessian(f1)
    return gradient, np.maximum(hessian, HESSIAN_FLOOR)
