"""CEGBRanker: budgets, costs counted from the trees, and queries."""

from __future__ import annotations

import numpy as np
import pytest

from gatewise.costs import FeatureCosts
from gatewise.errors import InputError
from gatewise_training.cegb.scored_models import CEGBRanker
from gatewise_training.data.metrics import average_precision_at
from tests.support.ranked_queries import draw_queries
from tests.support.tree_walks import measure_costs_and_splits

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("two_folds")]  # fits of several seconds

SETTINGS = {"n_penalties": 6, "n_rounds": 30, "random_state": 0}


@pytest.mark.parametrize("accounting", ["lazy", "coupled"])
def test_ranker_orders_documents_within_its_budget(accounting):
    X, y, qid = draw_queries(0)
    X_val, y_val, qid_val = draw_queries(1)
    model = CEGBRanker(accounting=accounting, budget=3.0, **SETTINGS)
    model.fit(X, y, qid=qid, validation=(X_val, y_val, qid_val))
    assert model.operating_point_.cost <= 3.0
    # equal scores count as the mean over all orders
    constant_score = average_precision_at(np.zeros(len(y_val)), y_val > 0, qid_val)
    assert model.score(X_val, y_val, qid=qid_val) > constant_score + 0.2
    for point in model.frontier_.points:
        point_model = model.at(budget=point.cost)
        row_costs, _ = measure_costs_and_splits(point_model, X_val, FeatureCosts.uniform(6))
        assert point_model.cost(X_val).tolist() == row_costs.tolist()
        assert point.cost == pytest.approx(np.mean(row_costs))
        score = average_precision_at(point_model.predict(X_val), y_val > 0, qid_val)
        assert point.accuracy == pytest.approx(score)


def test_documents_of_a_query_need_not_be_adjacent():
    X, y, qid = draw_queries(0)
    settings = SETTINGS | {"penalties": (0.02,), "max_loss": 0.2}
    query_names = np.array(["ab", "cd", "ef"])[qid % 3]
    row_order = np.argsort(query_names, kind="stable")
    model_of_scattered_rows = CEGBRanker(**settings).fit(X, y, qid=query_names)
    model_of_sorted_rows = CEGBRanker(**settings).fit(
        X[row_order], y[row_order], qid=query_names[row_order]
    )
    np.testing.assert_array_equal(
        model_of_scattered_rows.predict(X), model_of_sorted_rows.predict(X)
    )
    assert model_of_scattered_rows.score(X, y, qid=query_names) > 0.5  # the models did learn


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "give qid"),
        ({"qid": [1, 2]}, "qid must have shape"),
        ({"qid": [np.nan, *range(len(draw_queries(0)[1]) - 1)]}, "qid is missing in row 0"),
    ],
)
def test_invalid_queries_are_refused(arguments, message):
    X, y, _ = draw_queries(0)
    with pytest.raises(InputError, match=message):
        CEGBRanker(**SETTINGS).fit(X, y, **arguments)


def test_invalid_grades_and_validation_queries_are_refused():
    X, y, qid = draw_queries(0)
    for grades in (y - 1, y + 0.5):
        with pytest.raises(InputError, match="relevance must be whole numbers"):
            CEGBRanker(**SETTINGS).fit(X, grades, qid=qid)
    for validation in ((X, y), 5):
        with pytest.raises(InputError, match="triple"):
            CEGBRanker(**SETTINGS).fit(X, y, qid=qid, validation=validation)
    with pytest.raises(InputError, match="too few"):
        CEGBRanker(**SETTINGS).fit(X, y, qid=np.zeros(len(y)))
