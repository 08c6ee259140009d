"""Table 1 of the BudgetRF paper, and fit times compared with scikit-learn."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np

from benchmarks.data import problems
from benchmarks.data.folds import Fold
from benchmarks.trees.pruning import fit_sklearn_forest
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
            _measure_first_trees(
                _grow_forest(kind, fold, max(tree_counts), seed), fold, tree_counts
            )
            for seed in seeds
        ]
        names = ("cost_share", "vote_error", "mean_error")
        figures_by_kind[kind] = [
            {"trees": n_trees, **dict(zip(names, means.round(5).tolist(), strict=True))}
            for n_trees, means in zip(tree_counts, np.mean(runs, axis=0), strict=True)
        ]
        note(f"budgetrf: {name}, {kind}: {figures_by_kind[kind][-1]}")
    return {
        "data": problem.source,
        "note": problem.note,
        "seeds": list(seeds),
        "kinds": figures_by_kind,
    }


def measure_seconds(fold: Fold, n_trees: int, n_turns: int) -> dict[str, Any]:
    """Measure the median CPU seconds of fits with one thread, alternately.

    The times of BudgetForest include the evaluation of every operating point on validation rows.
    """
    growers = {
        "exact": lambda: _grow_forest("exact", fold, n_trees, 0),
        "rf-all": lambda: fit_sklearn_forest(fold, n_trees),
        "rf-all-gini": lambda: fit_sklearn_forest(fold, n_trees, criterion="gini"),
    }
    _grow_forest("exact", fold.sample(200), 2, 0)  # compile with numba before the measurement
    durations: dict[str, list[float]] = {grower: [] for grower in growers}
    for _ in range(n_turns):
        for grower, fit in growers.items():
            start_time = time.process_time()
            fit()
            durations[grower].append(round(time.process_time() - start_time, 3))
    note(f"budgetrf: CPU seconds {durations}")
    cpu = {
        name: {"median": median(seconds), "runs": seconds} for name, seconds in durations.items()
    }
    return {"trees": n_trees, "rows": len(fold.train[1]), "cpu": cpu}


def _grow_forest(kind: str, fold: Fold, n_trees: int, seed: int) -> Forest:
    if kind.startswith("rf"):
        criterion = "gini" if kind == "rf-gini" else "entropy"
        max_features = None if kind == "rf-all" else "sqrt"
        return Forest.from_sklearn(
            fit_sklearn_forest(
                fold, n_trees, seed=seed, criterion=criterion, max_features=max_features
            )
        )
    system = BudgetForest(
        alpha=0.0,
        splits="stumps" if kind == "stumps" else "exact",
        n_estimators=n_trees,
        voting="majority",
        random_state=seed,
    ).fit(*fold.train, validation=fold.validation)
    # each operating point has the whole forest and the number of its trees
    return max((forest for forest, _ in system.sources_), key=lambda forest: forest.n_trees)


def _measure_first_trees(
    forest: Forest, fold: Fold, tree_counts: Sequence[int]
) -> list[list[float]]:
    """Measure cost share, vote error and mean error on test rows for each number of trees."""
    test_rows, test_classes = fold.test
    costs = FeatureCosts.uniform(test_rows.shape[1])
    rows = []
    for n_trees in tree_counts:
        first_trees = forest.select(range(n_trees))
        cost_share = first_trees.cost(test_rows, costs).mean() / costs.total
        shares = first_trees.vote_shares(test_rows), first_trees.proba(test_rows)
        errors = [float(np.mean(share.argmax(axis=1) != test_classes)) for share in shares]
        rows.append([float(cost_share), *errors])
    return rows
