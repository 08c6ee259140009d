"""Selection of a model family for each feature set, by regret on validation rows.

Only some sets, the probes, try every family; the sets between try the families selected beside
them, which hardly ever differ. And a family that is far worse on two probes, a cheap one and the
costliest, or on more than 5,000 rows the best on neither, is not tried on the others. On many rows
all this happens on some of them, and what is selected is fitted on all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import joblib
import numpy as np
from numpy.typing import NDArray

from gatewise.decision import labels, split
from gatewise.models.stage import Stage
from gatewise_training.cascades.fit_problem import FittedStages, Problem
from gatewise_training.cascades.penalised_selection import nested_sets
from gatewise_training.data.validation_split import ValidationSplit
from gatewise_training.learners.boosting import LARGE_ROWS, MANY_ROWS
from gatewise_training.learners.high_cost_training import tree_shape
from gatewise_training.learners.model_families import cross_fitted_stage
from gatewise_training.learners.stage_bounds import Bounds, TreeShape, shaped
from gatewise_training.operating_points.packed_size import packed_bytes

FAR_WORSE = 1.15, 1.0
"""A family whose regret is so many times the best one's will not be selected beside it: on few
rows, whose regrets are uncertain, and on more than 5,000."""

TRIAL_ROWS = 20_000
"""Of more than `MANY_ROWS` so many choose the families."""

FeatureSet = tuple[int, ...]

N_SUBSETS = 8
"""Nested feature sets of a single model, by default."""


@dataclass(frozen=True, eq=False)
class SelectedStage:
    """The best stage on a feature set, with its out-of-fold outputs on the validation rows.

    `regret` is the area under the risk-coverage curve: how wrong the stage is where it is sure.
    """

    family: str
    stage: Stage
    outputs: NDArray[np.float32]
    regret: float


@dataclass(frozen=True, eq=False)
class FamilySelection:
    """Fits of the families that are worth trying on each feature set, and the best of each set.

    ``report(done, total)`` is called as fits are done.
    """

    problem: Problem
    families: Sequence[str]
    bounds: Bounds
    report: Callable[[int, int], None]
    probe: int = 3  # every so many sets try all families
    # found so far; sets with a best stage are not fitted again
    best: dict[FeatureSet, SelectedStage] = field(default_factory=dict)
    regrets: dict[tuple[FeatureSet, str], float] = field(default_factory=dict)
    too_large: list[int] = field(default_factory=list)  # sizes of stages beyond the bounds

    def select(self, sets: Sequence[NDArray[np.intp]]) -> dict[FeatureSet, SelectedStage]:
        """Find the best stage for each set; a set on which none fits the bounds is left out."""
        costs = self.problem.costs
        by_cost = sorted(
            {tuple(chosen.tolist()) for chosen in sets} - set(self.best),
            key=lambda chosen: costs.price(np.array(chosen, np.intp)),
        )
        if not by_cost:
            return self.best
        kinds = self._kinds
        step = self.probe if len(kinds) > 1 else 1
        probes = sorted({*range(0, len(by_cost), step), len(by_cost) - 1})
        first = sorted({probes[len(probes) // 3], probes[-1]})
        others = [p for p in probes if p not in first]
        done = 0
        total = len(probes) * len(kinds) + 2 * (len(by_cost) - len(probes))
        plan = self.problem.plan
        if self._trial is not plan:
            total += len(by_cost)

        def fit(probe_fits: Sequence[tuple[int, str]], plan: ValidationSplit = self._trial) -> None:
            nonlocal done
            jobs = [(by_cost[at], family) for at, family in probe_fits]
            self._fit(jobs, lambda now: self.report(min(done + now, total), total), plan)
            done += len(jobs)

        fit([(at, family) for at in first for family in kinds])
        able = [f for f in kinds if any(self._is_near(by_cost[at], f) for at in first)]
        fit([(at, family) for at in others for family in able])
        between = []
        for at in sorted(set(range(len(by_cost))) - set(probes)):
            below = max(p for p in probes if p < at)
            above = min(p for p in probes if p > at)
            beside = {
                self.best[by_cost[p]].family for p in (below, above) if by_cost[p] in self.best
            }
            between += [(at, family) for family in sorted(beside or kinds)]
        fit(between)
        if self._trial is not plan:
            found = [(at, self.best.get(key)) for at, key in enumerate(by_cost)]
            fit([(at, best.family) for at, best in found if best is not None], plan)
        return self.best

    @cached_property
    def _trial(self) -> ValidationSplit:
        """The rows on which families are tried; all but few of many."""
        plan = self.problem.plan
        if len(plan.fit_rows) <= MANY_ROWS or len(plan.folds) > 1:
            return plan
        return plan.with_fit_rows(TRIAL_ROWS, self.problem.seed)

    @cached_property
    def _kinds(self) -> dict[str, tuple[str, Bounds]]:
        """Families, some in several shapes."""
        problem = self.problem
        n_rows = len(problem.plan.fit_rows)
        n_columns = problem.costs.n_features
        return shaped(self.families, self.bounds, n_rows, problem.n_classes, n_columns)

    def _is_near(self, features: FeatureSet, family: str) -> bool:
        """Whether a family is not far worse than the best on a set."""
        is_large = len(self.problem.plan.fit_rows) > LARGE_ROWS and self.bounds.max_bytes is None
        regret = self.regrets.get((features, family), np.inf)
        return (
            features not in self.best or regret <= FAR_WORSE[is_large] * self.best[features].regret
        )

    def _fit(
        self,
        jobs: Sequence[tuple[FeatureSet, str]],
        report: Callable[[int], None],
        plan: ValidationSplit,
    ) -> None:
        """Fit stages on the plan's rows; the best of a set on fewer rows gives way to its own."""
        problem = self.problem
        trial = plan is self._trial
        fitted = joblib.Parallel(return_as="generator")(
            joblib.delayed(cross_fitted_stage)(
                plan,
                self._kinds[family][0],
                np.array(chosen, np.intp),
                problem.n_classes,
                problem.seed,
                self._kinds[family][1],
            )
            for chosen, family in jobs
        )
        for done, ((chosen, family), (stage, outputs)) in enumerate(zip(jobs, fitted, strict=True)):
            report(done)
            if not self.bounds.admit(stage):
                self.too_large.append(packed_bytes((stage,)))
                continue
            regret = self._regret(stage, outputs)
            self.regrets[chosen, family] = regret
            if not trial or chosen not in self.best or regret < self.best[chosen].regret:
                self.best[chosen] = SelectedStage(family, stage, outputs, regret)

    def _regret(self, stage: Stage, outputs: NDArray[np.float32]) -> float:
        plan = self.problem.plan
        margins, score = split(outputs, stage.score)
        rows = plan.validation_rows
        errors = (labels(margins) != plan.y[rows]) * plan.weight[rows]
        by_confidence = errors[np.argsort(-score, kind="stable")]
        return float(np.mean(np.cumsum(by_confidence) / np.arange(1, len(errors) + 1)))


