"""Table 1 and figure 3 of the BudgetRF paper, and fit times compared with scikit-learn."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np

from benchmarks.data import problems
from benchmarks.data.folds import Fold
from benchmarks.trees.curves import BUDGETS, CIFAR_BUDGETS
from benchmarks.trees.pruning import grow_forest, sklearn_forest
from gatewise.console import note
from gatewise.costs import FeatureCosts
from gatewise_training.forests.budget_forest import BudgetForest
from gatewise_training.prune.forest import Forest

#: Numbers of trees in table 1.
TREE_COUNTS = (1, 10, 20, 40)
FOREST_KINDS = {
    "rf-gini": "random forest, Gini, square root of the features at a node",
    "rf-entropy": "random forest, entropy, square root of the features at a node",
    "stumps": "BudgetForest, alpha 0, the paper's random stumps",
    "exact": "BudgetForest, alpha 0, exact thresholds",
    "rf-all": "random forest, entropy, all features at a node",
}

#: Thresholds of Pairs in figure 3.
PAPER_ALPHAS = (0, 2, 4, 6, 8, 10, 15, 25, 35, 45)


def measure_table(
    name: str, seeds: Sequence[int], *, tree_counts: Sequence[int], fold: Fold
) -> dict[str, Any]:
    """Measure the first trees of each kind of forest on test rows, for each of `tree_counts`.

    Costs are shares of all features. Errors are those of the majority vote, as in the paper, and of
    averaged leaf distributions.
    """
    problem = problems.get(name)
    figures_by_kind: dict[str, list[dict[str, float]]] = {}
    for kind in FOREST_KINDS:
        runs = [
            _measure_first_trees(_grow(kind, fold, max(tree_counts), seed), fold, tree_counts)
            for seed in seeds
        ]
        run_means, run_deviations = np.mean(runs, axis=0), np.std(runs, axis=0)
        figures_by_kind[kind] = [
            {
                "trees": n_trees,
                "cost_share": round(float(means[0]), 5),
                "vote_error": round(float(means[1]), 5),
                "mean_error": round(float(means[2]), 5),
                "cost_share_sd": round(float(deviations[0]), 5),
                "vote_error_sd": round(float(deviations[1]), 5),
            }
            for n_trees, means, deviations in zip(
                tree_counts, run_means, run_deviations, strict=True
            )
        ]
        note(f"budgetrf: {name}, {kind}: {figures_by_kind[kind][-1]}")
    return {
        "data": problem.source,
        "note": problem.note,
        "seeds": list(seeds),
        "kinds": figures_by_kind,
    }


def measure_figure(
    name: str, seeds: Sequence[int], *, alphas: Sequence[float], n_trees: int, fold: Fold
) -> dict[str, Any]:
    """Measure figure 3, b to d: errors at budgets, with alpha and trees chosen on validation."""
    budgets = BUDGETS.get(name, CIFAR_BUDGETS)
    test_rows, test_classes = fold.test
    runs = []
    for seed in seeds:
        settings: dict[str, Any] = {"splits": "stumps", "voting": "majority", "random_state": seed}
        forests = [
            BudgetForest(alpha=float(alpha), n_estimators=n_trees, **settings).fit(
                *fold.train, validation=fold.validation
            )
            for alpha in alphas
        ]
        points = []
        for budget in budgets:
            systems = [forest.at(budget=budget) for forest in forests]
            best_system = max(systems, key=lambda system: system.operating_point_.accuracy)
            points.append(
                [
                    best_system.cost(test_rows).mean(),
                    np.mean(best_system.predict(test_rows) != test_classes),
                    best_system.alpha,
                ]
            )
        runs.append(points)
        note(f"budgetrf: figure 3, {name}, seed {seed}")
    means = np.mean(runs, axis=0)
    return {
        "seeds": list(seeds),
        "trees": n_trees,
        "budgets": list(budgets),
        "points": [
            {"cost": round(cost, 4), "error": round(error, 5), "alpha": round(alpha, 2)}
            for cost, error, alpha in means.tolist()
        ],
    }


def measure_ranking(
    *, n_trees: int, tree_counts: Sequence[int], folds: Sequence[Fold] | None
) -> dict[str, Any]:
    """Measure figure 3a on MQ2008: AP@5 of two ranking scores, over the queries of all folds."""
    rows = []
    for fold in folds or problems.get("mq2008").make_folds(0):
        test_rows, _ = fold.test
        costs = FeatureCosts.uniform(test_rows.shape[1])
        forest = grow_forest(fold, costs, n_trees, 0, criterion="threshold_pairs")
        for n_first in tree_counts:
            first_trees = forest.select(range(n_first))
            counts = first_trees.summed_counts(test_rows)
            rows.append(
                [
                    n_first,
                    first_trees.cost(test_rows, costs).mean(),
                    fold.test_truth.score(counts[:, 1] / counts.sum(axis=1)),
                    fold.test_truth.score(first_trees.proba(test_rows)[:, 1]),
                ]
            )
        note("budgetrf: figure 3a, a fold of MQ2008")
    point_table = np.array(rows)
    means = [point_table[point_table[:, 0] == n_first].mean(axis=0) for n_first in tree_counts]
    names = ("trees", "cost", "summed_counts", "mean_shares")
    return {"rows": [dict(zip(names, row.round(5).tolist(), strict=True)) for row in means]}


def measure_seconds(fold: Fold, n_trees: int, n_turns: int) -> dict[str, Any]:
    """Measure the median CPU seconds of fits with one thread, alternately.

    The times of BudgetForest include the evaluation of every operating point on validation rows.
    """
    growers = {
        "exact": lambda: _grow("exact", fold, n_trees, 0),
        "rf-all": lambda: sklearn_forest(fold, n_trees),
        "rf-all-gini": lambda: sklearn_forest(fold, n_trees, criterion="gini"),
    }
    _grow("exact", fold.sample(200), 2, 0)  # compile with numba before the measurement
    durations: dict[str, list[float]] = {grower: [] for grower in growers}
    for _ in range(n_turns):
        for grower, fit in growers.items():
            start_time = time.process_time()
            fit()
            durations[grower].append(round(time.process_time() - start_time, 3))
    note(f"budgetrf: CPU seconds {durations}")
    return {
        "trees": n_trees,
        "rows": len(fold.train[1]),
        "threads": int(os.environ.get("OMP_NUM_THREADS", "0")) or None,
        "cpu": {
            grower: {"median": median(seconds_of_turns), "runs": seconds_of_turns}
            for grower, seconds_of_turns in durations.items()
        },
    }


def _grow(kind: str, fold: Fold, n_trees: int, seed: int) -> Forest:
    if kind.startswith("rf"):
        criterion = "gini" if kind == "rf-gini" else "entropy"
        max_features = None if kind == "rf-all" else "sqrt"
        return Forest.from_sklearn(
            sklearn_forest(fold, n_trees, seed=seed, criterion=criterion, max_features=max_features)
        )
    system = BudgetForest(
        alpha=0.0,
        splits="stumps" if kind == "stumps" else "exact",
        n_estimators=n_trees,
        voting="majority",
        random_state=seed,
    ).fit(*fold.train, validation=fold.validation)
    # each operating point has the whole forest and the number of its trees
    return max((forest for forest, _ in system.grown_), key=lambda forest: forest.n_trees)


def _measure_first_trees(
    forest: Forest, fold: Fold, tree_counts: Sequence[int]
) -> list[list[float]]:
    """Measure cost share, vote error and mean error on test rows for each number of trees."""
    test_rows, test_classes = fold.test
    costs = FeatureCosts.uniform(test_rows.shape[1])
    rows = []
    for n_trees in tree_counts:
        first_trees = forest.select(range(n_trees))
        rows.append(
            [
                float(first_trees.cost(test_rows, costs).mean()) / costs.total,
                float(np.mean(first_trees.vote_shares(test_rows).argmax(axis=1) != test_classes)),
                float(np.mean(first_trees.proba(test_rows).argmax(axis=1) != test_classes)),
            ]
        )
    return rows
