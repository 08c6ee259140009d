"""Adapt-GBRT: gate and low-cost model as boosted trees that share their features.

Nan & Saligrama, NIPS 2017, Algorithm 2. f1 is the low-cost model, g the gate, and q the offload
probability of each row. One booster grows f1 and g (:mod:`.gated_trees`) and charges each feature
once, when a tree of either model first uses it. The paper alternates long fits of q and of the
models. This module computes q again before each boosting round; the objective is the same.

Without a gate, or with a gate that may never offload, f1 answers every row. This is GreedyMiser (Xu
et al., ICML 2012), and its trees are the trees of f1.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
from sklearn.utils._param_validation import Interval

from gatewise.errors import InputError
from gatewise.models.stage import Stage
from gatewise.models.trees import TreeEnsemble
from gatewise_training.adapt.base import Adapt
from gatewise_training.adapt.gated_trees import grow_gated_trees
from gatewise_training.adapt.sample import Sample
from gatewise_training.cegb.sweep import spread_penalties
from gatewise_training.data.input_checks import Constraints
from gatewise_training.learners.boosting import MAX_SMALL_ROWS, link_of
from gatewise_training.learners.growth_settings import Growth, check_prefixes, first_rounds

#: Number of penalties that a search tries. With 7, the accuracy on heart was 6 points lower.
N_PENALTIES = 16

#: Number of penalties that a search tries on more than MAX_SMALL_ROWS rows, where fits are slow.
N_PENALTIES_LARGE = 8

#: Largest number of rows of a short fit, which only measures the cost of the features.
MAX_SHORT_FIT_ROWS = 2000

#: Share of the rounds that a short fit runs.
SHORT_FIT_ROUNDS_SHARE = 0.25


@dataclass(eq=False, repr=False, kw_only=True)
class AdaptGBRT(Growth, Adapt):
    """Boosted gate and low-cost model, learned together under a feature penalty.

    Nan & Saligrama, "Adaptive classification for prediction under a budget", NIPS 2017,
    algorithm 2.

    Further parameters: :class:`.CascadeClassifier` and, for windows, :class:`.WindowSettings`.

    Parameters
    ----------
    allow_missing, random_state
        As for :class:`StagedCascade`.
    p_full : sequence of float, optional
        Bounds on the mean offload probability to sweep. The default is 0.1 and 0.5, and on more
        than 5,000 training rows 0.1, 0.3, 0.5 and 0.7. At 0, f1 has the same trees as
        :class:`GreedyMiser`, and the gate stays at 0.
    penalties : sequence of float, optional
        Penalties ``gamma`` to try. A feature of mean price is used only if it lowers the mean loss
        by at least ``gamma`` nats. By default, short fits choose 16 penalties for each `p_full`, or
        8 on more than 5,000 training rows. The models of these penalties use from no feature to
        all features.
    stop : {"auto", "gate", "margin"}, default "auto"
        Score that stops an instance: the gate, as in the paper, or the margin of f1, which needs
        no features of the gate. With "auto" each fit gives one stage with either score. Boosted
        trees without a gate, on nested feature sets, are compared with them. Each operating point
        uses the stage with the best result on validation rows.
    accounting : {"union", "paths"}, default "union"
        Features that the frontier and `cost` charge to an offloaded instance, in addition to the
        features of f1 and the gate. With "union" these are all features that the high-cost model
        reads, because devices send them all. With "paths" they are the features that the high-cost
        model acquires for the instance, if it is a forest (the paper's figure 4) or a fitted
        cascade (remark 2).
    n_rounds : int, default 100
        Boosting rounds; each grows a tree for every output.
    warm_up : int, optional
        Number of first rounds with q = 0, in which the gate does not change; a fifth of the rounds
        by default. The paper also starts f1 by GreedyMiser.
    prefixes : sequence of float, default (0.25, 0.5, 1.0)
        Shares of a fit's trees. The first rounds of a fit are also stages, which are cheaper and
        overfit less.
    num_leaves : int, optional
        Maximum number of leaves of a tree. The default depends on the number of training rows:

        - up to 1,000 rows: 8, because larger trees overfit;
        - up to 5,000 rows: 31;
        - more rows: twice the number that is best for boosted trees on validation rows, between 31
          and 127, or 63 for more than two classes. If that number is not known, 127 or 63.
    max_depth : int, optional
        Largest depth of a tree, as in the paper; unbounded by default.
    learning_rate : float, optional
        By default 0.1, or 0.2 for two classes on more than 5,000 training rows.
    newton : bool, default True
        Whether steps are second-order. False gives the first-order steps of the paper.

    Notes
    -----
    For fixed offload probabilities ``q``, the gradient of the low-cost model f1 is
    ``(1 - q)(p - y)``, and the gradient of the gate g is ``sigmoid(g) - q``. ``q`` is computed
    again before each round.
    """

    penalties: Sequence[float] | None = None
    warm_up: int | None = None
    prefixes: Sequence[float] = (0.25, 0.5, 1.0)
    allow_missing: bool = False
    _family = "boosting"

    _parameter_constraints: ClassVar[Constraints] = {
        "warm_up": [Interval(Integral, 0, None, closed="left"), None],
        "penalties": ["array-like", None],
        "prefixes": ["array-like"],
    }

    def _check_settings(self) -> None:
        super()._check_settings()
        check_prefixes(self.prefixes)
        if self._n_warm_up_rounds >= self.n_rounds:
            raise InputError(
                f"warm_up={self.warm_up} must be below n_rounds={self.n_rounds}, because the gate "
                "grows after the warm-up"
            )

    @property
    def _n_warm_up_rounds(self) -> int:
        return self.n_rounds // 5 if self.warm_up is None else self.warm_up

    def _find_shared_settings(self, sample: Sample, p_full: float) -> Sequence[float]:
        if self.penalties is not None:
            return self.penalties
        return spread_penalties(
            partial(_price_short_fit, _sample_short_fit(sample), self, p_full),
            sample.costs,
            N_PENALTIES if len(sample.x) <= MAX_SMALL_ROWS else N_PENALTIES_LARGE,
        )

    def _fit_path(
        self, sample: Sample, p_full: float, seed: int, shared_settings: Sequence[Any]
    ) -> list[Stage]:
        """Grow trees for each gamma; each share of their first trees is a stage."""
        stages = []
        for gamma in shared_settings:
            trees = grow_gated_trees(
                sample, self, gamma, p_full=p_full, warm_up=self._n_warm_up_rounds, seed=seed
            )
            stages += [
                as_stage(first_rounds(trees, tree_share), sample.n_classes)
                for tree_share in self.prefixes
            ]
        return stages


def _sample_short_fit(sample: Sample) -> Sample:
    """Draw the rows of the short fits, which are the same for all penalties and seeds."""
    if len(sample.x) <= MAX_SHORT_FIT_ROWS:
        return sample
    rows = np.random.default_rng(0).choice(len(sample.x), MAX_SHORT_FIT_ROWS, replace=False)
    return sample.take(np.sort(rows))


def _price_short_fit(sample: Sample, method: AdaptGBRT, p_full: float, gamma: float) -> float:
    """Get the price of the features that a short fit under a penalty uses."""
    short_method = copy.copy(method)
    short_method.n_rounds = max(1, round(SHORT_FIT_ROUNDS_SHARE * method.n_rounds))
    warm_up = round(SHORT_FIT_ROUNDS_SHARE * method._n_warm_up_rounds)
    trees = grow_gated_trees(sample, short_method, gamma, p_full=p_full, warm_up=warm_up, seed=0)
    return sample.costs.price(trees.used_features())


def as_stage(trees: TreeEnsemble, n_classes: int) -> Stage:
    """Make a stage of the outputs (f1, g); its last column is the stop score -g.

    An instance is offloaded where g is high, and stops where the stop score is high.
    """
    is_gate = trees.output == trees.n_outputs - 1
    tree_stops = np.append(trees.roots[1:], trees.n_nodes)
    leaf_values = trees.value.copy()
    for tree in np.flatnonzero(is_gate):
        leaf_values[trees.roots[tree] : tree_stops[tree]] *= -1
    return Stage.from_model(replace(trees, value=leaf_values), link_of(n_classes), "column")
