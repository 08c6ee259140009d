"""All methods with fast settings, on nine priced columns of real data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import train_test_split

from gatewise_training import (
    AdaptGBRT,
    AdaptLin,
    AdaptLstsq,
    ConfidenceCascade,
    FeatureCosts,
    GreedyMiser,
    L1Cascade,
    StagedCascade,
)
from gatewise_training.cascades.cascade import CascadeClassifier

#: The first columns of both data sets, few enough for fast fits.
N_FEATURES = 9
FEATURE_NAMES = [f"f{k}" for k in range(N_FEATURES)]
COSTS = FeatureCosts(
    [1.0, 2.0, 0.5, 0.0, 1.0, 0.0, 3.0, 1.0, 1.0],
    group=["a", "a", None, "b", "b", "b", None, "c", None],
    shared={"a": 2.0, "b": 4.0, "c": 1.0},
    names=FEATURE_NAMES,
)
LINEAR_SETTINGS = {"p_full": (0.3,), "penalties": (0.5, 0.1, 0.01), "n_starts": 1}
TREE_SETTINGS = {"penalties": (0.03, 0.003), "n_rounds": 20}
METHODS: dict[str, Any] = {
    "staged": StagedCascade(n_stages=3, families=("boosting", "linear"), effort="low"),
    "adapt-lin": AdaptLin(**LINEAR_SETTINGS),
    "adapt-lstsq": AdaptLstsq(**LINEAR_SETTINGS | {"penalties": (0.3,)}),
    "adapt-gbrt": AdaptGBRT(p_full=(0.3,), warm_up=5, **TREE_SETTINGS),
    "l1": L1Cascade(penalties=(0.5, 0.1, 0.01)),
    "confidence": ConfidenceCascade(low_cost_model="linear", n_subsets=3),
    "greedy-miser": GreedyMiser(**TREE_SETTINGS),
}


def load_table(is_binary: bool = True) -> tuple[pd.DataFrame, pd.DataFrame, Any, Any]:
    """Load training and test rows as frames of nine columns, and their labels."""
    X, y = (load_breast_cancer if is_binary else load_wine)(return_X_y=True)
    class_names = np.array(["no", "yes"] if is_binary else ["a", "b", "c"])
    table = pd.DataFrame(X[:, :N_FEATURES], columns=FEATURE_NAMES)
    X, X_test, y, y_test = train_test_split(
        table, class_names[y], test_size=0.3, stratify=y, random_state=0
    )
    return X, X_test, y, y_test


def make_method(method: str, X: pd.DataFrame, y: Any, **settings: Any) -> Any:
    """Clone a method with the prices; a cascade gets a fitted forest as its high-cost model."""
    model = clone(METHODS[method]).set_params(feature_costs=COSTS, random_state=0, **settings)
    if isinstance(model, CascadeClassifier) and "high_cost_model" not in settings:
        forest = RandomForestClassifier(10, random_state=0).fit(X.to_numpy(np.float32), y)
        model.set_params(high_cost_model=forest)
    return model
