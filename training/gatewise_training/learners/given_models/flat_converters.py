"""Converters for skl2onnx of classifiers that it has none for, or an inexact one.

Forests and boosted trees of scikit-learn, LightGBM, XGBoost and CatBoost become flat trees, also
inside a pipeline, a vote or a stack. Its own converter of votes takes neither weights in a list nor
labels of parts without probabilities.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from gatewise.decision import Link
from gatewise.models.tree_attributes import ML_DOMAIN, ML_OPSET, attributes_of
from gatewise_training.learners.given_models.flat_forms import FORESTS, SOURCES, flat_trees
from gatewise_training.learners.given_models.packable import library_name

VOTE = "VotingClassifier"
LDA = "LinearDiscriminantAnalysis"
SVC = "LinearSVC"


@contextmanager
def taught_converters(estimator: Any) -> Iterator[None]:
    """Let skl2onnx use the converters of this module for the parts of an estimator, in a block.

    skl2onnx's own converter of forests breaks ties of votes differently from scikit-learn. The
    block restores it at its end.
    """
    from skl2onnx import update_registered_converter
    from skl2onnx._parse import sklearn_parsers_map
    from skl2onnx._supported_operators import sklearn_operator_name_map
    from skl2onnx.common.shape_calculator import calculate_linear_classifier_output_shapes

    maps = (sklearn_operator_name_map, sklearn_parsers_map)
    saved_maps = [dict(registry) for registry in maps]
    for estimator_type, name in {
        (type(classifier), library_name(classifier)) for classifier in _parts(estimator)
    }:
        convert = (
            _convert_vote if name == VOTE else _convert_linear if name in (LDA, SVC) else _convert
        )
        update_registered_converter(
            estimator_type,
            f"Gatewise{estimator_type.__name__}",
            calculate_linear_classifier_output_shapes,
            convert,
            parser=_parse,
            options={option: [True, False] for option in ("zipmap", "nocl", "raw_scores")},
        )
    try:
        yield
    finally:
        for registry, saved in zip(maps, saved_maps, strict=True):
            registry.clear()
            registry.update(saved)


def _parts(estimator: Any, depth: int = 8) -> list[Any]:
    """Fitted classifiers inside an estimator, itself included, that have a converter here."""
    name = library_name(estimator)
    if name in (*SOURCES, *FORESTS, LDA) or hasattr(estimator, "booster_"):
        return [estimator]
    classifiers: list[Any] = [estimator] if name == VOTE else []
    if name == "Pipeline" and library_name(estimator[-1]) == SVC:
        classifiers.append(estimator[-1])
    for value in vars(estimator).values() if depth else ():
        for entry in value if isinstance(value, list | tuple) else [value]:
            for candidate in entry if isinstance(entry, list | tuple) else [entry]:
                if hasattr(candidate, "get_params") or hasattr(candidate, "calibrators"):
                    classifiers += _parts(candidate, depth - 1)
    return classifiers


def _parse(scope: Any, model: Any, inputs: list[Any], custom_parsers: Any = None) -> list[Any]:
    """Declare the outputs of a classifier that ends a pipeline: labels and probabilities."""
    from skl2onnx.common.data_types import FloatTensorType, Int64TensorType, StringTensorType

    operator = scope.declare_local_operator(f"Gatewise{type(model).__name__}", model)
    operator.inputs = inputs
    words = np.asarray(model.classes_).dtype.kind not in "biuf"
    label = StringTensorType() if words else Int64TensorType()
    operator.outputs.append(scope.declare_local_variable("label", label))
    operator.outputs.append(scope.declare_local_variable("probabilities", FloatTensorType()))
    return list(operator.outputs)


class _Nodes:
    """Nodes and constants of one estimator in a graph that skl2onnx writes."""

    def __init__(self, scope: Any, container: Any) -> None:
        self.scope = scope
        self.container = container

    def fresh(self, name: str) -> str:
        return str(self.scope.get_unique_variable_name(f"gw_{name}"))

    def add(self, kind: str, inputs: list[str], output: str = "", **attributes: Any) -> str:
        output = output or self.fresh(kind.lower())
        name = self.scope.get_unique_operator_name(f"gw_{kind}")
        self.container.add_node(kind, inputs, output, name=name, **attributes)
        return output

    def value(self, kind: int, shape: list[int], values: list[Any]) -> str:
        name = self.fresh("value")
        self.container.add_initializer(name, kind, shape, values)
        return name

    def finish(self, operator: Any, scores: str, indices: str) -> None:
        """Give scores and the labels at their places as the operator's outputs."""
        from skl2onnx.common.data_types import DoubleTensorType

        label, chances = operator.outputs[:2]
        double = isinstance(chances.type, DoubleTensorType)
        kind = TensorProto.DOUBLE if double else TensorProto.FLOAT
        self.add("Cast", [scores], chances.full_name, to=kind)
        classes = np.asarray(operator.raw_operator.classes_)
        nocl = self.scope.get_options(operator.raw_operator, {"nocl": False})["nocl"]
        if nocl or classes.dtype.kind in "biuf":
            numbers = np.arange(len(classes)) if nocl else classes.astype(np.int64)
            class_labels = self.value(TensorProto.INT64, [len(classes)], numbers.tolist())
        else:
            words = [str(c).encode() for c in classes.tolist()]
            class_labels = self.value(TensorProto.STRING, [len(classes)], words)
        self.add("Gather", [class_labels, indices], label.full_name, axis=0)

    def finish_margins(self, operator: Any, margins: str, link: Link) -> None:
        """Give probabilities, or raw scores if they are wanted, and labels of margins."""
        options = self.scope.get_options(operator.raw_operator, {"raw_scores": False})
        model = operator.raw_operator
        # a calibration asks for raw scores, and takes probabilities of a model without them
        raw = hasattr(model, "decision_function") and (
            options["raw_scores"] or not hasattr(model, "predict_proba")
        )
        scores = margins
        if link == "softmax" and not raw:
            scores = self.add("Softmax", [margins], axis=1)
        elif link == "sigmoid":
            positive = margins if raw else self.add("Sigmoid", [margins])
            total = self.value(TensorProto.FLOAT, [1], [0.0 if raw else 1.0])
            scores = self.add("Concat", [self.add("Sub", [total, positive]), positive], axis=1)
        self.finish(operator, scores, self.add("ArgMax", [scores], axis=1, keepdims=0))


