"""What every cascade must do, on real data."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_wine, make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

from gatewise.errors import InputError
from gatewise.models.stage import Stage
from gatewise_training import AdaptGBRT, AdaptLin, CloudPrices, FeatureCosts, StagedCascade
from tests.support.prices import price_of

pytestmark = pytest.mark.slow  # fits of several seconds

METHODS = {
    "staged": StagedCascade(n_stages=3, families=("boosting", "linear"), random_state=0),
    "adapt-gbrt": AdaptGBRT(
        p_full=(0.2, 0.5), penalties=(0.02, 0.002), n_rounds=30, warm_up=10, random_state=0
    ),
    "adapt-lin": AdaptLin(p_full=(0.2, 0.5), penalties=(0.3, 0.05, 0.01), random_state=0),
}


def data(binary):
    X, y = (load_breast_cancer if binary else load_wine)(return_X_y=True)
    names = np.array(["no", "yes"] if binary else ["a", "b", "c"])
    return train_test_split(X, names[y], test_size=0.3, stratify=y, random_state=0)


@pytest.fixture(scope="module", params=[(m, b) for m in METHODS for b in (True, False)], ids=str)
def fitted(request):
    method, binary = request.param
    X, X_test, y, y_test = data(binary)
    f0 = RandomForestClassifier(30, random_state=0).fit(X, y)
    return clone(METHODS[method]).set_params(high_cost_model=f0).fit(X, y), X_test, y_test


def count_costs(system, X):
    """Count costs again, one instance at a time, from the stages' own features."""
    costs, point = system.feature_costs_, system.operating_point_
    bills = []
    for row in np.asarray(X, np.float32):
        acquired: set[int] = set()
        for stage, threshold in zip(system.stages_, point.thresholds, strict=True):
            acquired |= set(stage.features.tolist())
            score = stage.run(row[None])[1][0]
            if threshold is not None and score >= np.float32(threshold):
                break
        else:
            acquired |= set(system.high_cost_model_.features.tolist())
        bills.append(price_of(costs, acquired))
    return bills


def test_routes_costs_and_labels_agree(fitted):
    system, X, _ = fitted
    sent = system.offload(X)
    exits = system.exit_stage(X)
    np.testing.assert_array_equal(sent, exits == len(system.stages_))
    np.testing.assert_allclose(system.cost(X), count_costs(system, X))
    proba = system.predict_proba(X)
    np.testing.assert_allclose(proba.sum(axis=1), 1.0, atol=1e-6)
    own = system.classes_[proba.argmax(axis=1)]
    np.testing.assert_array_equal(own[~sent], system.predict(X)[~sent])
    f0 = system.classes_[system.high_cost_model_.labels(X.astype(np.float32))]
    np.testing.assert_array_equal(system.predict(X)[sent], f0[sent])


def test_points_are_measured_where_they_are_claimed(fitted):
    system, X, y = fitted
    point = system.operating_point_
    # expectation on validation rows against the test rows: same order of magnitude
    assert abs(system.cost(X).mean() - point.cost) < 0.35 * system.feature_costs_.total
    assert abs(system.score(X, y) - point.accuracy) < 0.08


def test_another_point_refits_nothing(fitted):
    system, _, _ = fitted
    frontier = system.frontier_
    for point in frontier.points:
        moved = system.at(budget=point.cost)
        assert moved.operating_point_ == point
        assert moved.high_cost_model_ is system.high_cost_model_
    safest = system.at(max_loss=0.0)
    assert safest.operating_point_.cost >= system.at(max_loss=0.5).operating_point_.cost
    edge = min(p.offload_rate for p in frontier.points)
    assert system.at(offload_rate=edge).operating_point_.offload_rate <= edge
    with pytest.raises(InputError, match="no operating point costs at most"):
        system.at(budget=0.0)
    with pytest.raises(InputError, match="exactly one"):
        system.at()


def test_survives_pickle_and_clone(fitted):
    system, X, _ = fitted
    again = pickle.loads(pickle.dumps(system))
    np.testing.assert_array_equal(again.predict(X), system.predict(X))
    assert not hasattr(clone(system), "frontier_")


