"""Base class of the budgeted forests, and growth of their trees on bootstrap samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise_training.cascades.fit_problem import FitProblem, FittedStages
from gatewise_training.cascades.single_model import SingleModel
from gatewise_training.data.validation_split import Rows
from gatewise_training.forests.grower.binning import Codes
from gatewise_training.forests.grower.growth import RowAcquisitions, SplitRule, grow
from gatewise_training.prune.forest import Forest


@dataclass(frozen=True, eq=False)
class FittedTrees(FittedStages):
    """A candidate with one stage of trees."""

    # the forest that the trees come from, and which part of it: an entry of `sources_`
    source: Any = field(kw_only=True)


class ForestModel(SingleModel):
    """Base class of both budgeted forests, which remembers the forest of each candidate."""

    def _store_candidates(self, candidates: Sequence[FittedStages]) -> None:
        sources = {
            id(candidate.stages): candidate.source
            for candidate in candidates
            if isinstance(candidate, FittedTrees)
        }
        self.sources_ = tuple(sources[id(stages)] for stages in self.chains_)


@dataclass(eq=False)
class GrowingForest:
    """Trees that grow under one split rule, each on its own bootstrap sample of the same rows."""

    problem: FitProblem
    rows: Rows
    codes: Codes  # codes of these rows
    sample_seed: tuple[int, ...]  # seed of the samples, which do not depend on the rule
    rule: SplitRule
    trees: list[Forest] = field(default_factory=list)

    @cached_property
    def acquired(self) -> RowAcquisitions:
        n_rows = len(self.rows) if self.rule.mu > 0 else 0
        return RowAcquisitions.empty(self.problem.costs, n_rows)

    @cached_property
    def x(self) -> NDArray[np.float32]:
        return np.ascontiguousarray(self.problem.split.x[self.rows])

    def reserve(self, n_trees: int) -> range:
        """Reserve list entries for further trees, and return their indices."""
        n_before = len(self.trees)
        self.trees += [None] * n_trees  # type: ignore[list-item]  # filled by :meth:`grow_trees`
        return range(n_before, n_before + n_trees)

    def grow_trees(self, indices: Sequence[int]) -> None:
        """Grow the trees with these indices.

        If acquisitions have a price, acquisitions of earlier trees are free.
        """
        problem = self.problem
        split = problem.split
        weight = split.weight[self.rows]
        for index in indices:
            rng = np.random.default_rng((*self.sample_seed, index))
            tree = grow(
                self.codes,
                split.y[self.rows],
                rng.multinomial(len(self.rows), weight / weight.sum()),
                problem.n_classes,
                problem.costs,
                self.rule,
                acquired=self.acquired,
                seed=int(rng.integers(2**31)),
            )
            if self.rule.mu > 0:
                self.acquired.add(tree.trees, self.x)
            self.trees[index] = tree
