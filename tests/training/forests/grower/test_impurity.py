"""Impurities against their definitions, and the five properties that BudgetRF's proof needs."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gatewise_training.forests.grower.impurity import (
    change_of_pairs,
    entropy,
    log_table,
    threshold_pairs,
)

COUNTS = st.lists(st.integers(0, 60), min_size=2, max_size=6)
ALPHAS = st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.0, 2.75, 6.0, 15.0, 35.0])


def by_equation(counts, alpha, inner=-1, outer=-1):
    """Equation 11 in exact arithmetic, with the two signs that the printed text has lost."""
    a = Fraction(alpha)
    total = Fraction(0)
    for i, j in product(range(len(counts)), repeat=2):
        if i != j:
            pair = max(counts[i] + inner * a, 0) * max(counts[j] + inner * a, 0)
            total += max(pair + outer * a * a, 0)
    return total


def pairs(counts, alpha):
    return threshold_pairs(np.array(counts, np.int64), alpha)


def more(counts, *classes):
    """The set with one more example of each of some classes."""
    out = list(counts)
    for m in classes:
        out[m] += 1
    return out


@settings(deadline=None)  # the first call compiles
@given(COUNTS, ALPHAS)
def test_pairs_is_the_equation(counts, alpha):
    assert pairs(counts, alpha) == by_equation(counts, alpha)  # quarters: exact in float64


@settings(deadline=None)
@given(COUNTS, st.floats(0.0, 12.0))
def test_pairs_is_the_equation_at_any_threshold(counts, alpha):
    assert pairs(counts, alpha) == pytest.approx(float(by_equation(counts, alpha)), abs=1e-9)


@settings(deadline=None)
@given(COUNTS)
def test_without_a_threshold_it_counts_ordered_pairs_of_different_classes(counts):
    examples = [m for m, n in enumerate(counts) for _ in range(n)]
    assert pairs(counts, 0.0) == sum(a != b for a in examples for b in examples)


@pytest.mark.parametrize(("inner", "outer"), [(1, 1), (1, -1), (-1, 1)])
def test_no_other_signs_give_a_pure_set_no_impurity(inner, outer):
    assert by_equation([5, 0], 1.0, inner, outer) > 0
    assert by_equation([5, 0], 1.0) == 0


@settings(deadline=None)
@given(COUNTS, ALPHAS, st.integers(0, 10**6), st.data())
def test_pairs_are_admissible(counts, alpha, many, data):
    """The five conditions of BudgetRF's proof."""
    part = [data.draw(st.integers(0, n)) for n in counts]
    j = data.draw(st.integers(0, len(counts) - 1))
    value, n = pairs(counts, alpha), sum(counts)
    # 1 and 3: never negative, and a subset has no more
    assert value >= pairs(part, alpha) >= 0
    # 2: a pure set has none
    assert pairs([many * (m == j) for m in range(len(counts))], alpha) == 0
    # 4, supermodular: an example adds no less to a larger set
    assert pairs(more(counts, j), alpha) - value >= pairs(more(part, j), alpha) - pairs(part, alpha)
    # 5: F <= n^2, where the least that is not zero is 1/16 for thresholds in quarters
    assert value == 0 or (value >= 1 / 16 and math.log(value) <= 2 * math.log(n))


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0, 3.0])
def test_pairs_are_supermodular_on_every_small_set(alpha):
    """Two examples add together at least what they add one by one: all sets up to five a class."""
    for counts in product(range(6), repeat=3):
        for i, j in product(range(3), repeat=2):
            both = pairs(more(counts, i, j), alpha) - pairs(more(counts, i), alpha)
            assert both >= pairs(more(counts, j), alpha) - pairs(counts, alpha)


@settings(deadline=None)
@given(COUNTS, ALPHAS, st.integers(0, 5), st.integers(-60, 60))
def test_change_of_pairs_is_the_difference(counts, alpha, m, step):
    m %= len(counts)
    step = max(step, -counts[m])
    after = list(counts)
    after[m] += step
    change = change_of_pairs(np.array(counts, np.int64), float(sum(counts)), m, step, alpha)
    assert change == by_equation(after, alpha) - by_equation(counts, alpha)


@settings(deadline=None)
@given(COUNTS.filter(any))
def test_entropy_is_a_sum_over_the_examples(counts):
    n = sum(counts)
    array = np.array(counts, np.int64)
    bits = -sum(c * math.log2(c / n) for c in counts if c)
    assert entropy(array, log_table(n)) == pytest.approx(bits, abs=1e-9)


def test_mean_entropy_is_not_monotone():
    """Why the paper needs another impurity: a subset may be more impure than the whole."""
    whole, part = np.array([6, 2]), np.array([2, 2])
    table = log_table(8)
    assert entropy(part, table) / 4 > entropy(whole, table) / 8