def best_shape(
    problem: Problem, families: Sequence[str], *, of_size: bool = False
) -> TreeShape | None:
    """Get what boosted trees are best on the rows; None where none are asked for.

    Nor where stages have bounds of size (`of_size`) and the rows are many: what is best without
    bounds are bins that large data has anyway, and leaves that are searched anew within them.
    """
    leaves_are_searched_later = of_size and len(problem.plan.fit_rows) > LARGE_ROWS
    if problem.tree_shape is not None or "boosting" not in families or leaves_are_searched_later:
        return problem.tree_shape
    return tree_shape(problem.plan, problem.n_classes, problem.seed)


def single_models(problem: Problem, family: str, n_subsets: int) -> list[FittedStages]:
    """Cross-fit one model of a family on each of several nested feature sets, the last all."""
    all_features = np.arange(problem.costs.n_features)
    subsets = [all_features]
    if n_subsets > 1:
        cheap = nested_sets(problem, n_stages=n_subsets - 1)
        subsets = [s for s in cheap if len(s) < len(all_features)] + subsets
    selection = FamilySelection(
        problem,
        (family,),
        Bounds().with_shape(best_shape(problem, (family,))),
        lambda done, total: problem.report(total + done, 2 * total, "fitting low-cost models"),
    )
    best = selection.select(subsets)
    models = [best[tuple(subset.tolist())] for subset in subsets]
    return [FittedStages((model.stage,), (model.outputs,)) for model in models]
