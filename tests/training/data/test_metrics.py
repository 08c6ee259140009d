"""Average Precision@k: by hand, and ties against every order they could stand in."""

from __future__ import annotations

from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gatewise.errors import InputError
from gatewise_training.data.metrics import average_precision_at, average_precisions_at


def of_order(relevant, k):
    """The definition, for documents that stand in an order."""
    for j, good in enumerate(relevant[:k], start=1):
        if not good:
            return (j - 1) / k
    return 1.0


def brute_force(scores, relevant, qid, k):
    """Mean over queries of the mean over every order that the scores allow."""
    found = []
    for query in set(qid):
        documents = [(s, r) for s, r, q in zip(scores, relevant, qid, strict=True) if q == query]
        orders = [
            [r for _, r in order]
            for order in permutations(documents)
            if all(a[0] >= b[0] for a, b in pairwise(order))
        ]
        found.append(np.mean([of_order(order, k) for order in orders]))
    return float(np.mean(found))


documents = st.lists(
    st.tuples(st.integers(0, 2), st.booleans(), st.integers(0, 2)), min_size=1, max_size=12
).filter(lambda rows: max(sum(q == i for *_, q in rows) for i in range(3)) <= 6)


@settings(max_examples=150, deadline=None)
@given(documents, st.integers(1, 7))
def test_ties_are_the_mean_over_every_order_they_could_stand_in(rows, k):
    scores, relevant, qid = zip(*rows, strict=True)
    wanted = brute_force(scores, relevant, qid, k)
    assert average_precision_at(scores, relevant, qid, k) == pytest.approx(wanted, abs=1e-12)


def test_queries_count_alike_whatever_their_size_and_order():
    rng = np.random.default_rng(0)
    qid = np.repeat(["a", "b", "c"], [3, 40, 7])
    scores, relevant = rng.integers(0, 9, 50), rng.random(50) < 0.6
    parts = [qid == q for q in "abc"]
    alone = [average_precision_at(scores[p], relevant[p], qid[p]) for p in parts]
    assert average_precisions_at(scores, relevant, qid).tolist() == alone
    mixed = rng.permutation(50)
    together = average_precision_at(scores[mixed], relevant[mixed], qid[mixed])
    assert together == pytest.approx(np.mean(alone))
    # a document that beats all others of its query can't be beaten by infinity
    assert average_precision_at(np.where(relevant, np.inf, scores), relevant, qid) >= together


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (([1.0], [True, False], [0, 0]), "one length"),
        (([], [], []), "no document"),
        (([1.0, np.nan], [True, False], [0, 0]), "score 1 is NaN"),
        (([1.0], [True], [0], 0), "k must be at least 1"),
    ],
)
def test_what_cannot_be_ranked_is_refused(arguments, why):
    with pytest.raises(InputError, match=why):
        average_precision_at(*arguments)
