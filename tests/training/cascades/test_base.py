"""Test the behaviour that all methods and cascades share, on real data."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression

from gatewise.errors import InputError
from gatewise_training import FeatureCosts, StagedCascade
from gatewise_training.cascades.cascade import CascadeClassifier
from tests.support.budgeted_methods import (
    COSTS,
    FEATURE_NAMES,
    METHODS,
    N_FEATURES,
    load_table,
    make_method,
)
from tests.support.prices import sum_prices
from tests.support.tree_walks import find_stage_columns

pytestmark = pytest.mark.usefixtures("two_folds")

CASCADE_NAMES = [name for name, method in METHODS.items() if isinstance(method, CascadeClassifier)]
QUICK_CASCADE = StagedCascade(
    RandomForestClassifier(10, random_state=0), n_stages=2, families=("linear",), effort="low",
    random_state=0,
)  # fmt: skip


# Methods alternate between the binary table and that of three classes, to save half of the fits.
METHODS_AND_TABLES = [(name, number % 2 == 0) for number, name in enumerate(METHODS)]


@pytest.fixture(scope="module", params=METHODS_AND_TABLES, ids=str)
def fitted_system(request, make_once):
    method, is_binary = request.param
    X, X_test, y, y_test = load_table(is_binary)
    fit = lambda _: make_method(method, X, y, max_loss=0.03).fit(X, y)  # noqa: E731
    return make_once(f"{method}-{is_binary}", fit), X_test, y_test


def list_stage_visits(stages, X):
    """List the score and the acquired features of each row after each stage."""
    visits = []
    for row in X.to_numpy(np.float32):
        acquired_features: set[int] = set()
        row_visits = []
        for stage in stages:
            acquired_features = acquired_features | find_stage_columns(stage, row)
            row_visits.append((stage.run(row[None])[1][0], acquired_features))
        visits.append(row_visits)
    return visits


def compute_exits_and_costs(system, visits):
    """Compute exits, and costs in both accountings, row by row."""
    exits, union_costs, paper_costs = [], [], []
    features_of_high_cost_model = set(range(N_FEATURES))  # the forest reads every feature
    for row_visits in visits:
        visits_and_thresholds = zip(row_visits, system.operating_point_.thresholds, strict=True)
        for stage_number, ((score, acquired_features), threshold) in enumerate(
            visits_and_thresholds
        ):
            if threshold is not None and score >= np.float32(threshold):
                exits.append(stage_number)
                union_costs.append(sum_prices(COSTS, acquired_features))
                paper_costs.append(sum_prices(COSTS, acquired_features))
                break
        else:
            exits.append(len(system.stages_))
            union_costs.append(sum_prices(COSTS, row_visits[-1][1] | features_of_high_cost_model))
            paper_costs.append(sum_prices(COSTS, features_of_high_cost_model))
    return exits, union_costs, paper_costs


@pytest.mark.slow
def test_exits_costs_and_labels_equal_a_row_by_row_computation(fitted_system):
    system, X, _ = fitted_system
    # few rows and points, because the computation in Python is slow
    X = X[:60]
    visits_by_stages = {}
    for point in system.frontier_.points[:6]:
        system_at_point = system.at(budget=point.cost)
        if system_at_point.stages_ not in visits_by_stages:
            visits_by_stages[system_at_point.stages_] = list_stage_visits(
                system_at_point.stages_, X
            )
        exits, union_costs, paper_costs = compute_exits_and_costs(
            system_at_point, visits_by_stages[system_at_point.stages_]
        )
        np.testing.assert_array_equal(system_at_point.exit_stage(X), exits)
        np.testing.assert_allclose(system_at_point.cost(X), union_costs)
        np.testing.assert_allclose(system_at_point.cost(X, "paper"), paper_costs)
        probabilities = system_at_point.predict_proba(X)
        np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, atol=1e-6)
        labels = system_at_point.classes_[probabilities.argmax(axis=1)]
        is_offloaded = np.equal(exits, len(system_at_point.stages_))
        np.testing.assert_array_equal(
            labels[~is_offloaded], system_at_point.predict(X)[~is_offloaded]
        )
        if isinstance(system, CascadeClassifier):
            np.testing.assert_array_equal(system_at_point.offload(X), is_offloaded)
            high_cost_labels = system_at_point.classes_[
                system_at_point.high_cost_model_.labels(X.to_numpy(np.float32))
            ]
            np.testing.assert_array_equal(
                system_at_point.predict(X)[is_offloaded], high_cost_labels[is_offloaded]
            )
    with pytest.raises(InputError, match="accounting"):
        system.cost(X, "other")


@pytest.mark.slow
def test_points_hold_on_test_rows_with_nested_features_and_checked_names(fitted_system):
    system, X, y = fitted_system
    point = system.operating_point_
    # the cost on validation rows and on test rows has the same order of magnitude
    assert abs(system.cost(X).mean() - point.cost) < 0.35 * system.feature_costs_.total
    # of the difference between the accuracies on validation rows and on 54 or 171 test rows
    test_error = (point.accuracy * (1 - point.accuracy) / len(y)) ** 0.5
    standard_error = np.hypot(point.accuracy_error, test_error)
    assert abs(system.score(X, y) - point.accuracy) < max(0.08, 2.5 * standard_error)
    assert system.score(X, y) > 0.75  # the most frequent class has 63 % of the rows, or 40 %
    feature_sets = [
        set(stage.features.tolist()) for stage in system.stages_ if stage.acquisition == "stage"
    ]
    assert all(earlier <= later for earlier, later in pairwise(feature_sets))
    assert system.feature_names_ == tuple(FEATURE_NAMES)
    with pytest.raises(ValueError, match="feature names"):
        system.predict(X[FEATURE_NAMES[::-1]])


@pytest.mark.slow
def test_moving_to_another_point_refits_no_model(fitted_system):
    system, _, _ = fitted_system
    frontier = system.frontier_
    for point in frontier.points:
        system_at_point = system.at(budget=point.cost)
        assert system_at_point.operating_point_ == point
        assert system_at_point.high_cost_model_ is system.high_cost_model_
    middle_cost = 0.5 * (frontier.points[0].cost + frontier.points[-1].cost)
    assert system.at(budget=middle_cost).operating_point_.cost <= middle_cost
    strict_point, lax_point = (system.at(max_loss=loss).operating_point_ for loss in (0.0, 0.2))
    assert strict_point.accuracy >= lax_point.accuracy
    assert strict_point.cost >= lax_point.cost
    if isinstance(system, CascadeClassifier):
        rates = [point.offload_rate for point in frontier.points]
        for rate in (min(rates), 0.5 * (min(rates) + max(rates))):
            assert system.at(offload_rate=rate).operating_point_.offload_rate <= rate
    # a goal gives the same point before and after the fit
    assert system.at(max_loss=0.03).operating_point_ == system.operating_point_
    with pytest.raises(InputError, match="exactly one"):
        system.at()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["staged", "l1", "greedy-miser"])
def test_methods_certify_their_points(method):
    X, _, y, _ = load_table()
    # loose goals, which some point of each method can certify on the few calibration rows
    goals = [{"budget": 13.0}, {"max_loss": 0.2}]
    settings = {"guarantee": 0.8}
    if method in CASCADE_NAMES:
        goals.append({"offload_rate": 0.9})
        # a fitted model may have seen the rows and so cannot certify a loss
        settings["high_cost_model"] = RandomForestClassifier(10, random_state=0)
    system = make_method(method, X, y, **settings, **goals[0]).fit(X, y)
    n_calibration_rows = len(system.calibration_.certifying_records[0].weights)
    # a fifth of the rows certifies
    assert 0.15 * len(X) < n_calibration_rows < 0.25 * len(X)
    # no model is fitted on the calibration rows
    n_other_rows = len(system.calibration_.tuning_records[0].weights)
    assert n_calibration_rows + n_other_rows == len(X)
    assert system.operating_point_ == system.at(**goals[0]).operating_point_
    for goal in goals:
        system_at_point = system.at(**goal)
        point = system_at_point.operating_point_
        terms = {name: point.guarantee[name] for name in ("kind", "bound", "confidence")}
        ((kind, bound_value),) = goal.items()
        assert terms == {"kind": kind, "bound": bound_value, "confidence": 0.8}
        assert point.guarantee["calibration_rows"] == n_calibration_rows
        assert point in system_at_point.operating_points_
        # a certified point keeps its bound on the calibration rows with a margin
        assert point.cost <= goal.get("budget", np.inf)
        assert point.offload_rate <= goal.get("offload_rate", 1.0)
    with pytest.raises(InputError, match="equal weight"):
        make_method(method, X, y, **settings).fit(X, y, np.arange(len(y)) + 1.0)
    if method in CASCADE_NAMES:
        with pytest.raises(InputError, match="cannot be guaranteed"):
            system.at(budget=0.1)  # below the price of each feature


class UnexpectedFit(LogisticRegression):
    """A model with a fit that fails the test, because settings must be checked earlier."""

    def fit(self, X, y, sample_weight=None):
        raise AssertionError("a model was fitted")


def format_message(bound, n_needed, of="rows of"):
    return f"{bound} needs {n_needed} calibration {of} this class, but there are 8;"


# n rows without an error certify at 95 % a recall of 1 - b with (1 - b)^n <= 0.05: 29 rows for
# b = 0.1. The paired test of a loss of 0.05, and the test of means of groups, need 70, not 59.
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_loss": {"fault": 0.05, "ok": 0.9}}, format_message("max_loss fault=0.05", 70)),
        ({"max_loss": {"fault": 0.05}, "budget": 5.0}, format_message("max_loss fault=0.05", 70)),
        ({"max_loss": {"fault": 0}}, "max_loss fault=0 cannot be certified, only a bound above"),
        ({"min_recall": {"fault": 0.9}}, format_message("min_recall fault=0.9", 29)),
        ({"min_recall": {"ok": 1}}, "min_recall ok=1 cannot be certified, only a bound below"),
        ({"max_loss": {"ok": 0.05}}, format_message("max_loss ok=0.05", 70, of="groups with")),
        ({"max_loss": 1.5}, "a float in the range [0.0, 1.0]"),
    ],
)
def test_guarantees_that_need_more_calibration_rows_are_refused_before_any_fit(settings, message):
    y = np.where(np.arange(800) % 20 == 0, "fault", "ok")  # 8 of 160 calibration rows
    X = np.random.default_rng(0).normal(size=(800, 3))
    groups = np.repeat(np.arange(40), 20) if "groups" in message else None
    system = clone(QUICK_CASCADE).set_params(
        high_cost_model=UnexpectedFit(), guarantee=0.95, **settings
    )
    with pytest.raises(InputError, match=re.escape(message)):
        system.fit(X, y, groups=groups)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["staged", "adapt-gbrt", "adapt-lin", "greedy-miser"])
def test_rows_of_nearly_no_weight_do_not_change_the_fit(method):
    # half of the labels are flipped and have a weight of nearly 0
    X, X_test, y, y_test = load_table()
    is_flipped = np.random.default_rng(0).random(len(y)) < 0.5
    noisy_labels = np.where(is_flipped, np.where(y == "no", "yes", "no"), y)
    system = make_method(method, X, y, max_loss=0.0).fit(
        X, noisy_labels, np.where(is_flipped, 1e-4, 1.0)
    )
    # only the stages count because the forest was fitted on the true labels
    margins = system.stages_[-1].margins(X_test.to_numpy(np.float32))
    stage_labels = system.classes_[(margins[:, 0] > 0).astype(int)]
    # a fit to the flipped labels as well would be right for half of the rows
    assert np.mean(stage_labels == y_test) > 0.8
    assert system.frontier_.reference_accuracy > 0.8


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "invalid_setting"),
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
        ("adapt-gbrt", {"warm_up": 5, "n_rounds": 5}),
        ("adapt-lin", {"refit": "no"}),
        ("adapt-gbrt", {"num_leaves": 1}),
        ("adapt-gbrt", {"max_loss": -0.1}),
        ("greedy-miser", {"learning_rate": 0.0}),
        ("greedy-miser", {"max_depth": 0}),
        ("greedy-miser", {"penalties": None}),
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
def test_errors_name_the_invalid_setting(method, invalid_setting):
    X, _, y, _ = load_table()
    with pytest.raises(InputError, match=next(iter(invalid_setting))):
        make_method(method, X, y, **invalid_setting).fit(X, y)


def test_invalid_tables_and_budgets_are_refused():
    X, _, y, _ = load_table()
    labels_with_rare_class = y.astype(object)
    labels_with_rare_class[0] = "rare"
    infinite_table = X.copy()
    infinite_table.iloc[3, 4] = 1e39  # finite in float64, not in float32
    for rows, labels, settings, message in (
        (X, labels_with_rare_class, {}, "'rare' has one row only"),
        (X, np.full(len(y), "a"), {}, "one class only"),
        (X, np.where(y == y[0], None, "a"), {}, "y is missing .* rows: leave out rows"),
        (infinite_table, y, {}, "column 'f4' contains infinity"),
        (X, y, {"feature_costs": FeatureCosts.uniform(3)}, "3 feature costs for 9"),
        (X, y, {"budget": 0.0}, "budget 0 is below the price of the cheapest feature, 'f0' at 1"),
    ):
        with pytest.raises(InputError, match=message):
            clone(QUICK_CASCADE).set_params(**settings).fit(rows, labels)


@pytest.mark.slow
def test_a_fit_without_a_point_for_the_goal_keeps_the_models_but_not_the_earlier_point():
    X, _, y, _ = load_table()
    bounded_class = y[0]
    system = (
        clone(QUICK_CASCADE)
        .fit(X, y)
        .set_params(min_recall={bounded_class: 1.0}, min_precision={bounded_class: 1.0})
    )
    with pytest.raises(InputError, match="no operating point keeps"):
        system.fit(X, y)
    with pytest.raises(NotFittedError):
        system.predict(X)
    system_at_point = system.at(
        budget=4.0, min_recall={bounded_class: 0.0}, min_precision={bounded_class: 0.0}
    )
    assert system_at_point.operating_point_.cost <= 4.0
    assert len(system_at_point.predict(X)) == len(X)


@pytest.mark.parametrize("method", ["adapt-lin", "adapt-lstsq", "l1"])
def test_linear_models_refuse_missing_values(method):
    X, _, y, _ = load_table()
    system = make_method(method, X, y)
    X.iloc[3, 2] = np.nan
    with pytest.raises(InputError, match="column 'f2' contains NaN"):
        system.fit(X, y)
    assert "allow_missing" not in system.get_params()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["adapt-gbrt", "staged"])
def test_trees_accept_missing_values_if_allowed(method):
    X, X_test, y, y_test = load_table()
    X.iloc[::4, 2] = X_test.iloc[::4, 2] = np.nan
    settings = {"high_cost_model": HistGradientBoostingClassifier(max_iter=10, random_state=0)}
    with pytest.raises(InputError, match="fill it in, or fit with allow_missing"):
        make_method(method, X, y, **settings).fit(X, y)
    system = make_method(method, X, y, allow_missing=True, **settings).fit(X, y)
    assert system.missing_ == {"stages": "allowed", "cloud": "allowed"}
    assert system.score(X_test, y_test) > 0.85  # the more frequent class has 63 % of the rows


@pytest.mark.slow
def test_fits_with_one_seed_are_equal():
    X, X_test, y, _ = load_table(is_binary=False)
    system = clone(QUICK_CASCADE).set_params(families=("linear", "svm"))
    first_fit, second_fit = (clone(system).fit(X, y) for _ in range(2))
    assert first_fit.frontier_ == second_fit.frontier_
    np.testing.assert_array_equal(first_fit.predict_proba(X_test), second_fit.predict_proba(X_test))


@pytest.mark.slow
def test_a_frozen_model_gets_its_feature_names_and_is_not_refitted(recwarn):
    X, y = make_classification(300, 4, n_informative=3, n_redundant=0, random_state=0)
    named_table = pd.DataFrame(X, columns=list("abcd"))
    regression = LogisticRegression().fit(named_table, y)
    coefficients = regression.coef_.copy()
    system = clone(
        clone(QUICK_CASCADE).set_params(high_cost_model=FrozenEstimator(regression))
    ).fit(named_table, y)
    np.testing.assert_array_equal(regression.coef_, coefficients)
    labels = system.classes_[system.high_cost_model_.labels(X.astype(np.float32))]
    np.testing.assert_array_equal(labels, regression.predict(named_table.astype(np.float32)))
    assert not [warning for warning in recwarn if "feature names" in str(warning.message)]
    with pytest.raises(InputError, match="fitted with 'a' as column 0, the data has 'd'"):
        system.fit(named_table[list("dcba")], y)


@pytest.mark.parametrize("goal", [{"budget": 2.0}, {"offload_rate": 0.1}])
def test_a_loss_of_all_rows_beside_another_goal_is_refused(goal):
    X, y = make_classification(80, 4, random_state=0)
    with pytest.raises(InputError, match="has no effect with a budget or an offload_rate"):
        StagedCascade(max_loss=0.1, **goal).fit(X, y)
