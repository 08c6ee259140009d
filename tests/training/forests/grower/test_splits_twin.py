"""The compiled grower, compared with a slow twin that tries every split of every node.

`alpha` is the threshold of the impurity in examples, `mu` the weight of prices, k a column, m a
class and g a group.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise, permutations

import numpy as np
import pytest

from gatewise.costs import FeatureCosts
from gatewise_training.forests.grower.binning import Codes
from gatewise_training.forests.grower.growth import RowAcquisitions, SplitRule, grow

pytestmark = pytest.mark.slow  # compiles the growth of trees


@dataclass
class TreeProblem:
    """Data and prices of one tree."""

    x: np.ndarray
    y: np.ndarray
    n_draws: np.ndarray
    n_classes: int
    costs: FeatureCosts
    acquired: np.ndarray  # (n, n_features)


def compute_impurity(counts, criterion, alpha):
    """Compute the impurity of a node from its class counts ``n_m``: threshold-Pairs or entropy.

    Threshold-Pairs (ICML 2015) is the sum over pairs of different classes of
    ``[[n_i - alpha]_+ [n_j - alpha]_+ - alpha^2]_+``.
    """
    n = sum(counts)
    if criterion == "threshold_pairs":
        surpluses = [max(count - alpha, 0.0) for count in counts]
        return sum(
            max(surplus * other_surplus - alpha**2, 0.0)
            for surplus, other_surplus in permutations(surpluses, 2)
        )
    if n == 0:
        return 0.0
    return -sum(count * math.log2(count / n) for count in counts if count)


def count_classes(problem, rows):
    return [
        int(problem.n_draws[rows][problem.y[rows] == m].sum()) for m in range(problem.n_classes)
    ]


def compute_penalty(problem, rows, k, path_features, mu):
    """Compute ``mu`` times the price that the examples at the node have to pay for column k."""
    costs = problem.costs
    group_features = [] if costs.group[k] < 0 else np.flatnonzero(costs.group == costs.group[k])
    price = 0.0
    for row in rows:
        if k not in path_features and not problem.acquired[row, k]:
            price += problem.n_draws[row] * costs.own[k]
        if (
            len(group_features)
            and not set(group_features) & path_features
            and not problem.acquired[row, group_features].any()
        ):
            price += problem.n_draws[row] * costs.shared[costs.group[k]]
    return mu * price / costs.standalone_prices.mean()


def list_candidates(problem, rows, criterion, alpha, mu, path_features):
    """Yield splits that may be the best: column, values below and above, and merit.

    With threshold-Pairs only the best split of each column is yielded. Free splits are compared by
    the decrease of the impurity. Of equally good splits of a column, the one nearest to the
    crossing of the children's impurities is the best. Of two such splits it is the lower one.
    """
    node_impurity = compute_impurity(count_classes(problem, rows), criterion, alpha)
    for k in range(problem.x.shape[1]):
        column = problem.x[rows, k]
        sort_keys = np.where(np.isnan(column), np.inf, column)  # NaN is above all numbers
        price = problem.costs.standalone_prices[k]
        column_splits = []
        for last_left_code, first_right_code in pairwise(np.unique(sort_keys)):
            left_impurity, right_impurity = (
                compute_impurity(count_classes(problem, child_rows), criterion, alpha)
                for child_rows in (
                    rows[sort_keys <= last_left_code],
                    rows[sort_keys > last_left_code],
                )
            )
            if criterion == "threshold_pairs":
                decrease = node_impurity - max(left_impurity, right_impurity)
                is_below_crossing = left_impurity < right_impurity
                # the last split below the crossing and the first one above it are nearest to it
                rank = len(column_splits) if is_below_crossing else -len(column_splits)
                if decrease > 0:
                    merit = (decrease / price, 0.0) if price else (math.inf, decrease)
                    # the order of these tuples is by merit, then the side, then the nearness
                    column_splits.append(
                        (merit, is_below_crossing, rank, (k, last_left_code, first_right_code))
                    )
            else:
                penalty = compute_penalty(problem, rows, k, path_features, mu)
                gain = node_impurity - left_impurity - right_impurity - penalty
                yield k, last_left_code, first_right_code, (gain, 0.0)
        if column_splits:
            merit, _, _, split = max(column_splits)
            yield *split, merit


def check_best_splits(problem, forest, criterion, alpha=0.0, mu=0.0):
    """Check that each split of a tree is the best; return the number of inner nodes."""
    trees = forest.trees
    n_inner = 0
    open_nodes = [(0, np.flatnonzero(problem.n_draws), frozenset())]
    while open_nodes:
        node, rows, path_features = open_nodes.pop()
        counts = count_classes(problem, rows)
        np.testing.assert_array_equal(forest.counts[node], counts)
        candidates = []
        if compute_impurity(counts, criterion, alpha):
            candidates = list(list_candidates(problem, rows, criterion, alpha, mu, path_features))
        k = int(trees.feature[node])
        if k < 0:
            assert not candidates
            continue
        n_inner += 1
        best_merit = max(merit for *_, merit in candidates)
        sort_keys = np.where(np.isnan(problem.x[rows, k]), np.inf, problem.x[rows, k])
        goes_left = sort_keys <= trees.threshold[node]
        last_left_code = sort_keys[goes_left].max()
        first_right_code = sort_keys[~goes_left].min()
        if criterion == "threshold_pairs":  # merits are exact, and the first of equal ones wins
            best_splits = [split for *split, merit in candidates if merit == best_merit]
            assert [k, last_left_code, first_right_code] == best_splits[0]
        else:
            merit_of_split = {tuple(split): merit for *split, merit in candidates}
            merit = merit_of_split[k, last_left_code, first_right_code]
            assert merit == pytest.approx(best_merit, rel=1e-9, abs=1e-9)
        if np.isfinite(first_right_code):
            midpoint = np.float32(0.5 * (float(last_left_code) + float(first_right_code)))
            assert trees.threshold[node] == midpoint
        if np.isinf(sort_keys).any():
            assert not trees.nan_left[node]
        path_features = path_features | {k}
        open_nodes.append((int(trees.left[node]), rows[goes_left], path_features))
        open_nodes.append((int(trees.right[node]), rows[~goes_left], path_features))
    return n_inner


def draw_problem(seed, n=40, n_classes=3, has_missing=False):
    """Make a small table with columns of few and of many values, sparse columns and groups."""
    rng = np.random.default_rng(seed)
    column_makers = (
        lambda: rng.integers(0, 5, n),
        lambda: rng.integers(0, 10 * n, n) / 4,
        lambda: rng.random(n) < 0.1,
        lambda: rng.choice([0, 1, 2], n, p=[0.07, 0.86, 0.07]),
    )
    columns = [make_column() for make_column in column_makers for _ in range(2)]
    x = np.stack(columns, axis=1).astype(np.float32)
    if has_missing:
        x[rng.random(x.shape) < 0.15] = np.nan
    y = (np.nan_to_num(x[:, 0]) + rng.integers(0, 3, n)).astype(np.int64) % n_classes
    n_draws = rng.multinomial(n, np.full(n, 1 / n))
    group = [None, "a", "a", "b"] * 2
    own = rng.integers(0, 4, len(columns)) / 2
    shared = {"a": 1.0, "b": 0.5}
    acquired = rng.random(x.shape) < 0.3
    return TreeProblem(
        x, y, n_draws, n_classes, FeatureCosts(own, group=group, shared=shared), acquired
    )


@pytest.mark.parametrize("has_missing", [False, True], ids=["complete", "missing"])
@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0, 3.0])
def test_minimax_splits_are_the_first_of_the_best(alpha, n_classes, has_missing):
    n_inner = 0
    for seed in range(8):
        problem = draw_problem(seed, n_classes=n_classes, has_missing=has_missing)
        problem.costs = FeatureCosts(np.ceil(problem.costs.own))  # so that merits are exact
        forest = grow(
            Codes.of_table(problem.x),
            problem.y,
            problem.n_draws,
            n_classes,
            problem.costs,
            SplitRule(alpha=alpha),
            seed=seed,
        )
        n_inner += check_best_splits(problem, forest, "threshold_pairs", alpha)
    assert n_inner > 8  # more than one split for each seed on average


@pytest.mark.parametrize("mu", [0.0, 0.1, 1.0])
def test_entropy_splits_have_the_largest_gain_less_the_penalty(mu):
    n_inner = 0
    for seed in range(8):
        problem = draw_problem(seed, has_missing=seed % 2 == 1)
        acquired = None
        if mu:
            acquired = RowAcquisitions.empty(problem.costs, len(problem.x))
            acquired.items[: problem.x.shape[1]] = problem.acquired.T
            for g in range(len(problem.costs.shared)):
                group_features = np.flatnonzero(problem.costs.group == g)
                acquired.items[problem.x.shape[1] + g] = problem.acquired[:, group_features].any(
                    axis=1
                )
        forest = grow(
            Codes.of_table(problem.x), problem.y, problem.n_draws, 3, problem.costs,
            SplitRule("entropy", mu=mu), acquired=acquired, seed=seed,
        )  # fmt: skip
        if not mu:
            problem.acquired[:] = True  # all features are free
        n_inner += check_best_splits(problem, forest, "entropy", mu=mu)
    assert n_inner > 40


def test_splits_of_large_nodes_are_the_best():
    """Nodes have all sizes, so that codes are counted by histogram, radix and insertion sort."""
    rng = np.random.default_rng(0)
    n = 600
    distant_codes = rng.permutation(40 * n)[:n]
    close_codes = rng.permutation(n)
    x = np.stack([rng.integers(0, 8, n), distant_codes, close_codes, rng.random(n) < 0.1], axis=1)
    x = x.astype(np.float32)
    # rows out of the bag, whose values put the codes of the other rows far apart
    distant_values = np.arange(40 * n, dtype=np.float32)
    zeros = np.zeros_like(distant_values)
    all_rows = np.concatenate([x, np.stack([zeros, distant_values, zeros, zeros], axis=1)])
    y = np.concatenate([(x[:, 1] > 9000) ^ (x[:, 2] > 200) ^ (rng.random(n) < 0.2), zeros])
    n_draws = np.concatenate([rng.multinomial(n, np.full(n, 1 / n)), zeros]).astype(np.int64)
    problem = TreeProblem(
        all_rows, y.astype(np.int64), n_draws, 2, FeatureCosts([1.0, 1.0, 2.0, 1.0]),
        np.zeros(all_rows.shape, bool),
    )  # fmt: skip
    for alpha in (0.0, 4.0):
        forest = grow(
            Codes.of_table(all_rows), problem.y, n_draws, 2, problem.costs, SplitRule(alpha=alpha)
        )
        assert check_best_splits(problem, forest, "threshold_pairs", alpha) > 10
    forest = grow(
        Codes.of_table(all_rows), problem.y, n_draws, 2, problem.costs, SplitRule("entropy")
    )
    problem.acquired[:] = True  # all features are free
    assert check_best_splits(problem, forest, "entropy") > 10
