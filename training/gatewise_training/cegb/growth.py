"""Growth of trees under a charge: best-first or breadth-first, and when it stops.

LightGBM grows best-first, as CEGB does (section 4.3): the split that is worth most after its
price comes next, wherever it lies, until the tree has its leaves. Breadth-first growth (figure
3b, and GreedyMiser's trees) comes from the same grower: with a bound on the depth d and 2^d
leaves no split is ever put off for want of a leaf, so every node of every level that is worth
its price is split.

Rows are sampled by setting derivatives of the rest to 0. LightGBM then still counts and charges
every row, and a lazy price stays right; with its own bagging it does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import lightgbm as lgb
import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise.models.trees import TreeEnsemble
from gatewise_training.cegb.objectives import Target
from gatewise_training.cegb.penalties import Charge
from gatewise_training.learners.boosting import tree_params
from gatewise_training.learners.growth_settings import Growth

__all__ = ["Order", "TreeGrowth", "constant", "grow"]

Array = NDArray[np.float64]
Order = Literal["best-first", "breadth-first"]


@dataclass(frozen=True)
class TreeGrowth:
    """Settings of the growth; None takes the default for so many rows."""

    # breadth-first trees have `max_depth`, by default that of a full tree of `num_leaves`
    order: Order
    n_rounds: int  # rounds at most; each grows a tree for every output
    # rounds without improvement on validation rows that end the growth; None grows them all
    patience: int | None
    num_leaves: int | None
    max_depth: int | None
    learning_rate: float | None
    newton: bool  # second-order steps, or first-order ones as in GreedyMiser
    subsample: float  # share of the rows, drawn anew each round, that a tree is fitted to
    params: Mapping[str, Any] | None  # further LightGBM parameters

    def on(self, n_rows: int, n_classes: int) -> dict[str, Any]:
        """LightGBM's settings for so many rows.

        Examples
        --------
        >>> growth = TreeGrowth("breadth-first", 100, None, 31, None, 0.1, True, 1.0, None)
        >>> growth.on(1000, 2)
        {'num_leaves': 16, 'max_depth': 4, 'learning_rate': 0.1}
        """
        leaves, rate = self._bounds().on(n_rows, n_classes)
        depth = -1 if self.max_depth is None else self.max_depth
        if self.order == "breadth-first":
            depth = leaves.bit_length() - 1 if self.max_depth is None else self.max_depth
            leaves = 2**depth
        settings = {"num_leaves": leaves, "max_depth": depth, "learning_rate": rate}
        return settings | dict(self.params or {})

    def check(self) -> None:
        """Raise InputError for settings that grow no trees."""
        self._bounds().check()
        if self.order not in ("best-first", "breadth-first"):
            raise InputError(f"growth must be 'best-first' or 'breadth-first', not {self.order!r}")
        if self.order == "breadth-first" and (self.max_depth or 0) > 16:
            raise InputError(f"breadth-first trees are at most 16 deep, not {self.max_depth}")
        if self.patience is not None and self.patience < 1:
            raise InputError(f"patience must be at least 1, not {self.patience}")
        if not 0.0 < self.subsample <= 1.0:
            raise InputError(f"subsample must be in (0, 1], not {self.subsample}")

    def _bounds(self) -> Growth:
        return Growth(
            self.n_rounds, 0, self.num_leaves, self.max_depth, self.learning_rate, self.newton
        )


def grow(
    x: NDArray[np.float32],
    target: Target,
    growth: TreeGrowth,
    charge: Charge,
    *,
    held: tuple[NDArray[np.float32], Target] | None = None,
    rounds: int | None = None,
    seed: int = 0,
) -> tuple[TreeEnsemble, int]:
    """Grow one model."""
    settings = tree_params(seed) | {"objective": "none", "num_class": target.n_outputs}
    settings |= growth.on(len(x), max(2, target.n_outputs))
    settings |= dict(target.native or {}) | charge.params | {"metric": "none"}
    start = target.start()
    # without a column that varies LightGBM grows nothing and fails a check of its own
    if not (np.fmin.reduce(x, axis=0) < np.fmax.reduce(x, axis=0)).any():
        return constant(target, x.shape[1]), 0
    data = lgb.Dataset(x, params=settings, free_raw_data=True, **target.dataset())
    booster = lgb.Booster(settings, data)
    rng = np.random.default_rng(seed)

    def objective(scores: Any, _data: Any) -> tuple[Any, Any]:
        margins = np.reshape(scores, (len(scores), -1)) + start
        gradient, hessian = target.derivatives(margins, newton=growth.newton)
        if growth.subsample < 1.0:
            drawn = (rng.random((len(x), 1)) < growth.subsample) / growth.subsample
            gradient, hessian = gradient * drawn, hessian * drawn
        return np.squeeze(gradient), np.squeeze(hessian)

    watch = None if held is None or growth.patience is None else _Watch(*held, start)
    kept = grown = 0
    while grown < (rounds or growth.n_rounds):
        if booster.update(fobj=None if target.native else objective):
            break
        charge.after(booster, grown)
        grown += 1
        if watch is None or watch.improves(booster, grown):
            kept = grown
        elif growth.patience is not None and grown - kept >= growth.patience:
            break
    if not kept:  # LightGBM keeps a first tree even if it could not split
        return constant(target, x.shape[1]), 0
    return target.finish(TreeEnsemble.from_lightgbm(booster, num_iteration=kept), start), kept


class _Watch:
    """The loss on validation rows, round by round."""

    def __init__(self, x: NDArray[np.float32], target: Target, start: Array) -> None:
        self._x, self._target = x, target
        self._margins = np.tile(start, (len(x), 1))
        self._best = target.loss(self._margins)

    def improves(self, booster: lgb.Booster, grown: int) -> bool:
        more = booster.predict(self._x, raw_score=True, start_iteration=grown - 1, num_iteration=1)
        self._margins += np.reshape(np.asarray(more), self._margins.shape)
        loss = self._target.loss(self._margins)
        if loss >= self._best:
            return False
        self._best = loss
        return True


def constant(target: Target, n_features: int) -> TreeEnsemble:
    """Make the model without features: a leaf of 0 for each output, above the best constant."""
    outputs = np.arange(target.n_outputs, dtype=np.int32)
    leaf = np.full(len(outputs), -1, np.int32)
    trees = TreeEnsemble(
        feature=leaf, threshold=np.zeros(len(outputs), np.float32), left=leaf, right=leaf,
        nan_left=np.zeros(len(outputs), np.bool_),
        value=np.zeros((len(outputs), 1), np.float32), roots=outputs, output=outputs,
        base=np.zeros(len(outputs), np.float32), n_features=n_features,
    )  # fmt: skip
    return target.finish(trees, target.start())
