"""BudgetForest: random forests with trees grown for a low cost of features.

Nan, Wang & Saligrama, "Feature-budgeted random forest", ICML 2015 (BudgetRF): trees on bootstrap
samples by minimax splits of threshold-Pairs, added until validation data costs more than the
budget. The other criterion is the largest gain in entropy, less a price on the features that
instances have not acquired yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import joblib
import numpy as np
from numpy.typing import NDArray
from sklearn.utils._param_validation import StrOptions

from gatewise.acquisition import Acquired
from gatewise.errors import InputError
from gatewise.models.stage import Stage
from gatewise.models.trees import TreeEnsemble
from gatewise_training.cascades.fit_problem import FittedStages, Problem
from gatewise_training.data.input_checks import AT_LEAST_1, NOT_NEGATIVE, Constraints
from gatewise_training.forests.base import FittedTrees, ForestModel, GrowingForest
from gatewise_training.forests.grower.binning import Codes
from gatewise_training.forests.grower.growth import Criterion, SplitRule, Splits, leaf_of
from gatewise_training.prune.forest import Forest, Voting

ALPHAS = (35.0, 15.0, 6.0, 2.0, 0.0)
"""Thresholds of Pairs that are tried: about every other one of the paper's ten (section 3)."""

MUS = (0.3, 0.1, 0.03, 0.01, 0.0)
"""Bits that an acquisition of mean price must save."""

TREES_PER_CHECK = 8
"""Trees grown between two checks of the cost: the same for any number of jobs."""


