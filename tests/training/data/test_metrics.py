"""Test Average Precision@k against its definition over every order of ties."""

from __future__ import annotations

from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gatewise.errors import InputError
from gatewise_training.data.metrics import average_precision_at, average_precisions_at


def precision_of_order(relevant, k):
    """Return the metric of ordered documents by its definition."""
    for j, is_relevant in enumerate(relevant[:k], start=1):
        if not is_relevant:
            return (j - 1) / k
    return 1.0


def brute_force(scores, relevant, qid, k):
    """Return the mean over queries of the mean over all orders that the scores allow."""
    precisions = []
    for query in set(qid):
        documents = [
            (score, is_relevant)
            for score, is_relevant, row_query in zip(scores, relevant, qid, strict=True)
            if row_query == query
        ]
        orders = [
            [is_relevant for _, is_relevant in order]
            for order in permutations(documents)
            if all(higher[0] >= lower[0] for higher, lower in pairwise(order))
        ]
        precisions.append(np.mean([precision_of_order(order, k) for order in orders]))
    return float(np.mean(precisions))


documents = st.lists(
    st.tuples(st.integers(0, 2), st.booleans(), st.integers(0, 2)), min_size=1, max_size=12
).filter(lambda rows: max(sum(q == i for *_, q in rows) for i in range(3)) <= 6)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(documents, st.integers(1, 7))
def test_the_metric_is_the_mean_over_all_orders_of_ties(rows, k):
    scores, relevant, qid = zip(*rows, strict=True)
    expected = brute_force(scores, relevant, qid, k)
    assert average_precision_at(scores, relevant, qid, k) == pytest.approx(expected, abs=1e-12)


def test_queries_count_equally_for_any_size_and_order():
    rng = np.random.default_rng(0)
    qid = np.repeat(["a", "b", "c"], [3, 40, 7])
    scores, relevant = rng.integers(0, 9, 50), rng.random(50) < 0.6
    masks = [qid == query for query in "abc"]
    by_query = [average_precision_at(scores[mask], relevant[mask], qid[mask]) for mask in masks]
    assert average_precisions_at(scores, relevant, qid).tolist() == by_query
    order = rng.permutation(50)
    mean_precision = average_precision_at(scores[order], relevant[order], qid[order])
    assert mean_precision == pytest.approx(np.mean(by_query))
    # infinite scores of relevant documents never lower the metric
    assert average_precision_at(np.where(relevant, np.inf, scores), relevant, qid) >= mean_precision


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