def test_rows_are_decided_the_same_alone_and_together(fitted):
    system, X, _ = fitted
    together = system.exit_stage(X)
    alone = [system.exit_stage(row[None])[0] for row in X[:40]]
    np.testing.assert_array_equal(together[:40], alone)


def test_paper_accounting_charges_f0_only(fitted):
    system, X, _ = fitted
    sent = system.offload(X)
    f0 = system.feature_costs_.price(system.high_cost_model_.features)
    np.testing.assert_allclose(system.cost(X, "paper")[sent], f0)
    np.testing.assert_array_equal(system.cost(X, "paper")[~sent], system.cost(X)[~sent])
    with pytest.raises(InputError, match="accounting"):
        system.cost(X, "other")


def test_a_frame_keeps_its_names():
    X, X_test, y, _ = data(True)
    names = [f"f{k}" for k in range(X.shape[1])]
    frame = pd.DataFrame(X, columns=names)
    costs = FeatureCosts(np.arange(1, 31), names=names)
    quick = clone(METHODS["staged"]).set_params(
        high_cost_model=LogisticRegression(max_iter=5000), feature_costs=costs, families=("linear",)
    )
    system = quick.fit(frame, y)
    assert system.feature_names_ == tuple(names)
    assert (system.cost(pd.DataFrame(X_test, columns=names)) > 0).all()
    with pytest.raises(ValueError, match="feature names"):
        system.predict(pd.DataFrame(X_test, columns=names[::-1]))
    wrong = FeatureCosts(np.arange(1, 31), names=names[::-1])
    with pytest.raises(InputError, match="another column"):
        quick.set_params(feature_costs=wrong).fit(frame, y)


def test_a_frozen_model_is_not_refitted():
    X, X_test, y, _ = data(True)
    f0 = LogisticRegression(max_iter=5000).fit(X, y)
    before = f0.coef_.copy()
    quick = StagedCascade(FrozenEstimator(f0), n_stages=1, families=("linear",), random_state=0)
    system = clone(quick).fit(X, y)
    np.testing.assert_array_equal(f0.coef_, before)
    answers = system.classes_[system.high_cost_model_.labels(X_test.astype(np.float32))]
    np.testing.assert_array_equal(answers, f0.predict(X_test.astype(np.float32)))


def test_request_prices_are_part_of_the_cost():
    X, X_test, y, _ = data(True)
    prices = CloudPrices(request=5.0, byte=0.01, evaluation=1.0)
    quick = StagedCascade(
        LogisticRegression(max_iter=5000), cloud_prices=prices, n_stages=2, families=("linear",),
        random_state=0,
    )  # fmt: skip
    system = quick.fit(X, y)
    system.operating_point_ = replace(system.operating_point_, thresholds=(0.5, 0.5))
    sent = system.offload(X_test)
    assert sent.any()
    np.testing.assert_allclose(system.cost(X_test)[sent], 30 + prices.of_offload(30))


def test_missing_values_need_leave():
    X, X_test, y, _ = data(True)
    X = X.copy()
    X[::5, 3] = np.nan
    with pytest.raises(InputError, match="column 'x3' contains NaN; set allow_missing"):
        clone(METHODS["staged"]).fit(X, y)
    system = clone(METHODS["staged"]).set_params(allow_missing=True).fit(X, y)
    X_test = X_test.copy()
    X_test[:, 3] = np.nan
    assert system.missing_ == {"stages": "allowed", "cloud": "allowed"}
    assert len(system.predict(X_test)) == len(X_test)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"budget": -1.0}, "budget"),
        ({"budget": 1.0, "offload_rate": 0.1}, "not both"),
        ({"n_stages": 0}, "n_stages"),
        ({"effort": "much"}, "effort"),
        ({"acquisition": "lazy"}, "acquisition"),
        ({"families": ("svn",)}, "families"),
        ({"feature_costs": FeatureCosts.uniform(3)}, "3 feature costs for 30"),
        ({"high_cost_model": "no-such.onnx"}, "does not exist"),
        ({"budget": 0.0}, "no operating point"),
    ],
)
def test_bad_settings_are_refused(change, says):
    X, _, y, _ = data(True)
    quick = StagedCascade(LogisticRegression(max_iter=5000), n_stages=1, families=("linear",))
    with pytest.raises(InputError, match=says):
        quick.set_params(**change).fit(X, y)