@dataclass(eq=False, repr=False, kw_only=True)
class BudgetForest(ForestModel):
    """A forest within a budget; an instance acquires the features on its own paths.

    BudgetRF of Nan, Wang & Saligrama, "Feature-budgeted random forest", ICML 2015, algorithm 1,
    with threshold-Pairs (equation 11).

    A single model without a cloud. Operating points are the first 1, 2, ... trees of a forest, for
    each `alpha` or `mu` that is tried, and no tree at all. An instance pays once for each feature
    on its paths, over all trees. :meth:`at` moves along the points without another fit.

    Further parameters: :class:`.SingleModel`.

    Parameters
    ----------
    allow_missing, random_state
        As for :class:`StagedCascade`.
    feature_costs, budget
        As for :class:`StagedCascade`. With a budget, trees are added until the validation rows
        cost more on average, or there are `n_estimators`; without one all trees are grown.
    selection : {"accuracy", "cost"}, default "accuracy"
        Number of trees, on validation rows: the most accurate one within the budget, or the largest
        within the budget, as in the paper (algorithm 1). With "cost" there is one such
        forest per `alpha` or `mu`; the most accurate of them is chosen.
    max_loss : float, default 0.01
        Without a budget, the cheapest point is chosen whose accuracy is at most this far below that
        of the largest forest (all trees, and the smallest alpha or mu).
    criterion : {"threshold_pairs", "entropy"}, default "threshold_pairs"
        BudgetRF's minimax splits, or the largest gain in entropy less `mu` times the price that
        instances at the node have to pay.
    alpha : float, optional
        Threshold of Pairs, in examples: a class with at most this many at a node does not count, so
        higher thresholds give shallower, cheaper trees. By default 35, 15, 6, 2 and 0 are tried,
        and validation chooses. Entropy ignores it.
    mu : float or "auto", default 0.0
        For "entropy": the gain in bits that one example's acquisition of mean price must bring.
        Features and groups that were acquired in earlier splits or trees are free. "auto" tries
        0.3, 0.1, 0.03, 0.01 and 0. Trees then grow one by one.
    splits : {"exact", "stumps"}, default "exact"
        All thresholds, or the paper's 80, 40 or 20 random ones.
    n_estimators : int, default 40
        Largest number of trees.
    max_depth : int, optional
        Bound on the trees' depth; none by default.
    voting : {"mean", "majority"}, default "mean"
        Answer of a forest: the mean of the leaf distributions, or each tree has one vote, as in the
        paper. Margins and probabilities are these means, or the shares of the votes.

    Attributes
    ----------
    forest_ : Forest
        The trees of the operating point.
    grown_ : tuple of pairs (Forest, int)
        For each operating point, by its index `chain`: the whole forest that its trees come from,
        and the number of its first trees.

    Notes
    -----
    Threshold-Pairs charges a feature's own price and its group's shared price again at each split,
    as in the paper. Bootstrap samples draw rows in proportion to their weights.

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
        source: tuple[Forest, int] = self.grown_[self.operating_point_.chain]
        return source[0].select(range(source[1]))

    def _fit_candidates(self, problem: Problem) -> Sequence[FittedStages]:
        plan = problem.plan
        # a forest for each fold and, of several, one for all rows
        row_sets = [rows for rows, _ in plan.folds]
        if len(row_sets) > 1:
            row_sets.append(plan.fit_rows)
        codes = Codes.of_table(plan.x[plan.fit_rows])
        code_row = np.zeros(len(plan.x), np.intp)
        code_row[plan.fit_rows] = np.arange(len(plan.fit_rows))
        growths = []
        for alpha, mu in self._rules():
            rule = SplitRule(
                criterion=self.criterion,
                alpha=alpha,
                mu=mu,
                splits=self.splits,
                max_depth=self.max_depth,
            )
            members = [
                GrowingForest(
                    problem, rows, codes.take(code_row[rows]), (problem.seed, number), rule
                )
                for number, rows in enumerate(row_sets)
            ]
            growths.append(_Growth(problem, members))
        self._grow(problem, growths)
        # candidates: the class shares alone, then the first trees of each forest
        leaves = [leaf_of(plan.y[r], plan.weight[r], problem.n_classes, codes) for r in row_sets]
        candidates = _candidates(problem, leaves, [1], self.voting)
        for growth in growths:
            numbers = _numbers_of_trees(growth.n_trees, growth.n_over_budget)
            if self.selection == "cost":
                numbers = growth.largest_affordable()
            if numbers:
                forests = [Forest.join(member.trees) for member in growth.members]
                candidates += _candidates(problem, forests, numbers, self.voting)
        return candidates

    def _grow(self, problem: Problem, growths: Sequence[_Growth]) -> None:
        """Add trees to all forests until each is complete or costs more than the budget."""
        total = self.n_estimators * len(growths)
        while growing := [
            g for g in growths if g.n_over_budget is None and g.n_trees < self.n_estimators
        ]:
            jobs = []
            for growth in growing:
                jobs += growth.jobs(min(TREES_PER_CHECK, self.n_estimators - growth.n_trees))
            joblib.Parallel(require="sharedmem")(jobs)  # jobs add trees to the growths
            if self.budget is not None:
                for growth in growing:
                    growth.compare(self.budget)
            n_done = sum(self.n_estimators if g.n_over_budget else g.n_trees for g in growths)
            problem.report(n_done, total, "growing trees")

    def _rules(self) -> list[tuple[float, float]]:
        """Pairs of alpha and mu to try, the pair that penalises least last."""
        if self.criterion == "threshold_pairs":
            return [(a, 0.0) for a in (ALPHAS if self.alpha is None else (self.alpha,))]
        return [(0.0, m) for m in (MUS if self.mu == "auto" else (float(self.mu),))]

    def _check_settings(self) -> None:
        super()._check_settings()
        if self.selection == "cost" and self.budget is None:
            raise InputError("selection='cost' takes the largest forest within a budget: give one")
        if self.mu != 0 and self.criterion == "threshold_pairs":
            raise InputError(
                "mu weighs acquisitions against gains: it needs criterion='entropy'; "
                "the rule of threshold-Pairs counts the prices already"
            )


@dataclass(eq=False)
class _Growth:
    """The forests of one rule, one for each fold and the last for all rows."""

    problem: Problem
    members: list[GrowingForest]
    n_over_budget: int | None = None  # least number of trees that costs more than the budget

    @property
    def n_trees(self) -> int:
        return len(self.members[0].trees)

    def jobs(self, count: int) -> list[Any]:
        """Calls for joblib that together grow `count` further trees."""
        calls = []
        for member in self.members:
            numbers = member.append_places(count)
            groups = [numbers] if member.rule.mu > 0 else [[number] for number in numbers]
            calls += [joblib.delayed(member.add)(group) for group in groups]
        return calls

    def compare(self, budget: float) -> None:
        """Find the number of trees with which the validation rows cost more than the budget."""
        plan = self.problem.plan
        folds = zip(self.members, plan.folds, strict=False)
        visits = [
            Forest.join(m.trees).trees.first_visits(plan.x[validation_rows])
            for m, (_, validation_rows) in folds
        ]
        first_tree = np.concatenate([visiting_tree for _, visiting_tree in visits])
        weight = plan.weight[plan.validation_rows]
        # bisection: costs rise with the number of trees
        affordable = 0
        too_many = self.n_trees + 1
        while too_many - affordable > 1:
            middle = (affordable + too_many) // 2
            row_costs = self.problem.costs.per_instance(first_tree < middle)
            if np.average(row_costs, weights=weight) > budget + 1e-9:
                too_many = middle
            else:
                affordable = middle
        self.n_over_budget = too_many if too_many <= self.n_trees else None

    def largest_affordable(self) -> list[int]:
        """The largest number of trees within the budget, if there is one (algorithm 1)."""
        number = self.n_trees if self.n_over_budget is None else self.n_over_budget - 1
        return [number] if number else []


@dataclass(frozen=True, eq=False)
class _Candidate(FittedTrees):
    """The first trees of a forest; their acquisitions are computed on demand, to save memory."""

    # (n, n_features): the first tree that tests each column for a row
    first_tree: NDArray[np.int32] = field(kw_only=True)

    def acquired_on(self, x: NDArray[np.float32], n_features: int) -> Sequence[Acquired]:
        return [self.first_tree < self.source[1]]


def _candidates(
    problem: Problem, forests: Sequence[Forest], numbers: Sequence[int], voting: Voting
) -> list[FittedStages]:
    """Make a candidate for each number of first trees of the last forest."""
    plan = problem.plan
    forest = forests[-1]
    folds = [
        (fold_forest.node_shares(voting), *fold_forest.trees.first_visits(plan.x[validation_rows]))
        for fold_forest, (_, validation_rows) in zip(forests, plan.folds, strict=False)
    ]
    first_tree = np.concatenate([visiting_tree for *_, visiting_tree in folds])
    shares = forest.node_shares(voting)
    candidates: list[FittedStages] = []
    for number in numbers:
        trees = _first_trees(forest, number, shares)
        stage = Stage.from_model(trees, "identity", acquisition="node")
        outputs = np.concatenate(
            [_first_margins(leaf, fold_shares, number) for fold_shares, leaf, _ in folds]
        )
        source = forest, number
        candidates.append(_Candidate((stage,), (outputs,), source=source, first_tree=first_tree))
    return candidates


def _first_trees(forest: Forest, number: int, shares: NDArray[np.float64]) -> TreeEnsemble:
    """Make an ensemble of a forest's first trees, with values of `shares`, averaged over them."""
    trees = forest.trees
    end = int(np.append(trees.roots, trees.n_nodes)[number])
    return replace(
        trees,
        feature=trees.feature[:end],
        threshold=trees.threshold[:end],
        left=trees.left[:end],
        right=trees.right[:end],
        nan_left=trees.nan_left[:end],
        value=(shares[:end] / number).astype(np.float32),
        roots=trees.roots[:number],
        output=trees.output[:number],
    )


def _first_margins(
    leaf: NDArray[np.int32], shares: NDArray[np.float64], number: int
) -> NDArray[np.float32]:
    """Margins of a forest's first trees, (n, n_classes), with the same bits as theirs."""
    value = (shares / number).astype(np.float32)
    out = np.zeros((leaf.shape[1], value.shape[1]), np.float32)
    for tree_leaf in leaf[:number]:
        out += value[tree_leaf]
    return out


def _numbers_of_trees(n_trees: int, n_over_budget: int | None) -> list[int]:
    """List numbers of trees to try, in steps of one and later of a tenth, up to the budget."""
    last = n_trees if n_over_budget is None else n_over_budget
    numbers = {last, max(last - 1, 1)}
    number = 1
    while number < last:
        numbers.add(number)
        number = max(number + 1, round(1.1 * number))
    return sorted(numbers)
