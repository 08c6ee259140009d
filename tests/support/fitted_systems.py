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
    GreedyMiser,
    StagedCascade,
)
from gatewise_training.cascades.base import BudgetedClassifier
from gatewise_training.cascades.fit_problem import FittedStages, Problem
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

    def _fit_candidates(self, problem: Problem) -> list[FittedStages]:
        plan = problem.plan
        z = (plan.x - plan.x.mean(axis=0)) / plan.x.std(axis=0)
        stages = []
        for n_columns in (2, z.shape[1]):
            columns = np.arange(n_columns)
            regression = LogisticRegression().fit(
                z[plan.fit_rows][:, :n_columns], plan.y[plan.fit_rows]
            )
            model = LinearModel(
                plan.x.mean(axis=0)[:n_columns],
                (1 / plan.x.std(axis=0))[:n_columns],
                regression.coef_.T.astype(np.float32),
                regression.intercept_.astype(np.float32),
            )
            stages.append(Stage(model, columns, "softmax"))
        return [
            FittedStages(
                tuple(stages), tuple(s.margins(plan.x[plan.validation_rows]) for s in stages)
            )
        ]


@dataclass(frozen=True)
class FittedSystem:
    """A fitted system, and validation rows with their labels."""

    system: Any
    rows: NDArray[np.float32]
    labels: NDArray[Any]


def _halves(X: Any, y: Any) -> tuple[Any, Any, Any, Any]:
    """Split shuffled rows into training rows and validation rows, each with their labels."""
    order = np.random.default_rng(0).permutation(len(y))
    X, y = np.asarray(X, np.float32)[order], np.asarray(y)[order]
    half = len(y) // 2
    return X[:half], y[:half], X[half:], y[half:]


def _fitted(system: Any, X: Any, y: Any, *, has_gaps: bool = False) -> FittedSystem:
    """Fit a system on half of the rows, of which a fifth of the values may be missing."""
    x, y, rows, labels = _halves(X, y)
    rng = np.random.default_rng(1)
    for table in (x, rows) if has_gaps else ():
        table[rng.random(table.shape) < 0.2] = np.nan
    return FittedSystem(system.fit(x, y, validation=(rows, labels)), rows, labels)


def _svm() -> Any:
    kernel_machine = make_pipeline(StandardScaler(), SVC(C=10.0))
    return CalibratedClassifierCV(kernel_machine, ensemble=False, cv=2)


def _boosted_trees() -> Any:
    """A high-cost model that accepts missing values."""
    return HistGradientBoostingClassifier(max_iter=15, min_samples_leaf=5, random_state=0)


def _cancer(offset: float = 0.0, **params: Any) -> FittedSystem:
    """A binary system with names, groups, cloud prices and an SVM; `offset` 1e6 tests float32."""
    data = load_breast_cancer()
    x, y, rows, labels = _halves(data.data + offset, data.target_names[data.target])
    names = [n.replace(" ", "_") for n in data.feature_names]
    costs = FeatureCosts(
        np.linspace(0, 2, 30),
        group=["mean"] * 10 + ["error"] * 10 + [None] * 10,  # type: ignore[list-item]
        shared={"mean": 1.5, "error": 0.25},
        names=names,
    )
    system = StagedCascade(
        _svm(),
        costs,
        cloud_prices=CloudPrices(request=1.0, byte=0.01),
        n_stages=4,
        families=("linear", "boosting", "extra-trees"),
        effort="low",
        random_state=0,
        **params,
    )
    table = pd.DataFrame(x, columns=names)
    system.fit(table, y, validation=(pd.DataFrame(rows, columns=names), labels))
    return FittedSystem(system, rows, labels)


def _digits() -> FittedSystem:
    f0 = ExtraTreesClassifier(40, random_state=0)
    system = StagedCascade(f0, n_stages=3, families=("extra-trees",), effort="low", random_state=0)
    return _fitted(system, *load_digits(n_class=6, return_X_y=True))


