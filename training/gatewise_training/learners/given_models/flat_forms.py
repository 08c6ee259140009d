"""Flat trees of given forests and boosted trees, which have an exact form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from gatewise.decision import Link
from gatewise.errors import InputError
from gatewise.models import booster_sources
from gatewise.models.tree_sources import forest_nodes
from gatewise.models.trees import TreeEnsemble
from gatewise_training.learners.given_models.packable import library_name

FORESTS: Final = ("ExtraTreesClassifier", "RandomForestClassifier")
TREES: Final = ("DecisionTreeClassifier", "ExtraTreeClassifier")
SOURCES: Final = {
    "HistGradientBoostingClassifier": booster_sources.hist_gradient_trees,
    "XGBClassifier": booster_sources.xgboost_trees,
    "XGBRFClassifier": booster_sources.xgboost_trees,
    "CatBoostClassifier": booster_sources.catboost_trees,
}


def flat_trees(estimator: Any) -> tuple[TreeEnsemble, Link] | None:
    """Get the flat trees of a fitted classifier over its own classes; None if it has no trees.

    Raises InputError if its trees have no exact form.
    """
    name = library_name(estimator)
    if name is None:
        return None
    if name in (*FORESTS, *TREES):
        return TreeEnsemble.from_forest(estimator), "identity"
    if hasattr(estimator, "booster_"):
        return _lightgbm(estimator.booster_)
    if name in SOURCES:
        boosted = SOURCES[name](getattr(estimator, "loaded", estimator))
        return TreeEnsemble.from_boosted(boosted), boosted.link
    return None


def _lightgbm(booster: Any) -> tuple[TreeEnsemble, Link]:
    goal = next(
        line.removeprefix("objective=")
        for line in booster.model_to_string(num_iteration=0).splitlines()
        if line.startswith("objective=")
    )
    if goal == "binary sigmoid:1":
        return TreeEnsemble.from_lightgbm(booster), "sigmoid"
    if goal.startswith("multiclass "):
        return TreeEnsemble.from_lightgbm(booster), "softmax"
    raise InputError(
        f"LightGBM objective {goal!r} has no exact form here; use objective 'binary' or "
        "'multiclass'"
    )


def leaf_numbers(estimators: Sequence[Any], n_features: int) -> TreeEnsemble:
    """Convert trees of scikit-learn; each outputs the number of the leaf that a row reaches."""
    trees = [
        replace(nodes, value=np.arange(len(nodes.feature), dtype=np.float32)[:, None])
        for nodes in forest_nodes(estimators)
    ]
    base = np.zeros(len(trees), np.float32)
    output = np.arange(len(trees), dtype=np.int32)
    boosted = booster_sources.Boosted(trees, output, base, n_features, "identity")
    return TreeEnsemble.from_boosted(boosted)
