"""Test cascades of two given models: answers are unchanged and the stated figures hold."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import skl2onnx
from onnx import TensorProto, helper
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.ensemble import (
    ExtraTreesClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC

import gatewise as gw
from gatewise.decision import labels, stop_score
from gatewise.errors import InputError
from tests.support.image_models import fit_conv_graph, fit_mlp_graph, load_digit_images
from tests.support.onnx_graphs import graph_of

#: Rows of the digits on which the high-cost model is fitted; the pairs are fitted on the others.
TRAINING = slice(0, 700)
UNSEEN = slice(700, None)


@pytest.fixture(scope="module")
def image_models(make_once) -> tuple[bytes, bytes]:
    images, y = load_digit_images()

    def fit_models(_):
        return (fit_conv_graph(images[:200], y[:200]), fit_mlp_graph(images[TRAINING], y[TRAINING]))

    return make_once("image_models", fit_models)


def run_graph(content: bytes, x: np.ndarray) -> list:
    """Run an ONNX graph with one input; return its outputs."""
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: x})


def make_scores_graph(*nodes, columns=3, dtype=np.float32, **constants) -> bytes:
    """Make an ONNX graph that computes the scores ``out`` from the columns ``v``."""
    element_type = TensorProto.FLOAT if dtype == np.float32 else TensorProto.INT64
    output_spec = ("out", element_type, ["n", columns] if columns else ["n"])
    return graph_of(nodes, ("v", TensorProto.FLOAT, ["n", "k"]), output_spec, **constants)


IDENTITY, SIGMOID = (helper.make_node(kind, ["v"], ["out"]) for kind in ("Identity", "Sigmoid"))
SOFTMAX = helper.make_node("Softmax", ["v"], ["out"], axis=1)


def make_pair(low_cost_model, high_cost_model, /, **settings) -> gw.PairCascade:
    models = {"low_cost_model": low_cost_model, "high_cost_model": high_cost_model}
    return gw.PairCascade(**models | {"random_state": 0} | settings)


@pytest.mark.slow
def test_image_pairs_answer_as_their_graphs(image_models):
    images, _ = load_digit_images()
    low_cost_graph, high_cost_graph = image_models
    pair = make_pair(low_cost_graph, high_cost_graph).fit(images[UNSEEN])
    logits = np.concatenate(
        [run_graph(low_cost_graph, x[None, None].astype(np.float32))[0] for x in images[UNSEEN]]
    )
    flat_images = images[UNSEEN].reshape(-1, 64).astype(np.float32)
    np.testing.assert_array_equal(pair.stages_[0].margins(flat_images), logits)  # bit by bit
    is_offloaded = stop_score(logits) < np.float32(pair.operating_point_.thresholds[0])
    np.testing.assert_array_equal(pair.offload(images[UNSEEN]), is_offloaded)
    expected_labels = np.where(
        is_offloaded, run_graph(high_cost_graph, flat_images)[0], labels(logits)
    )
    np.testing.assert_array_equal(pair.predict(images[UNSEEN]), expected_labels)
    assert 0.0 < is_offloaded.mean() < 0.9  # both models answer rows
    np.testing.assert_array_equal(pair.cost(images[UNSEEN]), 1.0 + is_offloaded)
    assert (pair.instance_.shape, pair.instance_.dtype) == ((8, 8), "uint8")
    assert pair.request_bytes_ < 64 + 100  # one byte per pixel, and less than 100 of the message
    point = pair.operating_point_
    assert point.measured == "agreement"
    assert point.accuracy == point.agreement
    assert point.interval[0] <= point.accuracy <= point.interval[1]
    assert point.nbytes == pair.low_cost_bytes_ > len(low_cost_graph) / 2


@pytest.mark.slow
def test_pairs_measure_accuracy_when_labels_are_given(image_models):
    images, y = load_digit_images()
    pair = make_pair(*image_models, max_loss=0.05, guarantee=0.9).fit(images[UNSEEN], y[UNSEEN])
    assert pair.operating_point_.measured == "accuracy"
    flat_images = images[UNSEEN].reshape(-1, 64).astype(np.float32)
    cloud_accuracy = np.mean(run_graph(image_models[1], flat_images)[0] == y[UNSEEN])
    assert pair.frontier_.reference_accuracy == pytest.approx(cloud_accuracy, abs=0.02)
    # half of the 1,097 unseen rows; the other half tunes the thresholds
    assert pair.operating_point_.guarantee["calibration_rows"] == 549


def test_pairs_refuse_guarantees_of_rare_classes_before_any_model_runs():
    rows = np.random.default_rng(0).normal(size=(100, 4))
    y = (np.arange(100) % 10 == 0).astype(int)
    low_cost_model = LogisticRegression().fit(rows, y)

    def high_cost_model(_rows):
        raise AssertionError("the high-cost model ran")

    pair = make_pair(
        low_cost_model, high_cost_model, classes=[0, 1], max_loss={1: 0.05}, guarantee=0.95
    )
    # 70 is the smallest n for which the paired test certifies the loss if no row is lost
    message = r"max_loss 1=0.05 needs 70 calibration rows of this class, but there are \d;"
    with pytest.raises(InputError, match=message):
        pair.fit(rows, y)


def test_images_of_integers_with_the_channels_last_are_accepted():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 255, (60, 4, 5, 3), dtype=np.uint8)
    nodes = [
        helper.make_node("Cast", ["v"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["f"], ["out"], axes=[2, 3], keepdims=0),
    ]
    mean_graph = graph_of(
        nodes, ("v", TensorProto.UINT8, ["n", 3, 4, 5]), ("out", TensorProto.FLOAT, ["n", 3])
    )
    pair = make_pair(mean_graph, mean_graph).fit(images)
    flat_images = pair.instance_.flat(images)
    np.testing.assert_allclose(
        pair.stages_[0].margins(flat_images), images.mean(axis=(1, 2)), rtol=1e-5
    )
    assert pair.operating_point_.agreement == 1.0
    assert pair.operating_point_.offload_rate == 0.0


# One column has the score of class 1, three columns have one score per class.
@pytest.mark.parametrize(
    ("node", "columns"), [(IDENTITY, 3), (SOFTMAX, 3), (SIGMOID, 1), (IDENTITY, 1)]
)
def test_every_form_of_scores_keeps_labels_and_probabilities(node, columns):
    rows = np.random.default_rng(1).normal(size=(80, columns)).astype(np.float32)
    graph = make_scores_graph(node, columns=columns)
    pair = make_pair(graph, graph).fit(rows)
    margins = (
        rows.astype(np.float64) if columns > 1 else np.hstack([0 * rows, rows]).astype(np.float64)
    )
    expected_probabilities = np.exp(margins) / np.exp(margins).sum(axis=1, keepdims=True)
    for system in (pair, pair.at(budget=1.0)):  # both models
        np.testing.assert_allclose(system.predict_proba(rows), expected_probabilities, atol=1e-6)
        np.testing.assert_array_equal(system.predict(rows), expected_probabilities.argmax(axis=1))
    high_cost_model = pair.high_cost_model_
    np.testing.assert_array_equal(
        high_cost_model.labels(rows), expected_probabilities.argmax(axis=1)
    )
    np.testing.assert_allclose(
        high_cost_model.predict_proba(rows), expected_probabilities, atol=1e-6
    )


@pytest.mark.slow
@pytest.mark.parametrize("class_names", [["c", "a", "b"], [30, 10, 20]])
def test_pairs_match_the_class_names_of_both_models(class_names):
    X, class_indices = load_iris(return_X_y=True)
    x, y = X.astype(np.float32), np.array(class_names)[class_indices]
    model_of_two_columns = LogisticRegression(max_iter=500).fit(X[::2, :2], y[::2])
    low_cost_model = LogisticRegression(max_iter=500).fit(X[::2] * [1, 1, 0, 0], y[::2])
    forest = RandomForestClassifier(20, random_state=0).fit(X[::2], y[::2])
    high_cost_graph = skl2onnx.to_onnx(forest, x[:1]).SerializeToString()
    pair = make_pair(low_cost_model, high_cost_graph).fit(X, y)
    assert pair.classes_.tolist() == sorted(class_names)
    high_cost_labels = run_graph(high_cost_graph, x)[0]
    np.testing.assert_array_equal(
        pair.high_cost_model_.labels(x), np.searchsorted(pair.classes_, high_cost_labels)
    )
    cloud_only = pair.at(offload_rate=1.0)
    is_offloaded = cloud_only.offload(X)
    np.testing.assert_array_equal(
        cloud_only.predict(X)[is_offloaded], high_cost_labels[is_offloaded]
    )
    np.testing.assert_array_equal(
        pair.predict(X)[~is_offloaded], low_cost_model.predict(X)[~is_offloaded]
    )
    # both models must read whole instances
    with pytest.raises(InputError, match="2 features, an instance has 4"):
        make_pair(model_of_two_columns, high_cost_graph).fit(X)


BOOSTED_TREES = HistGradientBoostingClassifier(max_iter=5)


@pytest.mark.parametrize(
    "low_cost_model", [BOOSTED_TREES, RandomForestClassifier(5), LogisticRegression()]
)
@pytest.mark.parametrize("class_names", [["ok", "fault"], ["ok", "warn", "fault"]])
def test_onnx_labels_keep_the_order_of_the_given_class_names(class_names, low_cost_model):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(200, 3)).astype(np.float32)
    y = np.array(class_names)[rows[:, : len(class_names)].argmax(axis=1)]
    weights = np.eye(3, len(class_names), dtype=np.float32)
    graph = graph_of(
        [helper.make_node("MatMul", ["v", "w"], ["out"])],
        ("v", TensorProto.FLOAT, ["n", 3]),
        ("out", TensorProto.FLOAT, ["n", len(class_names)]),
        w=weights,
    )
    pair = make_pair(low_cost_model.fit(rows, y), gw.OnnxModel(graph, classes=class_names)).fit(
        rows, y
    )
    assert pair.classes_.tolist() == sorted(class_names)  # the low-cost model's order
    np.testing.assert_array_equal(
        pair.at(offload_rate=0.0).predict(rows), low_cost_model.predict(rows)
    )
    np.testing.assert_array_equal(
        pair.at(offload_rate=1.0).predict(rows)[pair.offload(rows)], y[pair.offload(rows)]
    )
    with pytest.raises(InputError, match="give classes="):  # sorted labels would be swapped
        make_pair(graph, graph).fit(rows, y)


@pytest.mark.parametrize(("names", "offset"), [([1, 2, 3], 1), ([10, 20, 30], None)])
def test_whole_number_labels_of_a_graph_are_indices_only_if_they_are_no_names(names, offset):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(900, 3)).astype(np.float32)
    rows = rows[rows.argmax(axis=1).argsort(kind="stable")]  # the third class comes last
    class_indices = rows.argmax(axis=1)
    y = np.array(names)[class_indices]
    nodes = [helper.make_node("ArgMax", ["v"], ["index"], axis=1, keepdims=0)]
    nodes += [helper.make_node("Add", ["index", "offset"], ["out"])]
    graph = make_scores_graph(*nodes, columns=0, dtype=np.int64, offset=np.int64([offset or 0]))
    high_cost_model = graph if offset else gw.OnnxModel(graph, classes=names)
    pair = make_pair(LogisticRegression().fit(rows, y), high_cost_model).fit(rows, y)
    np.testing.assert_array_equal(pair.high_cost_model_.labels(rows), class_indices)


class ReversedForest(ExtraTreesClassifier):
    """A forest with another `predict` than scikit-learn's."""

    def predict(self, X):
        return super().predict(X)[::-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "message"),
    [
        (CalibratedClassifierCV(make_pipeline(StandardScaler(), LinearSVC()), cv=2), None),
        (
            GridSearchCV(make_pipeline(StandardScaler(), LinearSVC()), {"linearsvc__C": [0.1, 1]}),
            None,
        ),
        (make_pipeline(StandardScaler(), SVC()), None),
        (ReversedForest(5, random_state=0), "ReversedForest has no form as a graph"),
    ],
    ids=["calibrated", "search", "SVC", "ReversedForest"],
)
def test_scikit_learn_classifiers_keep_their_predictions_or_are_refused(model, message):
    X, y = load_breast_cancer(return_X_y=True)
    X = X[:, :6].astype(np.float32)
    high_cost_model = ExtraTreesClassifier(5, random_state=0).fit(X, y)
    pair = make_pair(model.fit(X, y), high_cost_model)
    if message is not None:
        with pytest.raises(InputError, match=message):
            pair.fit(X)
        return
    edge_only = pair.fit(X).at(offload_rate=0.0)
    np.testing.assert_array_equal(edge_only.predict(X), model.predict(X))
    if hasattr(model, "predict_proba"):
        np.testing.assert_allclose(edge_only.predict_proba(X), model.predict_proba(X), atol=1e-4)


