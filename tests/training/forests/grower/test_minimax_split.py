"""Test find_crossing, which finds the split with the lowest impurity of the worse child.

A boundary separates two neighbouring codes of the column: codes up to `last_left_code` go left, and
codes from `first_right_code` on go right. As it moves to the right, the left impurity rises and the
right impurity falls. The search counts the rows in coarse bins of codes, and then, in further
rounds, only those of the bin with the crossing. Classes with at most `alpha` rows do not count in
an impurity.
"""

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


def make_column_rows(codes, y, weights, n_classes):
    """Make the rows of a column, and their class counts."""
    y = np.asarray(y, np.int32)
    weights = np.asarray(weights, np.int32)
    counts = np.bincount(y, weights=weights, minlength=n_classes).astype(np.int32)
    return ColumnRows(np.asarray(codes, np.int32), y, weights), counts


def find_best_boundary(codes, y, weights=None, n_classes=2, alpha=0.0):
    """Find impurity, `last_left_code` and `first_right_code` of the best boundary of a column."""
    weights = np.ones(len(codes), np.int32) if weights is None else weights
    rows, counts = make_column_rows(codes, y, weights, n_classes)
    impurity = threshold_pairs(counts, alpha)
    node = NodeRows(np.arange(len(codes)), rows.y, rows.weight, counts, int(counts.sum()), impurity)
    working_arrays = crossing_arrays(len(codes), n_classes)
    boundary = find_crossing(rows, int(min(codes)), int(max(codes)), node, alpha, working_arrays)
    return float(boundary.score), int(boundary.last_left_code), int(boundary.first_right_code)


def compute_impurity_of_each_boundary(codes, y, weights, n_classes, alpha):
    """Map the two codes at each boundary to the larger impurity of the children."""
    impurity_of_boundary = {}
    for last_left_code, first_right_code in pairwise(np.unique(codes)):
        is_left = codes <= last_left_code
        child_counts = [
            make_column_rows(codes[is_in_child], y[is_in_child], weights[is_in_child], n_classes)[1]
            for is_in_child in (is_left, ~is_left)
        ]
        impurity = max(threshold_pairs(counts, alpha) for counts in child_counts)
        impurity_of_boundary[int(last_left_code), int(first_right_code)] = impurity
    return impurity_of_boundary


def draw_columns(alpha):
    """Draw columns of impure nodes; yield the codes, classes and weights, and `n_classes`.

    A column has few or many codes, with small or large distances.
    """
    rng = np.random.default_rng(int(alpha))
    for _ in range(400):
        n = int(rng.integers(2, 25))
        n_classes = int(rng.integers(2, 4))
        codes = rng.integers(0, rng.choice([3, 9, 400, 60_000]), n).astype(np.int32)
        y = rng.integers(0, n_classes, n).astype(np.int32)
        weights = rng.integers(1, 3, n).astype(np.int32)
        _, counts = make_column_rows(codes, y, weights, n_classes)
        if threshold_pairs(counts, alpha) > 0.0 and len(np.unique(codes)) >= 2:
            yield codes, y, weights, n_classes


@pytest.mark.parametrize("alpha", [0.0, 1.0, 2.0])
def test_crossing_finds_the_best_of_all_boundaries(alpha):
    n_ties = 0
    for codes, y, weights, n_classes in draw_columns(alpha):
        impurity, last_left_code, first_right_code = find_best_boundary(
            codes, y, weights, n_classes, alpha
        )
        impurities = compute_impurity_of_each_boundary(codes, y, weights, n_classes, alpha)
        assert impurity == min(impurities.values()) == impurities[last_left_code, first_right_code]
        n_ties += list(impurities.values()).count(impurity) > 1
    assert n_ties > 10  # the draws include ties


@pytest.mark.parametrize("alpha", [0.0, 1.0, 2.0])
def test_minimax_pairs_finds_the_same_boundary_in_counts_by_code(alpha):
    for codes, y, weights, n_classes in draw_columns(alpha):
        _, counts = make_column_rows(codes, y, weights, n_classes)
        impurity = threshold_pairs(counts, alpha)
        node = NodeRows(np.arange(len(codes)), y, weights, counts, int(counts.sum()), impurity)
        distinct_codes = np.unique(codes)
        counts_by_code = np.zeros((len(distinct_codes), n_classes), np.int32)
        np.add.at(counts_by_code, (np.searchsorted(distinct_codes, codes), y), weights)
        working_arrays = crossing_arrays(len(codes), n_classes)
        is_allowed = np.zeros(0, bool)  # all boundaries are allowed
        best_impurity, boundary_index = minimax_pairs(
            counts_by_code, len(distinct_codes), node, alpha, is_allowed, working_arrays
        )
        last_left_code, first_right_code = distinct_codes[[boundary_index, boundary_index + 1]]
        boundary = find_best_boundary(codes, y, weights, n_classes, alpha)
        assert boundary == (best_impurity, last_left_code, first_right_code)


@pytest.mark.parametrize("alpha", [0.0, 1.0, 3.0])
def test_best_boundary_of_large_nodes_is_found_in_several_rounds(alpha):
    rng = np.random.default_rng(5)
    n = 40 * MIN_BINS * ROWS_PER_BIN
    codes = rng.integers(0, 50_000, n).astype(np.int32)
    y = ((codes > 31_000) ^ (rng.random(n) < 0.1)).astype(np.int32)
    weights = rng.integers(1, 4, n).astype(np.int32)
    impurity_of_boundary = compute_impurity_of_each_boundary(codes, y, weights, 2, alpha)
    score, last_left_code, first_right_code = find_best_boundary(codes, y, weights, 2, alpha)
    assert (
        score
        == min(impurity_of_boundary.values())
        == impurity_of_boundary[last_left_code, first_right_code]
    )


def test_working_arrays_have_room_for_the_bins_of_few_and_many_rows():
    assert len(crossing_arrays(3, 2).bins) == MIN_BINS * 2  # 3 rows, 2 classes
    assert len(crossing_arrays(100, 3).bins) == 300  # more rows than MIN_BINS, times the classes
    assert crossing_arrays(7, 2).inner_rows.shape == (3, 7)
