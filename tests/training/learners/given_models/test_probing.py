"""Probing of converted scikit-learn models, which finds errors on rows that samples lack."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    Binarizer,
    KBinsDiscretizer,
    Normalizer,
    OneHotEncoder,
    StandardScaler,
)
from sklearn.svm import SVC, LinearSVC
from sklearn.tree import DecisionTreeClassifier

from gatewise.errors import InputError
from gatewise.models.trees import TreeEnsemble
from gatewise_training.learners.given_models import given_classifiers, sklearn_transformers
from gatewise_training.learners.given_models.given_classifiers import GivenClassifier
from gatewise_training.learners.given_models.graph_values import Value, hstack
from gatewise_training.learners.given_models.probing import Answers, probe
from gatewise_training.learners.high_cost_model import HighCostModel

Rows = NDArray[np.float32]


def load_scaled_table(
    *, has_whole_numbers: bool = False, has_missing: bool = False
) -> tuple[Rows, NDArray[np.int64]]:
    X, y = load_breast_cancer(return_X_y=True)
    x = ((X[:, :4] - X[:, :4].min(axis=0)) / np.ptp(X[:, :4], axis=0)).astype(np.float32)
    if has_whole_numbers:
        x = np.round(4 * x)
    if has_missing:
        x[np.random.default_rng(0).random(x.shape) < 0.2] = np.nan
    return x, y


def probe_model(model: Any, x: Rows, *, has_missing: bool = False) -> GivenClassifier:
    sample = x[~np.isnan(x).any(axis=1)][:32]
    return GivenClassifier.read_and_compare(model, sample, (4,), "model", allow_missing=has_missing)


def lower_thresholds(trees: TreeEnsemble) -> TreeEnsemble:
    """Send values that equal a threshold to the right child, as ``<`` instead of ``<=`` does."""
    return replace(trees, threshold=np.nextafter(trees.threshold, np.float32(-np.inf)))


@pytest.mark.parametrize(
    "corrupt",
    [lower_thresholds, lambda trees: replace(trees, nan_left=~trees.nan_left)],
    ids=["threshold", "missing values"],
)
def test_trees_that_send_a_value_to_the_wrong_child_are_found(
    corrupt: Callable[[TreeEnsemble], TreeEnsemble], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = load_scaled_table(has_missing=True)
    model = DecisionTreeClassifier(random_state=0).fit(x, y)
    probe_model(model, x, has_missing=True)
    original_flat_trees = given_classifiers.flat_trees

    def corrupted_flat_trees(estimator: Any) -> Any:
        trees, link = original_flat_trees(estimator)
        return corrupt(trees), link

    monkeypatch.setattr(given_classifiers, "flat_trees", corrupted_flat_trees)
    with pytest.raises(InputError, match=r"of \d+ probed rows differently; of the kind"):
        probe_model(model, x, has_missing=True)


@pytest.mark.parametrize("extra_weight", [0.0, 1e-9])
def test_only_ties_may_be_answered_otherwise(extra_weight: float) -> None:
    # rows with x = 0 are in a leaf with one row of each class, whose weights are equal or not
    x = np.array([[0.0], [0.0], [1.0]], np.float32)
    y = np.array([0, 1, 1])
    tree = DecisionTreeClassifier().fit(x, y, sample_weight=[1 + extra_weight, 1.0, 5.0])
    source = HighCostModel.from_model(tree, tree.classes_, 1)
    assert source.labels(x[:1]).tolist() == [0]

    def answer_ties_with_the_last_class(rows: Rows) -> Answers:
        labels, probabilities = source.answers(rows)
        return np.where(probabilities[:, 1] > 0.49, 1, labels), probabilities

    if extra_weight:
        with pytest.raises(InputError, match="as class 1 instead of 0"):
            probe(tree, source, answer_ties_with_the_last_class, x, "model")
    else:
        figures = probe(tree, source, answer_ties_with_the_last_class, x, "model")
        assert figures.undecided > 0


def encode_truncated(model: Any, x: Value) -> Value:
    """Compare categories with truncated values, as many converters do."""
    truncated_values = x.astype(np.int64).astype(np.float32)
    columns = [
        truncated_values.columns([k]).equals(categories[None, :])
        for k, categories in enumerate(model.categories_)
    ]
    return hstack(columns).astype(np.float64)


def bin_right_closed(model: Any, x: Value) -> Value:
    """Put values that equal an edge into the bin below the edge."""
    columns = []
    for k, edges in enumerate(model.bin_edges_):
        columns.append((x.columns([k]).double() > edges[None, 1:-1]).astype(np.float32).sum())
    return hstack(columns)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("transformer", "wrong_writer"),
    [
        (Normalizer("max"), lambda model, x: x / x.max()),
        (Binarizer(threshold=0.25), lambda model, x: (x >= model.threshold).astype(x.dtype)),
        (OneHotEncoder(handle_unknown="ignore"), encode_truncated),
        (KBinsDiscretizer(4, encode="ordinal"), bin_right_closed),
    ],
    ids=["Normalizer", "Binarizer", "OneHotEncoder", "KBinsDiscretizer"],
)
def test_transformers_that_differ_only_outside_the_sample_are_found(
    transformer: Any, wrong_writer: Callable[[Any, Value], Value], monkeypatch: pytest.MonkeyPatch
) -> None:
    transformer_name = type(transformer).__name__
    x, y = load_scaled_table(has_whole_numbers=transformer_name == "OneHotEncoder")
    model = make_pipeline(transformer, DecisionTreeClassifier(random_state=0)).fit(x + 0, y)
    probe_model(model, x)
    monkeypatch.setitem(sklearn_transformers.TRANSFORMER_WRITERS, transformer_name, wrong_writer)
    with pytest.raises(InputError, match=r"probed rows differently.* the row \[.*: give another"):
        probe_model(model, x)


def test_differences_within_rounding_are_accepted() -> None:
    x, y = load_scaled_table()
    probe_model(LogisticRegression().fit(x, y), x)  # a fit to float32 rows has float32 coefficients


STAGE_MODELS = [
    make_pipeline(StandardScaler(), LogisticRegression()),
    make_pipeline(StandardScaler(), LinearSVC()),
    make_pipeline(StandardScaler(), SVC()),
    GaussianNB(),
    RandomForestClassifier(30, min_samples_leaf=3, random_state=0),
    HistGradientBoostingClassifier(max_iter=20),
]


@pytest.mark.slow
@pytest.mark.parametrize("model", STAGE_MODELS, ids=lambda model: type(model).__name__)
def test_supported_models_pass_on_many_probed_rows(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(given_classifiers, "N_FIT_PROBE_ROWS", 10_000)
    x, y = load_scaled_table()
    probe_model(model.fit(x.astype(np.float64), y), x)
    y += (x[:, 1] > 0.35).astype(int)  # adds a third class
    model.fit(x, y)
    probe_model(model, x)
    GivenClassifier.read_and_compare(model, x, (4,), "model", as_stage=False)
