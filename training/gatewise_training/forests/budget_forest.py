"""BudgetForest: random forests that are grown for a low cost of features.

The method is BudgetRF (Nan, Wang & Saligrama, "Feature-budgeted random forest", ICML 2015). Trees
grow on bootstrap samples by minimax splits of threshold-Pairs, and are added until validation rows
cost more than the budget. Another criterion is the gain in entropy minus a price on features that
instances have not acquired yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple

import joblib
import numpy as np
from numpy.typing import NDArray
from sklearn.utils._param_validation import StrOptions

from gatewise.acquisition import AcquiredMask
from gatewise.errors import InputError
from gatewise.models.stage import Stage
from gatewise.models.trees import TreeEnsemble
from gatewise_training.cascades.fit_problem import FitProblem, FittedStages
from gatewise_training.data.input_checks import AT_LEAST_1, NOT_NEGATIVE, Constraints
from gatewise_training.forests.base import FittedTrees, ForestModel, GrowingForest
from gatewise_training.forests.grower.binning import Codes
from gatewise_training.forests.grower.growth import Criterion, SplitRule, Splits, single_leaf
from gatewise_training.prune.forest import Forest, Voting

#: Thresholds of Pairs to try, about every other one of the paper's ten (section 3).
ALPHAS = (35.0, 15.0, 6.0, 2.0, 0.0)

#: Values of `mu` to try: bits that an acquisition of mean price must save.
MUS = (0.3, 0.1, 0.03, 0.01, 0.0)

#: Number of trees grown between two checks of the cost, independent of the number of jobs.
TREES_PER_CHECK = 8


@dataclass(eq=False, repr=False, kw_only=True)
class BudgetForest(ForestModel):
    """A random forest within a budget, where each instance acquires the features on its own paths.

    This is BudgetRF (Nan, Wang & Saligrama, "Feature-budgeted random forest", ICML 2015,
    algorithm 1) with threshold-Pairs (equation 11).

    It is a single model without a cloud. The operating points are the first 1, 2, ... trees of a
    forest, for each `alpha` or `mu` that is tried, and a model without trees. An instance pays once
    for each feature on its paths through all trees. :meth:`at` changes the operating point without
    another fit.

    Further parameters: :class:`.SingleModel`.

    Parameters
    ----------
    feature_costs, budget
        As for :class:`StagedCascade`. With a budget, trees are added until the validation rows
        cost more on average, or until there are `n_estimators` trees. Without a budget all trees
        are grown.
    selection : {"accuracy", "cost"}, default "accuracy"
        Choice of the number of trees on validation rows. "accuracy" chooses the most accurate
        number within the budget. "cost" chooses the largest number within the budget, as the paper
        does (algorithm 1), for each `alpha` or `mu`, and then the most accurate of these forests.
    max_loss : float, default 0.01
        Without a budget, the cheapest point is chosen that loses at most this much accuracy against
        the largest forest (all trees, with the smallest alpha or mu).
    criterion : {"threshold_pairs", "entropy"}, default "threshold_pairs"
        "threshold_pairs" chooses BudgetRF's minimax splits. "entropy" chooses the split with the
        largest gain in entropy minus `mu` times the price that the instances at the node have to
        pay.
    alpha : float, optional
        Threshold of Pairs, in examples. A class with at most this many examples at a node does not
        count, so higher thresholds give shallower and cheaper trees. By default 35, 15, 6, 2 and 0
        are tried, and validation rows choose. With "entropy" it is ignored.
    mu : float or "auto", default 0.0
        With "entropy", the gain in bits that an acquisition of mean price by one example must
        bring. Features and groups that were acquired in earlier splits or trees are free. "auto"
        tries 0.3, 0.1, 0.03, 0.01 and 0. With a value above 0, trees grow in sequence.
    splits : {"exact", "stumps"}, default "exact"
        Thresholds to try at each node: all, or 80, 40 or 20 random ones as in the paper.
    n_estimators : int, default 40
        Maximum number of trees.
    max_depth : int, optional
        Maximum depth of the trees; no bound by default.
    voting : {"mean", "majority"}, default "mean"
        Prediction of a forest. "mean" averages the leaf distributions. With "majority" each tree
        has one vote, as in the paper, and the probabilities are the shares of the votes.

    Attributes
    ----------
    forest_ : Forest
        The trees of the operating point.
    sources_ : tuple of FirstTrees
        The whole forest that the trees of an operating point come from, and their number. The
        index of an entry is the `chain` of the point.

    Notes
    -----
    With threshold-Pairs, every split is charged the price of its feature and its group, as in the
    paper, even if the feature was acquired before. Bootstrap samples draw rows in proportion to
    their weights.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> forest = BudgetForest(budget=4.0, alpha=0.0, n_estimators=5, random_state=0).fit(X, y)
    >>> bool(forest.operating_point_.cost <= 4.0)
    True
    """

    criterion: Criterion = "threshold_pairs"
    alpha: float | None = None
    mu: float | Literal["auto"] = 0.0
    splits: Splits = "exact"
    n_estimators: int = 40
    max_depth: int | None = None
    voting: Voting = "mean"
    selection: Literal["accuracy", "cost"] = "accuracy"

    _parameter_constraints: ClassVar[Constraints] = {
        "criterion": [StrOptions({"threshold_pairs", "entropy"})],
        "alpha": [NOT_NEGATIVE, None],
        "mu": [StrOptions({"auto"}), NOT_NEGATIVE],
        "splits": [StrOptions({"exact", "stumps"})],
        "n_estimators": [AT_LEAST_1],
        "max_depth": [AT_LEAST_1, None],
        "voting": [StrOptions({"mean", "majority"})],
        "selection": [StrOptions({"accuracy", "cost"})],
    }

    @property
    def forest_(self) -> Forest:
        """The trees of the operating point, with the class counts of all nodes."""
        forest, n_trees = self.sources_[self.operating_point_.chain]
        first_trees: Forest = forest.select(range(n_trees))
        return first_trees

    def _fit_candidates(self, problem: FitProblem) -> Sequence[FittedStages]:
        split = problem.split
        # one forest for each fold and, if there are several folds, one for all rows
        row_sets = split.rows_of_all_fits
        codes = Codes.of_table(split.x[split.fit_rows])
        code_position = np.zeros(len(split.x), np.intp)
        code_position[split.fit_rows] = np.arange(len(split.fit_rows))
        growths = []
        for rule in self._list_rules():
            growing_forests = [
                GrowingForest(
                    problem, rows, codes.take(code_position[rows]), (problem.seed, set_number), rule
                )
                for set_number, rows in enumerate(row_sets)
            ]
            growths.append(_RuleGrowth(problem, growing_forests))
        self._grow(problem, growths)
        # the first candidate is a single leaf; the others are the first trees of each forest
        leaf_forests = [
            single_leaf(split.y[rows], split.weight[rows], problem.n_classes, codes)
            for rows in row_sets
        ]
        candidates = _make_candidates(problem, leaf_forests, [1], self.voting)
        for growth in growths:
            tree_counts = _list_tree_counts(growth.n_trees, growth.n_over_budget)
            if self.selection == "cost":
                tree_counts = growth.affordable_counts()
            if tree_counts:
                forests = [
                    Forest.join(growing_forest.trees) for growing_forest in growth.growing_forests
                ]
                candidates += _make_candidates(problem, forests, tree_counts, self.voting)
        return candidates

    def _grow(self, problem: FitProblem, growths: Sequence[_RuleGrowth]) -> None:
        """Add trees to all forests until each is complete or costs more than the budget."""
        n_total = self.n_estimators * len(growths)
        while incomplete_growths := [
            growth
            for growth in growths
            if growth.n_over_budget is None and growth.n_trees < self.n_estimators
        ]:
            jobs = []
            for growth in incomplete_growths:
                jobs += growth.jobs(min(TREES_PER_CHECK, self.n_estimators - growth.n_trees))
            joblib.Parallel(require="sharedmem")(jobs)  # jobs add trees to the growths
            if self.budget is not None:
                for growth in incomplete_growths:
                    growth.compare_with_budget(self.budget)
            n_done = sum(
                self.n_estimators if growth.n_over_budget else growth.n_trees for growth in growths
            )
            problem.report_progress(n_done, n_total, "growing trees")

    def _list_rules(self) -> list[SplitRule]:
        """List the rules to try, by falling penalty."""
        base_rule = SplitRule(
            criterion=self.criterion, splits=self.splits, max_depth=self.max_depth
        )
        if self.criterion == "threshold_pairs":
            alphas = ALPHAS if self.alpha is None else (self.alpha,)
            return [replace(base_rule, alpha=alpha) for alpha in alphas]
        mus = MUS if self.mu == "auto" else (float(self.mu),)
        return [replace(base_rule, mu=mu) for mu in mus]

    def _check_settings(self) -> None:
        super()._check_settings()
        if self.selection == "cost" and self.budget is None:
            raise InputError(
                "selection='cost' takes the largest forest within a budget: give a budget"
            )
        if self.mu != 0 and self.criterion == "threshold_pairs":
            raise InputError(
                "mu needs criterion='entropy', because threshold-Pairs already includes the prices"
            )


@dataclass(eq=False)
class _RuleGrowth:
    """Growing forests of one rule: one for each fold, and the last for all rows."""

    problem: FitProblem
    growing_forests: list[GrowingForest]
    n_over_budget: int | None = None  # smallest number of trees that costs more than the budget

    @property
    def n_trees(self) -> int:
        return len(self.growing_forests[0].trees)

    def jobs(self, n_trees: int) -> list[Any]:
        """Make jobs for joblib that together grow `n_trees` further trees."""
        tree_jobs = []
        for growing_forest in self.growing_forests:
            indices = growing_forest.reserve(n_trees)
            # with a price of acquisitions, a tree depends on the trees before it
            index_groups = (
                [indices] if growing_forest.rule.mu > 0 else [[index] for index in indices]
            )
            tree_jobs += [
                joblib.delayed(growing_forest.grow_trees)(group) for group in index_groups
            ]
        return tree_jobs

    def compare_with_budget(self, budget: float) -> None:
        """Find the smallest number of trees that costs more than the budget on validation rows."""
        split = self.problem.split
        folds = zip(self.growing_forests, split.folds, strict=False)
        leaves_and_first_trees = [
            Forest.join(growing_forest.trees).trees.first_visits(split.x[validation_rows])
            for growing_forest, (_, validation_rows) in folds
        ]
        first_tree = np.concatenate([trees_of_fold for _, trees_of_fold in leaves_and_first_trees])
        weight = split.row_weight[split.validation_rows]
        # bisection, because costs rise with the number of trees
        n_affordable = 0
        n_over_budget = self.n_trees + 1
        while n_over_budget - n_affordable > 1:
            n_middle = (n_affordable + n_over_budget) // 2
            row_costs = self.problem.costs.instance_costs(first_tree < n_middle)
            if np.average(row_costs, weights=weight) > budget + 1e-9:  # 1e-9 for rounding
                n_over_budget = n_middle
            else:
                n_affordable = n_middle
        self.n_over_budget = n_over_budget if n_over_budget <= self.n_trees else None

    def affordable_counts(self) -> list[int]:
        """List the largest number of trees within the budget (algorithm 1), unless it is 0."""
        n_trees = self.n_trees if self.n_over_budget is None else self.n_over_budget - 1
        return [n_trees] if n_trees else []


class FirstTrees(NamedTuple):
    """The first trees of a forest."""

    forest: Forest
    n_trees: int


@dataclass(frozen=True, eq=False)
class _FittedFirstTrees(FittedTrees):
    """A candidate that computes its acquisitions on demand, to save memory."""

    # (n, n_features): index of the first tree that tests each feature for a row
    first_tree: NDArray[np.int32] = field(kw_only=True)

    def acquired_on(self, x: NDArray[np.float32], n_features: int) -> Sequence[AcquiredMask]:
        return [self.first_tree < self.source.n_trees]


def _make_candidates(
    problem: FitProblem, forests: Sequence[Forest], tree_counts: Sequence[int], voting: Voting
) -> list[FittedStages]:
    """Make a candidate of the first trees of the last forest for each number of trees.

    The forests of the folds give the out-of-fold outputs.
    """
    split = problem.split
    forest = forests[-1]
    folds = [
        (fold_forest.node_shares(voting), *fold_forest.trees.first_visits(split.x[validation_rows]))
        for fold_forest, (_, validation_rows) in zip(forests, split.folds, strict=False)
    ]
    first_tree = np.concatenate([fold_first_tree for *_, fold_first_tree in folds])
    shares = forest.node_shares(voting)
    candidates: list[FittedStages] = []
    for n_trees in tree_counts:
        trees = _select_first_trees(forest, n_trees, shares)
        stage = Stage.from_model(trees, "identity", acquisition="node")
        outputs = np.concatenate(
            [_sum_first_margins(leaves, fold_shares, n_trees) for fold_shares, leaves, _ in folds]
        )
        source = FirstTrees(forest, n_trees)
        candidates.append(
            _FittedFirstTrees((stage,), (outputs,), source=source, first_tree=first_tree)
        )
    return candidates


def _select_first_trees(forest: Forest, n_trees: int, shares: NDArray[np.float64]) -> TreeEnsemble:
    """Make an ensemble of a forest's first trees, which averages the class shares of its nodes."""
    trees = forest.trees
    n_nodes = int(np.append(trees.roots, trees.n_nodes)[n_trees])
    return replace(
        trees,
        feature=trees.feature[:n_nodes],
        threshold=trees.threshold[:n_nodes],
        left=trees.left[:n_nodes],
        right=trees.right[:n_nodes],
        nan_left=trees.nan_left[:n_nodes],
        value=(shares[:n_nodes] / n_trees).astype(np.float32),
        roots=trees.roots[:n_trees],
        output=trees.output[:n_trees],
    )


def _sum_first_margins(
    leaves: NDArray[np.int32], node_shares: NDArray[np.float64], n_trees: int
) -> NDArray[np.float32]:
    """Sum the margins of :func:`_select_first_trees` from the leaves, with exactly the same bits.

    Shapes: `leaves` (n_all_trees, n), `node_shares` (n_nodes, n_classes); returns (n, n_classes).
    """
    node_values = (node_shares / n_trees).astype(np.float32)
    margins = np.zeros((leaves.shape[1], node_values.shape[1]), np.float32)
    for tree_leaves in leaves[:n_trees]:
        margins += node_values[tree_leaves]
    return margins


def _list_tree_counts(n_trees: int, n_over_budget: int | None) -> list[int]:
    """List the numbers of trees to try, up to the first one that costs more than the budget.

    Steps are one tree at first, and later a tenth of the trees.
    """
    last_count = n_trees if n_over_budget is None else n_over_budget
    counts = {last_count, max(last_count - 1, 1)}
    count = 1
    while count < last_count:
        counts.add(count)
        count = max(count + 1, round(1.1 * count))
    return sorted(counts)
