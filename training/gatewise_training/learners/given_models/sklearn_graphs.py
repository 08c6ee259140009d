"""Fitted scikit-learn classifiers as ONNX graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gatewise.errors import InputError, one_line
from gatewise_training.learners.given_models.graph_values import (
    GraphAnswers,
    GraphOfRows,
    Value,
)
from gatewise_training.learners.given_models.packable import Estimator
from gatewise_training.learners.given_models.sklearn_classifiers import classified

if TYPE_CHECKING:
    import onnx


def sklearn_graph(estimator: Estimator, n_features: int, what: str) -> onnx.ModelProto:
    """Convert a fitted classifier: rows in; labels and, if it gives any, probabilities out.

    The rows are one matrix, float32 (n, n_features). Labels are places among the estimator's
    classes, in their order. `what` is its name in the InputError that is raised if it cannot be
    converted.
    """
    graph = GraphOfRows(n_features)
    try:
        answers = classified(estimator, graph.rows)
    except InputError as error:
        raise InputError(f"{what}: {error}; give another classifier, or an ONNX file") from error
    except (AttributeError, TypeError, ValueError, IndexError) as error:
        raise InputError(
            f"{what}: cannot convert {type(estimator).__name__}: {one_line(error)}; give another "
            "classifier, or an ONNX file"
        ) from error
    outputs = {"label": answers.label}
    if hasattr(estimator, "predict_proba"):
        if answers.probabilities is None:
            raise InputError(f"{what}: {type(estimator).__name__} has no exact probabilities")
        outputs["probabilities"] = answers.probabilities
    elif answers.decision is not None:
        outputs["decision"] = _decision_of_label(answers, len(estimator.classes_))
    return graph.model(outputs)


def _decision_of_label(answers: GraphAnswers, n_classes: int) -> Value:
    """Get the decision function with the label's value at least as large as the others.

    Support vector machines break ties of votes differently in their label.
    """
    assert answers.decision is not None
    if n_classes == 2:
        return answers.decision
    is_label = answers.label.reshape([-1, 1]).equals(np.arange(n_classes)[None, :])
    return is_label.where(answers.decision.max(), answers.decision)
