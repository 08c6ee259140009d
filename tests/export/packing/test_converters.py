"""Converted high-cost models answer as scikit-learn does, for many kinds of models and labels."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import lightgbm
import numpy as np
import onnx
import onnxruntime
import pandas as pd
import pytest
import skl2onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestClassifier, VotingClassifier
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.neighbors import NearestCentroid
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC

from gatewise import decision
from gatewise.errors import InputError
from gatewise_export.bundle.errors import ConversionError
from gatewise_export.packing.converters import CloudFile, convert_to_graph
from gatewise_training.learners.given_models.given_graph import OnnxModel
from gatewise_training.learners.high_cost_model import HighCostModel
from tests.support.onnx_graphs import edit_graph, tensor

STRING = TensorProto.STRING
_IRIS, SPECIES = load_iris(return_X_y=True)
ROWS: NDArray[np.float32] = _IRIS.astype(np.float32)

#: One estimator for each way of conversion; test_packable.py probes all listed estimators.
ESTIMATORS: dict[str, Callable[[], Any]] = {
    "logistic pipeline": lambda: make_pipeline(StandardScaler(), LogisticRegression()),
    "random forest": lambda: RandomForestClassifier(20, random_state=0),
    "vote of labels": lambda: VotingClassifier(
        [("a", SVC()), ("b", RidgeClassifier()), ("c", RandomForestClassifier(5, random_state=0))]
    ),
}

#: Labels of the rows and all classes; without classes, those of the labels are meant.
LABEL_CASES: dict[str, tuple[NDArray[Any], NDArray[Any]]] = {
    "indices": (SPECIES, np.arange(3)),
    "whole numbers": (SPECIES * 3 + 5, np.array([5, 8, 11])),
    "text": (np.array(["setosa", "versicolor", "virginica"])[SPECIES], np.array([])),
    "floats": (SPECIES * 1.0, np.array([])),
    "true and false": (SPECIES > 0, np.array([])),
    "two words": (np.array(["no", "yes"])[(SPECIES == 1) * 1], np.array([])),
    "some of six": (SPECIES * 2, np.arange(6)),
    "two of three words": (np.array(["a", "c"])[(SPECIES > 1) * 1], np.array(["a", "b", "c"])),
}


def fit_quietly(estimator: Any, y: NDArray[Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the fits need not converge
        return estimator.fit(ROWS, y)


def run_graph(graph: CloudFile, rows: NDArray[np.float32]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Run the graph of a cloud; return labels and probabilities."""
    session = onnxruntime.InferenceSession(graph.content)
    assert [graph_input.name for graph_input in session.get_inputs()] == ["x"]
    output_names = [graph_output.name for graph_output in session.get_outputs()]
    outputs = session.run(None, {"x": rows})
    if graph.kind == "margins":
        assert output_names == ["margins"]
        return decision.labels(outputs[0]), decision.probabilities(outputs[0], graph.link)
    assert output_names == ["label", "probabilities"]
    assert outputs[0].dtype == np.int64
    assert outputs[1].dtype == np.float32
    return outputs[0], outputs[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("label_case", LABEL_CASES)
def test_the_graph_answers_as_the_estimator(name: str, label_case: str) -> None:
    y, classes = LABEL_CASES[label_case]
    f0 = HighCostModel.from_model(
        fit_quietly(ESTIMATORS[name](), y), classes if len(classes) else np.unique(y), ROWS.shape[1]
    )
    graph = convert_to_graph(f0)
    graph_labels, probabilities = run_graph(graph, ROWS)
    assert graph_labels.tolist() == f0.labels(ROWS).tolist()
    expected_probabilities = f0.predict_proba(ROWS)
    assert probabilities.shape == expected_probabilities.shape == (len(ROWS), f0.n_classes)
    # float32 compared with float64, through a sigmoid or a kernel
    assert np.abs(probabilities - expected_probabilities).max() < 1e-5
    label_of_row, _ = run_graph(graph, ROWS[:1])
    assert label_of_row.tolist() == graph_labels[:1].tolist()
    model = onnx.load_model_from_string(graph.content)
    if name == "random forest":  # trees are converted to flat arrays
        assert graph.kind == "margins"
        assert [node.op_type for node in model.graph.node] == ["TreeEnsembleRegressor"]
    # Operator sets stay old, and the same estimator gives the same bytes.
    versions = {opset.domain: opset.version for opset in model.opset_import}
    assert versions[""] <= 17
    assert versions.get("ai.onnx.ml", 1) <= 3
    if label_case == "text":
        assert convert_to_graph(f0).content == graph.content


def test_columns_of_the_sample_are_found_by_name() -> None:
    rng = np.random.default_rng(0)
    table = pd.DataFrame(ROWS, columns=["a width", "b", "c", "d"])
    table["kind"] = rng.integers(0, 4, len(table)).astype(np.float32)
    encoder = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), ["kind"]),
        (StandardScaler(), ["d", "b"]),
        remainder="passthrough",
    )
    pipeline = make_pipeline(encoder, RandomForestClassifier(15, random_state=0))
    f0 = HighCostModel.from_model(
        pipeline.fit(table, SPECIES), np.arange(3), 5, list(table.columns)
    )
    rows = table.to_numpy(np.float32)
    rows[:5, 4] = 9  # a category that training did not have
    graph_labels, _ = run_graph(convert_to_graph(f0), rows)
    assert graph_labels.tolist() == f0.labels(rows).tolist()


