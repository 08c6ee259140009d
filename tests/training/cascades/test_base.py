"""What every method must do, on real data; and what the cascades share."""

from __future__ import annotations

import pickle
import re
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression

from gatewise.errors import InputError
from gatewise_training import FeatureCosts, StagedCascade
from gatewise_training.cascades.cascade import CascadeClassifier
from tests.support.budgeted_methods import COSTS, METHODS, N_FEATURES, NAMES, ready, table
from tests.support.prices import price_of
from tests.support.tree_walks import stage_columns

CASCADES = [m for m, method in METHODS.items() if isinstance(method, CascadeClassifier)]
QUICK = StagedCascade(
    RandomForestClassifier(10, random_state=0), n_stages=2, families=("linear",), random_state=0
)


@pytest.fixture(scope="module", params=[(m, i % 2 == 0) for i, m in enumerate(METHODS)], ids=str)
def fitted(request, make_once):
    method, binary = request.param
    X, X_test, y, y_test = table(binary)
    make = lambda _: ready(method, X, y, max_loss=0.03).fit(X, y)  # noqa: E731
    return make_once(f"{method}-{binary}", make), X_test, y_test


def stage_visits(stages, X):
    """Scores and acquired features of every row after each stage, one row at a time."""
    visits = []
    for row in X.to_numpy(np.float32):
        acquired: set[int] = set()
        of_row = []
        for stage in stages:
            acquired = acquired | stage_columns(stage, row)
            of_row.append((stage.run(row[None])[1][0], acquired))
        visits.append(of_row)
    return visits


def counted(system, visits):
    """Exits and costs in both accountings, one instance and one stage after another."""
    exits, union, paper = [], [], []
    f0 = set(range(N_FEATURES))
    for of_row in visits:
        places = zip(of_row, system.operating_point_.thresholds, strict=True)
        for number, ((score, acquired), threshold) in enumerate(places):
            if threshold is not None and score >= np.float32(threshold):
                exits.append(number)
                union.append(price_of(COSTS, acquired))
                paper.append(price_of(COSTS, acquired))
                break
        else:
            exits.append(len(system.stages_))
            union.append(price_of(COSTS, of_row[-1][1] | f0))
            paper.append(price_of(COSTS, f0))
    return exits, union, paper


@pytest.mark.slow
def test_routes_costs_and_labels_are_those_counted_row_by_row(fitted):
    system, X, _ = fitted
    X = X[:60]
    visits = {}
    for point in system.frontier_.points[:6]:
        moved = system.at(budget=point.cost)
        if moved.stages_ not in visits:
            visits[moved.stages_] = stage_visits(moved.stages_, X)
        exits, union, paper = counted(moved, visits[moved.stages_])
        np.testing.assert_array_equal(moved.exit_stage(X), exits)
        np.testing.assert_allclose(moved.cost(X), union)
        np.testing.assert_allclose(moved.cost(X, "paper"), paper)
        proba = moved.predict_proba(X)
        np.testing.assert_allclose(proba.sum(axis=1), 1.0, atol=1e-6)
        predicted = moved.classes_[proba.argmax(axis=1)]
        sent = np.equal(exits, len(moved.stages_))
        np.testing.assert_array_equal(predicted[~sent], moved.predict(X)[~sent])
        if isinstance(system, CascadeClassifier):
            np.testing.assert_array_equal(moved.offload(X), sent)
            f0 = moved.classes_[moved.high_cost_model_.labels(X.to_numpy(np.float32))]
            np.testing.assert_array_equal(moved.predict(X)[sent], f0[sent])
    with pytest.raises(InputError, match="accounting"):
        system.cost(X, "other")


@pytest.mark.slow
def test_test_rows_confirm_points_and_stages_grow(fitted):
    system, X, y = fitted
    point = system.operating_point_
    # expectation on validation rows against the test rows: same order of magnitude
    assert abs(system.cost(X).mean() - point.cost) < 0.35 * system.feature_costs_.total
    error = np.hypot(point.accuracy_error, (point.accuracy * (1 - point.accuracy) / len(y)) ** 0.5)
    assert abs(system.score(X, y) - point.accuracy) < max(0.08, 2.5 * error)  # of 54 or 171 rows
    assert system.score(X, y) > 0.75
    sets = [set(s.features.tolist()) for s in system.stages_ if s.acquisition == "stage"]
    assert all(a <= b for a, b in pairwise(sets))


