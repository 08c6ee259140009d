"""Functions that fit a system of every kind that a bundle can contain, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.ensemble import (
    ExtraTreesClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from gatewise.models.linear import LinearModel
from gatewise.models.stage import Stage
from gatewise.models.trees import TreeEnsemble
from gatewise_training import (
    AdaptGBRT,
    AdaptLin,
    CEGBClassifier,
    CloudPrices,
    FeatureCosts,
    StagedCascade,
)
from gatewise_training.cascades.base import BudgetedClassifier
from gatewise_training.cascades.fit_problem import FitProblem, FittedStages
from tests.support.prices import make_grouped_prices

FEW_ROUNDS = {"n_rounds": 30, "max_loss": 0.05, "random_state": 0}


class WithoutCloud(BudgetedClassifier):
    """Two linear stages without a cloud."""

    allow_missing = False

    def __init__(self, feature_costs: Any = None, budget: float | None = None) -> None:
        self.feature_costs = feature_costs
        self.budget = budget
        self.max_loss = 0.01
        self.random_state = 0

    def _fit_candidates(self, problem: FitProblem) -> list[FittedStages]:
        split = problem.split
        z = (split.x - split.x.mean(axis=0)) / split.x.std(axis=0)
        stages = []
        for n_columns in (2, z.shape[1]):
            columns = np.arange(n_columns)
            regression = LogisticRegression().fit(
                z[split.fit_rows][:, :n_columns], split.y[split.fit_rows]
            )
            model = LinearModel(
                split.x.mean(axis=0)[:n_columns],
                (1 / split.x.std(axis=0))[:n_columns],
                regression.coef_.T.astype(np.float32),
                regression.intercept_.astype(np.float32),
            )
            stages.append(Stage(model, columns, "softmax"))
        return [
            FittedStages(
                tuple(stages),
                tuple(stage.margins(split.x[split.validation_rows]) for stage in stages),
            )
        ]


@dataclass(frozen=True)
class FittedSystem:
    """A fitted system, and validation rows with their labels."""

    system: Any
    rows: NDArray[np.float32]
    labels: NDArray[Any]


def _split_in_halves(X: Any, y: Any) -> tuple[Any, Any, Any, Any]:
    """Split shuffled rows into training rows and validation rows, each with their labels."""
    row_order = np.random.default_rng(0).permutation(len(y))
    X, y = np.asarray(X, np.float32)[row_order], np.asarray(y)[row_order]
    n_half = len(y) // 2
    return X[:n_half], y[:n_half], X[n_half:], y[n_half:]


def _fit_on_half(system: Any, X: Any, y: Any, *, has_gaps: bool = False) -> FittedSystem:
    """Fit a system on half of the rows; a fifth of their values may be missing."""
    x, y, rows, labels = _split_in_halves(X, y)
    rng = np.random.default_rng(1)
    for table in (x, rows) if has_gaps else ():
        table[rng.random(table.shape) < 0.2] = np.nan
    return FittedSystem(system.fit(x, y, validation=(rows, labels)), rows, labels)


def _make_svm() -> Any:
    kernel_machine = make_pipeline(StandardScaler(), SVC(C=10.0))
    return CalibratedClassifierCV(kernel_machine, ensemble=False, cv=2)


def _make_boosted_trees() -> Any:
    """Make a high-cost model that accepts missing values."""
    return HistGradientBoostingClassifier(max_iter=15, min_samples_leaf=5, random_state=0)


def _fit_cancer() -> FittedSystem:
    """Fit a binary system with names, groups, cloud prices and an SVM."""
    dataset = load_breast_cancer()
    x, y, rows, labels = _split_in_halves(dataset.data, dataset.target_names[dataset.target])
    names = [name.replace(" ", "_") for name in dataset.feature_names]
    costs = FeatureCosts(
        np.linspace(0, 2, 30),
        group=["mean"] * 10 + ["error"] * 10 + [None] * 10,  # type: ignore[list-item]
        shared={"mean": 1.5, "error": 0.25},
        names=names,
    )
    system = StagedCascade(
        _make_svm(),
        costs,
        cloud_prices=CloudPrices(request=1.0, byte=0.01),
        n_stages=4,
        families=("linear", "boosting", "extra-trees"),
        effort="low",
        random_state=0,
    )
    table = pd.DataFrame(x, columns=names)
    system.fit(table, y, validation=(pd.DataFrame(rows, columns=names), labels))
    return FittedSystem(system, rows, labels)


def _fit_digits() -> FittedSystem:
    high_cost_model = ExtraTreesClassifier(40, random_state=0)
    system = StagedCascade(
        high_cost_model, n_stages=3, families=("extra-trees",), effort="low", random_state=0
    )
    return _fit_on_half(system, *load_digits(n_class=6, return_X_y=True))


def _fit_gated_trees() -> FittedSystem:
    X, y = load_breast_cancer(return_X_y=True)
    system = AdaptGBRT(
        _make_svm(),
        stop="gate",
        p_full=(0.2,),
        penalties=(0.02, 0.002),
        n_rounds=30,
        random_state=0,
    )
    return _fit_on_half(system, X, y > 0)


def _fit_gated_lines() -> FittedSystem:
    X, y = load_iris(return_X_y=True)
    system = AdaptLin(
        LogisticRegression(max_iter=500), stop="gate", p_full=(0.3, 0.6), penalties=(0.4, 0.01),
        random_state=0,
    )  # fmt: skip
    return _fit_on_half(system, X, y + 5)


def _fit_with_missing_values() -> FittedSystem:
    system = StagedCascade(
        _make_boosted_trees(), n_stages=2, allow_missing=True, effort="low", random_state=0
    )
    return _fit_on_half(system, *load_wine(return_X_y=True), has_gaps=True)


def _fit_kernels() -> FittedSystem:
    high_cost_model = make_pipeline(StandardScaler(), LogisticRegression())
    system = StagedCascade(
        high_cost_model, n_stages=2, families=("svm",), effort="low", random_state=0
    )
    return _fit_on_half(system, *load_wine(return_X_y=True))


def _fit_without_cloud() -> FittedSystem:
    return _fit_on_half(WithoutCloud(), *load_wine(return_X_y=True))


class LazyForest(WithoutCloud):
    """A forest that acquires features per node, without a cloud, like BudgetForest."""

    def _fit_candidates(self, problem: FitProblem) -> list[FittedStages]:
        split = problem.split
        candidates = []
        for n_trees in (2, 5):
            forest = RandomForestClassifier(n_trees, max_depth=6, random_state=0)
            forest.fit(split.x[split.fit_rows], split.y[split.fit_rows])
            trees = TreeEnsemble.from_forest(forest)
            stage = Stage.from_model(trees, "identity", acquisition="node")
            candidates.append(
                FittedStages((stage,), (stage.margins(split.x[split.validation_rows]),))
            )
        return candidates


def _fit_lazy() -> FittedSystem:
    system = CEGBClassifier(make_grouped_prices(30), penalties=(0.02, 0.002), **FEW_ROUNDS)
    return _fit_on_half(system, *load_breast_cancer(return_X_y=True))


def _fit_lazy_with_missing_values() -> FittedSystem:
    system = CEGBClassifier(
        make_grouped_prices(13), penalties=(0.02, 0.002), allow_missing=True, **FEW_ROUNDS
    )
    return _fit_on_half(system, *load_wine(return_X_y=True), has_gaps=True)


def _fit_lazy_forest() -> FittedSystem:
    system = LazyForest(make_grouped_prices(64), budget=12.0)
    return _fit_on_half(system, *load_digits(n_class=4, return_X_y=True))


SYSTEM_MAKERS: dict[str, Callable[[], FittedSystem]] = {
    "cancer": _fit_cancer,
    "digits": _fit_digits,
    "gated-trees": _fit_gated_trees,
    "gated-lines": _fit_gated_lines,
    "missing": _fit_with_missing_values,
    "kernels": _fit_kernels,
    "alone": _fit_without_cloud,
    "lazy": _fit_lazy,
    "lazy-missing": _fit_lazy_with_missing_values,
    "lazy-forest": _fit_lazy_forest,
}
