"""Pruned forests: table 1 of the 2016 paper and figure 2 of the BudgetPrune paper.

As in the papers, errors at the nodes are in-bag and costs are those of the validation rows. The
validation rows also choose the operating points. Figures are reported on test rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from sklearn.ensemble import RandomForestClassifier

from benchmarks.data import problems
from benchmarks.data.folds import Fold
from benchmarks.trees.curves import (
    BUDGETS,
    Curve,
    PrunedForest,
    average_cheapest,
    choose_at_budgets,
    make_curve,
)
from gatewise.console import note
from gatewise.costs import FeatureCosts
from gatewise_training.data.row_splitter import stratified_parts
from gatewise_training.forests.grower.binning import Codes
from gatewise_training.forests.grower.growth import Criterion, RowAcquisitions, SplitRule, grow
from gatewise_training.prune import build_problem
from gatewise_training.prune.forest import Forest
from gatewise_training.prune.nested_prunings import PruneSequence
from gatewise_training.prune.other_prunings import greedy_prune, prune_each_tree, weakest_links
from gatewise_training.prune.path import breakpoints
from gatewise_training.prune.problem import PruneProblem

#: Bits that an acquisition must save in cost-aware growth; a forest with mu = 0 is added.
MUS = (0.1, 0.03, 0.01)

METHODS = {
    "ensemble": "entropy forest, pruned as an ensemble",
    "per-tree": "entropy forest, each tree pruned alone",
    "greedy": "entropy forest, GreedyPrune",
    "ccp": "entropy forest, cost-complexity",
    "aware": "cost-aware growth, pruned as an ensemble",
}

#: Prunings of a curve from which table 1 chooses.
N_TABLE_POINTS = 40


class PaperLevels(NamedTuple):
    """Number of trees, and loss of accuracy at the low and the high pruning level of the paper."""

    n_trees: int
    low_loss: float
    high_loss: float


PAPER_LEVELS = {
    "forest-bin": PaperLevels(40, 0.0013, 0.0098),
    "mbne_tiny": PaperLevels(40, 0.0, 0.0041),
    "cifar10": PaperLevels(40, 0.0013, 0.0075),
    "statlog_heart": PaperLevels(90, 0.0, 0.0256),
    "sonar": PaperLevels(90, 0.0299, 0.0582),
}


def prune_by_complexity(problem: PruneProblem) -> PruneSequence:
    """Prune by errors and leaves with one complexity parameter for all trees, without costs.

    Breiman, Friedman, Olshen & Stone, "Classification and regression trees", 1984, chapter 3.
    """
    is_inner = problem.is_inner
    complexity = weakest_links(problem.parent, problem.profit, is_inner.astype(np.float64))
    return PruneSequence(problem, np.where(is_inner, complexity, -np.inf))


def fit_sklearn_forest(
    fold: Fold,
    n_trees: int,
    *,
    seed: int = 0,
    criterion: str = "entropy",
    max_features: int | str | None = None,
) -> RandomForestClassifier:
    """Fit scikit-learn's forest on the training rows with one thread."""
    return RandomForestClassifier(
        n_trees, criterion=criterion, max_features=max_features, random_state=seed, n_jobs=1
    ).fit(*fold.train)


def grow_forest(
    fold: Fold, costs: FeatureCosts, n_trees: int, seed: int, *, criterion: Criterion, mu: float = 0
) -> Forest:
    """Grow a forest on bootstrap samples; if mu > 0, features of earlier trees are free."""
    rows, classes = fold.train
    codes, trees = Codes.of_table(rows), []
    acquired = RowAcquisitions.empty(costs, len(rows) if mu > 0 else 0)
    for tree_number in range(n_trees):
        rng = np.random.default_rng((seed, tree_number))
        bootstrap = np.bincount(rng.integers(len(rows), size=len(rows)), minlength=len(rows))
        tree = grow(
            codes,
            classes,
            bootstrap,
            int(classes.max()) + 1,
            costs,
            SplitRule(criterion, mu=mu),
            acquired=acquired,
            seed=int(rng.integers(2**31)),
        )
        if mu > 0:
            acquired.add(tree.trees, rows)
        trees.append(tree)
    return Forest.join(trees)


