"""threshold-Pairs is admissible: the paper's five properties on random sets, and its formula."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gatewise_training.forests.grower.impurity import (
    change_of_pairs,
    entropy,
    gini,
    log_table,
    threshold_pairs,
)

COUNTS = st.lists(st.integers(0, 40), min_size=2, max_size=6)
ALPHA = st.one_of(st.just(0.0), st.integers(1, 12).map(float), st.floats(0.0, 12.0))


def pairs(counts, alpha):
    return threshold_pairs(np.array(counts, np.int64), alpha)


@st.composite
def nested(draw):
    """Class counts of a set G, of a subset R, and a class that an example outside G has."""
    larger = draw(COUNTS)
    smaller = [draw(st.integers(0, n)) for n in larger]
    return larger, smaller, draw(st.integers(0, len(larger) - 1))


def close(a, scale):
    return 1e-9 * max(abs(a), scale)


@settings(deadline=None)  # the first call compiles
@given(counts=COUNTS, alpha=ALPHA)
def test_the_formula_summed_over_all_ordered_pairs(counts, alpha):
    above = [max(n - alpha, 0.0) for n in counts]
    expected = sum(
        max(above[i] * above[j] - alpha**2, 0.0)
        for i in range(len(counts))
        for j in range(len(counts))
        if i != j
    )
    assert pairs(counts, alpha) == pytest.approx(expected, rel=1e-12, abs=1e-9)


@settings(deadline=None)  # the first call compiles
@given(counts=COUNTS, alpha=ALPHA)
def test_not_negative_and_of_logarithm_at_most_that_of_the_square(counts, alpha):
    f = pairs(counts, alpha)
    assert f >= 0.0
    assert f <= sum(counts) ** 2  # log F <= 2 log n


@settings(deadline=None)  # the first call compiles
@given(n=st.integers(0, 1000), place=st.integers(0, 3), alpha=ALPHA)
def test_pure_sets_have_none(n, place, alpha):
    counts = [0] * 4
    counts[place] = n
    assert pairs(counts, alpha) == 0.0


@settings(deadline=None)  # the first call compiles
@given(sets=nested(), alpha=ALPHA)
def test_monotone(sets, alpha):
    larger, smaller, _ = sets
    assert pairs(smaller, alpha) <= pairs(larger, alpha) + 1e-9


@settings(deadline=None)  # the first call compiles
@given(sets=nested(), alpha=ALPHA)
def test_supermodular(sets, alpha):
    """One more example adds at least as much to a set as to any of its subsets."""
    larger, smaller, j = sets

    def joined(counts):
        return [n + (m == j) for m, n in enumerate(counts)]

    added = pairs(joined(larger), alpha) - pairs(larger, alpha)
    added_below = pairs(joined(smaller), alpha) - pairs(smaller, alpha)
    assert added >= added_below - 1e-9 * max(pairs(joined(larger), alpha), 1.0)


@pytest.mark.parametrize("signs", [(1, -1), (-1, 1), (1, 1)])
def test_no_other_signs_of_the_formula_are_pure(signs):
    """The signs are lost in the paper's text; with any other ones a pure set is impure."""
    inner, outer = signs
    alpha, counts = 2.0, [9, 0]
    above = [max(n + inner * alpha, 0.0) for n in counts]
    assert 2 * max(above[0] * above[1] + outer * alpha**2, 0.0) > 0.0
    assert pairs(counts, alpha) == 0.0


@settings(deadline=None)  # the first call compiles
@given(counts=COUNTS, alpha=ALPHA, data=st.data())
def test_changes_add_up(counts, alpha, data):
    m = data.draw(st.integers(0, len(counts) - 1))
    more = data.draw(st.integers(-counts[m], 20))
    after = [n + more * (i == m) for i, n in enumerate(counts)]
    change = change_of_pairs(np.array(counts, np.int64), float(sum(counts)), m, more, alpha)
    f = pairs(after, alpha)
    assert pairs(counts, alpha) + change == pytest.approx(f, rel=1e-9, abs=1e-7)


@settings(deadline=None)  # the first call compiles
@given(counts=COUNTS)
def test_entropy_and_gini_against_their_definitions(counts):
    n = sum(counts)
    shares = [c / n for c in counts if c]
    bits = -n * sum(p * math.log2(p) for p in shares)
    array = np.array(counts, np.int64)
    assert entropy(array, log_table(n)) == pytest.approx(bits, abs=1e-8)
    assert gini(array) == pytest.approx(n * (1 - sum(p * p for p in shares)) if n else 0, abs=1e-8)


def test_entropy_and_gini_are_not_monotone():
    """Why they are not admissible (section 2.3): a subset may be less pure than the whole."""
    table = log_table(101)
    whole, part = np.array([100, 1]), np.array([1, 1])
    assert entropy(part, table) / 2 > entropy(whole, table) / 101
    assert gini(part) / 2 > gini(whole) / 101