def test_low_cost_models_need_scores_and_high_cost_models_only_labels():
    X, y = load_iris(return_X_y=True)
    x = X.astype(np.float32)
    low_cost_model = LinearSVC(random_state=0).fit(x, y)
    nodes = [
        helper.make_node("Gather", ["v", "c"], ["w"], axis=1),
        helper.make_node("ArgMax", ["w"], ["out"], axis=1, keepdims=0),
    ]
    high_cost_graph = graph_of(
        nodes,
        ("v", TensorProto.FLOAT, ["n", 4]),
        ("out", TensorProto.INT64, ["n"]),
        c=np.array([0, 2, 3]),
    )
    pair = make_pair(low_cost_model, high_cost_graph).fit(X)
    decision_values = low_cost_model.decision_function(x)
    np.testing.assert_allclose(
        pair.stages_[0].margins(x),
        decision_values - decision_values.max(axis=1, keepdims=True),
        atol=1e-5,
    )
    np.testing.assert_array_equal(pair.high_cost_model_.labels(x), x[:, [0, 2, 3]].argmax(axis=1))
    assert set(np.unique(pair.high_cost_model_.predict_proba(x))) == {0.0, 1.0}
    with pytest.raises(InputError, match="gives labels alone"):
        make_pair(high_cost_graph, low_cost_model).fit(X)


