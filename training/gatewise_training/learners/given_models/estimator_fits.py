"""Fits of scikit-learn classifiers as high-cost models: the user's own, and a calibrated SVM."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gatewise_training.data.validation_split import Rows, ValidationSplit
from gatewise_training.learners.given_models.packable import needs_backend
from gatewise_training.learners.high_cost_model import HighCostModel

Fit = Callable[[Rows, Rows | None, int | None], HighCostModel]
"""Fits rows; unseen rows end it where it goes on in rounds, or else a number of them does."""


def finds_by_name(template: Any) -> bool:
    """Whether a ColumnTransformer in a classifier names its columns, or selects them."""
    estimators = [template, *template.get_params(deep=True).values()]
    transformers = [p.transformers for p in estimators if type(p).__name__ == "ColumnTransformer"]
    column_lists = [columns for triples in transformers for *_, columns in triples]
    return any(
        callable(columns) or any(isinstance(column, str) for column in np.ravel(columns).tolist())
        for columns in column_lists
    )


@dataclass(frozen=True, eq=False)
class EstimatorFit:
    """The fit of clones of a scikit-learn classifier, for cross-fitting; it can be pickled.

    Attributes
    ----------
    plan : ValidationSplit
    n_classes : int
    kind : str
        Name of the kind of model.
    template : classifier
        Unfitted.
    names : sequence of str or None
        Column names of the rows, if `template` finds columns by name.
    """

    plan: ValidationSplit
    n_classes: int
    kind: str
    template: Any
    names: Sequence[str] | None = None

    def __call__(self, rows: Rows, unseen: Rows | None, rounds: int | None) -> HighCostModel:
        """Fit a clone on rows of the plan."""
        from sklearn.base import clone

        x: Any = self.plan.x[rows]
        if self.names is not None:
            import pandas as pd

            x = pd.DataFrame(x, columns=list(self.names))
        estimator = clone(self.template)
        if self.kind == "svm" and (halves := _halves(self.plan, rows)) is not None:
            estimator.set_params(cv=halves)
        estimator.fit(x, self.plan.y[rows], **fit_weights(self.plan, self.template, rows))
        if needs_backend(self.template):
            return HighCostModel.given(estimator, np.arange(self.n_classes), x.shape[1])
        lookup = np.asarray(estimator.classes_, np.int64)
        return HighCostModel(
            np.arange(x.shape[1]), self.n_classes, self.kind, estimator=estimator, lookup=lookup
        )


def fit_weights(plan: ValidationSplit, estimator: Any, rows: Rows) -> dict[str, Any]:
    """Weights of rows for a fit, where they differ; a pipeline's last step gets them."""
    from sklearn.utils.validation import has_fit_parameter

    weight = plan.weight[rows]
    prefix = ""
    final = estimator
    while hasattr(final, "steps"):
        step, final = final.steps[-1]
        prefix += f"{step}__"
    if np.ptp(weight) == 0:
        return {}
    if not has_fit_parameter(final, "sample_weight"):
        warnings.warn(
            f"{type(final).__name__} takes no sample_weight: the high-cost model is fitted as if "
            "all rows and classes counted alike",
            stacklevel=2,
        )
        return {}
    return {f"{prefix}sample_weight": weight}


def calibrated_svm(scaler: Any) -> Any:
    """Make an RBF-SVM behind a scaler, its probabilities calibrated by Platt's sigmoid."""
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.pipeline import make_pipeline
    from sklearn.svm import SVC

    machine = make_pipeline(scaler, SVC(C=10.0, gamma="scale"))
    return CalibratedClassifierCV(machine, ensemble=False, cv=2)


def _halves(plan: ValidationSplit, rows: Rows) -> tuple[tuple[Rows, Rows], ...] | None:
    """Two folds of some rows, for a model that is calibrated inside its fit; None: any two."""
    block = plan.splitter.take(rows).blocks(0)
    if block is None:
        return None
    half = block % 2
    even = np.flatnonzero(half == 0)
    odd = np.flatnonzero(half == 1)
    return (even, odd), (odd, even)


def has_halves(plan: ValidationSplit) -> bool:
    """Whether the halves of every fit have rows of every class."""
    for rows in (plan.fit_rows, *(rows for rows, _ in plan.folds)):
        y = plan.y[rows]
        for half, _ in _halves(plan, rows) or ():
            if len(np.unique(y[half])) < len(np.unique(y)):
                return False
    return True


def scalers() -> list[tuple[str, Any]]:
    """Make the scalers that an SVM is tried behind, with their names."""
    from sklearn.preprocessing import MinMaxScaler, StandardScaler

    return [("standard scores", StandardScaler()), ("unit ranges", MinMaxScaler())]
