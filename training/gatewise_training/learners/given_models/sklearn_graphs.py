"""Conversion of fitted scikit-learn classifiers to ONNX graphs.

A graph has the input "x" and the outputs "label" and, if the classifier has them, "probabilities".
Without probabilities, it may have "decision". The converters of this project write all parts that
they know; skl2onnx converts a classifier with a part that only it knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gatewise.errors import InputError, one_line
from gatewise.models.tree_attributes import ML_DOMAIN, ML_OPSET, OPSET
from gatewise_training.learners.given_models.graph_values import GraphAnswers, GraphOfRows, Value
from gatewise_training.learners.given_models.packable import STAGE_ADVICE, Estimator, needs_skl2onnx
from gatewise_training.learners.given_models.sklearn_classifiers import write_classifier

if TYPE_CHECKING:
    import onnx


def sklearn_graph(estimator: Estimator, n_features: int, model_name: str) -> onnx.ModelProto:
    """Convert a fitted classifier to a graph from rows to labels and probabilities.

    The rows are a matrix, float32 (n, n_features). Labels are indices into the estimator's classes.
    There are no probabilities if the estimator has none. If the conversion is impossible, an
    InputError is raised with the name `model_name`.
    """
    class_name = type(estimator).__name__
    if needs_skl2onnx(estimator):
        try:
            return _convert_by_library(estimator, n_features)
        except Exception as error:  # skl2onnx raises various types
            reason = one_line(error)
            raise InputError(
                f"{model_name}: skl2onnx cannot convert {class_name}: {reason}; {STAGE_ADVICE}"
            ) from error
    graph = GraphOfRows(n_features)
    try:
        answers = write_classifier(estimator, graph.rows)
    except InputError as error:
        raise InputError(f"{model_name}: {error}; {STAGE_ADVICE}") from error
    # the converters read attributes of fitted estimators, which an unusual setting or another
    # version of scikit-learn may lack or give another type or shape
    except (AttributeError, TypeError, ValueError, IndexError) as error:
        raise InputError(
            f"{model_name}: cannot convert {class_name}: {one_line(error)}; {STAGE_ADVICE}"
        ) from error
    outputs = {"label": answers.label}
    if hasattr(estimator, "predict_proba"):
        if answers.probabilities is None:
            raise InputError(
                f"{model_name}: {class_name} has no exact probabilities; {STAGE_ADVICE}"
            )
        outputs["probabilities"] = answers.probabilities
    elif answers.decision is not None:
        outputs["decision"] = _raise_decision_of_label(answers, len(estimator.classes_))
    return graph.model(outputs)


def _convert_by_library(estimator: Estimator, n_features: int) -> onnx.ModelProto:
    """Convert with skl2onnx, and replace its labels by indices into the classes.

    skl2onnx makes labels its first output, and probabilities or decisions its second.
    """
    import skl2onnx
    from onnx import TensorProto, compose, helper
    from skl2onnx.common.data_types import FloatTensorType

    has_probabilities = hasattr(estimator, "predict_proba")
    converted_model = skl2onnx.to_onnx(
        estimator,
        initial_types=[("x", FloatTensorType([None, n_features]))],
        options={id(estimator): {"zipmap": False}} if has_probabilities else None,
        target_opset={"": OPSET, ML_DOMAIN: ML_OPSET},
    )
    # with a prefix, no name of skl2onnx can equal the names of the outputs that are added below
    model: onnx.ModelProto = compose.add_prefix(converted_model, "skl_", rename_inputs=False)
    graph = model.graph
    label_name, *score_names = [output.name for output in graph.output]
    classes = estimator.classes_.tolist()
    keys_attribute = "keys_strings"
    if not isinstance(classes[0], str):  # skl2onnx writes booleans and floats as whole numbers
        keys_attribute = "keys_int64s"
        classes = [int(label) for label in classes]
    index_of_class: dict[str, Any] = {
        keys_attribute: classes,
        "values_int64s": range(len(classes)),
    }
    graph.node.append(
        helper.make_node(
            "LabelEncoder", [label_name], ["label"], domain=ML_DOMAIN, **index_of_class
        )
    )
    # declare both domains again, because skl2onnx omits a domain that it does not use, and the
    # LabelEncoder needs ML_DOMAIN
    del graph.output[:], model.opset_import[:]
    model.opset_import.extend(
        [helper.make_opsetid("", OPSET), helper.make_opsetid(ML_DOMAIN, ML_OPSET)]
    )
    graph.output.append(helper.make_tensor_value_info("label", TensorProto.INT64, ["n"]))
    if has_probabilities:
        graph.node.append(helper.make_node("Identity", score_names[:1], ["probabilities"]))
        probability_shape: list[str | int | None] = ["n", len(classes)]
        graph.output.append(
            helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, probability_shape)
        )
    return model


def _raise_decision_of_label(answers: GraphAnswers, n_classes: int) -> Value:
    """Get the decision function, in which the label gets the largest value of its row.

    The labels of support vector machines break ties of votes differently from the decision
    function. After the change, both name the same class, or the label shares the largest value.
    """
    assert answers.decision is not None
    if n_classes == 2:  # one column; its sign gives the label
        return answers.decision
    is_label = answers.label.reshape([-1, 1]).equals(np.arange(n_classes)[None, :])
    return is_label.where(answers.decision.max(), answers.decision)
