"""The crossing of two impurities: against all boundaries, and at boundaries by hand."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from gatewise_training.forests.grower.histogram import ColumnRows, NodeRows
from gatewise_training.forests.grower.impurity import threshold_pairs
from gatewise_training.forests.grower.minimax_split import (
    MIN_BINS,
    ROWS_PER_BIN,
    crossing,
    crossing_arrays,
)
from gatewise_training.forests.grower.split_search import least_worst_pairs

pytestmark = pytest.mark.slow  # compiles the search


def columns(code, y, weight, n_classes):
    """Rows of a column, and their node."""
    y = np.asarray(y, np.int32)
    weight = np.asarray(weight, np.int32)
    counts = np.bincount(y, weights=weight, minlength=n_classes).astype(np.int32)
    return ColumnRows(np.asarray(code, np.int32), y, weight), counts


def best_boundary(code, y, weight=None, n_classes=2, alpha=0.0):
    """Boundary of a column by its crossing, as plain numbers."""
    weight = np.ones(len(code), np.int32) if weight is None else weight
    rows, counts = columns(code, y, weight, n_classes)
    impurity = threshold_pairs(counts, alpha)
    node = NodeRows(np.arange(len(code)), rows.y, rows.weight, counts, int(counts.sum()), impurity)
    work = crossing_arrays(len(code), n_classes)
    found = crossing(rows, int(min(code)), int(max(code)), node, alpha, work)
    return float(found.score), int(found.below), int(found.above)


def all_boundaries(code, y, weight, n_classes, alpha):
    """The worse child's impurity of each boundary, by the codes beside it."""
    worse = {}
    for below, above in pairwise(np.unique(code)):
        is_left = code <= below
        sides = [columns(code[s], y[s], weight[s], n_classes)[1] for s in (is_left, ~is_left)]
        worse[int(below), int(above)] = max(threshold_pairs(side, alpha) for side in sides)
    return worse


@pytest.mark.parametrize("alpha", [0.0, 1.0, 2.0])
def test_the_crossing_is_the_best_of_all_boundaries_and_of_counted_codes(alpha):
    """Few and many bins, near and far codes, ties and all."""
    rng = np.random.default_rng(int(alpha))
    n_ties = 0
    for _ in range(400):
        n = int(rng.integers(2, 25))
        n_classes = int(rng.integers(2, 4))
        code = rng.integers(0, rng.choice([3, 9, 400, 60_000]), n).astype(np.int32)
        y = rng.integers(0, n_classes, n).astype(np.int32)
        weight = rng.integers(1, 3, n).astype(np.int32)
        _, counts = columns(code, y, weight, n_classes)
        impurity = threshold_pairs(counts, alpha)
        values = np.unique(code)
        if impurity == 0.0 or len(values) < 2:
            continue
        node = NodeRows(np.arange(n), y, weight, counts, int(counts.sum()), impurity)
        count = np.zeros((len(values), n_classes), np.int32)
        np.add.at(count, (np.searchsorted(values, code), y), weight)
        work = crossing_arrays(n, n_classes)
        worst, event = least_worst_pairs(count, len(values), node, alpha, np.zeros(0, bool), work)
        boundary = best_boundary(code, y, weight, n_classes, alpha)
        assert boundary == (worst, values[event], values[event + 1])
        worse = all_boundaries(code, y, weight, n_classes, alpha)
        assert worst == min(worse.values())
        n_ties += list(worse.values()).count(worst) > 1
    assert n_ties > 10


def test_two_codes_have_one_boundary():
    assert best_boundary([3, 4], [0, 1]) == (0.0, 3, 4)
    assert best_boundary([0, 60_000], [1, 0]) == (0.0, 0, 60_000)
    assert best_boundary([5, 5, 9], [0, 1, 0]) == (2.0, 5, 9)
    assert best_boundary([5, 9, 9], [0, 0, 1]) == (2.0, 5, 9)


def test_the_boundary_is_after_the_crossing_code_where_that_is_lower():
    # left impurities 0, 2, 6 (of 10, 20, 30), right ones 8, 4, 0: before 30 the worse is 4
    assert best_boundary([10, 20, 30, 30, 40], [0, 1, 0, 0, 1]) == (4.0, 20, 30)
    # the crossing code itself goes left where its impurity on the left is below that on the right
    assert best_boundary([10, 20, 30, 40], [0, 0, 0, 1]) == (0.0, 30, 40)
    assert best_boundary([10, 20, 30, 40], [0, 1, 1, 1]) == (0.0, 10, 20)


def test_of_two_equal_boundaries_the_one_before_the_crossing_is_taken():
    # 0 | 1 0 | 1: both boundaries leave one mixed pair on one side
    assert best_boundary([1, 2, 3], [0, 1, 0]) == (2.0, 1, 2)


def test_without_a_code_below_the_boundary_lies_after_the_crossing_code():
    # class 2 is below the threshold, so that the left child is as impure as the node
    assert best_boundary([1] * 6 + [2], [0, 1, 0, 1, 0, 1, 2], None, 3, 1.0) == (6.0, 1, 2)


def test_neighbours_beside_the_examined_bin_are_found_in_any_round():
    """Far codes: the crossing lies alone in its bin, and its neighbours in bins of other rounds."""
    spread = 1 << 15
    code = np.arange(6) * spread + np.array([7, 0, 3, 1, 0, 2])
    y = np.array([0, 0, 0, 1, 1, 1])
    assert best_boundary(code, y) == (0.0, int(code[2]), int(code[3]))
    shuffled = np.array([4, 1, 5, 0, 3, 2])
    assert best_boundary(code[shuffled], y[shuffled]) == (0.0, int(code[2]), int(code[3]))


def test_weights_count_as_often_as_rows_were_drawn():
    repeated = np.repeat([2, 4, 6, 8], [1, 3, 2, 2])
    y = np.repeat([0, 1, 0, 1], [1, 3, 2, 2])
    assert best_boundary([2, 4, 6, 8], [0, 1, 0, 1], [1, 3, 2, 2]) == best_boundary(repeated, y)


@pytest.mark.parametrize("alpha", [0.0, 1.0, 3.0])
def test_large_nodes_need_several_rounds(alpha):
    """More rows than bins, and bins of many codes; `alpha` counts in examples."""
    rng = np.random.default_rng(5)
    n = 40 * MIN_BINS * ROWS_PER_BIN
    code = rng.integers(0, 50_000, n).astype(np.int32)
    y = ((code > 31_000) ^ (rng.random(n) < 0.1)).astype(np.int32)
    weight = rng.integers(1, 4, n).astype(np.int32)
    worse = all_boundaries(code, y, weight, 2, alpha)
    score, below, above = best_boundary(code, y, weight, 2, alpha)
    assert score == min(worse.values()) == worse[below, above]


def test_working_arrays_hold_the_bins_of_few_and_of_many_rows():
    assert len(crossing_arrays(3, 2).bins) == MIN_BINS * 2
    assert len(crossing_arrays(100, 3).bins) == 300
    assert crossing_arrays(7, 2).inner_rows.shape == (3, 7)
