"""Tests that benchmark points of ranking problems are scored by AP@5."""

from __future__ import annotations

from dataclasses import astuple, replace

import numpy as np
import pytest

from benchmarks.comparison import boosters, peer_cegb, peers, summary
from benchmarks.comparison.pages import accuracy_page
from benchmarks.comparison.record import Point
from benchmarks.comparison.systems import own_choice, system_points
from benchmarks.data import problems
from benchmarks.data.fetching import find_file
from benchmarks.data.folds import Fold, Truth
from benchmarks.data.problems import Problem
from gatewise.costs import FeatureCosts
from gatewise_training import StagedCascade
from gatewise_training.data.metrics import average_precision_at
from tests.support.ranked_queries import draw_queries

pytestmark = pytest.mark.slow  # fits of several seconds


def draw_ranked_rows(seed, n_queries):
    """Draw queries of 5 to 12 documents, which are relevant or not."""
    X, grades, qid = draw_queries(seed, n_queries)
    return (X, (grades > 0).astype(np.int64)), qid


@pytest.fixture(scope="module")
def problem():
    """A synthetic ranking problem of one fold."""
    (train, _), (validation, validation_queries), (test, test_queries) = (
        draw_ranked_rows(0, 60),
        draw_ranked_rows(1, 30),
        draw_ranked_rows(2, 40),
    )
    fold = Fold(train, validation, test, (validation_queries, test_queries))
    costs = FeatureCosts.uniform(6)
    return Problem("made", "made", costs, 2, 1.0, lambda _seed: [fold], metric="AP@5")


@pytest.fixture(scope="module")
def fold(problem):
    """The fold of the problem."""
    return problem.make_folds(0)[0]


@pytest.fixture(scope="module")
def system(fold):
    """A cascade fitted to the fold."""
    cascade = StagedCascade(n_stages=2, families=("linear",), effort="low", random_state=0)
    return cascade.fit(*fold.train, validation=fold.validation)


def compute_average_precision(system, labelled_rows, qid):
    """Compute the AP@5 of a system's probabilities for rows and labels."""
    X, y = labelled_rows
    return average_precision_at(system.predict_proba(X)[:, 1], y == 1, qid)


def test_truth_scores_classes_by_accuracy_and_queries_by_ap():
    y = np.array([0, 1, 1, 0])
    proba = np.array([[0.6, 0.4], [0.4, 0.6], [0.7, 0.3], [0.9, 0.1]])
    classes = Truth(y)
    queries = Truth(y, np.array([1, 1, 2, 2]))
    assert classes.to_answers(proba).tolist() == [0, 1, 0, 0]
    assert classes.score(classes.to_answers(proba)) == 0.75
    assert len(classes) == 4
    assert queries.to_answers(proba).tolist() == proba[:, 1].tolist()
    assert queries.score(queries.to_answers(proba)) == 0.2  # (1/1 + 0) / 5 in each query
    assert queries.score(np.array(0)) == pytest.approx(0.1)  # a tie of two: either may be first
    assert len(queries) == 2


def test_points_of_a_system_have_the_figures_of_its_rankings(system, fold):
    points = system_points(system, fold)
    assert len(points) == len(system.frontier_.points)
    for point in points:
        point_system = system.at(budget=point.val_cost)
        assert point.val_accuracy == pytest.approx(
            compute_average_precision(point_system, fold.validation, fold.queries[0])
        )
        assert point.accuracy == pytest.approx(
            compute_average_precision(point_system, fold.test, fold.queries[1])
        )
        assert point.cost == pytest.approx(point_system.cost(fold.test[0]).mean())
        assert point.offload_rate == pytest.approx(point_system.offload(fold.test[0]).mean())


def test_own_choice_is_scored_as_a_ranking(system, fold):
    point = own_choice(system, fold, 0.05)
    chosen_system = system.at(max_loss=0.05)
    assert point.val_accuracy == pytest.approx(
        compute_average_precision(chosen_system, fold.validation, fold.queries[0])
    )
    assert point.accuracy == pytest.approx(
        compute_average_precision(chosen_system, fold.test, fold.queries[1])
    )


