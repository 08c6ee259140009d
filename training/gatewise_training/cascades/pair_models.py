"""The two given models of a pair, read as a stage and a high-cost model with the same classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linear_sum_assignment

from gatewise.errors import InputError
from gatewise.models.stage import Stage
from gatewise_training.learners.given_models.given_classifiers import (
    GivenClassifier,
    check_conversion,
)
from gatewise_training.learners.given_models.given_graph import GivenGraph
from gatewise_training.learners.high_cost_model import HighCostModel, is_graph


class PairModels(NamedTuple):
    """The models of a pair; both answer in the order of `classes`.

    Attributes
    ----------
    classes : ndarray of shape (n_classes,)
        Class labels.
    stage : Stage
        The low-cost model, which acquires all features.
    high_cost_model : HighCostModel
        The high-cost model.
    assumes_order : bool
        Whether a model does not name its classes, so that the order of its scores is a guess.
    """

    classes: NDArray[Any]
    stage: Stage
    high_cost_model: HighCostModel
    assumes_order: bool


def read_pair_models(
    low_cost_model: Any,
    high_cost_model: Any,
    x: NDArray[np.float32],
    y: ArrayLike | None,
    *,
    shape: tuple[int, ...],
    classes: ArrayLike | None,
    feature_names: Sequence[str] | None,
    allow_missing: bool,
) -> PairModels:
    """Read both models of a pair and find their classes.

    Parameters
    ----------
    low_cost_model, high_cost_model : Any
        Fitted classifiers or graphs; see :class:`.PairCascade`.
    x : ndarray of shape (n, n_features)
        Flattened instances, on which conversions are checked.
    y : array-like of shape (n,) or None
        Their labels.
    shape : tuple of int
        Shape of an instance.
    classes : array-like of shape (n_classes,) or None
        Labels in the order of the scores, if the user gives them.
    feature_names : sequence of str or None
        Names of the columns, if the instances have any.
    allow_missing : bool
        Whether both models accept NaN.

    Raises
    ------
    InputError
        If a model cannot be used, or does not match the instances or the other model.
    """
    low_cost_classifier = GivenClassifier.read_and_compare(
        low_cost_model, x, shape, "low_cost_model", allow_missing=allow_missing
    )
    if is_graph(high_cost_model):
        high_cost_model = GivenGraph(high_cost_model, shape, "high_cost_model", x)
    labels, assumes_order = _find_classes(low_cost_classifier, high_cost_model, y, classes)
    if isinstance(high_cost_model, GivenGraph):
        high_cost_model.form = high_cost_model.named_form(labels.tolist())
    low_cost_labels = low_cost_classifier.classes
    if low_cost_labels is not None and set(low_cost_labels) == set(labels.tolist()):
        # the order of the low-cost model keeps its answers where margins tie
        labels = np.asarray(low_cost_labels)
    stage = low_cost_classifier.stage(labels, np.arange(x.shape[1]))
    model = HighCostModel.from_model(high_cost_model, labels, x.shape[1], feature_names)
    if model.estimator is not None:
        check_conversion(model, x, allow_missing=allow_missing)
    return PairModels(labels, stage, model, assumes_order)


def _find_classes(
    low_cost_classifier: GivenClassifier,
    high_cost_model: Any,
    y: ArrayLike | None,
    given_classes: ArrayLike | None,
) -> tuple[NDArray[Any], bool]:
    """Find the labels: the given ones, those of a model or of `y`, or else 0, 1, ...

    Also returns whether the order of a model's scores is only assumed.
    """
    low_cost_labels = low_cost_classifier.classes
    if isinstance(high_cost_model, GivenGraph):
        high_cost_labels = high_cost_model.form.names
        n_high_cost_classes = high_cost_model.form.n_classes
    else:
        high_cost_labels = tuple(np.asarray(getattr(high_cost_model, "classes_", ())).tolist())
        n_high_cost_classes = len(high_cost_labels)
    n_classes = _common_class_count(low_cost_classifier.n_classes, n_high_cost_classes)
    model_labels = high_cost_labels or low_cost_labels
    label_set = np.empty(0) if model_labels is not None or y is None else np.unique(y)
    if given_classes is not None:
        classes = np.asarray(given_classes)
    elif model_labels is not None:
        classes = np.asarray(model_labels)
    elif len(label_set) == n_classes:
        classes = label_set
    else:
        classes = np.arange(n_classes)
    if classes.ndim != 1 or len(set(classes.tolist())) != n_classes:
        raise InputError(
            f"classes must be {n_classes} different labels, the models' number of classes, "
            f"not {classes.tolist()[:8]}"
        )
    is_named = given_classes is not None or bool(high_cost_labels and low_cost_labels)
    return classes, not is_named and classes.tolist() != list(range(n_classes))


def _common_class_count(n_low_cost_classes: int | None, n_high_cost_classes: int | None) -> int:
    """Number of classes of both models, of which one may not say its own (None or 0)."""
    class_counts = {count for count in (n_low_cost_classes, n_high_cost_classes) if count}
    if not class_counts:
        raise InputError("low_cost_model gives labels only; a gate needs its scores")
    if len(class_counts) > 1:
        raise InputError(
            f"low_cost_model has {n_low_cost_classes} classes, high_cost_model "
            f"{n_high_cost_classes}; both must have the same classes"
        )
    return class_counts.pop()


def check_class_order(
    classes: NDArray[Any], answer_indices: NDArray[np.int64], y: NDArray[np.int64]
) -> None:
    """Raise InputError if another order of the scores fits the labels better.

    Parameters
    ----------
    classes : ndarray of shape (n_classes,)
        Class labels in the assumed order of the scores.
    answer_indices, y : ndarray of shape (n,)
        The high-cost model's answers and the labels, as indices of classes.
    """
    confusion = np.zeros((len(classes), len(classes)))
    np.add.at(confusion, (answer_indices, y), 1)
    _, best_order = linear_sum_assignment(-confusion)
    n_right_in_best_order = int(confusion[np.arange(len(classes)), best_order].sum())
    n_right = int(np.trace(confusion))
    if n_right_in_best_order > n_right:
        raise InputError(
            f"not both models name their labels: the order {classes.tolist()[:8]} is right "
            f"on {n_right} of {len(y)} rows, the order {classes[best_order].tolist()[:8]} on "
            f"{n_right_in_best_order}: give classes= (--classes), the labels in the order of the "
            "scores"
        )
