"""Exact conversion of given forests and boosted trees to flat trees."""

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
from gatewise_training.learners.given_models.packable import library_class_name

#: Classes of scikit-learn that are forests and single trees.
FOREST_CLASSES: Final = ("ExtraTreesClassifier", "RandomForestClassifier")
TREE_CLASSES: Final = ("DecisionTreeClassifier", "ExtraTreeClassifier")

#: Functions that read the trees of boosters, by the class of the booster.
BOOSTER_READERS: Final = {
    "HistGradientBoostingClassifier": booster_sources.hist_gradient_trees,
    "XGBClassifier": booster_sources.xgboost_trees,
    "XGBRFClassifier": booster_sources.xgboost_trees,
    "CatBoostClassifier": booster_sources.catboost_trees,
}


def flat_trees(estimator: Any) -> tuple[TreeEnsemble, Link] | None:
    """Convert a fitted classifier of trees to flat trees over its own classes, and their link.

    None if the classifier does not consist of trees. Raises InputError if its trees have no exact
    form.
    """
    class_name = library_class_name(estimator)
    if class_name is None:
        return None
    if class_name in (*FOREST_CLASSES, *TREE_CLASSES):
        return TreeEnsemble.from_forest(estimator), "identity"
    if hasattr(estimator, "booster_"):
        return _convert_lightgbm(estimator.booster_)
    if class_name in BOOSTER_READERS:
        boosted = BOOSTER_READERS[class_name](getattr(estimator, "library_model", estimator))
        return TreeEnsemble.from_boosted(boosted), boosted.link
    return None


def _convert_lightgbm(booster: Any) -> tuple[TreeEnsemble, Link]:
    """Convert a booster with an objective that has a sigmoid or softmax as link."""
    objective = next(
        line.removeprefix("objective=")
        for line in booster.model_to_string(num_iteration=0).splitlines()
        if line.startswith("objective=")
    )
    if objective == "binary sigmoid:1":
        return TreeEnsemble.from_lightgbm(booster), "sigmoid"
    if objective.startswith("multiclass "):
        return TreeEnsemble.from_lightgbm(booster), "softmax"
    raise InputError(
        f"LightGBM objective {objective!r} has no exact form here; use objective 'binary' or "
        "'multiclass'"
    )


def trees_of_leaf_indices(estimators: Sequence[Any], n_features: int) -> TreeEnsemble:
    """Convert scikit-learn's trees so that each outputs the index of the leaf of a row."""
    trees = [
        replace(nodes, value=np.arange(len(nodes.feature), dtype=np.float32)[:, None])
        for nodes in forest_nodes(estimators)
    ]
    base = np.zeros(len(trees), np.float32)
    output = np.arange(len(trees), dtype=np.int32)
    boosted = booster_sources.BoostedTrees(trees, output, base, n_features, "identity")
    return TreeEnsemble.from_boosted(boosted)
