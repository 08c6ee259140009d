"""Given classifiers as stages, which are refused before the fit if they have no exact form."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_digits, load_wine
from sklearn.ensemble import (
    AdaBoostClassifier,
    HistGradientBoostingClassifier,
    StackingClassifier,
    VotingClassifier,
)
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier

from gatewise.decision import probabilities
from gatewise.errors import InputError
from gatewise_training.data.validation_split import ValidationSplit
from gatewise_training.learners.given_models.given_classifiers import (
    GivenClassifier,
    check_first_stages,
    given_stages,
)
from gatewise_training.learners.high_cost_model import HighCostModel


@pytest.mark.filterwarnings("ignore:The `probability` parameter:FutureWarning")
@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (KNeighborsClassifier(), "KNeighborsClassifier: neighbours at equal distances"),
        (AdaBoostClassifier(), "AdaBoostClassifier: its votes have no exact form"),
        (
            make_pipeline(StandardScaler(), KNeighborsClassifier()),
            r"KNeighborsClassifier \(in Pipeline\): neighbours",
        ),
        (
            make_pipeline(PolynomialFeatures(), HistGradientBoostingClassifier(max_iter=2)),
            r"HistGradientBoostingClassifier \(in Pipeline\): skl2onnx cannot convert it",
        ),
        (SVC(probability=True), "SVC: probability=True has no exact form"),
        (
            VotingClassifier([("svm", SVC(probability=True))]),
            r"SVC \(in VotingClassifier\): probability=True",
        ),
    ],
)
@pytest.mark.parametrize("has_columns", [False, True])
def test_stages_without_an_exact_form_are_refused_before_the_fit(model, reason, has_columns):
    X, y = load_wine(return_X_y=True)
    model.fit(X, y)
    first_stage = (model, list(range(13))) if has_columns else model
    message = (
        rf"first_stages\[0\] cannot be packed: {reason}.*; give another classifier, or an ONNX"
    )
    with pytest.raises(InputError, match=message):
        check_first_stages([first_stage], allow_missing=False)


def test_classes_are_not_confused_if_the_indices_of_answers_are_labels_as_well():
    X, y = load_wine(return_X_y=True)
    X = X.astype(np.float32)
    # class 1 has a prior of almost 0, so that the answers are 2 and 3, with the indices 1 and 2
    model = GaussianNB(priors=[1e-30, 0.5, 0.5]).fit(X, y + 1)
    assert set(model.predict(X)) == {2, 3}
    classifier = GivenClassifier.read_and_compare(model, X, X.shape[1:], "model", as_stage=False)
    assert classifier.graph.form.label_is_index


@pytest.mark.parametrize("labels", [[1.0, 2.0], [False, True]])
def test_skl2onnx_converts_labels_that_are_floats_or_booleans(labels):
    X, y = load_wine(return_X_y=True)
    X = X[:, :3].astype(np.float32)
    model = make_pipeline(StandardScaler(), PolynomialFeatures(), LogisticRegression())
    model.fit(X, np.array(labels)[np.minimum(y, 1)])
    classifier = GivenClassifier.read_and_compare(model, X, X.shape[1:], "model", as_stage=False)
    assert list(classifier.classes) == labels


OVO_SVM = SVC(decision_function_shape="ovo")
TREE = DecisionTreeClassifier(max_depth=3, random_state=0)


@pytest.mark.parametrize(
    ("make_model", "n_classes"),
    [
        (lambda _X, _y: StackingClassifier([("svm", OVO_SVM)]), 3),
        (lambda _X, _y: CalibratedClassifierCV(OVO_SVM, ensemble=False), 3),
        (lambda _X, _y: make_pipeline(StandardScaler(), OVO_SVM), 3),
        (
            lambda X, y: StackingClassifier(
                [("tree", clone(TREE).fit(X, y))], cv="prefit", stack_method="predict"
            ),
            3,
        ),
        (
            lambda _X, _y: VotingClassifier(
                [
                    (
                        "trees",
                        pytest.importorskip("lightgbm").LGBMClassifier(
                            objective="multiclass", num_class=2, n_estimators=3, verbose=-1
                        ),
                    )
                ]
            ),
            2,
        ),
    ],
    ids=["stacked pairs", "calibrated pairs", "pairs", "labels of a fitted member", "two columns"],
)
def test_members_with_answers_of_another_form_are_converted(make_model, n_classes):
    X, y = load_wine(return_X_y=True)
    X = X.astype(np.float32)
    y = np.minimum(y, n_classes - 1) + 5
    model = make_model(X, y).fit(X, y)
    GivenClassifier.read_and_compare(model, X, X.shape[1:], "model", as_stage=False)


def test_calibrators_read_the_first_pairs_of_more_than_three_classes():
    X, y = load_digits(n_class=5, return_X_y=True)
    X = X.astype(np.float32)
    model = CalibratedClassifierCV(OVO_SVM, cv=2).fit(X, y)
    GivenClassifier.read_and_compare(model, X, X.shape[1:], "model", as_stage=False)


def test_labels_in_two_columns_are_read():
    X, y = load_wine(return_X_y=True)
    X = X.astype(np.float32)
    xgboost = pytest.importorskip("xgboost")
    model = xgboost.XGBClassifier(objective="multi:softprob", num_class=2, n_estimators=3)
    model.fit(X, np.minimum(y, 1))
    high_cost_model = HighCostModel.from_model(model, np.array([0, 1]), X.shape[1])
    expected_labels = model.predict_proba(X).argmax(axis=1)
    np.testing.assert_array_equal(high_cost_model.labels(X), expected_labels)
    GivenClassifier.read_and_compare(model, X, X.shape[1:], "model", as_stage=False)


def test_clones_of_first_stages_get_the_weights_of_their_rows():
    X, y = load_wine(return_X_y=True)
    X = X[:, :1].astype(np.float32)
    y = np.minimum(y, 1)
    weight = np.where(y == 1, 1.0, 20.0)
    split = ValidationSplit.choose(X, y, weight, validation=None, seed=0)
    model = LogisticRegression().fit(X, y)
    ((stage, outputs),) = given_stages([model], split, np.array([0, 1]), ("a",), by_clones=True)
    expected_probabilities = [
        clone(model).fit(X[rows], y[rows], weight[rows]).predict_proba(X[unseen_rows])
        for rows, unseen_rows in split.folds
    ]
    np.testing.assert_allclose(
        probabilities(outputs, stage.link), np.concatenate(expected_probabilities), atol=1e-6
    )
