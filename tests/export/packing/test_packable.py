"""What is listed as packable is converted and decides as the estimator; what is not is refused."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_breast_cancer
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.ensemble import StackingClassifier, VotingClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, KBinsDiscretizer, StandardScaler
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils import all_estimators
from sklearn.utils._test_common.instance_generator import _construct_instances

from gatewise.errors import InputError
from gatewise_export.packing.converters import high_cost_graph
from gatewise_export.packing.verification import run_cloud
from gatewise_training.learners.given_models.packable import (
    CLASSIFIERS,
    TRANSFORMERS,
    check_packable,
)
from gatewise_training.learners.high_cost_model import HighCostModel

LIBRARIES = {"LGBMClassifier", "XGBClassifier", "XGBRFClassifier", "CatBoostClassifier"}
MADE = {
    "Pipeline": lambda: Pipeline([("a", StandardScaler()), ("b", LogisticRegression())]),
    "VotingClassifier": lambda: VotingClassifier([("a", LogisticRegression())], weights=[2]),
    "StackingClassifier": lambda: StackingClassifier(
        [("a", LogisticRegression()), ("b", DecisionTreeClassifier(max_depth=3))], cv=2
    ),
    "FeatureUnion": lambda: FeatureUnion([("a", StandardScaler())]),
    "ColumnTransformer": lambda: make_column_transformer((StandardScaler(), [0, 2])),
    "GridSearchCV": lambda: GridSearchCV(LogisticRegression(), {"C": [0.1, 1.0]}, cv=2),
    "RandomizedSearchCV": lambda: RandomizedSearchCV(
        LogisticRegression(), {"C": [0.1, 1.0]}, n_iter=2, cv=2
    ),
    "QuadraticDiscriminantAnalysis": lambda: QuadraticDiscriminantAnalysis(reg_param=0.1),
    "FrozenEstimator": lambda: FrozenEstimator(LogisticRegression().fit(*table())),
    "KBinsDiscretizer": lambda: KBinsDiscretizer(4, encode="ordinal"),
    "FunctionTransformer": FunctionTransformer,
}
"""Where the instances of scikit-learn's own tests are of no use here."""


def instance(name):
    if name in MADE:
        return MADE[name]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of a class that is about to go
        return next(iter(_construct_instances(dict(all_estimators())[name])))


def whole_numbers(X):
    return np.round(4 * X).clip(0, 7).astype(np.float32)


def agree(model, X, y):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, y)
    f0 = HighCostModel.given(model, np.unique(y), X.shape[1])
    graph = high_cost_graph(f0)
    content = graph.content
    found, chances = run_cloud(content, X, graph.kind, graph.link)
    np.testing.assert_array_equal(found, f0.labels(X))
    np.testing.assert_allclose(chances, f0.predict_proba(X), atol=1e-4)


def table():
    X, y = load_breast_cancer(return_X_y=True)
    X, y = X[::3, :6], y[::3]
    return ((X - X.min(axis=0)) / np.ptp(X, axis=0)).astype(np.float32), y


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(CLASSIFIERS - LIBRARIES))
def test_listed_classifiers_are_converted(name):
    X, y = table()
    model = instance(name)
    check_packable(model)
    agree(model, X, y)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(TRANSFORMERS))
def test_listed_transformers_are_converted_in_a_pipeline(name):
    X, y = table()
    X = whole_numbers(X) if name in ("OneHotEncoder", "OrdinalEncoder") else X
    pipeline = make_pipeline(instance(name), LogisticRegression(max_iter=300))
    check_packable(pipeline)
    agree(pipeline, X, y)


@pytest.mark.parametrize("kind", ["classifier", "transformer"])
def test_all_others_of_scikit_learn_are_refused(kind):
    listed = CLASSIFIERS if kind == "classifier" else TRANSFORMERS
    strange = {"ClassifierChain", "MultiOutputClassifier"}  # of several labels a row
    others = [(n, c) for n, c in all_estimators(kind) if n not in listed | CLASSIFIERS | strange]
    assert len(others) > 8
    for name, made in others:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            one = next(iter(_construct_instances(made)))
        model = one if kind == "classifier" else Pipeline([("a", one), ("b", LogisticRegression())])
        with pytest.raises(InputError, match=f"{name}.*no form that a worker runs"):
            check_packable(model)