@pytest.mark.slow
def test_another_point_refits_nothing(fitted):
    system, _, _ = fitted
    frontier = system.frontier_
    for point in frontier.points:
        moved = system.at(budget=point.cost)
        assert moved.operating_point_ == point
        assert moved.high_cost_model_ is system.high_cost_model_
    middle = 0.5 * (frontier.points[0].cost + frontier.points[-1].cost)
    assert system.at(budget=middle).operating_point_.cost <= middle
    strict, lax = (system.at(max_loss=loss).operating_point_ for loss in (0.0, 0.2))
    assert strict.accuracy >= lax.accuracy
    assert strict.cost >= lax.cost
    if isinstance(system, CascadeClassifier):
        rates = [p.offload_rate for p in frontier.points]
        for rate in (min(rates), 0.5 * (min(rates) + max(rates))):
            assert system.at(offload_rate=rate).operating_point_.offload_rate <= rate
    # what is asked for before the fit is what a move afterwards gives
    assert system.at(max_loss=0.03).operating_point_ == system.operating_point_
    with pytest.raises(InputError, match="exactly one"):
        system.at()


@pytest.mark.slow
def test_systems_survive_pickling_and_check_names(fitted):
    system, X, _ = fitted
    unpickled = pickle.loads(pickle.dumps(system))
    np.testing.assert_array_equal(unpickled.predict_proba(X), system.predict_proba(X))
    copied = clone(system)
    assert not hasattr(copied, "frontier_")
    assert copied.get_params(deep=False).keys() == system.get_params(deep=False).keys()
    assert system.feature_names_ == tuple(NAMES)
    with pytest.raises(ValueError, match="feature names"):
        system.predict(X[NAMES[::-1]])


@pytest.mark.slow
@pytest.mark.parametrize("method", ["staged", "adapt-gbrt", "l1", "greedy-miser"])
def test_all_methods_give_guarantees(method):
    X, _, y, _ = table()
    wanted = [{"budget": 13.0}, {"max_loss": 0.2}]
    settings = {"guarantee": 0.8}
    if method in CASCADES:
        wanted.append({"offload_rate": 0.9})
        # a fitted one could not certify a loss: it may have seen the rows
        settings["high_cost_model"] = RandomForestClassifier(10, random_state=0)
    system = ready(method, X, y, **settings, **wanted[0]).fit(X, y)
    rows = len(system.calibration_.certifying[0].weights)
    assert 0.15 * len(X) < rows < 0.25 * len(X)
    assert rows + len(system.calibration_.tuning[0].weights) == len(X)  # they fit nothing else
    assert system.operating_point_ == system.at(**wanted[0]).operating_point_
    for bound in wanted:
        moved = system.at(**bound)
        point = moved.operating_point_
        terms = {key: point.guarantee[key] for key in ("kind", "bound", "confidence")}
        ((kind, limit),) = bound.items()
        assert terms == {"kind": kind, "bound": limit, "confidence": 0.8}
        assert point.guarantee["calibration_rows"] == rows
        assert point in moved.operating_points_
        # certified on rows that no choice has seen, so kept there with room to spare
        assert point.cost <= bound.get("budget", np.inf)
        assert point.offload_rate <= bound.get("offload_rate", 1.0)
    with pytest.raises(InputError, match="equal weight"):
        ready(method, X, y, **settings).fit(X, y, np.arange(len(y)) + 1.0)
    if method in CASCADES:
        with pytest.raises(InputError, match="cannot be guaranteed"):
            system.at(budget=0.1)


class Unfit(LogisticRegression):
    """A model whose fit ends the test: what is wrong with the settings must be said before."""

    def fit(self, X, y, sample_weight=None):
        raise AssertionError("a model was fitted")