def _convert(scope: Any, operator: Any, container: Any) -> None:
    """Write a forest or a boosted classifier: margins, probabilities, labels."""
    nodes = _Nodes(scope, container)
    estimator = operator.raw_operator
    form = flat_trees(estimator)
    assert form is not None
    trees, link = form
    rows = nodes.add("Cast", [operator.inputs[0].full_name], to=TensorProto.FLOAT)
    margins = nodes.fresh("margins")
    name = scope.get_unique_operator_name("gw_trees")
    node = helper.make_node(
        "TreeEnsembleRegressor", [rows], [margins], name, domain=ML_DOMAIN, **attributes_of(trees)
    )
    container.nodes.append(node)
    container.node_domain_version_pair_sets.add((node.domain, ML_OPSET))
    nodes.finish_margins(operator, margins, link)


def _convert_linear(scope: Any, operator: Any, container: Any) -> None:
    """Write a linear classifier.

    skl2onnx takes the sigmoid of twice the margin of a discriminant, and refuses LinearSVC at the
    end of a pipeline.
    """
    nodes = _Nodes(scope, container)
    model = operator.raw_operator
    weights = np.asarray(model.coef_, np.float32)
    weights_node = nodes.value(TensorProto.FLOAT, list(weights.T.shape), weights.T.ravel().tolist())
    bias = nodes.value(TensorProto.FLOAT, [len(weights)], model.intercept_.tolist())
    rows = nodes.add("Cast", [operator.inputs[0].full_name], to=TensorProto.FLOAT)
    margins = nodes.add("Add", [nodes.add("MatMul", [rows, weights_node]), bias])
    link: Link = "sigmoid" if len(weights) == 1 else "softmax"
    nodes.finish_margins(operator, margins, link)


def _convert_vote(scope: Any, operator: Any, container: Any) -> None:
    """Write a VotingClassifier: weighted probabilities of its parts, or votes by their labels."""
    from skl2onnx._supported_operators import sklearn_operator_name_map
    from skl2onnx.common.data_types import FloatTensorType, Int64TensorType

    nodes = _Nodes(scope, container)
    vote = operator.raw_operator
    n_classes = len(vote.classes_)
    weights = np.ones(len(vote.estimators_))
    if vote.weights is not None:
        is_voting = [not (isinstance(e, str) and e == "drop") for _, e in vote.estimators]
        weights = np.asarray(vote.weights, np.float64)[is_voting]
    class_indices = nodes.value(TensorProto.INT64, [1, n_classes], list(range(n_classes)))
    column = nodes.value(TensorProto.INT64, [2], [-1, 1])
    # probability, or vote, of each part times its weight
    shares = []
    for voter, weight in zip(vote.estimators_, weights / weights.sum(), strict=True):
        inner = scope.declare_local_operator(sklearn_operator_name_map[type(voter)], voter)
        inner.inputs = operator.inputs
        labels = scope.declare_local_variable("gw_label", Int64TensorType())
        chances = scope.declare_local_variable("gw_chances", FloatTensorType())
        inner.outputs.append(labels)
        inner.outputs.append(chances)
        share = chances.onnx_name
        if vote.voting == "hard":  # parts learn places of classes, not labels
            votes = nodes.add("Cast", [labels.onnx_name], to=TensorProto.INT64)
            votes = nodes.add("Reshape", [votes, column])
            share = nodes.add("Equal", [votes, class_indices])
        share = nodes.add("Cast", [share], to=TensorProto.FLOAT)
        factor = nodes.value(TensorProto.FLOAT, [1], [float(np.float32(weight))])
        shares.append(nodes.add("Mul", [share, factor]))
    total = nodes.add("Sum", shares)
    nodes.finish(operator, total, nodes.add("ArgMax", [total], axis=1, keepdims=0))
