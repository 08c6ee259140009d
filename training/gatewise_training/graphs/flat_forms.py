"""Flat trees of given classifiers: forests and boosted trees have an exact form as such."""

from __future__ import annotations

from typing import Any, Final

from gatewise.decision import Link
from gatewise.errors import InputError
from gatewise.models import booster_sources
from gatewise.models.trees import TreeEnsemble

FORESTS: Final = ("ExtraTreesClassifier", "RandomForestClassifier")
SOURCES: Final = {
    "HistGradientBoostingClassifier": booster_sources.hist_gradient_trees,
    "XGBClassifier": booster_sources.xgboost_trees,
    "XGBRFClassifier": booster_sources.xgboost_trees,
    "CatBoostClassifier": booster_sources.catboost_trees,
}
LIBRARIES: Final = ("sklearn", "lightgbm", "xgboost", "catboost")
"""Libraries with classifiers that are converted; those of others stay opaque."""


def flat_trees(estimator: Any) -> tuple[TreeEnsemble, Link] | None:
    """Flat trees of a fitted classifier over its own classes; None if it is not made of trees.

    Raises InputError if its trees have no exact form.
    """
    name = library_name(estimator)
    if name is None:
        return None
    if name in FORESTS:
        return TreeEnsemble.from_forest(estimator), "identity"
    if hasattr(estimator, "booster_"):
        return _lightgbm(estimator.booster_)
    if name in SOURCES:
        boosted = SOURCES[name](estimator)
        return TreeEnsemble.from_boosted(boosted), boosted.link
    return None


def library_name(estimator: Any) -> str | None:
    """Name of the class, or of the one that it extends, in the known libraries, if it has one.

    A class that predicts in a way of its own has none.
    """
    for kind in type(estimator).__mro__:
        if kind.__module__.partition(".")[0] in LIBRARIES and kind.__module__ != "sklearn.base":
            return str(kind.__name__) if kind is type(estimator) or _same(kind, estimator) else None
    return None


def _same(kind: type, estimator: Any) -> bool:
    """Whether a subclass predicts as the class of the library does."""
    own = type(estimator)
    names = ("predict", "predict_proba", "transform", "decision_function")
    return all(getattr(own, n, None) is getattr(kind, n, None) for n in names)


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
