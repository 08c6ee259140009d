"""Impurities compared with their definitions, and the properties that BudgetRF's proof needs.

The equations are those of the paper (ICML 2015). i, j and m are classes, `n` is a number of
examples, and `alpha` the threshold in examples.
"""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import permutations

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
#: Binary fractions, with which the products of thresholds are exact in float64.
ALPHAS = st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.0, 2.75, 6.0, 15.0, 35.0])


def compute_pairs_exactly(counts, alpha):
    """Compute equation 11 exactly; the printed text has lost the two signs.

    ``sum over i != j of [[n_i - alpha]_+ [n_j - alpha]_+ - alpha^2]_+``
    """
    exact_alpha = Fraction(alpha)
    impurity = Fraction(0)
    surpluses = [max(n - exact_alpha, 0) for n in counts]
    for surplus, other_surplus in permutations(surpluses, 2):
        impurity += max(surplus * other_surplus - exact_alpha**2, 0)
    return impurity


def compute_pairs(counts, alpha):
    return threshold_pairs(np.array(counts, np.int64), alpha)


def add_examples(counts, *classes):
    """Add one example of each of some classes to the counts of a set."""
    new_counts = list(counts)
    for m in classes:
        new_counts[m] += 1
    return new_counts


@settings(deadline=None)  # the first call compiles
@given(COUNTS, ALPHAS)
def test_pairs_equal_the_equation_at_exact_thresholds(counts, alpha):
    assert compute_pairs(counts, alpha) == compute_pairs_exactly(counts, alpha)


@settings(deadline=None)
@given(COUNTS, st.floats(0.0, 12.0))
def test_pairs_equal_the_equation_at_any_threshold(counts, alpha):
    assert compute_pairs(counts, alpha) == pytest.approx(
        float(compute_pairs_exactly(counts, alpha)), abs=1e-9
    )


@settings(deadline=None)
@given(COUNTS, ALPHAS, st.integers(0, 10**6), st.data())
def test_pairs_are_admissible(counts, alpha, n_pure, data):
    """Check the five conditions of BudgetRF's proof."""
    subset = [data.draw(st.integers(0, n)) for n in counts]
    j = data.draw(st.integers(0, len(counts) - 1))
    impurity = compute_pairs(counts, alpha)
    impurity_of_subset = compute_pairs(subset, alpha)
    n = sum(counts)
    # 1 and 3: the impurity is not negative, and not larger for a subset
    assert impurity >= impurity_of_subset >= 0
    # 2: a pure set has no impurity
    assert compute_pairs([n_pure * (m == j) for m in range(len(counts))], alpha) == 0
    # 4, supermodular: an example adds at least as much to a larger set
    increase = compute_pairs(add_examples(counts, j), alpha) - impurity
    assert increase >= compute_pairs(add_examples(subset, j), alpha) - impurity_of_subset
    # 5: F <= n^2; for thresholds in quarters the smallest F above 0 is 1/16
    assert impurity == 0 or (impurity >= 1 / 16 and math.log(impurity) <= 2 * math.log(n))


@settings(deadline=None)
@given(COUNTS, ALPHAS, st.integers(0, 5), st.integers(-60, 60))
def test_change_of_pairs_equals_the_difference_of_impurities(counts, alpha, m, n_added):
    m %= len(counts)
    n_added = max(n_added, -counts[m])
    new_counts = list(counts)
    new_counts[m] += n_added
    change = change_of_pairs(np.array(counts, np.int64), float(sum(counts)), m, n_added, alpha)
    assert change == compute_pairs_exactly(new_counts, alpha) - compute_pairs_exactly(counts, alpha)


@settings(deadline=None)
@given(COUNTS.filter(any))
def test_entropy_is_summed_over_the_examples(counts):
    n = sum(counts)
    count_array = np.array(counts, np.int64)
    bits = -sum(count * math.log2(count / n) for count in counts if count)
    assert entropy(count_array, log_table(n)) == pytest.approx(bits, abs=1e-9)
