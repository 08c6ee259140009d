"""The search for the best minimax boundary, compared with all boundaries of a column."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from gatewise_training.forests.grower.histogram import ColumnRows, NodeRows
from gatewise_training.forests.grower.impurity import threshold_pairs
from gatewise_training.forests.grower.minimax_split import (
    MIN_BINS,
    ROWS_PER_BIN,
    crossing_arrays,
    find_crossing,
)
from gatewise_training.forests.grower.split_search import minimax_pairs

pytestmark = pytest.mark.slow  # compiles the search


def column_rows(code, y, weight, n_classes):
    """Make the rows of a column, and their class counts."""
    y = np.asarray(y, np.int32)
    weight = np.asarray(weight, np.int32)
    counts = np.bincount(y, weights=weight, minlength=n_classes).astype(np.int32)
    return ColumnRows(np.asarray(code, np.int32), y, weight), counts


def best_boundary(code, y, weight=None, n_classes=2, alpha=0.0):
    """Find the boundary of a column, as Python numbers."""
    weight = np.ones(len(code), np.int32) if weight is None else weight
    rows, counts = column_rows(code, y, weight, n_classes)
    impurity = threshold_pairs(counts, alpha)
    node = NodeRows(np.arange(len(code)), rows.y, rows.weight, counts, int(counts.sum()), impurity)
    crossing_work = crossing_arrays(len(code), n_classes)
    boundary = find_crossing(rows, int(min(code)), int(max(code)), node, alpha, crossing_work)
    return float(boundary.score), int(boundary.below), int(boundary.above)


def all_boundaries(code, y, weight, n_classes, alpha):
    """Map the codes on both sides of each boundary to the larger impurity of the children."""
    impurities = {}
    for below, above in pairwise(np.unique(code)):
        is_left = code <= below
        child_counts = [
            column_rows(code[side], y[side], weight[side], n_classes)[1]
            for side in (is_left, ~is_left)
        ]
        impurity = max(threshold_pairs(counts, alpha) for counts in child_counts)
        impurities[int(below), int(above)] = impurity
    return impurities


@pytest.mark.parametrize("alpha", [0.0, 1.0, 2.0])
def test_crossing_finds_the_best_of_all_boundaries(alpha):
    """Columns have few and many codes, close to and far from each other, also with ties.

    The search over counted codes finds the same boundary.
    """
    rng = np.random.default_rng(int(alpha))
    n_ties = 0
    for _ in range(400):
        n = int(rng.integers(2, 25))
        n_classes = int(rng.integers(2, 4))
        code = rng.integers(0, rng.choice([3, 9, 400, 60_000]), n).astype(np.int32)
        y = rng.integers(0, n_classes, n).astype(np.int32)
        weight = rng.integers(1, 3, n).astype(np.int32)
        _, counts = column_rows(code, y, weight, n_classes)
        impurity = threshold_pairs(counts, alpha)
        values = np.unique(code)
        if impurity == 0.0 or len(values) < 2:
            continue
        node = NodeRows(np.arange(n), y, weight, counts, int(counts.sum()), impurity)
        count = np.zeros((len(values), n_classes), np.int32)
        np.add.at(count, (np.searchsorted(values, code), y), weight)
        crossing_work = crossing_arrays(n, n_classes)
        is_allowed = np.zeros(0, bool)
        best_impurity, event = minimax_pairs(
            count, len(values), node, alpha, is_allowed, crossing_work
        )
        boundary = best_boundary(code, y, weight, n_classes, alpha)
        assert boundary == (best_impurity, values[event], values[event + 1])
        impurities = all_boundaries(code, y, weight, n_classes, alpha)
        assert best_impurity == min(impurities.values())
        n_ties += list(impurities.values()).count(best_impurity) > 1
    assert n_ties > 10


def test_two_codes_have_one_boundary():
    assert best_boundary([3, 4], [0, 1]) == (0.0, 3, 4)
    assert best_boundary([0, 60_000], [1, 0]) == (0.0, 0, 60_000)
    assert best_boundary([5, 5, 9], [0, 1, 0]) == (2.0, 5, 9)
    assert best_boundary([5, 9, 9], [0, 0, 1]) == (2.0, 5, 9)


def test_boundary_is_on_the_better_side_of_the_crossing_code():
    # codes 10, 20, 30: left impurities 0, 2, 6 and right impurities 8, 4, 0
    assert best_boundary([10, 20, 30, 30, 40], [0, 1, 0, 0, 1]) == (4.0, 20, 30)
    # the crossing code goes left if the left impurity with it is below the right impurity without
    assert best_boundary([10, 20, 30, 40], [0, 0, 0, 1]) == (0.0, 30, 40)
    assert best_boundary([10, 20, 30, 40], [0, 1, 1, 1]) == (0.0, 10, 20)


def test_boundary_before_the_crossing_is_chosen_in_a_tie():
    # both boundaries leave one pair of different classes in one child
    assert best_boundary([1, 2, 3], [0, 1, 0]) == (2.0, 1, 2)


def test_boundary_is_after_the_crossing_code_if_no_code_is_below():
    # class 2 is below the threshold, so the left child is as impure as the node
    assert best_boundary([1] * 6 + [2], [0, 1, 0, 1, 0, 1, 2], None, 3, 1.0) == (6.0, 1, 2)


def test_neighbours_of_the_crossing_code_are_found_in_any_round():
    """The codes are far apart, so the crossing code is alone in its bin."""
    spacing = 1 << 15
    code = np.arange(6) * spacing + np.array([7, 0, 3, 1, 0, 2])
    y = np.array([0, 0, 0, 1, 1, 1])
    assert best_boundary(code, y) == (0.0, int(code[2]), int(code[3]))
    order = np.array([4, 1, 5, 0, 3, 2])
    assert best_boundary(code[order], y[order]) == (0.0, int(code[2]), int(code[3]))


def test_weighted_rows_count_like_repeated_rows():
    weights = [1, 3, 2, 2]
    repeated_code = np.repeat([2, 4, 6, 8], weights)
    repeated_y = np.repeat([0, 1, 0, 1], weights)
    boundary = best_boundary([2, 4, 6, 8], [0, 1, 0, 1], weights)
    assert boundary == best_boundary(repeated_code, repeated_y)


@pytest.mark.parametrize("alpha", [0.0, 1.0, 3.0])
def test_best_boundary_of_large_nodes_is_found_in_several_rounds(alpha):
    rng = np.random.default_rng(5)
    n = 40 * MIN_BINS * ROWS_PER_BIN
    code = rng.integers(0, 50_000, n).astype(np.int32)
    y = ((code > 31_000) ^ (rng.random(n) < 0.1)).astype(np.int32)
    weight = rng.integers(1, 4, n).astype(np.int32)
    impurities = all_boundaries(code, y, weight, 2, alpha)
    score, below, above = best_boundary(code, y, weight, 2, alpha)
    assert score == min(impurities.values()) == impurities[below, above]


def test_working_arrays_have_room_for_the_bins_of_few_and_many_rows():
    assert len(crossing_arrays(3, 2).bins) == MIN_BINS * 2
    assert len(crossing_arrays(100, 3).bins) == 300
    assert crossing_arrays(7, 2).inner_rows.shape == (3, 7)
