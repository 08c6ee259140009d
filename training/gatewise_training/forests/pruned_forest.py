"""A forest grown and pruned for all prices of cost, on one set of rows, and its candidates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.ensemble import RandomForestClassifier

from gatewise.models.stage import Stage
from gatewise_training.cascades.fit_problem import FittedStages, Problem
from gatewise_training.data.validation_split import Rows
from gatewise_training.forests.base import FittedTrees, GrowingForest
from gatewise_training.forests.grower.binning import Codes
from gatewise_training.learners.model_families import with_all_classes
from gatewise_training.prune import PruningPath, prune
from gatewise_training.prune.baselines.feature_dropping import greedy_prune
from gatewise_training.prune.baselines.weakest_link import per_tree
from gatewise_training.prune.forest import Forest
from gatewise_training.prune.nested_prunings import PruneSequence, keep_within

GAP = 0.5
"""Share of the step between two points that a pruning may stay below its cost."""


@dataclass(frozen=True, eq=False)
class Recipe:
    """Settings with which a forest is grown, and pruned for all prices of cost."""

    problem: Problem
    growing: Rows  # rows that grow the trees
    pruning: Rows  # rows of which the costs are minimised
    given: Forest | None  # a forest to prune as it is
    estimator: Any  # fitted as a copy; an entropy forest of `n_estimators` trees by default
    n_estimators: int
    mu: float | None  # for cost-aware growth: bits that an acquisition of mean price must save
    solver: str  # this and `depth_cost`: see :func:`gatewise_training.prune.prune`
    depth_cost: float
    n_points: int  # prunings that will be tried

    def __call__(self, *, n_jobs: int | None) -> Pruned:
        """Grow and prune."""
        plan = self.problem.plan
        forest = self.given
        if forest is None:
            forest = self._grown(n_jobs) if self.mu is None else self._cost_aware(self.mu)
        path = prune(
            forest,
            np.ascontiguousarray(plan.x[self.pruning]),
            plan.y[self.pruning],
            self.problem.costs,
            solver=self.solver,
            depth_cost=self.depth_cost,
        )
        baselines = (
            per_tree(path.problem),
            greedy_prune(path.problem, forest, self.problem.costs),
        )
        gap = GAP * float(path.sequence.costs[0]) / self.n_points
        return Pruned(forest, path, baselines, gap)

    def _grown(self, n_jobs: int | None) -> Forest:
        plan = self.problem.plan
        y = plan.y[self.growing]
        if self.estimator is None:
            model = RandomForestClassifier(
                self.n_estimators,
                criterion="entropy",
                max_features=None,
                random_state=self.problem.seed,
                n_jobs=n_jobs,
            )
        else:
            model = clone(self.estimator)
            if model.get_params().get("random_state", 0) is None:
                model.set_params(random_state=self.problem.seed)
        model.fit(plan.x[self.growing], y, sample_weight=plan.weight[self.growing])
        seen = np.asarray(model.classes_, np.intp)
        return widened(forest_of(model), seen, self.problem.n_classes)

    def _cost_aware(self, mu: float) -> Forest:
        """Grow trees one after another; what the ones before have acquired is free."""
        problem, rows = self.problem, self.growing
        codes = Codes.of_table(np.ascontiguousarray(problem.plan.x[rows]))
        rule = {"criterion": "entropy"}
        growing = GrowingForest(problem, rows, codes, (problem.seed,), mu, rule)
        growing.add(growing.append_places(self.n_estimators))
        return Forest.join(growing.trees)


@dataclass(frozen=True, eq=False)
class Pruned:
    """A forest, its exact path, and the prunings that fill the path's gaps."""

    forest: Forest
    path: PruningPath
    baselines: tuple[PruneSequence, ...]  # for the gaps of the path
    gap: float  # how far the cost may stay below a budget before a gap is filled

    def stage(self, budget: float | None) -> Stage:
        """The pruning within a budget, or the whole forest, as a device runs it."""
        forest = self.forest
        if budget is not None:
            exact = self.path.sequence
            forest = forest.pruned(keep_within(exact, budget, self.baselines, gap=self.gap))
        return Stage.from_model(forest.trees, "identity", acquisition="node")


def candidates_of(problem: Problem, members: Sequence[Pruned], n_points: int) -> list[FittedStages]:
    """Prunings of a forest at the same costs in all folds: from single leaves to the whole forest.

    Out-of-fold outputs are those of the folds' forests; the last forest is kept.
    """
    plan, kept = problem.plan, members[-1]
    highest = float(kept.path.sequence.costs[0])
    steps = np.linspace(0.0, highest, n_points) if highest > 0 else np.zeros(0)
    candidates: list[FittedStages] = []
    held = [np.ascontiguousarray(plan.x[rows]) for _, rows in plan.folds]
    for budget in (*steps.tolist(), None):
        stages = [member.stage(budget) for member in members[: len(held)]]
        outputs = np.concatenate([s.margins(x) for s, x in zip(stages, held, strict=True)])
        acquired = np.concatenate([s.acquired(x) for s, x in zip(stages, held, strict=True)])
        stage = stages[0] if len(members) == 1 else kept.stage(budget)
        source = kept.forest, kept.path
        candidates.append(FittedTrees((stage,), (outputs,), (acquired,), source=source))
    return candidates


def forest_of(estimator: Any) -> Forest:
    """The flat form of a fitted forest."""
    own = getattr(estimator, "forest_", None)
    return own if isinstance(own, Forest) else Forest.from_sklearn(estimator)


def widened(forest: Forest, seen: NDArray[np.intp], n_classes: int) -> Forest:
    """Give a forest that has not seen every class columns for them all."""
    if len(seen) == n_classes:
        return forest
    counts = np.zeros((forest.n_nodes, n_classes))
    counts[:, seen] = forest.counts
    return replace(forest, trees=with_all_classes(forest.trees, seen, n_classes), counts=counts)