def measure_figure(name: str, *, n_trees: int, n_points: int, fold: Fold) -> dict[str, Any]:
    """Measure figure 2 of BudgetPrune on one problem: errors at budgets for each method."""
    problem = problems.get(name)
    costs = problem.costs
    assert fold.validation is not None
    # prune one forest by four methods
    forest = Forest.from_sklearn(fit_sklearn_forest(fold, n_trees))
    unpruned = PrunedForest(lambda: forest, fold, costs)
    prune_problem = build_problem(forest, fold.validation[0], costs)
    sequences = {
        "ensemble": PruneSequence(prune_problem, breakpoints(prune_problem)),
        "per-tree": prune_each_tree(prune_problem),
        "greedy": greedy_prune(prune_problem, forest, costs),
        "ccp": prune_by_complexity(prune_problem),
    }
    curves = {
        key: make_curve(forest, sequence, fold, costs, n_points)
        for key, sequence in sequences.items()
    }
    # grow cost-aware forests, then prune them; the forest above has mu = 0
    curves["aware"] = list(curves["ensemble"])
    for mu in MUS:
        priced_forest = grow_forest(fold, costs, n_trees, 0, criterion="entropy", mu=mu)
        priced_problem = build_problem(priced_forest, fold.validation[0], costs)
        sequence = PruneSequence(priced_problem, breakpoints(priced_problem))
        curves["aware"] += make_curve(priced_forest, sequence, fold, costs, n_points)
        note(f"pruning: {name}, mu {mu} is grown and pruned")
    budgets = BUDGETS[name]
    return {
        "note": problem.note,
        "data": problem.source,
        "rows": [len(fold.train[1]), len(fold.validation[1]), len(fold.test[1])],
        "trees": n_trees,
        "mus": [*MUS, 0.0],
        "unpruned": {"cost": round(unpruned.test.cost, 4), "error": round(unpruned.test.error, 5)},
        "budgets": list(budgets),
        "curves": {key: choose_at_budgets(curve, budgets) for key, curve in curves.items()},
        "objective": _compare_objectives(sequences["ensemble"], sequences["per-tree"]),
    }


def _compare_objectives(
    ensemble_sequence: PruneSequence, per_tree_sequence: PruneSequence
) -> dict[str, Any]:
    """Compare objectives of ensemble and per-tree pruning at the same prices."""
    # 30 prices from the lowest to the highest at which the pruned ensemble changes
    prices = np.geomspace(max(ensemble_sequence.levels[1], 1e-9), ensemble_sequence.levels[-1], 30)
    problem = ensemble_sequence.problem
    least_advantage = min(
        problem.objective(per_tree_sequence.kept_at(price), price)
        - problem.objective(ensemble_sequence.kept_at(price), price)
        for price in prices
    )
    return {"prices": len(prices), "least_advantage": float(least_advantage)}


def measure_table(
    name: str, seeds: Sequence[int], *, folds: Sequence[Fold] | None = None
) -> dict[str, Any]:
    """Measure table 1 of 2016 on one problem: BudgetRF, unpruned and pruned at two levels.

    Every feature costs 1, as in the paper.
    """
    problem = problems.get(name)
    costs = FeatureCosts.uniform(problem.costs.n_features)
    levels = PAPER_LEVELS[name]
    losses = {"low": levels.low_loss, "high": levels.high_loss}
    seed_rows: list[dict[str, Any]] = []
    for seed in seeds:
        curves: dict[str, list[Curve]] = {"ensemble": [], "per-tree": []}
        for fold in map(_with_validation, folds or problem.make_folds(seed)):
            assert fold.validation is not None
            forest = grow_forest(fold, costs, levels.n_trees, seed, criterion="threshold_pairs")
            unpruned = PrunedForest(lambda forest=forest: forest, fold, costs)
            prune_problem = build_problem(forest, fold.validation[0], costs)
            for key, sequence in (
                ("ensemble", PruneSequence(prune_problem, breakpoints(prune_problem))),
                ("per-tree", prune_each_tree(prune_problem)),
            ):
                prunings = make_curve(forest, sequence, fold, costs, N_TABLE_POINTS)
                curves[key].append([unpruned, *prunings])
        row: dict[str, Any] = {
            "unpruned": average_cheapest([curve[:1] for curve in curves["ensemble"]], 0.0)
        }
        for level, loss in losses.items():
            for key, fold_curves in curves.items():
                row[f"{key}-{level}"] = average_cheapest(fold_curves, loss)
                if problem.split_depends_on_seed:  # cross-validation has few test rows per fold
                    row[f"{key}-{level} on test"] = average_cheapest(fold_curves, loss, "test")
        seed_rows.append(row)
        note(f"pruning: {name}, BudgetRF seed {seed}")
    return {
        "trees": levels.n_trees,
        "seeds": list(seeds),
        "losses": losses,
        "points": {key: _summarise_seeds([row[key] for row in seed_rows]) for key in seed_rows[0]},
    }


def _summarise_seeds(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """Compute mean and standard deviation of cost and error over seeds."""
    figures: dict[str, float] = {}
    for key in ("cost", "error"):
        figures_of_seeds = [row[key] for row in rows]
        figures[key] = round(float(np.mean(figures_of_seeds)), 5)
        figures[f"{key}_sd"] = round(float(np.std(figures_of_seeds)), 5)
    return figures


def _with_validation(fold: Fold) -> Fold:
    """Use a fifth of the training rows as validation rows if the fold has none."""
    if fold.validation is not None:
        return fold
    (rows, classes), is_validation = fold.train, stratified_parts(fold.train[1], 5, 0) == 0
    return Fold(
        (rows[~is_validation], classes[~is_validation]),
        (rows[is_validation], classes[is_validation]),
        fold.test,
    )
