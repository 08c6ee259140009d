"""CEGBRanker: budgets, costs counted by hand, and queries."""

from __future__ import annotations

import numpy as np
import pytest

from gatewise.costs import FeatureCosts
from gatewise.errors import InputError
from gatewise_training.cegb.ranker import CEGBRanker
from gatewise_training.data.datasets import load
from gatewise_training.data.metrics import average_precision_at
from tests.support.ranked_queries import queries
from tests.support.shared_data import shared_data
from tests.support.tree_walks import counted

pytestmark = pytest.mark.slow  # fits of several seconds

FEW = {"n_penalties": 6, "n_rounds": 30, "random_state": 0}


@pytest.mark.parametrize("accounting", ["lazy", "coupled"])
def test_the_ranker_orders_documents_within_its_budget(accounting):
    (X, y, qid), held = queries(0), queries(1)
    model = CEGBRanker(accounting=accounting, budget=3.0, **FEW)
    model.fit(X, y, qid=qid, validation=held)
    assert model.operating_point_.cost <= 3.0
    nothing = average_precision_at(np.zeros(len(held[1])), held[1] > 0, held[2])
    assert model.score(*held[:2], qid=held[2]) > nothing + 0.2
    for point in model.frontier_.points:
        moved = model.at(budget=point.cost)
        row_costs, _ = counted(moved, held[0], FeatureCosts.uniform(6))
        assert moved.cost(held[0]).tolist() == row_costs.tolist()
        assert point.cost == pytest.approx(np.mean(row_costs))
        earned = average_precision_at(moved.predict(held[0]), held[1] > 0, held[2])
        assert point.accuracy == pytest.approx(earned)


def test_documents_of_a_query_need_not_lie_together():
    X, y, qid = queries(0)
    few = FEW | {"penalties": (0.02,), "max_loss": 0.2}
    names = np.array(["ab", "cd", "ef"])[qid % 3]
    together = np.argsort(names, kind="stable")
    scattered = CEGBRanker(**few).fit(X, y, qid=names)
    sorted_rows = CEGBRanker(**few).fit(X[together], y[together], qid=names[together])
    np.testing.assert_array_equal(scattered.predict(X), sorted_rows.predict(X))
    assert scattered.score(X, y, qid=names) > 0.5


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({}, "give qid"),
        ({"qid": [1, 2]}, "qid must have shape"),
        ({"qid": [np.nan, *range(len(queries(0)[1]) - 1)]}, "qid is missing in row 0"),
    ],
)
def test_rankings_without_their_queries_are_refused(more, says):
    X, y, _ = queries(0)
    with pytest.raises(InputError, match=says):
        CEGBRanker(**FEW).fit(X, y, **more)


def test_grades_and_settings_of_a_ranking_are_checked():
    X, y, qid = queries(0)
    for bad in (y - 1, y + 0.5):
        with pytest.raises(InputError, match="relevance must be whole numbers"):
            CEGBRanker(**FEW).fit(X, bad, qid=qid)
    with pytest.raises(InputError, match="triple"):
        CEGBRanker(**FEW).fit(X, y, qid=qid, validation=(X, y))
    with pytest.raises(InputError, match="too few"):
        CEGBRanker(**FEW).fit(X, y, qid=np.zeros(len(y)))


def test_mq2008_is_ranked_better_than_by_chance():
    data = load(shared_data("mq2008.npz"))
    queries = data.aside["qid"]
    with np.load(shared_data("mq2008.npz")) as file:
        fold_of = file["part"]
    # LETOR's first fold: parts 1 to 3 fit, 4 validates, 5 is the test
    fit, held, test = (
        (data.X[rows], data.y[rows], queries[rows])
        for rows in (np.isin(fold_of, (1, 2, 3)), fold_of == 4, fold_of == 5)
    )
    X, y, qid = fit
    X_test, y_test, q_test = test
    model = CEGBRanker(budget=6.0, n_penalties=8, random_state=0)
    model.fit(X, y, qid=qid, validation=held)
    assert model.operating_point_.cost <= 6.0
    nothing = average_precision_at(np.zeros(len(y_test)), y_test > 0, q_test)
    assert model.score(X_test, y_test, qid=q_test) > 2 * nothing
    few = X_test[:300]
    assert model.cost(few).tolist() == counted(model, few, data.feature_costs)[0].tolist()