def test_a_single_score_column_belongs_to_the_second_named_label():
    rows = np.random.default_rng(2).normal(size=(80, 1)).astype(np.float32)
    low_cost_model = gw.OnnxModel(make_scores_graph(IDENTITY, columns=1), classes=["yes", "no"])
    node = helper.make_node("Neg", ["v"], ["out"])
    high_cost_model = gw.OnnxModel(make_scores_graph(node, columns=1), classes=["no", "yes"])
    pair = make_pair(low_cost_model, high_cost_model).fit(rows)
    expected_labels = np.where(rows[:, 0] > 0, "no", "yes")
    for system in (pair, pair.at(offload_rate=1.0)):
        np.testing.assert_array_equal(system.predict(rows), expected_labels)
    assert pair.operating_point_.agreement == 1.0


@pytest.mark.parametrize(
    ("settings", "shape", "message"),
    [
        ({"low_cost_model": None}, (60, 3), "low_cost_model must be a fitted classifier"),
        ({"low_cost_model": LogisticRegression()}, (60, 3), "cross-validation need FrozenEst"),
        ({"low_cost_model": "nowhere.onnx"}, (60, 3), "file nowhere.onnx does not exist"),
        ({"low_cost_model": b"?"}, (60, 3), "is not a usable ONNX file"),
        ({}, (60, 300, 300), "90000 values; at most 65535"),
        ({}, (30, 3), "30 rows, but a threshold needs at least 40"),
        ({}, (60,), "shape"),
        ({"classes": ["a", "b"]}, (60, 3), "classes must be 3 different labels"),
        ({"low_cost_model": "fixed"}, (60, 3), "free first dimension"),
    ],
)
def test_unusable_pairs_are_refused(settings, shape, message):
    graph = make_scores_graph(IDENTITY)
    if settings.get("low_cost_model") == "fixed":
        nodes = [helper.make_node("Reshape", ["v", "s"], ["out"])]
        settings = {"low_cost_model": make_scores_graph(*nodes, s=np.array([1, 3]))}
    pair = make_pair(graph, graph, **settings)
    with pytest.raises(InputError, match=message):
        pair.fit(np.random.default_rng(0).normal(size=shape).astype(np.float32))


