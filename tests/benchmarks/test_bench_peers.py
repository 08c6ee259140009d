"""Tests of costs, stop rules and operating points of the peers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.comparison import peer_cegb, peer_static, peers
from benchmarks.comparison.boosters import booster_fit, sweep_penalties
from benchmarks.comparison.record import Point, pareto_points, threshold_quantiles
from benchmarks.comparison.systems import system_points
from benchmarks.data import problems
from gatewise.costs import FeatureCosts
from gatewise_training import StagedCascade
from gatewise_training.data.validation_split import ValidationSplit

pytestmark = pytest.mark.slow  # fits of several seconds


@pytest.fixture(scope="module")
def fold():
    """The first fold of Breast Cancer, of 30 features at price 1."""
    return problems.get("breast_cancer").make_folds(0)[0]


def choose_plan(fold):
    """Choose the fits on a fold that has its own validation rows."""
    X, y = fold.train
    return ValidationSplit.choose(X, y, np.ones(len(y)), validation=fold.validation, seed=0)


def test_lazy_cost_equals_a_walk_through_every_tree(fold):
    plan = choose_plan(fold)
    costs = FeatureCosts(
        np.arange(1, 31) / 10, group=["a"] * 10 + ["b"] * 10 + [None] * 10,
        shared={"a": 2.0, "b": 0.5},
    )  # fmt: skip
    penalty = {"num_leaves": 15, "cegb_penalty_feature_lazy": [0.01] * 30}
    model = booster_fit(plan, np.arange(30), 2, penalty, seed=0)(*plan.folds[0], None)
    X = fold.test[0][:40]  # few rows, because the walk is slow
    path_costs = peer_cegb.path_costs(model, X, costs)

    frame = model.model.trees_to_dataframe()
    frame = frame[frame.tree_index < model.rounds].set_index("node_index")
    roots = frame[frame.node_depth == 1].index
    for row, cost in zip(X.astype(float), path_costs, strict=True):
        acquired_features: set[int] = set()
        for node in roots:
            while isinstance(frame.at[node, "split_feature"], str):
                feature = int(frame.at[node, "split_feature"].removeprefix("Column_"))
                acquired_features.add(feature)
                goes_left = row[feature] <= frame.at[node, "threshold"]
                node = frame.at[node, "left_child" if goes_left else "right_child"]
        assert cost == pytest.approx(costs.price(sorted(acquired_features)))


def test_sweep_places_its_fits_between_different_costs():
    tried_penalties = []

    def evaluate_penalty(penalty):
        """Return a cost that falls at penalties of 1 and 2."""
        tried_penalties.append(penalty)
        return (30.0 if penalty < 1 else 3.0 if penalty < 2 else 1.0), penalty

    results = sweep_penalties(evaluate_penalty, 1e-4, 1e4, 12)
    assert results == sorted(tried_penalties)
    assert len(tried_penalties) <= 12
    # 12 fits find the first fall within half a penalty, although the range spans eight decades
    assert max(penalty for penalty in tried_penalties if penalty < 1) > 0.5
    assert min(penalty for penalty in tried_penalties if penalty >= 1) < 1.5


def test_elimination_removes_whole_groups_of_free_features():
    fold = problems.get("digits").make_folds(0)[0]
    plan = choose_plan(fold)
    costs = FeatureCosts(np.zeros(64), group=np.arange(64) // 8, shared=[1.0] * 8)
    model = booster_fit(plan, np.arange(64), 10, {"num_leaves": 7}, seed=0)(*plan.folds[0], 10)
    kept_features = peer_static._remove_features(model, costs, 3.0)
    assert costs.price(kept_features) == 3.0
    assert set(kept_features) == {
        feature
        for feature in model.used_features()
        if costs.group[feature] in costs.group[kept_features]
    }


def test_sedna_rules_follow_their_formulas():
    rows = np.array([[0.7, 0.2, 0.1], [1.0, 0.0, 0.0], [1 / 3, 1 / 3, 1 / 3]])
    scores = peer_static.SCORES["sedna-cross-entropy"](rows)
    # 1 minus the entropy as a share of the largest one, that of three equal probabilities
    first_score = 1 + sum(
        probability * math.log(probability) for probability in rows[0]
    ) / math.log(3)
    assert scores == pytest.approx([first_score, 1.0, 0.0])
    assert peer_static.SCORES["sedna-threshold"](rows).tolist() == rows.max(axis=1).tolist()


def test_thresholds_include_never_and_always():
    thresholds = threshold_quantiles(np.array([0.3, 0.1, 0.2, 0.2]), 10)
    assert thresholds[0] == np.inf
    assert thresholds[-1] == -np.inf
    assert sorted(thresholds[1:-1]) == pytest.approx([0.15, 0.25])


def test_pareto_points_include_the_free_answer_and_the_pareto_front(fold):
    points = [
        Point(0.9, 5.0, 0.8, 5.0),
        Point(0.85, 6.0, 0.99, 6.0),  # higher cost and lower validation accuracy
        Point(0.95, 7.0, 0.7, 7.0, nbytes=2**18),
        Point(0.93, 7.5, 0.7, 7.5, nbytes=100),  # the best of the small ones
    ]
    front = pareto_points(points, fold)
    assert front[0].cost == 0
    assert front[0].accuracy == pytest.approx(np.mean(fold.test[1] == 0))  # benign
    assert front[1:] == [points[0], points[2], points[3]]


def test_points_of_a_system_equal_its_own_figures(fold):
    system = StagedCascade(n_stages=3, families=("linear",), effort="low", random_state=0)
    system.fit(*fold.train, validation=fold.validation)
    points = system_points(system, fold)
    assert len(points) == len(system.frontier_.points)
    X, y = fold.test
    for point in points:
        point_system = system.at(budget=point.val_cost)
        assert point_system.operating_point_.accuracy == point.val_accuracy
        assert point.accuracy == pytest.approx(np.mean(point_system.predict(X) == y))
        assert point.cost == pytest.approx(point_system.cost(X).mean())
        assert point.offload_rate == pytest.approx(point_system.offload(X).mean())


@pytest.mark.parametrize(
    "method", ["static", "two-stage", "cegb-coupled", "cegb-lazy", "catboost", "entropy-forest"]
)
def test_every_peer_has_free_and_accurate_points(method, fold):
    task = peers.Task(problems.get("breast_cancer"), fold, 0, 3, lambda _name, make: make())
    outcome = peers.run_method(method, task)
    assert outcome.seconds > 0
    costs = [point.val_cost for point in outcome.points]
    assert costs == sorted(costs)
    assert costs[0] == 0
    assert costs[-1] <= 30  # all features
    most_accurate_point = outcome.points[-1]
    assert most_accurate_point.accuracy > 0.9  # the most frequent class has 0.63
