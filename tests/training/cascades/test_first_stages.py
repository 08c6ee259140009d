"""Test given models as the first stages of a staged cascade."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

import gatewise as gw
from gatewise_training.learners.model_families import family_of

#: Columns of the given model, from which a linear model classifies most rows.
CHEAP_COLUMNS = [7, 20, 22]


def load_shuffled_rows():
    """Load the rows and labels of the breast cancer table in random order."""
    X, y = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(X))
    return X.astype(np.float32)[order], y[order]


def make_cascade(first_stages, **settings):
    return gw.StagedCascade(
        ExtraTreesClassifier(20, random_state=0), first_stages=first_stages, n_stages=2,
        families=("linear",), effort="low", random_state=0, **settings,
    )  # fmt: skip


@pytest.mark.slow
def test_a_given_model_is_the_first_stage_and_pays_for_its_columns(tmp_path):
    X, y = load_shuffled_rows()
    X_new = X[400:]
    costs = np.ones(30)
    costs[CHEAP_COLUMNS] = 0.1
    small_model = make_pipeline(StandardScaler(), LogisticRegression()).fit(
        X[:400, CHEAP_COLUMNS], y[:400]
    )
    system = make_cascade([(small_model, CHEAP_COLUMNS)], feature_costs=costs.tolist()).fit(
        X[:400], y[:400]
    )
    assert family_of(system.stages_[0]) == "given"
    np.testing.assert_array_equal(system.stages_[0].features, CHEAP_COLUMNS)
    is_first_exit = system.exit_stage(X_new) == 0
    assert is_first_exit.mean() > 0.3  # it answers many rows
    np.testing.assert_array_equal(
        system.predict(X_new)[is_first_exit],
        small_model.predict(X_new[:, CHEAP_COLUMNS])[is_first_exit],
    )
    np.testing.assert_allclose(system.cost(X_new)[is_first_exit], 0.3)  # three columns at 0.1
    bundle = gw.pack(system, tmp_path / "bundle", sample=X[:32])
    assert gw.verify(system, bundle, X_new).agrees
    assert bundle.manifest.stages[0].kind == "graph"
    with gw.Device(bundle) as device:
        answer = device.answer(X_new[is_first_exit][0])
    assert (answer.cost, answer.stage) == (pytest.approx(0.3), 0)


@pytest.mark.slow
def test_given_stages_are_measured_on_rows_that_they_have_not_memorised():
    """Clones of a tree that memorised all rows are measured out of fold."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 4)).astype(np.float32)
    y = (X[:, 0] + rng.normal(size=300) > 0).astype(int)
    tree = DecisionTreeClassifier(random_state=0).fit(X, y)
    assert tree.score(X, y) == 1.0
    system = make_cascade([tree], max_loss=0.0).fit(X, y)
    # labels are random for some rows, so that no model is right for nearly all unseen rows
    assert max(point.accuracy for point in system.frontier_.points) < 0.8
    # validation rows given by the user count as unseen
    validated_system = make_cascade([tree], max_loss=0.0).fit(
        X[:100], y[:100], validation=(X[100:], y[100:])
    )
    assert max(point.accuracy for point in validated_system.frontier_.points) == 1.0


@pytest.mark.slow
def test_given_models_find_their_columns_by_name():
    X, y = load_shuffled_rows()
    table = pd.DataFrame(X, columns=[f"c{k}" for k in range(30)])
    small_model = LogisticRegression(max_iter=2000).fit(table[["c22", "c7"]], y)
    system = make_cascade([small_model]).fit(table, y)
    stage = next(chain[0] for chain in system.chains_ if chain[0].features.tolist() == [22, 7])
    assert stage.model.n_features == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first_stages", "settings", "message"),
    [
        ("small.onnx", {}, "must be a list"),
        ([LogisticRegression()], {}, r"first_stages\[0\] is not a fitted classifier"),
        (["nowhere.onnx"], {}, "nowhere.onnx does not exist"),
        (["tree"], {"allow_missing": True}, "cannot handle NaN"),
    ],
)
def test_unusable_first_stages_are_refused(first_stages, settings, message):
    X, y = load_shuffled_rows()
    with pytest.raises(gw.InputError, match=message):
        make_cascade(first_stages, **settings).fit(X[:100], y[:100])