# -- models without a graph ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("estimator", "fit_options", "message"),
    [
        (NearestCentroid(), {}, "NearestCentroid has no form.*ONNX file"),
        (lightgbm.LGBMClassifier(n_estimators=3, verbose=-1, sigmoid=2.0), {}, "no exact form"),
        (
            lightgbm.LGBMClassifier(n_estimators=3, verbose=-1, objective="multiclassova"),
            {},
            "no exact form",
        ),
        (
            lightgbm.LGBMClassifier(n_estimators=3, verbose=-1, min_data_per_group=1),
            {"categorical_feature": [0]},
            "categorical",
        ),
    ],
)
def test_models_without_a_graph_are_refused_in_one_line(
    estimator: Any, fit_options: dict[str, Any], message: str
) -> None:
    # The first column holds categories. There are three classes, or two of them as one.
    X = np.column_stack([np.arange(150) % 7, ROWS[:, 0]]).astype(np.float32)
    y = X[:, 0].astype(int) % 3
    if estimator.get_params().get("objective") != "multiclassova":
        y = (y == 1).astype(int)
    estimator.fit(X, y, **fit_options)
    with pytest.raises(ConversionError, match=message) as error_info:
        convert_to_graph(HighCostModel.from_model(estimator, np.unique(y), 2))
    assert "\n" not in str(error_info.value)


# -- a given ONNX file ---------------------------------------------------------------------


def export_pipeline(y: NDArray[Any], **options: Any) -> onnx.ModelProto:
    estimator = fit_quietly(make_pipeline(StandardScaler(), LogisticRegression()), y)
    settings = {"zipmap": False} | options
    model: onnx.ModelProto = skl2onnx.to_onnx(
        estimator,
        ROWS[:1],
        target_opset={"": 17, "ai.onnx.ml": 3},
        options={id(estimator): settings},
    )
    return model


def test_a_given_graph_outputs_positions_or_the_labels_of_its_metadata() -> None:
    for y, classes, has_metadata in (
        (SPECIES, np.arange(3), False),
        *(
            (*LABEL_CASES[name], True)
            for name in ("whole numbers", "text", "some of six", "two words")
        ),
    ):
        model = export_pipeline(y)
        if has_metadata:
            helper.set_model_props(model, {"classes": json.dumps(np.unique(y).tolist())})
        classes = classes if len(classes) else np.unique(y)
        f0 = HighCostModel.from_model(model.SerializeToString(), classes, 4)
        graph_labels, probabilities = run_graph(convert_to_graph(f0), ROWS)
        assert graph_labels.tolist() == f0.labels(ROWS).tolist()
        np.testing.assert_array_equal(probabilities.astype(np.float64), f0.predict_proba(ROWS))
    model = export_pipeline(SPECIES)
    # the labels 0, 1 and 2 are positions, because they are not names
    helper.set_model_props(model, {"classes": "[0.5, 1.0, 1.5]"})
    f0 = HighCostModel.from_model(model.SerializeToString(), np.array([0.5, 1.0, 1.5]), 4)
    assert f0.labels(ROWS).tolist() == run_graph(convert_to_graph(f0), ROWS)[0].tolist()
    assert set(f0.labels(ROWS).tolist()) == {0, 1, 2}


