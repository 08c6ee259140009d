"""ConfidenceCascade: one low-cost model and a threshold on its margin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from sklearn.utils._param_validation import StrOptions

from gatewise.errors import InputError
from gatewise_training.cascades.cascade import CascadeClassifier, WindowSettings
from gatewise_training.cascades.family_selection import N_SUBSETS, single_models
from gatewise_training.cascades.fit_problem import FitProblem, FittedStages
from gatewise_training.data.input_checks import AT_LEAST_1, Constraints
from gatewise_training.learners.model_families import FAMILIES


@dataclass(eq=False, repr=False, kw_only=True)
class ConfidenceCascade(WindowSettings, CascadeClassifier):
    """One low-cost model on a fixed subset of the features; its narrow margins are offloaded.

    An instance goes to the high-cost model if the margin of the low-cost model is below a
    threshold. This is the simplest baseline: no gate is learned, and the model is fitted to all
    rows.

    Further parameters: see :class:`.CascadeClassifier` and, for windows, :class:`.WindowSettings`.

    Parameters
    ----------
    allow_missing : bool, default False
        Whether features may be NaN, which needs ``low_cost_model="boosting"``.
    low_cost_model : {"boosting", "extra-trees", "linear", "svm"}, default "boosting"
        Family of the low-cost model.
    n_subsets : int, default 8
        Number of feature subsets that are tried. They range from cheap subsets, which boosted trees
        choose under a first-use penalty, to all features. With 1 only all features are tried.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> f0 = LogisticRegression(max_iter=5000)
    >>> system = ConfidenceCascade(f0, low_cost_model="linear", random_state=0).fit(X, y)
    >>> len(system.stages_)
    1
    """

    low_cost_model: str = "boosting"
    n_subsets: int = N_SUBSETS
    allow_missing: bool = False

    _parameter_constraints: ClassVar[Constraints] = {
        "low_cost_model": [StrOptions(set(FAMILIES))],
        "n_subsets": [AT_LEAST_1],
    }

    def _fit_candidates(self, problem: FitProblem) -> Sequence[FittedStages]:
        return single_models(problem, self.low_cost_model, self.n_subsets)

    def _check_settings(self) -> None:
        super()._check_settings()
        if self.allow_missing and self.low_cost_model != "boosting":
            raise InputError(
                "allow_missing needs low_cost_model='boosting': no other family takes NaN"
            )