@pytest.mark.parametrize(
    "method", ["f0", "static", "two-stage", "cegb-coupled", "cegb-lazy", "catboost"]
)
def test_every_peer_ranks_better_than_chance(method, problem, fold):
    task = peers.Task(problem, fold, seed=0, n_fits=4, read_or_fit=lambda _name, make: make())
    points = peers.run_method(method, task).points
    chance = fold.test_truth.score(np.zeros(len(fold.test[1])))
    assert points[0].cost == 0
    assert points[0].accuracy == pytest.approx(chance)
    assert points[-1].accuracy > chance + 0.15  # clearly, with labels as noisy as these


@pytest.mark.parametrize(("is_noisy", "leaf_counts"), [(False, {255}), (True, {7, 31, 255})])
def test_peers_try_small_trees_for_noisy_labels(is_noisy, leaf_counts, problem, fold, monkeypatch):
    tried_leaf_counts = set()
    fit_booster = peer_cegb.booster_fit

    def record_and_fit(plan, columns, n_classes, parameters, **options):
        tried_leaf_counts.add(parameters["num_leaves"])
        return fit_booster(plan, columns, n_classes, parameters, **options)

    monkeypatch.setattr(boosters, "LARGE_ROWS", 10)  # so that these few rows are a large data set
    monkeypatch.setattr(peer_cegb, "booster_fit", record_and_fit)
    task = peers.Task(
        replace(problem, has_noisy_labels=is_noisy),
        fold,
        seed=0,
        n_fits=2,
        read_or_fit=lambda _name, make: make(),
    )
    peers.run_method("cegb-coupled", task)
    assert tried_leaf_counts == leaf_counts


def test_sampled_fold_has_complete_queries(fold):
    sample = fold.sample(120)
    for qid, sample_qid, max_rows in zip(fold.queries, sample.queries, (60, 120), strict=True):
        assert 0 < len(sample_qid) <= max_rows
        for query in np.unique(sample_qid):
            assert (sample_qid == query).sum() == (qid == query).sum()
    assert len(sample.test_truth.y) == len(sample.queries[1]) == len(sample.test[0])
    is_sampled = np.isin(fold.queries[1], sample.queries[1])
    assert np.array_equal(sample.test[0], fold.test[0][is_sampled])


def test_figures_name_their_metric(problem):
    free_point = Point(val_accuracy=0.1, val_cost=0.0, accuracy=0.1, cost=0.0)
    point = Point(val_accuracy=0.3, val_cost=2.0, accuracy=0.31, cost=2.0)
    points = [list(astuple(free_point)), list(astuple(point))]
    fold_figures = {"n_test": 40, "points": points, "own": None, "seconds": 1.0, "about": {}}
    run_record = {"seed": 0, "code": "c", "folds": [fold_figures]}
    figures = summary.summarise(problem, {"staged": [run_record]})
    assert figures["metric"] == "AP@5"
    page = accuracy_page.markdown({"made": figures})
    assert "31.00 (AP@5, validation: staged)" in page
    assert "| best AP@5 |" in page
    del figures["metric"]  # like figures of older runs
    assert "| best accuracy |" in accuracy_page.markdown({"made": figures})


@pytest.mark.skipif(
    find_file("mq2008") is None, reason="mq2008.npz is not there: python -m benchmarks.data fetch"
)
def test_mq2008_is_split_by_query():
    folds = problems.get("mq2008").make_folds(0)
    with np.load(problems.data_file("mq2008")) as file:
        arrays = {key: file[key] for key in file.files}
    assert sorted(len(fold.test_truth) for fold in folds) == [156, 157, 157, 157, 157]  # 784
    assert np.array_equal(
        np.unique(np.concatenate([fold.queries[1] for fold in folds])), np.unique(arrays["qid"])
    )
    for fold_index, fold in enumerate(folds):
        train_queries = set(np.unique(arrays["qid"])) - set(fold.queries[0]) - set(fold.queries[1])
        assert not set(fold.queries[0]) & set(fold.queries[1])
        assert len(fold.train[1]) == np.isin(arrays["qid"], list(train_queries)).sum()
        # fold 1 tests on part 5, fold 2 on part 1, and so on
        is_test_row = arrays["part"] == (fold_index + 4) % 5 + 1
        assert np.array_equal(fold.test[1], arrays["y"][is_test_row] > 0)
        assert np.array_equal(fold.queries[1], arrays["qid"][is_test_row])