def _gated_trees() -> FittedSystem:
    X, y = load_breast_cancer(return_X_y=True)
    system = AdaptGBRT(
        _svm(), stop="gate", p_full=(0.2,), penalties=(0.02, 0.002), n_rounds=30, random_state=0
    )
    return _fitted(system, X, y > 0)


def _gated_lines() -> FittedSystem:
    X, y = load_iris(return_X_y=True)
    system = AdaptLin(
        LogisticRegression(max_iter=500), stop="gate", p_full=(0.3, 0.6), penalties=(0.4, 0.01),
        random_state=0,
    )  # fmt: skip
    return _fitted(system, X, y + 5)


def _missing() -> FittedSystem:
    system = StagedCascade(
        _boosted_trees(), n_stages=2, allow_missing=True, effort="low", random_state=0
    )
    return _fitted(system, *load_wine(return_X_y=True), has_gaps=True)


def _kernels() -> FittedSystem:
    f0 = make_pipeline(StandardScaler(), LogisticRegression())
    system = StagedCascade(f0, n_stages=2, families=("svm",), effort="low", random_state=0)
    return _fitted(system, *load_wine(return_X_y=True))


def _without_cloud() -> FittedSystem:
    return _fitted(WithoutCloud(), *load_wine(return_X_y=True))


class LazyForest(WithoutCloud):
    """A forest that acquires features per node, without a cloud, like BudgetForest."""

    def _fit_candidates(self, problem: Problem) -> list[FittedStages]:
        plan = problem.plan
        candidates = []
        for n_trees in (2, 5):
            forest = RandomForestClassifier(n_trees, max_depth=6, random_state=0)
            forest.fit(plan.x[plan.fit_rows], plan.y[plan.fit_rows])
            trees = TreeEnsemble.from_forest(forest)
            stage = Stage.from_model(trees, "identity", acquisition="node")
            candidates.append(
                FittedStages((stage,), (stage.margins(plan.x[plan.validation_rows]),))
            )
        return candidates


def _lazy(offset: float = 0.0) -> FittedSystem:
    X, y = load_breast_cancer(return_X_y=True)
    system = CEGBClassifier(make_grouped_prices(30), penalties=(0.02, 0.002), **FEW_ROUNDS)
    return _fitted(system, X.astype(np.float32) + np.float32(offset), y)


def _lazy_digits() -> FittedSystem:
    system = CEGBClassifier(penalties=(0.01, 0.001), **FEW_ROUNDS)
    return _fitted(system, *load_digits(n_class=5, return_X_y=True))


def _lazy_missing() -> FittedSystem:
    system = CEGBClassifier(
        make_grouped_prices(13), penalties=(0.02, 0.002), allow_missing=True, **FEW_ROUNDS
    )
    return _fitted(system, *load_wine(return_X_y=True), has_gaps=True)


def _lazy_forest() -> FittedSystem:
    system = LazyForest(make_grouped_prices(64), budget=12.0)
    return _fitted(system, *load_digits(n_class=4, return_X_y=True))


def _miser() -> FittedSystem:
    system = GreedyMiser(make_grouped_prices(13), penalties=(0.02,), n_rounds=20, random_state=0)
    return _fitted(system, *load_wine(return_X_y=True))


SYSTEM_MAKERS: dict[str, Callable[[], FittedSystem]] = {
    "cancer": _cancer,
    "cancer-1e6": lambda: _cancer(1e6),
    "digits": _digits,
    "gated-trees": _gated_trees,
    "gated-lines": _gated_lines,
    "missing": _missing,
    "kernels": _kernels,
    "alone": _without_cloud,
    "lazy": _lazy,
    "lazy-1e6": lambda: _lazy(1e6),
    "lazy-digits": _lazy_digits,
    "lazy-missing": _lazy_missing,
    "lazy-forest": _lazy_forest,
    "miser": _miser,
}
