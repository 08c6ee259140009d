"""Test Average Precision@k against its definition over every order of ties."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gatewise.errors import InputError
from gatewise_training.data.metrics import average_precision_at, average_precisions_at


def compute_precision(is_relevant_by_rank, k):
    """Compute the share of the first k ranks before the first irrelevant document."""
    for rank, is_relevant in enumerate(is_relevant_by_rank[:k], start=1):
        if not is_relevant:
            return (rank - 1) / k
    return 1.0


def average_over_all_orders(scores, is_relevant_by_row, qid, k):
    """Compute the mean over queries of the mean over all orders that the scores allow."""
    precisions = []
    for query in set(qid):
        scored_documents = [
            (score, is_relevant)
            for score, is_relevant, row_query in zip(scores, is_relevant_by_row, qid, strict=True)
            if row_query == query
        ]
        orders = [
            [is_relevant for _, is_relevant in order]
            for order in permutations(scored_documents)
            if all(higher[0] >= lower[0] for higher, lower in pairwise(order))
        ]
        precisions.append(np.mean([compute_precision(order, k) for order in orders]))
    return float(np.mean(precisions))


# Score, relevance and query of each document. The 720 orders of 6 documents of a query can be
# listed in a moment.
DOCUMENTS = st.lists(
    st.tuples(st.integers(0, 2), st.booleans(), st.integers(0, 2)), min_size=1, max_size=12
).filter(lambda rows: max(Counter(query for *_, query in rows).values()) <= 6)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(DOCUMENTS, st.integers(1, 7))
def test_the_metric_is_the_mean_over_all_orders_of_ties(rows, k):
    scores, is_relevant_by_row, qid = zip(*rows, strict=True)
    expected_precision = average_over_all_orders(scores, is_relevant_by_row, qid, k)
    assert average_precision_at(scores, is_relevant_by_row, qid, k) == pytest.approx(
        expected_precision, abs=1e-12
    )


def test_queries_count_equally_for_any_size_and_order():
    rng = np.random.default_rng(0)
    qid = np.repeat(["a", "b", "c"], [3, 40, 7])
    scores, is_relevant_by_row = rng.integers(0, 9, 50), rng.random(50) < 0.6
    rows_of_queries = [qid == query for query in "abc"]
    precision_by_query = [
        average_precision_at(scores[rows], is_relevant_by_row[rows], qid[rows])
        for rows in rows_of_queries
    ]
    assert average_precisions_at(scores, is_relevant_by_row, qid).tolist() == precision_by_query
    row_order = rng.permutation(50)
    mean_precision = average_precision_at(
        scores[row_order], is_relevant_by_row[row_order], qid[row_order]
    )
    assert mean_precision == pytest.approx(np.mean(precision_by_query))
    # infinite scores of relevant documents never lower the metric
    best_scores = np.where(is_relevant_by_row, np.inf, scores)
    assert average_precision_at(best_scores, is_relevant_by_row, qid) >= mean_precision


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0], [True, False], [0, 0]), "one length"),
        (([], [], []), "no document"),
        (([1.0, np.nan], [True, False], [0, 0]), "score 1 is NaN"),
        (([1.0], [True], [0], 0), "k must be at least 1"),
    ],
)
def test_invalid_rankings_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        average_precision_at(*arguments)
