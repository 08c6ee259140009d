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
from tests.support.prices import grouped_prices

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
        for width in (2, z.shape[1]):
            columns = np.arange(width)
            fit = LogisticRegression().fit(z[plan.fit_rows][:, :width], plan.y[plan.fit_rows])
            model = LinearModel(
                plan.x.mean(axis=0)[:width],
                (1 / plan.x.std(axis=0))[:width],
                fit.coef_.T.astype(np.float32),
                fit.intercept_.astype(np.float32),
            )
            stages.append(Stage(model, columns, "softmax"))
        return [
            FittedStages(
                tuple(stages), tuple(s.margins(plan.x[plan.validation_rows]) for s in stages)
            )
        ]


@dataclass(frozen=True)
class Fitted:
    """A fitted system, and validation rows with their labels."""

    system: Any
    rows: NDArray[np.float32]
    labels: NDArray[Any]


def _split(x: Any, y: Any) -> tuple[Any, Any, Any, Any]:
    order = np.random.default_rng(0).permutation(len(y))
    x, y = np.asarray(x, np.float32)[order], np.asarray(y)[order]
    half = len(y) // 2
    return x[:half], y[:half], x[half:], y[half:]


def _svm() -> Any:
    kernel_machine = make_pipeline(StandardScaler(), SVC(C=10.0))
    return CalibratedClassifierCV(kernel_machine, ensemble=False, cv=2)


def _boosted() -> Any:
    """A high-cost model that accepts missing values."""
    return HistGradientBoostingClassifier(max_iter=15, min_samples_leaf=5, random_state=0)


def _cancer(offset: float = 0.0, **params: Any) -> Fitted:
    """A binary system with names, groups, cloud prices and an SVM; `offset` 1e6 tests float32."""
    data = load_breast_cancer()
    x, y, rows, truth = _split(data.data + offset, data.target_names[data.target])
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
    system.fit(table, y, validation=(pd.DataFrame(rows, columns=names), truth))
    return Fitted(system, rows, truth)


def _digits() -> Fitted:
    x, y, rows, truth = _split(*load_digits(n_class=6, return_X_y=True))
    f0 = ExtraTreesClassifier(40, random_state=0)
    system = StagedCascade(f0, n_stages=3, families=("extra-trees",), effort="low", random_state=0)
    return Fitted(system.fit(x, y, validation=(rows, truth)), rows, truth)


def _gated_trees() -> Fitted:
    x, y, rows, truth = _split(*load_breast_cancer(return_X_y=True))
    system = AdaptGBRT(
        _svm(), stop="gate", p_full=(0.2,), penalties=(0.02, 0.002), n_rounds=30, random_state=0
    )
    return Fitted(system.fit(x, y > 0, validation=(rows, truth > 0)), rows, truth > 0)


def _gated_lines() -> Fitted:
    x, y, rows, truth = _split(*load_iris(return_X_y=True))
    system = AdaptLin(
        LogisticRegression(max_iter=500), stop="gate", p_full=(0.3, 0.6), penalties=(0.4, 0.01),
        random_state=0,
    )  # fmt: skip
    return Fitted(system.fit(x, y + 5, validation=(rows, truth + 5)), rows, truth + 5)


def _missing() -> Fitted:
    x, y, rows, truth = _split(*load_wine(return_X_y=True))
    rng = np.random.default_rng(1)
    for part in (x, rows):
        part[rng.random(part.shape) < 0.2] = np.nan
    system = StagedCascade(_boosted(), n_stages=2, allow_missing=True, effort="low", random_state=0)
    return Fitted(system.fit(x, y, validation=(rows, truth)), rows, truth)


def _kernels() -> Fitted:
    x, y, rows, truth = _split(*load_wine(return_X_y=True))
    f0 = make_pipeline(StandardScaler(), LogisticRegression())
    system = StagedCascade(f0, n_stages=2, families=("svm",), effort="low", random_state=0)
    return Fitted(system.fit(x, y, validation=(rows, truth)), rows, truth)


def _alone() -> Fitted:
    x, y, rows, truth = _split(*load_wine(return_X_y=True))
    return Fitted(WithoutCloud().fit(x, y, validation=(rows, truth)), rows, truth)


class LazyForest(WithoutCloud):
    """A forest that acquires features per node, without a cloud, like BudgetForest."""

    def _fit_candidates(self, problem: Problem) -> list[FittedStages]:
        plan = problem.plan
        candidates = []
        for size in (2, 5):
            forest = RandomForestClassifier(size, max_depth=6, random_state=0)
            forest.fit(plan.x[plan.fit_rows], plan.y[plan.fit_rows])
            trees = TreeEnsemble.from_forest(forest)
            stage = Stage.from_model(trees, "identity", acquisition="node")
            candidates.append(
                FittedStages((stage,), (stage.margins(plan.x[plan.validation_rows]),))
            )
        return candidates


def _lazy(offset: float = 0.0) -> Fitted:
    x, y, rows, truth = _split(*load_breast_cancer(return_X_y=True))
    x, rows = x + np.float32(offset), rows + np.float32(offset)
    system = CEGBClassifier(grouped_prices(30), penalties=(0.02, 0.002), **FEW_ROUNDS)
    return Fitted(system.fit(x, y, validation=(rows, truth)), rows, truth)


def _lazy_digits() -> Fitted:
    x, y, rows, truth = _split(*load_digits(n_class=5, return_X_y=True))
    system = CEGBClassifier(penalties=(0.01, 0.001), **FEW_ROUNDS)
    return Fitted(system.fit(x, y, validation=(rows, truth)), rows, truth)


def _lazy_missing() -> Fitted:
    x, y, rows, truth = _split(*load_wine(return_X_y=True))
    rng = np.random.default_rng(1)
    for part in (x, rows):
        part[rng.random(part.shape) < 0.2] = np.nan
    system = CEGBClassifier(
        grouped_prices(13), penalties=(0.02, 0.002), allow_missing=True, **FEW_ROUNDS
    )
    return Fitted(system.fit(x, y, validation=(rows, truth)), rows, truth)


def _lazy_forest() -> Fitted:
    x, y, rows, truth = _split(*load_digits(n_class=4, return_X_y=True))
    system = LazyForest(grouped_prices(64), budget=12.0)
    return Fitted(system.fit(x, y, validation=(rows, truth)), rows, truth)


def _miser() -> Fitted:
    x, y, rows, truth = _split(*load_wine(return_X_y=True))
    system = GreedyMiser(grouped_prices(13), penalties=(0.02,), n_rounds=20, random_state=0)
    return Fitted(system.fit(x, y, validation=(rows, truth)), rows, truth)


MAKERS: dict[str, Callable[[], Fitted]] = {
    "cancer": _cancer,
    "cancer-1e6": lambda: _cancer(1e6),
    "digits": _digits,
    "gated-trees": _gated_trees,
    "gated-lines": _gated_lines,
    "missing": _missing,
    "kernels": _kernels,
    "alone": _alone,
    "lazy": _lazy,
    "lazy-1e6": lambda: _lazy(1e6),
    "lazy-digits": _lazy_digits,
    "lazy-missing": _lazy_missing,
    "lazy-forest": _lazy_forest,
    "miser": _miser,
}
