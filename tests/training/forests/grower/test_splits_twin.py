"""The compiled grower against a slow twin that tries every split and counts from scratch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest

from gatewise.costs import FeatureCosts
from gatewise_training.forests.grower.binning import Codes
from gatewise_training.forests.grower.growth import RowAcquisitions, SplitRule, grow

pytestmark = pytest.mark.slow  # compiles the growth of trees


@dataclass
class Case:
    x: np.ndarray
    y: np.ndarray
    drawn: np.ndarray
    n_classes: int
    costs: FeatureCosts
    acquired: np.ndarray  # (n, n_features)


def impurity(counts, criterion, alpha):
    n = sum(counts)
    if criterion == "threshold_pairs":
        above = [max(c - alpha, 0.0) for c in counts]
        return sum(
            max(a * b - alpha**2, 0.0)
            for i, a in enumerate(above)
            for j, b in enumerate(above)
            if i != j
        )
    if n == 0:
        return 0.0
    if criterion == "entropy":
        return -sum(c * math.log2(c / n) for c in counts if c)
    return n - sum(c * c for c in counts) / n


def counts_of(case, rows):
    return [int(case.drawn[rows][case.y[rows] == m].sum()) for m in range(case.n_classes)]


def toll(case, rows, k, path, mu):
    """What the examples at the node have to pay for column k, times mu."""
    costs = case.costs
    mates = [] if costs.group[k] < 0 else np.flatnonzero(costs.group == costs.group[k])
    pay = 0.0
    for i in rows:
        if k not in path and not case.acquired[i, k]:
            pay += case.drawn[i] * costs.own[k]
        if len(mates) and not set(mates) & path and not case.acquired[i, mates].any():
            pay += case.drawn[i] * costs.shared[costs.group[k]]
    return mu * pay / costs.alone.mean()


def splits(case, rows, criterion, alpha, mu, path):
    """Splits that may be the best: (column, values beside the boundary, how good it is).

    For minimax only the best of each column. Among splits that are free the one that lowers
    impurity most is the best; among equals on a column the one nearest to where the children's
    impurities cross, the lower of two.
    """
    whole = impurity(counts_of(case, rows), criterion, alpha)
    for k in range(case.x.shape[1]):
        column = case.x[rows, k]
        keys = np.where(np.isnan(column), np.inf, column)  # NaN lies above all numbers
        values = np.unique(keys)
        price, found = case.costs.alone[k], []
        for a, b in pairwise(values):
            low, high = (
                impurity(counts_of(case, part), criterion, alpha)
                for part in (rows[keys <= a], rows[keys > a])
            )
            if criterion == "threshold_pairs":
                drop = whole - max(low, high)
                rank = len(found) if low < high else -len(found)
                if drop > 0:
                    good = (drop / price, 0.0) if price else (math.inf, drop)
                    found.append((good, low < high, rank, (k, a, b)))
            else:
                gain = whole - low - high - toll(case, rows, k, path, mu)
                yield k, a, b, (gain, 0.0)
        if found:
            good, _, _, split = max(found)
            yield *split, good


def check(case, forest, criterion, alpha=0.0, mu=0.0):
    """Walk the grown tree, and ask at each node whether the twin finds nothing better."""
    trees, n_inner = forest.trees, 0
    waiting = [(0, np.flatnonzero(case.drawn), frozenset())]
    while waiting:
        node, rows, path = waiting.pop()
        counts = counts_of(case, rows)
        np.testing.assert_array_equal(forest.counts[node], counts)
        found = [] if not impurity(counts, criterion, alpha) else list(
            splits(case, rows, criterion, alpha, mu, path)
        )  # fmt: skip
        k = int(trees.feature[node])
        if k < 0:
            assert not found
            continue
        n_inner += 1
        best = max(good for *_, good in found)
        keys = np.where(np.isnan(case.x[rows, k]), np.inf, case.x[rows, k])
        left = keys <= trees.threshold[node]
        a, b = keys[left].max(), keys[~left].min()
        if criterion == "threshold_pairs":  # all numbers are exact, and ties go to the first
            assert (k, a, b) == next(split[:3] for split in found if split[3] == best)
        else:
            mine = next(good for *split, good in found if split == [k, a, b])
            assert mine == pytest.approx(best, rel=1e-9, abs=1e-9)
        if np.isfinite(b):  # midway
            assert trees.threshold[node] == np.float32(0.5 * (float(a) + float(b)))
        if np.isinf(keys).any():
            assert not trees.nan_left[node]
        path = path | {k}
        waiting += [(int(trees.left[node]), rows[left], path)]
        waiting += [(int(trees.right[node]), rows[~left], path)]
    return n_inner


def case_of(seed, n=40, kinds=("few", "many", "rare", "usual"), n_classes=3, missing=False):
    """Small data: columns of few and many values, and sparse ones; prices in halves, groups."""
    rng = np.random.default_rng(seed)
    make = {
        "few": lambda: rng.integers(0, 5, n),
        "many": lambda: rng.integers(0, 10 * n, n) / 4,
        "rare": lambda: rng.random(n) < 0.1,
        "usual": lambda: rng.choice([0, 1, 2], n, p=[0.07, 0.86, 0.07]),
    }
    columns = [make[kind]() for kind in kinds for _ in range(2)]
    x = np.stack(columns, axis=1).astype(np.float32)
    if missing:
        x[rng.random(x.shape) < 0.15] = np.nan
    y = (np.nan_to_num(x[:, 0]) + rng.integers(0, 3, n)).astype(np.int64) % n_classes
    drawn = rng.multinomial(n, np.full(n, 1 / n))
    group = [None, "a", "a", "b"] * (len(columns) // 4) + [None] * (len(columns) % 4)
    own = rng.integers(0, 4, len(columns)) / 2
    shared = {"a": 1.0, "b": 0.5}
    acquired = rng.random(x.shape) < 0.3
    return Case(x, y, drawn, n_classes, FeatureCosts(own, group=group, shared=shared), acquired)


@pytest.mark.parametrize("missing", [False, True], ids=["whole", "missing"])
@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0, 3.0])
def test_minimax_splits_are_the_best_and_the_first_of_the_best(alpha, n_classes, missing):
    grown = 0
    for seed in range(8):
        case = case_of(seed, n_classes=n_classes, missing=missing)
        case.costs = FeatureCosts(np.ceil(case.costs.own))  # drops divide exactly, or by 2
        forest = grow(
            Codes.of_table(case.x),
            case.y,
            case.drawn,
            n_classes,
            case.costs,
            SplitRule(alpha=alpha),
            seed=seed,
        )
        grown += check(case, forest, "threshold_pairs", alpha)
    assert grown > 8


@pytest.mark.parametrize("mu", [0.0, 0.1, 1.0])
def test_gain_less_acquisitions_is_the_best(mu):
    grown = 0
    for seed in range(8):
        case = case_of(seed, missing=seed % 2 == 1)
        acquired = None
        if mu:
            acquired = RowAcquisitions.none(case.costs, len(case.x))
            acquired.items[: case.x.shape[1]] = case.acquired.T
            for g in range(len(case.costs.shared)):
                members = np.flatnonzero(case.costs.group == g)
                acquired.items[case.x.shape[1] + g] = case.acquired[:, members].any(axis=1)
        forest = grow(
            Codes.of_table(case.x), case.y, case.drawn, 3, case.costs,
            SplitRule("entropy", mu=mu), acquired=acquired, seed=seed,
        )  # fmt: skip
        if not mu:
            case.acquired[:] = True  # nothing is left to pay
        grown += check(case, forest, "entropy", mu=mu)
    assert grown > 40


def test_large_nodes_are_counted_and_sorted_alike():
    """Nodes of every size: histograms, digits of eight bits and insertion must agree."""
    rng = np.random.default_rng(0)
    n = 600
    many, some = rng.permutation(40 * n)[:n], rng.permutation(n)
    x = np.stack([rng.integers(0, 8, n), many, some, rng.random(n) < 0.1], axis=1)
    x = x.astype(np.float32)
    spread = np.arange(40 * n, dtype=np.float32)  # codes far apart at the few rows in the bag
    x_all = np.concatenate([x, np.stack([0 * spread, spread, 0 * spread, 0 * spread], axis=1)])
    y = np.concatenate([(x[:, 1] > 9000) ^ (x[:, 2] > 200) ^ (rng.random(n) < 0.2), 0 * spread])
    drawn = np.concatenate([rng.multinomial(n, np.full(n, 1 / n)), 0 * spread]).astype(np.int64)
    case = Case(
        x_all, y.astype(np.int64), drawn, 2, FeatureCosts([1.0, 1.0, 2.0, 1.0]),
        np.zeros(x_all.shape, bool),
    )  # fmt: skip
    for alpha in (0.0, 4.0):
        forest = grow(Codes.of_table(x_all), case.y, drawn, 2, case.costs, SplitRule(alpha=alpha))
        assert check(case, forest, "threshold_pairs", alpha) > 10
    forest = grow(Codes.of_table(x_all), case.y, drawn, 2, case.costs, SplitRule("entropy"))
    case.acquired[:] = True  # nothing is left to pay
    assert check(case, forest, "entropy") > 10