def test_bad_tables_are_refused():
    X, _, y, _ = data(True)
    quick = clone(METHODS["staged"])
    rare = y.astype(object)
    rare[0] = "rare"
    with pytest.raises(InputError, match="'rare' has one row only"):
        quick.fit(X, rare)
    with pytest.raises(InputError, match="label type: continuous"):
        quick.fit(X, np.linspace(0, 1, len(y)))
    with pytest.raises(InputError, match="one class only"):
        quick.fit(X, np.full(len(y), "a"))
    with pytest.raises(InputError, match="'new' is not in the training data"):
        quick.fit(X, y, validation=(X[:2], ["new", "no"]))
    endless = X.copy()
    endless[3, 4] = 1e39  # finite in float64, not in float32
    with pytest.raises(InputError, match="column 'x4' contains infinity"):
        quick.fit(endless, y)


def test_own_validation_rows_are_used():
    X, X_test, y, y_test = data(True)
    system = clone(METHODS["staged"]).fit(X, y, validation=(X_test, y_test))
    f0 = system.high_cost_model_.labels(X_test.astype(np.float32))
    reference = np.mean(system.classes_[f0] == y_test)
    assert system.frontier_.reference_accuracy == pytest.approx(reference)
    # expected by cross-fitting on these very rows, so near but not the same
    point = system.operating_point_
    assert point.accuracy == pytest.approx(system.score(X_test, y_test), abs=0.03)
    assert point.cost == pytest.approx(system.cost(X_test).mean(), rel=0.3)


@pytest.mark.slow
def test_same_seed_same_system():
    X, X_test, y, _ = data(False)
    one, two = (clone(METHODS["staged"]).fit(X, y) for _ in range(2))
    assert one.frontier_ == two.frontier_
    np.testing.assert_array_equal(one.predict_proba(X_test), two.predict_proba(X_test))


def test_stages_are_nested_and_grow(fitted):
    system, _, _ = fitted
    if isinstance(system, StagedCascade):
        sizes = [len(s.features) for s in system.stages_]
        assert sizes == sorted(sizes)
    assert all(isinstance(s, Stage) for s in system.stages_)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["boosting", "extra-trees", "linear", "svm"])
def test_a_small_device_gets_small_stages(family):
    X, X_test, y, y_test = data(False)
    quick = StagedCascade(
        RandomForestClassifier(30, random_state=0), n_stages=2, families=(family,),
        max_stage_bytes=6000, max_trees=40, random_state=0,
    )  # fmt: skip
    system = quick.fit(X, y)
    assert all(s.nbytes <= 6000 and s.n_trees <= 40 for s in system.stages_)
    assert system.score(X_test, y_test) > 0.8
    point = system.operating_point_
    held = [s for s, t in zip(system.stages_, point.thresholds, strict=True) if t is not None]
    assert point.nbytes == sum(s.nbytes for s in held)


def test_a_device_that_is_too_small_is_refused():
    X, _, y, _ = data(False)
    quick = StagedCascade(
        RandomForestClassifier(5), n_stages=1, families=("boosting",), max_stage_bytes=20
    )
    with pytest.raises(InputError, match="no stage fits max_stage_bytes=20"):
        quick.fit(X, y)


def test_a_high_cost_model_of_a_table_is_asked_with_its_names(recwarn):
    X, y = make_classification(300, 4, n_informative=3, n_redundant=0, random_state=0)
    table = pd.DataFrame(X, columns=list("abcd"))
    f0 = LogisticRegression().fit(table, y)
    quick = StagedCascade(f0, n_stages=1, families=("linear",), random_state=0)
    quick.fit(table, y).predict(table)
    assert not [w for w in recwarn if "feature names" in str(w.message)]
    with pytest.raises(InputError, match="fitted with 'a' as column 0, the data has 'd'"):
        clone(quick).set_params(high_cost_model=FrozenEstimator(f0)).fit(table[list("dcba")], y)
