"""BudgetRF's table 1 on the data at hand, and the time of growth against scikit-learn's."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np
from sklearn.ensemble import RandomForestClassifier

from benchmarks.data import problems
from benchmarks.data.folds import Fold
from gatewise.console import note
from gatewise.costs import FeatureCosts
from gatewise_training.forests.budget_forest import BudgetForest
from gatewise_training.prune.forest import Forest

NUMBERS = (1, 10, 20, 40)
KINDS = {
    "rf-gini": "random forest, Gini, square root of the features at a node",
    "rf-entropy": "random forest, entropy, square root of the features at a node",
    "stumps": "BudgetForest, alpha 0, the paper's random stumps",
    "exact": "BudgetForest, alpha 0, exact thresholds",
    "rf-all": "random forest, entropy, all features at a node",
}
TURNS = 3


def table(
    name: str, seeds: Sequence[int], *, numbers: Sequence[int] = NUMBERS, fold: Fold | None = None
) -> dict[str, Any]:
    """Measure the first trees of each kind of forest on test rows, for some numbers of trees.

    Costs are shares of all features; errors are of the majority vote (as in the paper) and
    of averaged leaf distributions.
    """
    problem = problems.get(name)
    fold = fold or problem.deal(0)[0]
    kinds: dict[str, list[dict[str, float]]] = {}
    for kind in KINDS:
        runs = [_rows(_grow(kind, fold, max(numbers), seed), fold, numbers) for seed in seeds]
        mean, deviation = np.mean(runs, axis=0), np.std(runs, axis=0)
        kinds[kind] = [
            {
                "trees": number,
                "cost_share": round(float(m[0]), 5),
                "vote_error": round(float(m[1]), 5),
                "mean_error": round(float(m[2]), 5),
                "cost_share_sd": round(float(d[0]), 5),
                "vote_error_sd": round(float(d[1]), 5),
            }
            for number, m, d in zip(numbers, mean, deviation, strict=True)
        ]
        note(f"budgetrf: {name}, {kind}: {kinds[kind][-1]}")
    return {"data": problem.source, "note": problem.note, "seeds": list(seeds), "kinds": kinds}


def seconds(fold: Fold, n_trees: int, turns: int = TURNS) -> dict[str, Any]:
    """CPU seconds of fitting, in turns, with one thread; medians.

    BudgetForest's include judging every operating point on the validation rows.
    """
    growers = {
        "exact": lambda: _grow("exact", fold, n_trees, 0),
        "rf-all": lambda: _sklearn(fold, n_trees, 0, "entropy", None),
        "rf-all-gini": lambda: _sklearn(fold, n_trees, 0, "gini", None),
    }
    _grow("exact", fold.thinned(200), 2, 0)  # numba compiles: which does not belong to a fit
    durations: dict[str, list[float]] = {grower: [] for grower in growers}
    for _ in range(turns):
        for grower, fit in growers.items():
            start = time.process_time()
            fit()
            durations[grower].append(round(time.process_time() - start, 3))
    note(f"budgetrf: CPU seconds {durations}")
    return {
        "trees": n_trees,
        "rows": len(fold.train[1]),
        "threads": int(os.environ.get("OMP_NUM_THREADS", "0")) or None,
        "cpu": {
            grower: {"median": median(runs), "runs": runs} for grower, runs in durations.items()
        },
    }


def _grow(kind: str, fold: Fold, n_trees: int, seed: int) -> Forest:
    if kind.startswith("rf"):
        criterion = "gini" if kind == "rf-gini" else "entropy"
        max_features = None if kind == "rf-all" else "sqrt"
        return Forest.from_sklearn(_sklearn(fold, n_trees, seed, criterion, max_features))
    system = BudgetForest(
        alpha=0.0,
        splits="stumps" if kind == "stumps" else "exact",
        n_estimators=n_trees,
        voting="majority",
        random_state=seed,
    ).fit(*fold.train, validation=fold.validation)
    # each operating point holds the whole forest, and of how many of its trees it is
    return max((forest for forest, _ in system.grown_), key=lambda forest: forest.n_trees)


def _sklearn(
    fold: Fold, n_trees: int, seed: int, criterion: str, some: str | None
) -> RandomForestClassifier:
    return RandomForestClassifier(
        n_trees, criterion=criterion, max_features=some, random_state=seed, n_jobs=1
    ).fit(*fold.train)


def _rows(forest: Forest, fold: Fold, numbers: Sequence[int]) -> list[list[float]]:
    """Cost share, and errors by vote and by mean, on test rows."""
    x, y = fold.test
    costs = FeatureCosts.uniform(x.shape[1])
    rows = []
    for number in numbers:
        first_trees = forest.select(range(number))
        rows.append(
            [
                float(first_trees.cost(x, costs).mean()) / costs.total,
                float(np.mean(first_trees.vote(x).argmax(axis=1) != y)),
                float(np.mean(first_trees.proba(x).argmax(axis=1) != y)),
            ]
        )
    return rows