def test_errors_name_unknown_labels():
    graph = make_scores_graph(IDENTITY)
    pair = make_pair(graph, graph, classes=["a", "b", "c"])
    with pytest.raises(InputError, match="the label 'd'"):
        pair.fit(np.zeros((40, 3)), ["a"] * 39 + ["d"])


def test_tables_must_have_the_column_names_and_order_of_the_fit():
    X, y = load_breast_cancer(return_X_y=True)
    table = pd.DataFrame(X[:, :4], columns=list("abcd"))
    low_cost_model, high_cost_model = (
        RandomForestClassifier(n_trees, random_state=0).fit(table[:300], y[:300])
        for n_trees in (3, 9)
    )
    pair = make_pair(low_cost_model, high_cost_model).fit(table[300:], y[300:])
    assert pair.feature_names_ == ("a", "b", "c", "d")
    np.testing.assert_array_equal(pair.predict(table), pair.predict(table.to_numpy()))
    for changed_table in (table[list("dcba")], table.rename(columns={"a": "e"}), table[["a"]]):
        with pytest.raises(InputError, match="feature names should match"):
            pair.predict(changed_table)


@pytest.mark.slow
def test_missing_values_are_allowed_if_both_models_accept_them():
    X, y = load_breast_cancer(return_X_y=True)
    X = np.where(np.random.default_rng(0).random(X[:, :6].shape) < 0.1, np.nan, X[:, :6])
    low_cost_model, high_cost_model = (
        HistGradientBoostingClassifier(max_iter=n_rounds).fit(X[:300], y[:300])
        for n_rounds in (2, 20)
    )
    pair = make_pair(low_cost_model, high_cost_model, allow_missing=True).fit(X[300:], y[300:])
    is_offloaded = pair.offload(X)
    expected_labels = np.where(is_offloaded, high_cost_model.predict(X), low_cost_model.predict(X))
    np.testing.assert_array_equal(pair.predict(X), expected_labels)
    infinite_rows = np.where(X > 20, np.inf, X)
    with pytest.raises(InputError, match="hold NaN"):
        make_pair(low_cost_model, high_cost_model).fit(infinite_rows, y)
    with pytest.raises(InputError, match="hold infinity"):
        pair.fit(infinite_rows, y)
    with pytest.raises(InputError, match=r"y is missing \(NaN or None\) in 1 row: leave"):
        pair.fit(X, [None, *y.tolist()[1:]])