def make_given_graph(form: str) -> tuple[OnnxModel, NDArray[Any]]:
    """Make a graph with other outputs than skl2onnx's, and the labels that it outputs."""
    species_names = np.array(["setosa", "versicolor", "virginica"])
    if form == "tables":
        return OnnxModel(
            export_pipeline(species_names[SPECIES], zipmap=True).SerializeToString()
        ), species_names
    weights = np.array([[1, 0, -1], [2, 1, -1], [-2, 0, 2], [-1, 0, 3]], np.float32)
    is_binary = form.startswith("one column")
    nodes = [
        helper.make_node("Flatten", ["image"], ["row"]),
        helper.make_node("MatMul", ["row", "weights"], ["logits"]),
        helper.make_node("Sigmoid" if is_binary else "Softmax", ["logits"], ["probabilities"]),
    ]
    output = "probabilities" if form.endswith("probabilities") else "logits"
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 1, 2, 2])],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, ["n", 1 if is_binary else 3])],
        [numpy_helper.from_array(weights[:, 2:] if is_binary else weights, "weights")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    # The network's columns are not in the order of the sorted labels.
    class_names = ["no", "yes"][::-1] if is_binary else species_names[[2, 0, 1]].tolist()
    return OnnxModel(model.SerializeToString(), classes=class_names), np.unique(class_names)


@pytest.mark.parametrize(
    "form",
    ["tables", "logits", "probabilities", "one column of logits", "one column of probabilities"],
)
def test_given_graphs_of_all_forms_answer_as_their_source(form: str) -> None:
    model, classes = make_given_graph(form)
    f0 = HighCostModel.from_model(model, classes, 4)
    expected_labels, expected_probabilities = f0.answers(ROWS)
    labels, probabilities = run_graph(convert_to_graph(f0), ROWS)
    assert labels.tolist() == expected_labels.tolist()
    assert len(set(labels.tolist())) > 1
    # float32 compared with float64
    assert np.abs(probabilities - expected_probabilities).max() < 1e-6
    assert np.abs(expected_probabilities.sum(axis=1) - 1).max() < 1e-6
    np.testing.assert_array_equal(expected_probabilities.argmax(axis=1), expected_labels)
    if form == "tables":
        pipeline = fit_quietly(
            make_pipeline(StandardScaler(), LogisticRegression()), classes[SPECIES]
        )
        assert classes[expected_labels].tolist() == pipeline.predict(ROWS).tolist()


def test_a_graph_without_scores_gives_probabilities_of_0_and_1() -> None:
    model = export_pipeline(SPECIES)
    del model.graph.output[1:]
    f0 = HighCostModel.from_model(model.SerializeToString(), np.arange(3), 4)
    labels, probabilities = run_graph(convert_to_graph(f0), ROWS)
    assert labels.tolist() == f0.labels(ROWS).tolist()
    np.testing.assert_array_equal(probabilities, f0.predict_proba(ROWS))


def add_external_data(model: onnx.ModelProto) -> None:
    weights = numpy_helper.from_array(np.zeros(3, np.float32), "weights")
    weights.ClearField("raw_data")
    weights.data_location = TensorProto.EXTERNAL
    weights.external_data.add(key="location", value="/etc/passwd")
    model.graph.initializer.append(weights)


INVALID_GRAPHS: list[tuple[Callable[[onnx.ModelProto], object], str]] = [
    (add_external_data, "in another file"),
    (
        lambda model: model.opset_import.append(helper.make_opsetid("com.evil", 1)),
        "com.evil",
    ),
    (lambda model: model.graph.ClearField("output"), "At least one output"),
    (lambda model: model.graph.node.pop(), "not a usable ONNX file"),
    (
        lambda model: model.graph.input[0].CopyFrom(
            tensor(model.graph.input[0].name, STRING, "n", 4)
        ),
        "input must be numbers, not STRING",
    ),
]


@pytest.mark.parametrize(("edit", "message"), INVALID_GRAPHS)
def test_malformed_given_graphs_are_refused(
    edit: Callable[[onnx.ModelProto], object], message: str
) -> None:
    content = edit_graph(export_pipeline(SPECIES).SerializeToString(), edit)
    with pytest.raises(InputError, match=message):
        HighCostModel.from_model(content, np.arange(3), 4)


@pytest.mark.parametrize(
    ("change", "n_columns", "message"),
    [
        ({"classes": ["a", "b"]}, 4, "gives scores of 3 classes; 2 names are given"),
        ({"classes": ["a", "b", "c"]}, 4, "has class 'a', which the data lacks"),
        ({"scores": "labels"}, 4, "must give labels"),
        ({"source": "no-such.onnx"}, 4, "does not exist"),
        ({"source": b"\xff\xff\xff"}, 4, "not a usable ONNX file"),
        ({}, 6, r"the rows have \(6,\)"),
    ],
)
def test_given_graphs_that_do_not_fit_the_data_are_refused(
    change: dict[str, Any], n_columns: int, message: str
) -> None:
    model, classes = make_given_graph("logits")
    with pytest.raises(InputError, match=message):
        HighCostModel.from_model(replace(model, **change), classes, n_columns)
