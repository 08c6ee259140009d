"""Adapt-GBRT: gate and low-cost model as boosted trees that share their features.

Nan & Saligrama, NIPS 2017, Algorithm 2. The trees' growth is in :mod:`.growth`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gatewise.models.stage import Stage
from gatewise.models.trees import TreeEnsemble
from gatewise_training.adapt.base import Adapt, Sample
from gatewise_training.adapt.growth import Growth, grow
from gatewise_training.learners.boosting import link_of

__all__ = ["AdaptGBRT"]


@dataclass(eq=False, repr=False, kw_only=True)
class AdaptGBRT(Adapt):
    """Boosted gate and low-cost model, learned together under a feature penalty.

    Parameters
    ----------
    high_cost_model, feature_costs, cloud_prices, budget, max_loss, offload_rate, guarantee,
    allow_missing, random_state, n_jobs, verbose
        As for :class:`StagedCascade`.
    p_full : sequence of float, default (0.1, 0.3, 0.5, 0.7)
        Bounds on the mean offload probability, swept. At 0 f1 is :class:`GreedyMiser`'s
        model, tree for tree, and the gate never leaves 0.
    penalties : sequence of float, default 8 values from 0.1 to 1e-4
        ``gamma``: nats of mean loss that a feature of mean price must save, swept.
    n_rounds : int, default 100
        Boosting rounds; each grows a tree for every output.
    warm_up : int, default 20
        First rounds with q = 0 and the gate at rest (the paper starts f1 by GreedyMiser).
    num_leaves : int, optional
        By default 31; on more than 5,000 training rows 127, or 63 for more than two classes.
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

    p_full: Sequence[float] = (0.1, 0.3, 0.5, 0.7)
    penalties: Sequence[float] = (0.1, 0.04, 0.016, 0.0063, 0.0025, 0.001, 0.0004, 0.0001)
    n_rounds: int = 100
    warm_up: int = 20
    num_leaves: int | None = None
    max_depth: int | None = None
    learning_rate: float | None = None
    newton: bool = True
    allow_missing: bool = False

    def _fit_path(
        self, sample: Sample, p_full: float, seed: int, starts: Sequence[Any] = ()
    ) -> list[Stage]:
        growth = self._growth()
        return [
            as_stage(grow(sample, growth, gamma, p_full=p_full, seed=seed), sample.n_classes)
            for gamma in self.penalties
        ]

    def _growth(self) -> Growth:
        return Growth(
            self.n_rounds,
            self.warm_up,
            self.num_leaves,
            self.max_depth,
            self.learning_rate,
            self.newton,
        )

    def _check_settings(self) -> None:
        super()._check_settings()
        self._growth().check()


def as_stage(trees: TreeEnsemble, n_classes: int) -> Stage:
    """Turn outputs (f1..., g) into a stage with the stop score -g as its last column."""
    gate = trees.output == trees.n_outputs - 1
    ends = np.append(trees.roots[1:], trees.n_nodes)
    value = trees.value.copy()
    for t in np.flatnonzero(gate):
        value[trees.roots[t] : ends[t]] *= -1
    return Stage.of(replace(trees, value=value), link_of(n_classes), "column")
