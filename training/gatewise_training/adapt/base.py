"""Base of the Adapt methods: the sweep over P_full and the penalty.

Each setting gives a low-cost model f1 and a gate g, which make two candidate stages. One is f1 and
g in one graph, with g as the stop score. The other is f1 alone, with its margin as the stop score.
If f1 is strong enough, its margin finds its errors better than the gate does, and an instance does
not pay for the gate's features. On few rows the penalty skips feature sets on which a single model
does well. Single models on nested feature sets are therefore further candidates. All thresholds are
refitted on validation rows, because the paper's ``g > 0`` often never reaches the required
accuracy. The frontier is made of all candidates.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.utils._param_validation import StrOptions

from gatewise.acquisition import AcquiredMask
from gatewise.errors import InputError
from gatewise.models.stage import Stage
from gatewise_training.adapt.sample import Sample
from gatewise_training.cascades.cascade import CascadeClassifier, WindowSettings
from gatewise_training.cascades.family_selection import N_SUBSETS, best_shape, single_models
from gatewise_training.cascades.fit_problem import (
    FitProblem,
    FittedStages,
    SettingsFit,
    cross_fit_settings,
)
from gatewise_training.data.input_checks import UNIT_INTERVAL, Constraints
from gatewise_training.data.validation_split import Rows
from gatewise_training.learners.boosting import MAX_SMALL_ROWS
from gatewise_training.learners.high_cost_model import Accounting, acquired_by_high_cost

#: Score that stops an instance, as :class:`.AdaptGBRT` documents it.
StopScore = Literal["auto", "gate", "margin"]


@dataclass(eq=False, repr=False, kw_only=True)
class PenalisedCascade(WindowSettings, CascadeClassifier):
    """Base of cascades with a gate and a sweep over a feature penalty."""

    penalties: Sequence[float] | None = ()
    stop: StopScore = "auto"

    accounting: Literal["union", "paths"] = "union"

    _parameter_constraints: ClassVar[Constraints] = {
        "penalties": ["array-like"],
        "stop": [StrOptions({"auto", "gate", "margin"})],
        "accounting": [StrOptions({"union", "paths"})],
    }

    @property
    def _accounting(self) -> Accounting:
        return self.accounting

    def _features_of_offload(self, x: NDArray[np.float32]) -> AcquiredMask | None:
        if self.accounting == "union" or self.high_cost_model_ is None:
            return None
        return acquired_by_high_cost(self.high_cost_model_, x)

    def _with_stops(self, fit: SettingsFit) -> SettingsFit:
        """Wrap a fit of gated stages, so that its stages have the stop scores that `stop` names."""
        return fit if self.stop == "gate" else partial(_make_stages, fit, self.stop)

    def _check_settings(self) -> None:
        super()._check_settings()
        if self.accounting == "paths" and self.high_cost_input == "window":
            raise InputError("accounting='paths' needs high_cost_input='features'")
        if self.penalties is not None and not len(self.penalties):
            raise InputError("penalties must hold at least one number")


@dataclass(eq=False, repr=False, kw_only=True)
class Adapt(PenalisedCascade):
    """Base of :class:`AdaptGBRT`, :class:`AdaptLin` and :class:`AdaptLstsq`."""

    _family: ClassVar[str]  # family of f1, among the families of stages

    # default values of `p_full`: on few rows, where each is cross-fitted, and on more rows
    _p_full_on_few_rows: ClassVar[Sequence[float]] = (0.1, 0.5)
    _p_full_on_many_rows: ClassVar[Sequence[float]] = (0.1, 0.3, 0.5, 0.7)

    p_full: Sequence[float] | None = None

    _parameter_constraints: ClassVar[Constraints] = {"p_full": ["array-like", None]}

    @abstractmethod
    def _fit_path(
        self, sample: Sample, p_full: float, seed: int, shared_settings: Sequence[Any]
    ) -> list[Stage]:
        """Fit the stages of each penalty, the highest penalty first."""

    def _find_shared_settings(self, sample: Sample, p_full: float) -> Sequence[Any]:
        """Find the penalties or the starts that the fits of all folds share."""
        return ()

    def _fit_candidates(self, problem: FitProblem) -> Sequence[FittedStages]:
        tree_shape = best_shape(problem, (self._family,))
        problem = replace(problem, tree_shape=tree_shape)
        sample = Sample.all_rows(problem)
        fit_sample = sample.take(problem.split.fit_rows)
        p_full_values = self.p_full
        if p_full_values is None:
            is_small = len(fit_sample.x) <= MAX_SMALL_ROWS
            p_full_values = self._p_full_on_few_rows if is_small else self._p_full_on_many_rows
        settings_fits = []
        for p_full in p_full_values:
            shared_settings = self._find_shared_settings(fit_sample, p_full)
            settings_fit = partial(_fit_rows, self, sample, p_full, problem.seed, shared_settings)
            settings_fits.append(self._with_stops(settings_fit))
        candidates = cross_fit_settings(problem, settings_fits, "sweeping P_full")
        if self.stop == "auto":
            candidates += single_models(problem, self._family, N_SUBSETS)
        return candidates

    def _check_settings(self) -> None:
        super()._check_settings()
        p_full_values = self.p_full
        if p_full_values is not None and not (
            len(p_full_values) and all(map(UNIT_INTERVAL.is_satisfied_by, p_full_values))
        ):
            raise InputError(f"p_full must be shares in [0, 1], not {list(p_full_values)}")


def _fit_rows(
    method: Adapt,
    sample: Sample,
    p_full: float,
    seed: int,
    shared_settings: Sequence[Any],
    rows: Rows,
) -> list[Stage]:
    return method._fit_path(sample.take(rows), p_full, seed, shared_settings)


def _make_stages(fit: SettingsFit, stop: StopScore, rows: Rows) -> list[Stage]:
    gated_stages = fit(rows)
    margin_stages = [stage.without_gate() for stage in gated_stages]
    return [*gated_stages, *margin_stages] if stop == "auto" else margin_stages
