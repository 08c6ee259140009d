"""Selection of a model family for each feature set, by regret on validation rows.

All families are tried only on some sets, the probes. A set between two probes tries the families
that were selected on these two, because the best family rarely changes between them. A cheap probe
and the costliest probe come first. A family that is far worse on both is not tried on the other
probes. On more than 5,000 rows, only the families that are best on one of them are tried there.
If there are many rows, families are compared on a sample, and the selected families are fitted on
all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import joblib
import numpy as np
from numpy.typing import NDArray

from gatewise.decision import labels, split_outputs
from gatewise.models.stage import Stage
from gatewise_training.cascades.feature_sets.penalised_selection import nested_sets
from gatewise_training.cascades.fit_problem import FitProblem, FittedStages
from gatewise_training.data.parallel_fits import parallel_results
from gatewise_training.data.validation_split import ValidationSplit
from gatewise_training.learners.boosting import MAX_MEDIUM_ROWS, MAX_SMALL_ROWS
from gatewise_training.learners.high_cost_training import tree_shape
from gatewise_training.learners.model_families import cross_fitted_stage
from gatewise_training.learners.stage_bounds import (
    Bounds,
    ModelVariant,
    TreeShape,
    models_to_try,
)
from gatewise_training.operating_points.packed_size import packed_bytes

#: Ratio to the smallest regret above which a family is dropped on few rows, where regrets are
#: uncertain.
MAX_UNCERTAIN_REGRET_RATIO = 1.15

#: The same ratio on more than 5,000 rows: only the best family stays.
MAX_PRECISE_REGRET_RATIO = 1.0

#: Number of rows on which families are compared if there are more than `MAX_MEDIUM_ROWS`.
TRIAL_ROWS = 20_000

#: Indices of the features of a set, ascending.
FeatureSet = tuple[int, ...]

#: Default number of nested feature sets of a single model.
N_SUBSETS = 8


@dataclass(frozen=True, eq=False)
class SelectedStage:
    """The best stage on a feature set, its out-of-fold outputs and its regret.

    The regret is the area under the risk-coverage curve.
    """

    family: str
    stage: Stage
    outputs: NDArray[np.float32]
    regret: float


@dataclass(eq=False)
class _FitProgress:
    """Number of fits that were begun, of about `n_total`."""

    report: Callable[[int, int], None]
    n_total: int
    n_begun: int = 0

    def count_fit(self) -> None:
        self.report(min(self.n_begun, self.n_total), self.n_total)
        self.n_begun += 1


@dataclass(eq=False)
class FamilySelection:
    """Selection of the best family on each feature set, which fills `best_stages`.

    Each step of a selection reads `best_stages` and `regrets` of the steps before.
    """

    problem: FitProblem
    families: Sequence[str]
    bounds: Bounds
    report_progress: Callable[[int, int], None]
    probe_step: int = 3  # one set in this many tries all families
    # stages selected so far; sets that have one are not fitted again
    best_stages: dict[FeatureSet, SelectedStage] = field(default_factory=dict)
    regrets: dict[tuple[FeatureSet, str], float] = field(default_factory=dict)
    rejected_sizes: list[int] = field(default_factory=list)  # sizes of stages beyond the bounds

    def select(self, feature_sets: Sequence[NDArray[np.intp]]) -> dict[FeatureSet, SelectedStage]:
        """Find the best stage for each set; sets on which no stage fits the bounds are left out."""
        costs = self.problem.costs
        sets_by_cost = sorted(
            {tuple(features.tolist()) for features in feature_sets} - set(self.best_stages),
            key=lambda features: costs.price(np.array(features, np.intp)),
        )
        if not sets_by_cost:
            return self.best_stages
        families = list(self._model_variants)
        probe_step = self.probe_step if len(families) > 1 else 1
        probe_indices = sorted({*range(0, len(sets_by_cost), probe_step), len(sets_by_cost) - 1})
        probes = [sets_by_cost[index] for index in probe_indices]
        progress = self._make_progress(len(sets_by_cost), len(probes))
        # 1. all families on the costliest probe and on a cheap one: a third of the probes cost less
        first_probes = [*dict.fromkeys((probes[len(probes) // 3], probes[-1]))]
        self._try_families(first_probes, families, progress)
        # 2. the families that are near the best there, on the other probes
        near_families = [
            family
            for family in families
            if any(self._is_near_best(features, family) for features in first_probes)
        ]
        later_probes = [features for features in probes if features not in first_probes]
        self._try_families(later_probes, near_families, progress)
        # 3. the families of the nearest probes, on the sets between them
        jobs_between = self._list_jobs_between(sets_by_cost, probe_indices)
        self._fit_and_compare(jobs_between, self._trial_split, progress)
        # 4. if families were tried on a sample, the selected families on all rows
        if self._trial_split is not self.problem.split:
            selected_families = [
                (features, self.best_stages[features].family)
                for features in sets_by_cost
                if features in self.best_stages
            ]
            self._fit_and_compare(selected_families, self.problem.split, progress)
        return self.best_stages

    def _make_progress(self, n_sets: int, n_probes: int) -> _FitProgress:
        """Estimate the number of fits, which is smaller if a step leaves out families."""
        # a probe tries all families, and a set between two probes the families of these two
        n_fits = n_probes * len(self._model_variants) + 2 * (n_sets - n_probes)
        if self._trial_split is not self.problem.split:
            n_fits += n_sets  # one fit on all rows
        return _FitProgress(self.report_progress, n_fits)

    def _try_families(
        self, feature_sets: Sequence[FeatureSet], families: Sequence[str], progress: _FitProgress
    ) -> None:
        """Try each family on each set."""
        jobs = [(features, family) for features in feature_sets for family in families]
        self._fit_and_compare(jobs, self._trial_split, progress)

    def _list_jobs_between(
        self, sets_by_cost: Sequence[FeatureSet], probe_indices: Sequence[int]
    ) -> list[tuple[FeatureSet, str]]:
        """List the fits of the sets between probes, with the families selected on these probes."""
        jobs = []
        for index, features in enumerate(sets_by_cost):
            if index in probe_indices:
                continue
            cheaper_set = sets_by_cost[max(probe for probe in probe_indices if probe < index)]
            costlier_set = sets_by_cost[min(probe for probe in probe_indices if probe > index)]
            families = {
                self.best_stages[probed_set].family
                for probed_set in (cheaper_set, costlier_set)
                if probed_set in self.best_stages
            }
            jobs += [(features, family) for family in sorted(families or self._model_variants)]
        return jobs

    @cached_property
    def _trial_split(self) -> ValidationSplit:
        """Rows on which families are tried: a sample of many rows, or all."""
        split = self.problem.split
        if len(split.fit_rows) <= MAX_MEDIUM_ROWS or len(split.folds) > 1:
            return split
        return split.with_max_fit_rows(TRIAL_ROWS, self.problem.seed)

    @cached_property
    def _model_variants(self) -> dict[str, ModelVariant]:
        """Variants of the families to try, by name."""
        problem = self.problem
        n_rows = len(problem.split.fit_rows)
        n_columns = problem.costs.n_features
        return models_to_try(self.families, self.bounds, n_rows, problem.n_classes, n_columns)

    def _is_near_best(self, features: FeatureSet, family: str) -> bool:
        """Whether the regret of a family on a set is near the smallest."""
        # within a bound on bytes, the best family on the probes may be too large on other sets
        has_precise_regrets = (
            len(self.problem.split.fit_rows) > MAX_SMALL_ROWS and self.bounds.max_bytes is None
        )
        max_ratio = MAX_PRECISE_REGRET_RATIO if has_precise_regrets else MAX_UNCERTAIN_REGRET_RATIO
        regret = self.regrets.get((features, family), np.inf)
        return (
            features not in self.best_stages
            or regret <= max_ratio * self.best_stages[features].regret
        )

    def _fit_and_compare(
        self,
        jobs: Sequence[tuple[FeatureSet, str]],
        split: ValidationSplit,
        progress: _FitProgress,
    ) -> None:
        """Fit stages on the rows of a split; a fit on all rows replaces the trial on a sample."""
        problem = self.problem
        is_trial = split is self._trial_split
        fits = (
            joblib.delayed(cross_fitted_stage)(
                self._model_variants[name].family,
                np.array(features, np.intp),
                problem.n_classes,
                problem.seed,
                self._model_variants[name].bounds,
            )
            for features, name in jobs
        )
        fitted_stages = parallel_results(fits, shared_data=split)
        for (features, family), (stage, outputs) in zip(jobs, fitted_stages, strict=True):
            progress.count_fit()
            if not self.bounds.allows(stage):
                self.rejected_sizes.append(packed_bytes((stage,)))
                continue
            regret = self._compute_regret(stage, outputs)
            self.regrets[features, family] = regret
            if (
                not is_trial
                or features not in self.best_stages
                or regret < self.best_stages[features].regret
            ):
                self.best_stages[features] = SelectedStage(family, stage, outputs, regret)

    def _compute_regret(self, stage: Stage, outputs: NDArray[np.float32]) -> float:
        """Compute the area under the risk-coverage curve on the validation rows."""
        split = self.problem.split
        margins, score = split_outputs(outputs, stage.score)
        rows = split.validation_rows
        errors = (labels(margins) != split.y[rows]) * split.weight[rows]
        # mean over k of the error of the k most certain rows
        errors_by_confidence = errors[np.argsort(-score, kind="stable")]
        return float(np.mean(np.cumsum(errors_by_confidence) / np.arange(1, len(errors) + 1)))


def best_shape(
    problem: FitProblem, families: Sequence[str], *, has_size_bound: bool = False
) -> TreeShape | None:
    """Find the best shape of boosted trees on the rows.

    The result is None if boosting is not tried, or if there is a bound on bytes (`has_size_bound`)
    and many rows. Each stage then has a standard number of bins, and its own search for the number
    of leaves.
    """
    searches_leaves_later = has_size_bound and len(problem.split.fit_rows) > MAX_SMALL_ROWS
    if problem.tree_shape is not None or "boosting" not in families or searches_leaves_later:
        return problem.tree_shape
    return tree_shape(problem.split, problem.n_classes, problem.seed)


def single_models(problem: FitProblem, family: str, n_subsets: int) -> list[FittedStages]:
    """Cross-fit one model of a family on each of several nested sets, up to all features."""
    all_features = np.arange(problem.costs.n_features)
    subsets = [all_features]
    if n_subsets > 1:
        cheaper_sets = nested_sets(problem, n_stages=n_subsets - 1)
        subsets = [subset for subset in cheaper_sets if len(subset) < len(all_features)] + subsets
    selection = FamilySelection(
        problem,
        (family,),
        Bounds().with_shape(best_shape(problem, (family,))),
        lambda n_done, n_total: problem.report_progress(
            n_total + n_done, 2 * n_total, "fitting low-cost models"
        ),
    )
    best_stages = selection.select(subsets)
    models = [best_stages[tuple(subset.tolist())] for subset in subsets]
    return [FittedStages((model.stage,), (model.outputs,)) for model in models]
