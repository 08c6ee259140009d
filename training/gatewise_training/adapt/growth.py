"""Growth of gate and low-cost model together, tree by tree: Adapt-GBRT and GreedyMiser.

One LightGBM booster grows both: its first outputs are f1's margins, its last is g, so that a
feature is charged the first time any tree of either uses it. Instead of the paper's
alternation between long fits, q is renewed before each round; the objective is the same.
Without a gate, or with one that may never offload, every row is f1's: that is GreedyMiser (Xu
et al., ICML 2012), and the trees of f1 are the same ones in both cases.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from gatewise.errors import InputError
from gatewise.models.losses import (
    log_loss,
    log_loss_gradient,
    log_loss_hessian,
    one_hot,
    prior_margins,
    softplus,
)
from gatewise.models.trees import TreeEnsemble
from gatewise_training.adapt.base import Sample
from gatewise_training.adapt.qstep import q_step
from gatewise_training.learners.boosting import LARGE_ROWS, CoupledBooster

__all__ = ["Growth", "grow"]

Array = NDArray[np.float64]

HESSIAN_FLOOR = 1e-7


@dataclass(frozen=True)
class Growth:
    """Settings of the growth.

    Attributes
    ----------
    n_rounds : int
        Rounds; each grows a tree for every output.
    warm_up : int
        First rounds, in which every row is f1's and the gate rests.
    num_leaves : int or None
        None: by the number of rows (:meth:`on`).
    max_depth : int or None
        No bound if None.
    learning_rate : float or None
        None: what goes with these leaves.
    newton : bool
        Second-order steps, or the papers' first-order ones.
    """

    n_rounds: int
    warm_up: int
    num_leaves: int | None
    max_depth: int | None
    learning_rate: float | None
    newton: bool

    def on(self, n_rows: int, n_classes: int) -> tuple[int, float]:
        """Leaves and learning rate on so many rows.

        A low-cost model that is much weaker than the high-cost model never comes near its
        accuracy: above 5,000 rows trees are large. For two classes they learn fast; with more
        classes, at rates above 0.1, the losses of rare ones run away.

        Examples
        --------
        >>> Growth(100, 20, None, None, None, newton=True).on(12_000, 2)
        (127, 0.2)
        """
        leaves, rate = 31, 0.1
        if n_rows > LARGE_ROWS:
            leaves, rate = (127, 0.2) if n_classes == 2 else (63, 0.1)
        return (
            leaves if self.num_leaves is None else self.num_leaves,
            rate if self.learning_rate is None else self.learning_rate,
        )

    def check(self) -> None:
        """Raise InputError for settings that grow no trees."""
        if self.n_rounds < 1:
            raise InputError(f"n_rounds must be at least 1, not {self.n_rounds}")
        if self.warm_up < 0:
            raise InputError(f"warm_up must be at least 0, not {self.warm_up}")
        if self.num_leaves is not None and self.num_leaves < 2:
            raise InputError(f"num_leaves must be at least 2, not {self.num_leaves}")
        if self.max_depth is not None and self.max_depth < 1:
            raise InputError(f"max_depth must be at least 1, not {self.max_depth}")
        if self.learning_rate is not None and not 0.0 < self.learning_rate < np.inf:
            raise InputError(f"learning_rate must be above 0, not {self.learning_rate}")


def grow(
    sample: Sample, growth: Growth, gamma: float, *, p_full: float | None, seed: int
) -> TreeEnsemble:
    """Grow f1 and, unless `p_full` is None, a gate.

    Parameters
    ----------
    sample : Sample
    growth : Growth
    gamma : float
        Nats of mean loss that a feature of mean price must save.
    p_full : float or None
        Bound on the mean offload probability. At 0 the gate never leaves 0.
    seed : int

    Returns
    -------
    TreeEnsemble
        Outputs: f1's margins and, if there is one, g.

    Notes
    -----
    A mean loss plus ``gamma * cost`` over n rows is a LightGBM penalty of ``2 n gamma``, since
    its gain has no factor 1/2. With a group's shared price, all trees of one round may each
    pay it once: the price falls for the next round.
    """
    target = one_hot(sample.y, sample.n_classes)
    base = prior_margins(target, sample.weight)
    unit = max(sample.costs.total / sample.costs.n_features, 1e-12)
    leaves, rate = growth.on(len(sample.x), sample.n_classes)
    booster = CoupledBooster(
        sample.x,
        len(base) + (p_full is not None),
        costs=sample.costs,
        strength=2.0 * len(sample.x) * gamma / unit,
        seed=seed,
        params={
            "num_leaves": leaves,
            "max_depth": -1 if growth.max_depth is None else growth.max_depth,
            "learning_rate": rate,
        },
    )
    alone = _Derivatives(sample, target, base, 0.0, growth.newton)
    pair = _Derivatives(sample, target, base, p_full or 0.0, growth.newton)
    warm_up = growth.warm_up if p_full else growth.n_rounds
    for step, rounds in ((alone, warm_up), (pair, growth.n_rounds - warm_up)):
        for _ in range(rounds):
            if not booster.update(step):
                break
    trees = TreeEnsemble.from_lightgbm(booster.booster)
    start = np.zeros(trees.n_outputs, np.float32)
    start[: len(base)] = base
    return replace(trees, base=start)


class _Derivatives:
    """Gradient and hessian of the M-step's loss at the q that is best for the current models.

    With `p_full` 0 every row is f1's, and a gate rests.
    """

    def __init__(
        self, sample: Sample, target: Array, base: Array, p_full: float, newton: bool
    ) -> None:
        self._sample, self._target, self._base = sample, target, base
        self._p_full, self._newton = p_full, newton

    def __call__(self, scores: Array) -> tuple[Array, Array]:
        sample, target, n_margins = self._sample, self._target, len(self._base)
        f1 = scores[:, :n_margins] + self._base
        gradient, hessian = np.zeros_like(scores), np.ones_like(scores)
        kept = sample.weight
        if self._p_full > 0.0:
            g = scores[:, -1]
            q = q_step(
                log_loss(f1, target) + softplus(g),
                sample.f0_loss + softplus(-g),
                self._p_full,
                sample.weight,
            )
            kept = (1.0 - q) * sample.weight
            gate = expit(g)
            gradient[:, -1] = sample.weight * (gate - q)
            hessian[:, -1] = sample.weight * gate * (1.0 - gate)
        gradient[:, :n_margins] = kept[:, None] * log_loss_gradient(f1, target)
        if not self._newton:  # trees fitted to the negative gradient by least squares
            return gradient, np.ones_like(gradient)
        hessian[:, :n_margins] = kept[:, None] * log_loss_hessian(f1)
        return gradient, np.maximum(hessian, HESSIAN_FLOOR)