def takes(bound, rows, of="rows of"):
    return f"{bound} takes {rows} calibration {of} this class, and there are 8;"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_loss": {"fault": 0.05, "ok": 0.9}}, takes("max_loss fault=0.05", 59)),
        ({"max_loss": {"fault": 0.05}, "budget": 5.0}, takes("max_loss fault=0.05", 59)),
        ({"max_loss": {"fault": 0}}, "max_loss fault=0 cannot be certified, only a bound above"),
        ({"min_recall": {"fault": 0.9}}, takes("min_recall fault=0.9", 29)),
        ({"min_recall": {"ok": 1}}, "min_recall ok=1 cannot be certified, only a bound below"),
        ({"max_loss": {"ok": 0.05}}, takes("max_loss ok=0.05", 59, of="groups with")),
        ({"max_loss": 1.5}, "a float in the range [0.0, 1.0]"),
    ],
)
def test_a_guarantee_that_no_calibration_rows_can_give_is_refused_before_any_fit(settings, message):
    y = np.where(np.arange(800) % 20 == 0, "fault", "ok")  # 8 of 160 calibration rows
    X = np.random.default_rng(0).normal(size=(800, 3))
    groups = np.repeat(np.arange(40), 20) if "groups" in message else None
    system = clone(QUICK).set_params(high_cost_model=Unfit(), guarantee=0.95, **settings)
    with pytest.raises(InputError, match=re.escape(message)):
        system.fit(X, y, groups=groups)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["staged", "adapt-gbrt", "adapt-lin", "l1", "greedy-miser"])
def test_weights_count(method):
    # half of the labels are flipped, with a weight of nearly 0
    X, X_test, y, y_test = table()
    is_flipped = np.random.default_rng(0).random(len(y)) < 0.5
    noisy_labels = np.where(is_flipped, np.where(y == "no", "yes", "no"), y)
    system = ready(method, X, y, max_loss=0.0).fit(X, noisy_labels, np.where(is_flipped, 1e-4, 1.0))
    # the stages alone, without the forest, which was fitted on the true labels
    margins = system.stages_[-1].margins(X_test.to_numpy(np.float32))
    stage_labels = system.classes_[(margins[:, 0] > 0).astype(int)]
    assert np.mean(stage_labels == y_test) > 0.8
    assert system.frontier_.reference_accuracy > 0.8


@pytest.mark.parametrize(
    ("method", "change"),
    [
        ("adapt-lin", {"p_full": (1.2,)}),
        ("adapt-gbrt", {"p_full": ()}),
        ("adapt-lin", {"penalties": (-0.1,)}),
        ("adapt-lstsq", {"penalties": ()}),
        ("adapt-lin", {"n_starts": -1}),
        ("l1", {"penalties": (np.inf,)}),
        ("l1", {"offload_rate": 0.1, "budget": 3.0}),
        ("adapt-gbrt", {"n_rounds": 0}),
        ("adapt-gbrt", {"warm_up": -1}),
        ("adapt-gbrt", {"num_leaves": 1}),
        ("adapt-gbrt", {"max_loss": -0.1}),
        ("greedy-miser", {"learning_rate": 0.0}),
        ("greedy-miser", {"max_depth": 0}),
        ("confidence", {"low_cost_model": "svn"}),
        ("confidence", {"n_subsets": 0}),
        ("confidence", {"allow_missing": True}),
        ("confidence", {"guarantee": 1.5}),
        ("staged", {"budget": np.inf}),
        ("staged", {"n_stages": 0}),
        ("staged", {"families": ("svn",)}),
        ("staged", {"effort": "much"}),
        ("staged", {"high_cost_model": "no-such.onnx"}),
        ("staged", {"cloud_prices": 0.5}),
        ("adapt-lin", {"guarantee": "0.95"}),
        ("adapt-gbrt", {"allow_missing": "no"}),
    ],
)
def test_bad_settings_are_refused_by_name(method, change):
    X, _, y, _ = table()
    with pytest.raises(InputError, match=next(iter(change))):
        ready(method, X, y, **change).fit(X, y)


