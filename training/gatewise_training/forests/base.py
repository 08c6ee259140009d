"""Base of the budgeted forests: their interface, and the growth of their trees on samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise_training.cascades.base import SingleModel
from gatewise_training.cascades.fit_problem import FittedStages, Problem
from gatewise_training.data.validation_split import Rows
from gatewise_training.forests.grower.binning import Codes
from gatewise_training.forests.grower.growth import RowAcquisitions, SplitRule, grow
from gatewise_training.prune.forest import Forest


@dataclass(frozen=True, eq=False)
class FittedTrees(FittedStages):
    """A candidate of one stage of trees."""

    # a forest, and the part of it that the trees are
    source: Any = field(kw_only=True)


class ForestModel(SingleModel):
    """Base of both forests; `grown_` holds the source of the trees of each candidate."""

    def _keep_candidates(self, candidates: Sequence[FittedStages]) -> None:
        sources = {id(c.stages): c.source for c in candidates if isinstance(c, FittedTrees)}
        self.grown_ = tuple(sources[id(stages)] for stages in self.chains_)


@dataclass(eq=False)
class GrowingForest:
    """Trees of one rule, grown one after another on bootstrap samples of some rows."""

    problem: Problem
    rows: Rows
    codes: Codes  # of the rows
    key: tuple[int, ...]  # of the random numbers: a tree's sample is the same under every rule
    rule: SplitRule
    trees: list[Forest] = field(default_factory=list)

    @cached_property
    def acquired(self) -> RowAcquisitions:
        return RowAcquisitions.none(self.problem.costs, len(self.rows) if self.rule.mu > 0 else 0)

    @cached_property
    def x(self) -> NDArray[np.float32]:
        return np.ascontiguousarray(self.problem.plan.x[self.rows])

    def append_places(self, count: int) -> range:
        """Append places for `count` further trees, and get their numbers."""
        n_trees = len(self.trees)
        self.trees += [None] * count  # type: ignore[list-item]  # filled by :meth:`add`
        return range(n_trees, n_trees + count)

    def add(self, numbers: Sequence[int]) -> None:
        """Grow the trees of some numbers; under a price, acquisitions of earlier trees are free."""
        problem = self.problem
        plan = problem.plan
        weight = plan.weight[self.rows]
        for number in numbers:
            rng = np.random.default_rng((*self.key, number))
            tree = grow(
                self.codes,
                plan.y[self.rows],
                rng.multinomial(len(self.rows), weight / weight.sum()),
                problem.n_classes,
                problem.costs,
                self.rule,
                acquired=self.acquired,
                seed=int(rng.integers(2**31)),
            )
            if self.rule.mu > 0:
                self.acquired.add(tree.trees, self.x)
            self.trees[number] = tree
