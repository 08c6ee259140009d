"""BudgetPrune's table 1 and figures 5, 6 and 7 (NIPS 2016, section 1 and supplement 6.4).

All prunings minimise the cost on validation rows, which also choose the operating points. Figures
are reported on test rows. The curves of several seeds are averaged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.svm import LinearSVC

from benchmarks.data import problems
from benchmarks.data.folds import Fold
from benchmarks.trees.curves import BUDGETS, CIFAR_BUDGETS, Curve, PrunedForest, at_budgets
from benchmarks.trees.pruning import cost_complexity, grow_forest, sklearn_forest
from gatewise.console import note
from gatewise.costs import FeatureCosts
from gatewise_training.prune import build_problem
from gatewise_training.prune.feature_dropping import greedy_prune
from gatewise_training.prune.forest import Forest
from gatewise_training.prune.nested_prunings import PruneSequence
from gatewise_training.prune.path import breakpoints
from gatewise_training.prune.problem import PruneProblem

#: Numbers of features per split in table 1, among which validation rows choose.
TRIED_SUBSETS = (7, 15, 30, 50)

#: Prunings of a curve, more than twice its budgets.
N_POINTS = 30

#: Shares of rows with no use, 1 to 7 uses and more uses of one feature in the paper's table 1.
PAPER_SHARES = np.array([[0.073], [0.917], [0.010]])

#: Largest price of figure 5; the paper rounds weights to whole numbers between 1 and 40.
MAX_PRICE = 40


def measure_usage(
    seeds: Sequence[int], *, n_trees: int, fold: Fold | None = None
) -> dict[str, Any]:
    """Measure table 1: uses of a feature by a test row in unpruned and pruned forests.

    The pruning is the cheapest whose validation error exceeds the error of the forest by at most
    0.1 points, like the test error in the paper. The shares are means over all features. The rows
    "one feature" have the feature whose unpruned shares are nearest to those of the paper.
    """
    problem = problems.get("mbne_tiny")
    seed_rows: list[dict[str, list[float]]] = []
    for seed in seeds:
        seed_fold = fold or problem.make_folds(seed)[0]
        assert seed_fold.validation is not None
        forest = best_subset_forest(seed_fold, n_trees, seed)
        prune_problem = build_problem(forest, seed_fold.validation[0], problem.costs)
        sequence = PruneSequence(prune_problem, breakpoints(prune_problem))
        curve = Curve.from_sequence(forest, sequence, seed_fold, problem.costs, 2 * N_POINTS)
        unpruned = PrunedForest(lambda forest=forest: forest, seed_fold, problem.costs)
        pruned = curve.choose_within_error(unpruned.validation[1] + 0.001) or unpruned
        unpruned_shares, pruned_shares = (
            _share_of_uses(pruned_forest.make(), seed_fold.test[0])
            for pruned_forest in (unpruned, pruned)
        )
        typical_feature = int(np.abs(unpruned_shares - PAPER_SHARES).sum(axis=0).argmin())
        seed_rows.append(
            {
                "unpruned": [*unpruned_shares.mean(axis=1), *unpruned.test],
                "pruned": [*pruned_shares.mean(axis=1), *pruned.test],
                "unpruned, one feature": [*unpruned_shares[:, typical_feature], *unpruned.test],
                "pruned, one feature": [*pruned_shares[:, typical_feature], *pruned.test],
            }
        )
        note(f"budgetprune: table 1, seed {seed}")
    return {
        "trees": n_trees,
        "seeds": list(seeds),
        "rows": {
            name: {
                "mean": np.mean([row[name] for row in seed_rows], axis=0).round(5),
                "sd": np.std([row[name] for row in seed_rows], axis=0).round(5),
            }
            for name in seed_rows[0]
        },
    }


def best_subset_forest(fold: Fold, n_trees: int, seed: int) -> Forest:
    """Grow entropy forests and return the most accurate one on validation rows."""
    models = [sklearn_forest(fold, n_trees, seed=seed, max_features=n) for n in TRIED_SUBSETS]
    return Forest.from_sklearn(max(models, key=lambda model: model.score(*fold.validation)))


def feature_uses(forest: Forest, rows: NDArray[np.float32]) -> NDArray[np.int64]:
    """Number of nodes with each feature on the paths of each row, shape (n, n_features)."""
    trees = forest.trees
    uses = np.zeros(rows.shape, np.int64)
    for root in trees.roots:
        node_of_row = np.full(len(rows), root)
        inner_rows = np.arange(len(rows))  # rows that have not reached a leaf
        while len(inner_rows := inner_rows[trees.left[node_of_row[inner_rows]] >= 0]):
            nodes = node_of_row[inner_rows]
            features = trees.feature[nodes]
            uses[inner_rows, features] += 1
            goes_left = rows[inner_rows, features] <= trees.threshold[nodes]
            node_of_row[inner_rows] = np.where(goes_left, trees.left[nodes], trees.right[nodes])
    return uses


def _share_of_uses(forest: Forest, rows: NDArray[np.float32]) -> NDArray[np.float64]:
    """Compute the shares of rows with no use, 1 to 7 uses, and more; shape (3, n_features)."""
    uses = feature_uses(forest, rows)
    return np.stack([(uses == 0).mean(0), ((uses > 0) & (uses <= 7)).mean(0), (uses > 7).mean(0)])


def svm_costs(fold: Fold) -> FeatureCosts:
    """Derive prices of mean 1 from the weights of a linear support vector machine (figure 5)."""
    rows, classes = fold.train
    # each column with a mean square of 1, so that weights are comparable
    scaled_rows = rows / np.maximum(np.linalg.norm(rows, axis=0), 1e-12) * np.sqrt(len(rows))
    svm = LinearSVC(random_state=0, max_iter=5000).fit(scaled_rows, classes)
    weights = np.abs(svm.coef_[0])
    prices = np.clip(np.rint(MAX_PRICE * weights / weights.max()), 1, MAX_PRICE)
    return FeatureCosts(prices * len(prices) / prices.sum())


def measure_prices(name: str, seeds: Sequence[int], *, n_trees: int, fold: Fold) -> dict[str, Any]:
    """Measure figure 5: BudgetPrune and cost-complexity pruning with uniform and other prices."""
    uniform_costs, weighted_costs = FeatureCosts.uniform(fold.train[0].shape[1]), svm_costs(fold)
    cases = {
        "uniform": ("entropy", None, uniform_costs),
        "by weight": ("entropy", None, weighted_costs),
    }
    return _measure_curves(name, cases, ("ensemble", "ccp"), seeds, fold, n_trees=n_trees)


def measure_impurities(
    name: str, seeds: Sequence[int], *, n_trees: int, fold: Fold
) -> dict[str, Any]:
    """Measure figure 6: prunings of entropy forests and of forests grown by Pairs."""
    costs = FeatureCosts.uniform(fold.train[0].shape[1])
    cases = {"entropy": ("entropy", None, costs), "Pairs": ("threshold_pairs", None, costs)}
    return _measure_curves(name, cases, ("ensemble", "ccp"), seeds, fold, n_trees=n_trees)


def measure_subsets(name: str, seeds: Sequence[int], *, n_trees: int, fold: Fold) -> dict[str, Any]:
    """Measure figure 7: prunings of forests with 20 and 120 random features per split."""
    n_features = fold.train[0].shape[1]
    costs = FeatureCosts.uniform(n_features)
    cases = {
        f"k = {n_tried}": ("entropy", min(n_tried, n_features), costs) for n_tried in (20, 120)
    }
    return _measure_curves(name, cases, ("ensemble", "greedy", "ccp"), seeds, fold, n_trees=n_trees)


def _measure_curves(
    name: str,
    cases: Mapping[str, tuple[str, int | None, FeatureCosts]],
    methods: Sequence[str],
    seeds: Sequence[int],
    fold: Fold,
    *,
    n_trees: int,
) -> dict[str, Any]:
    """Prune the forests of each case by each method, and choose points at budgets."""
    assert fold.validation is not None
    budgets = BUDGETS.get(name, CIFAR_BUDGETS)
    curves: dict[str, Any] = {}
    mean_unpruned: dict[str, list[float]] = {}
    for case, (criterion, n_features, costs) in cases.items():
        method_curves: dict[str, list[Curve]] = {method: [] for method in methods}
        unpruned_figures = []
        for seed in seeds:
            if criterion == "entropy":
                model = sklearn_forest(fold, n_trees, seed=seed, max_features=n_features)
                forest = Forest.from_sklearn(model)
            else:
                forest = grow_forest(fold, costs, n_trees, seed, criterion="threshold_pairs")
            prune_problem = build_problem(forest, fold.validation[0], costs)
            unpruned_figures.append(PrunedForest(lambda forest=forest: forest, fold, costs).test)
            for method, curve_list in method_curves.items():
                sequence = _prune(method, prune_problem, forest, costs)
                curve_list.append(Curve.from_sequence(forest, sequence, fold, costs, N_POINTS))
            note(f"budgetprune: {name}, {case}, seed {seed}")
        mean_unpruned[case] = [
            round(float(value), 5) for value in np.mean(unpruned_figures, axis=0)
        ]
        curves |= {
            f"{case}, {method}": at_budgets(curve_list, budgets)
            for method, curve_list in method_curves.items()
        }
    return {
        "trees": n_trees,
        "seeds": list(seeds),
        "budgets": list(budgets),
        "unpruned": mean_unpruned,
        "curves": curves,
    }


def _prune(
    method: str, prune_problem: PruneProblem, forest: Forest, costs: FeatureCosts
) -> PruneSequence:
    if method == "ensemble":
        return PruneSequence(prune_problem, breakpoints(prune_problem))
    if method == "greedy":
        return greedy_prune(prune_problem, forest, costs)
    return cost_complexity(prune_problem)