def test_bad_tables_and_budgets_are_refused():
    X, _, y, _ = table()
    rare, endless = y.astype(object), X.copy()
    rare[0] = "rare"
    endless.iloc[3, 4] = 1e39  # finite in float64, not in float32
    for rows, classes, settings, message in (
        (X, rare, {}, "'rare' has one row only"),
        (X, np.full(len(y), "a"), {}, "one class only"),
        (X, np.where(y == y[0], None, "a"), {}, "y is missing .* rows: leave out rows"),
        (endless, y, {}, "column 'f4' contains infinity"),
        (X, y, {"feature_costs": FeatureCosts.uniform(3)}, "3 feature costs for 9"),
        (X, y, {"budget": 0.0}, "budget 0 is below the price of the cheapest feature, 'f0' at 1"),
    ):
        with pytest.raises(InputError, match=message):
            clone(QUICK).set_params(**settings).fit(rows, classes)


@pytest.mark.slow
def test_a_goal_out_of_reach_loses_no_fit_and_leaves_no_point_of_an_earlier_one():
    X, _, y, _ = table()
    rare = y[0]
    system = clone(QUICK).fit(X, y).set_params(min_recall={rare: 1.0}, min_precision={rare: 1.0})
    with pytest.raises(InputError, match="no operating point keeps"):
        system.fit(X, y)
    with pytest.raises(NotFittedError):
        system.predict(X)
    free = system.at(budget=4.0, min_recall={rare: 0.0}, min_precision={rare: 0.0})
    assert free.operating_point_.cost <= 4.0
    assert len(free.predict(X)) == len(X)


@pytest.mark.parametrize("method", ["adapt-lin", "adapt-lstsq", "l1"])
def test_linear_models_refuse_missing_values(method):
    X, _, y, _ = table()
    system = ready(method, X, y)
    X.iloc[3, 2] = np.nan
    with pytest.raises(InputError, match="column 'f2' contains NaN"):
        system.fit(X, y)
    assert "allow_missing" not in system.get_params()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["adapt-gbrt", "staged"])
def test_trees_take_missing_values_where_allowed(method):
    X, X_test, y, y_test = table()
    X.iloc[::4, 2] = X_test.iloc[::4, 2] = np.nan
    model = clone(METHODS[method]).set_params(feature_costs=COSTS, random_state=0)
    with pytest.raises(InputError, match="set allow_missing"):
        model.fit(X, y)
    system = model.set_params(allow_missing=True).fit(X, y)
    assert system.missing_ == {"stages": "allowed", "cloud": "allowed"}
    assert system.score(X_test, y_test) > 0.85


@pytest.mark.slow
def test_same_seed_same_system():
    X, X_test, y, _ = table(binary=False)
    system = clone(QUICK).set_params(families=("linear", "svm"))
    one, two = (clone(system).fit(X, y) for _ in range(2))
    assert one.frontier_ == two.frontier_
    np.testing.assert_array_equal(one.predict_proba(X_test), two.predict_proba(X_test))


@pytest.mark.slow
def test_a_frozen_model_is_asked_with_its_names_and_not_refitted(recwarn):
    X, y = make_classification(300, 4, n_informative=3, n_redundant=0, random_state=0)
    named = pd.DataFrame(X, columns=list("abcd"))
    f0 = LogisticRegression().fit(named, y)
    before = f0.coef_.copy()
    system = clone(clone(QUICK).set_params(high_cost_model=FrozenEstimator(f0))).fit(named, y)
    np.testing.assert_array_equal(f0.coef_, before)
    answers = system.classes_[system.high_cost_model_.labels(X.astype(np.float32))]
    np.testing.assert_array_equal(answers, f0.predict(named.astype(np.float32)))
    assert not [w for w in recwarn if "feature names" in str(w.message)]
    with pytest.raises(InputError, match="fitted with 'a' as column 0, the data has 'd'"):
        system.fit(named[list("dcba")], y)