def measure_rate(point, scores, stage_labels, cloud_labels, expected_labels):
    """Measure the share of rows for which the labels at an operating point are as expected."""
    (threshold,) = point.thresholds
    is_stopped = scores >= np.float32(np.inf if threshold is None else threshold)
    return np.mean(np.where(is_stopped, stage_labels, cloud_labels) == expected_labels)


@pytest.mark.slow  # 200 fits
def test_rates_on_unseen_rows_lie_in_the_stated_interval():
    """Check 100 resamplings of recorded outputs for each way to choose a point."""
    images, y = load_digit_images()
    X = images.reshape(len(images), -1).astype(np.float64)
    low_cost_margins = cross_val_predict(
        LogisticRegression(C=0.001, solver="newton-cholesky"), X, y, cv=3,
        method="decision_function",
    )  # fmt: skip
    forest = RandomForestClassifier(30, random_state=0)
    high_cost_probabilities = cross_val_predict(forest, X, y, cv=3, method="predict_proba")
    rows = np.hstack([low_cost_margins, high_cost_probabilities]).astype(np.float32)
    low_cost_graph, high_cost_graph = (
        make_scores_graph(
            helper.make_node("Gather", ["v", "c"], ["out"], axis=1),
            columns=10,
            c=np.arange(first_column, first_column + 10),
        )
        for first_column in (0, 10)
    )
    margins = low_cost_margins.astype(np.float32)
    cloud_labels = high_cost_probabilities.argmax(axis=1)
    scores = stop_score(margins)
    stage_labels = labels(margins)
    goals = ({"max_loss": 0.01}, {"offload_rate": 0.2}, {"max_loss": 0.0}, {"budget": 1.1})
    # whether the rate is inside the interval, by the presence of labels and the goal
    is_inside: dict[tuple[bool, int], list[bool]] = {}
    for seed in range(100):
        row_order = np.random.default_rng(seed).permutation(len(rows))
        validation, unseen = row_order[:300], row_order[300:]
        for has_labels in (False, True):
            pair = make_pair(low_cost_graph, high_cost_graph, random_state=seed)
            pair.fit(rows[validation], y[validation] if has_labels else None)
            for goal_number, goal in enumerate(goals):
                point = pair.at(**goal).operating_point_
                expected_labels = y if has_labels else cloud_labels
                rate = measure_rate(
                    point,
                    *(
                        values[unseen]
                        for values in (scores, stage_labels, cloud_labels, expected_labels)
                    ),
                )
                low_end, high_end = point.interval
                is_inside.setdefault((has_labels, goal_number), []).append(
                    low_end <= rate <= high_end
                )
    coverage = {
        has_labels_and_goal: np.mean(flags) for has_labels_and_goal, flags in is_inside.items()
    }
    # the stated 0.95 less one standard deviation of a share of 100 resamplings, 0.02
    assert min(coverage.values()) >= 0.93, coverage
