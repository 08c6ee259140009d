"""The default cascade: stages on growing feature sets before the high-cost model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.utils._param_validation import StrOptions

from gatewise.costs import FeatureCosts
from gatewise.errors import InputError, TooLargeError
from gatewise.models.stage import Stage
from gatewise_training.cascades.cascade import CascadeClassifier, WindowSettings
from gatewise_training.cascades.family_selection import (
    N_SUBSETS,
    FamilySelection,
    FeatureSet,
    SelectedStage,
    best_shape,
    single_models,
)
from gatewise_training.cascades.feature_sets.backward_selection import backward_sequences
from gatewise_training.cascades.feature_sets.forward_selection import (
    forward_sets,
    has_mostly_groups,
    units_of_acquisition,
)
from gatewise_training.cascades.feature_sets.penalised_selection import nested_sets
from gatewise_training.cascades.feature_sets.wide_tables import with_fewer_columns
from gatewise_training.cascades.fit_problem import FitProblem, FittedStages
from gatewise_training.data.input_checks import AT_LEAST_1, Constraints, TrainingTable
from gatewise_training.learners.given_models.given_classifiers import (
    check_first_stages,
    given_stages,
)
from gatewise_training.learners.model_families import FAMILIES, families_for
from gatewise_training.learners.stage_bounds import Bounds
from gatewise_training.learners.threshold_grid import choose_grid_size

#: Largest number of features and groups for which forward selection is tried even if the penalty
#: finds enough sets, unless the effort is low.
MAX_FEW_ACQUISITIONS = 32

#: Step between the feature sets on which all model families are tried, by effort.
PROBE_STEPS = {"low": 6, "normal": 3, "high": 1}

#: Numbers of stages between which `max_bytes` is divided; the fit tries each number.
STAGE_COUNTS = (1, 2, 4)

#: Smallest number of validation rows per stage, because they also fit its threshold.
MIN_ROWS_PER_STAGE = 50


@dataclass(eq=False, repr=False, kw_only=True)
class StagedCascade(WindowSettings, CascadeClassifier):
    """Stages on growing feature sets; hard instances go to the cloud.

    A stage is the best of several model families on its feature set. It answers an instance if its
    margin reaches its threshold; otherwise the next stage runs.

    Further parameters: see :class:`.CascadeClassifier` and, for windows, :class:`.WindowSettings`.

    Parameters
    ----------
    n_stages : int, default 10
        Largest number of stages. There is at most one stage per 50 validation rows. With fewer than
        400 validation rows, single models on 8 nested feature sets are candidates in addition.
    effort : {"normal", "low", "high"}
        Effort of the search. "low" and "normal" try all model families on some feature sets only.
        "low" also leaves out the single models, and forward selection if the penalty finds enough
        sets. For the features of blocks, forward selection always replaces the penalty.
    families : sequence of str, optional
        Model families from which each stage is chosen on validation rows. By default these are
        boosting, extra-trees, linear, svm up to 16,000 rows, and random-boosting up to 5,000 rows.
        With `allow_missing`, only boosting and random-boosting are tried.
    first_stages : sequence, default ()
        Given models that become stages before the fitted stages, in this order. Each is a fitted
        classifier, an ONNX file, or a pair of a model and its columns by name or number. By default
        a model reads all columns, or the columns of the table that it was fitted on if it names
        them. The models are not refitted. Without `validation=`, a classifier is measured by its
        clones, and a model that cannot be cloned must not have seen the rows. The frontier also has
        points without these stages.
    allow_missing : bool, default False
        Whether features may be NaN. Then only boosting and random-boosting are tried.

    Attributes
    ----------
    stages_ : tuple of Stage
    frontier_, operating_point_, high_cost_model_
        As for all cascades. For other attributes see ``BudgetedModel`` and ``ClassifierFit``.

    Notes
    -----
    Thresholds are tuned jointly for the exact mean cost, along the whole frontier
    (:mod:`.thresholds`).

    An offloaded instance pays for the features of the stages that it visited, the features of the
    high-cost model, the request and its bytes, and the evaluation in the cloud.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.ensemble import ExtraTreesClassifier
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> forest = ExtraTreesClassifier(30, random_state=0)
    >>> system = StagedCascade(forest, n_stages=3, families=("linear",), random_state=0).fit(X, y)
    >>> bool(system.cost(X).mean() < 15)  # of 30 features
    True
    """

    n_stages: int = 10
    effort: Literal["low", "normal", "high"] = "normal"
    families: Sequence[str] | None = None
    first_stages: Sequence[Any] = ()
    allow_missing: bool = False

    _parameter_constraints: ClassVar[Constraints] = {
        "n_stages": [AT_LEAST_1],
        "effort": [StrOptions(set(PROBE_STEPS))],
    }

    def _with_high_cost_model(self, problem: FitProblem, table: TrainingTable) -> FitProblem:
        # whether no given model was trained on the validation rows
        self._has_new_rows = table.validation is not None
        return super()._with_high_cost_model(problem, table)

    def _check_costs(self) -> None:
        """Raise InputError before the fit if the budget pays for no feature."""
        super()._check_costs()
        if self.budget is None or self.first_stages:
            return
        prices = self.feature_costs_.standalone_prices
        cheapest_feature = int(prices.argmin())
        cheapest_price = prices[cheapest_feature]
        if self.budget < cheapest_price:
            raise InputError(
                f"budget {self.budget:g} is below the price of the cheapest feature, "
                f"{self.feature_names_[cheapest_feature]!r} at {cheapest_price:g}: every instance "
                "acquires at least one"
            )

    def _fit_candidates(self, problem: FitProblem) -> Sequence[FittedStages]:
        families = self._list_families(problem)
        tree_shape = best_shape(problem, families, has_size_bound=self.max_bytes is not None)
        problem = replace(problem, tree_shape=tree_shape)
        own_candidates = self._fit_own_stages(problem)
        first_stages = given_stages(
            self.first_stages,
            problem.split.without_class_weights(),
            self.classes_,
            self.feature_names_[: problem.split.x.shape[1]],
            by_clones=not self._has_new_rows,
        )
        candidates = [*own_candidates, *self._fit_single_models(problem)]
        if not first_stages:
            return candidates
        return [*(_prepend(first_stages, candidate) for candidate in own_candidates), *candidates]

    def _fit_single_models(self, problem: FitProblem) -> list[FittedStages]:
        """Fit the candidates of :class:`ConfidenceCascade` if there are few validation rows.

        Few validation rows allow only few stages, whose feature sets differ much in size. Single
        models need fewer rows and fill the gaps.
        """
        has_few_stages = len(problem.split.validation_rows) < N_SUBSETS * MIN_ROWS_PER_STAGE
        families = self._list_families(problem)
        if self.effort == "low" or not has_few_stages or "boosting" not in families:
            return []
        return single_models(problem, "boosting", N_SUBSETS)

    def _fit_own_stages(self, problem: FitProblem) -> list[FittedStages]:
        """Fit a candidate for each bound on the size of a stage and each sequence of sets."""
        all_bounds = self._list_bounds(problem)
        set_sequences = self._find_feature_sets(problem)
        families = self._list_families(problem)
        candidates: list[FittedStages] = []
        best_stages: Mapping[FeatureSet, SelectedStage] = {}
        rejected_sizes: list[int] = []
        all_sets = [features for sets in set_sequences for features in sets]
        for bounds in all_bounds:
            selection = FamilySelection(
                problem,
                families,
                bounds,
                lambda n_done, n_total: problem.report_progress(
                    n_total + n_done, 2 * n_total, "fitting stages"
                ),
                PROBE_STEPS[self.effort],
                # a best stage that is small enough remains the best within smaller bounds
                {
                    features: selected
                    for features, selected in best_stages.items()
                    if bounds.allows(selected.stage)
                },
            )
            best_stages = selection.select(all_sets)
            rejected_sizes += selection.rejected_sizes
            for sets in set_sequences:
                selected_stages = [
                    best_stages[features]
                    for columns in sets
                    if (features := tuple(columns.tolist())) in best_stages
                ]
                if selected_stages:
                    stages = tuple(selected.stage for selected in selected_stages)
                    outputs = tuple(selected.outputs for selected in selected_stages)
                    candidates.append(FittedStages(stages, outputs))
        if not candidates:
            raise self._make_no_stage_error(min(rejected_sizes, default=0))
        return candidates

    def _make_no_stage_error(self, smallest_bytes: int) -> InputError:
        """Make the error for stages that are all too large."""
        if self.max_bytes is not None and smallest_bytes:
            return TooLargeError("no stage", self.max_bytes, smallest_bytes, "allow more")
        return InputError(
            f"no stage is small enough for a device: the smallest has {smallest_bytes} bytes"
        )

    def _list_bounds(self, problem: FitProblem) -> list[Bounds]:
        """List the bounds on a stage; with `max_bytes`, one for each of STAGE_COUNTS."""
        bounds = Bounds(without_offloads=self._get_max_set_cost(problem.costs) is not None)
        if self.max_bytes is None:
            return [bounds.with_shape(problem.tree_shape)]
        bytes_left = self.max_bytes
        grid = choose_grid_size(problem.split.x[problem.split.fit_rows], bytes_left)
        if grid is not None:
            bounds = replace(bounds, n_thresholds=grid.n_thresholds, grid_bytes=grid.n_bytes)
            bytes_left -= grid.n_bytes
        return [
            replace(bounds, max_bytes=bytes_left // stage_count).with_shape(problem.tree_shape)
            for stage_count in STAGE_COUNTS
            if stage_count <= self.n_stages
        ]

    def _list_families(self, problem: FitProblem) -> tuple[str, ...]:
        """List the families to try; with `allow_missing`, only families that accept NaN."""
        n_rows = len(problem.split.fit_rows)
        usable_families = families_for(n_rows, allow_missing=self.allow_missing)
        if self.families is None:
            return usable_families
        if not self.allow_missing:
            return tuple(self.families)
        return (
            tuple(family for family in self.families if family in usable_families)
            or usable_families
        )

    def _get_max_stages(self, problem: FitProblem) -> int:
        return max(1, min(self.n_stages, len(problem.split.validation_rows) // MIN_ROWS_PER_STAGE))

    def _find_feature_sets(self, problem: FitProblem) -> list[list[NDArray[np.intp]]]:
        """Find sequences of nested feature sets in up to three ways."""
        problem, columns = with_fewer_columns(problem)
        n_stages = self._get_max_stages(problem)
        max_set_cost = self._get_max_set_cost(problem.costs)
        has_few_acquisitions = len(units_of_acquisition(problem.costs)) <= MAX_FEW_ACQUISITIONS
        if has_few_acquisitions and has_mostly_groups(problem.costs) and not self.allow_missing:
            # a penalty on first uses would charge each feature of a block for the whole block
            set_sequences = [forward_sets(problem, n_stages=n_stages, max_set_cost=max_set_cost)]
        else:
            set_sequences = [nested_sets(problem, n_stages=n_stages, max_set_cost=max_set_cost)]
            # with many classes a small change of the penalty may add nearly all features
            has_few_sets = len(set_sequences[0]) <= n_stages // 2
            if not self.allow_missing and (
                has_few_sets or (has_few_acquisitions and self.effort != "low")
            ):
                set_sequences.append(
                    forward_sets(problem, n_stages=n_stages, max_set_cost=max_set_cost)
                )
        set_sequences += backward_sequences(problem, n_stages=n_stages, max_set_cost=max_set_cost)
        return [[columns[features] for features in sets] for sets in set_sequences if sets]

    def _get_max_set_cost(self, costs: FeatureCosts) -> float | None:
        """Get the largest cost of a feature set if `max_instance_cost` bars offloads, else None."""
        max_cost = self.max_instance_cost
        if max_cost is None:
            return None
        may_offload = self.high_cost_model_ is not None and self._exit_limits(())[-1] <= max_cost
        return None if may_offload else max(float(max_cost), float(costs.standalone_prices.min()))

    def _check_settings(self) -> None:
        super()._check_settings()
        check_first_stages(self.first_stages, allow_missing=self.allow_missing)
        if self.families is not None and (
            not len(self.families) or not set(self.families) <= set(FAMILIES)
        ):
            raise InputError(f"families must be among {sorted(FAMILIES)}, not {self.families!r}")


def _prepend(
    first_stages: Sequence[tuple[Stage, NDArray[np.float32]]], candidate: FittedStages
) -> FittedStages:
    """Put given stages before the stages of a candidate."""
    stages = [stage for stage, _ in first_stages]
    outputs = [outputs for _, outputs in first_stages]
    return FittedStages((*stages, *candidate.stages), (*outputs, *candidate.outputs))
