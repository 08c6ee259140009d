"""Baselines of pruning: each follows its rule, and none is better than exact pruning.

h is a node, and `lam` the price of a unit of cost in training errors.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import RandomForestClassifier

from benchmarks.trees.pruning import prune_by_complexity
from gatewise.errors import InputError
from gatewise_training import FeatureCosts
from gatewise_training.prune.forest import Forest
from gatewise_training.prune.nested_prunings import PruneSequence, pruning_within
from gatewise_training.prune.other_prunings import greedy_prune, prune_each_tree, weakest_links
from gatewise_training.prune.path import breakpoints
from gatewise_training.prune.problem import build_problem
from gatewise_training.prune.solvers import lp, mincut

pytestmark = pytest.mark.slow  # compiles all pruning methods

PRICED_COSTS = FeatureCosts(
    [1.0, 0.5, 2.0, 0.0, 0.0, 1.5, 1.0, 1.0],
    group=[None, "a", "a", "b", "b", None, None, None],
    shared={"a": 1.0, "b": 2.0},
)


class PruneCase:
    """A small forest and its pruning problem under `costs`."""

    def __init__(self, costs):
        X, y = load_breast_cancer(return_X_y=True)
        X = X[:, :8].astype(np.float32)
        forest = RandomForestClassifier(5, max_features=3, random_state=0).fit(X[:400], y[:400])
        self.costs = costs
        self.x = X[400:]
        self.forest = Forest.from_sklearn(forest)
        self.problem = build_problem(self.forest, self.x, costs)

    def list_sequences(self):
        """Yield the sequence of each baseline."""
        yield prune_each_tree(self.problem)
        yield prune_by_complexity(self.problem)
        yield greedy_prune(self.problem, self.forest, self.costs)


@pytest.fixture(scope="module", params=["uniform", "groups"])
def prune_case(request):
    return PruneCase(FeatureCosts.uniform(8) if request.param == "uniform" else PRICED_COSTS)


def choose_levels(levels):
    """Choose about twelve levels, because each is compared slowly."""
    return levels[:: max(1, len(levels) // 12)]


def test_costs_and_errors_of_a_sequence_equal_those_of_the_pruned_forests(prune_case):
    for sequence in prune_case.list_sequences():
        problem = prune_case.problem
        assert (np.diff(sequence.costs) <= 1e-12).all()
        assert (np.diff(sequence.errors) >= -1e-12).all()
        assert sequence.costs[-1] == pytest.approx(0.0, abs=1e-12)  # single leaves
        for level in choose_levels(sequence.levels):
            index = int(np.searchsorted(sequence.levels, level))
            is_kept = sequence.kept_at(level)
            has_parent = problem.parent >= 0
            assert (is_kept[has_parent] <= is_kept[problem.parent[has_parent]]).all()
            assert not is_kept[~problem.is_inner].any()
            pruned_forest = prune_case.forest.pruned(is_kept)
            mean_cost = pruned_forest.cost(prune_case.x, prune_case.costs).mean()
            assert sequence.costs[index] == pytest.approx(mean_cost, abs=1e-6)
            is_leaf = pruned_forest.trees.left < 0
            n_examples = pruned_forest.counts[pruned_forest.trees.roots].sum()
            error = pruned_forest.node_errors[is_leaf].sum() / n_examples
            assert sequence.errors[index] == pytest.approx(error, abs=1e-9)


def test_no_baseline_is_better_than_the_exact_pruning(prune_case):
    n_worse = 0
    for sequence in prune_case.list_sequences():
        for lam in (0.003, 0.01, 0.03):
            optimum = mincut.solve(prune_case.problem, lam).objective
            objectives = sequence.errors + lam * sequence.costs
            assert objectives.min() >= optimum - 1e-12
            n_worse += objectives.min() > optimum + 1e-6
    assert n_worse >= 6  # trees that share acquisitions can be cheaper


def test_pruning_each_tree_alone_finds_the_optimum_of_the_tree(prune_case):
    """The linear program for one tree charges only the acquisitions of this tree."""
    sequence = prune_each_tree(prune_case.problem)
    trees, n_trees = prune_case.forest.trees, prune_case.forest.n_trees
    first_nodes = np.append(trees.roots, trees.n_nodes)
    for lam in (0.002, 0.01):
        is_kept = sequence.kept_at(lam)
        for tree in range(n_trees):
            is_in_tree = np.zeros(trees.n_nodes, bool)
            is_in_tree[first_nodes[tree] : first_nodes[tree + 1]] = True
            objective = prune_case.problem.objective(is_kept & is_in_tree, lam)
            optimum = solve_tree(prune_case.problem, is_in_tree, lam)
            assert objective == pytest.approx(optimum, abs=1e-12)


def solve_tree(problem, is_in_tree, lam):
    """Compute the optimum if only nodes of one tree may stay."""
    tree_problem = replace(problem, profit=np.where(is_in_tree, problem.profit, -1.0))
    solution = lp.solve(tree_problem, lam)
    assert not solution.is_kept[~is_in_tree].any()
    return problem.objective(solution.is_kept, lam)


def draw_tree(rng, n_splits):
    """Draw the parents of the nodes of a tree, by splits of random leaves."""
    parent = [-1]
    leaves = [0]
    for _ in range(n_splits):
        h = leaves.pop(int(rng.integers(len(leaves))))
        leaves += [len(parent), len(parent) + 1]
        parent += [h, h]
    return np.array(parent, np.int32)


@given(seed=st.integers(0, 10_000), n_splits=st.integers(0, 40), has_ties=st.booleans())
@settings(max_examples=150, deadline=None)
def test_weakest_links_give_the_optimum_at_every_price(seed, n_splits, has_ties):
    rng = np.random.default_rng(seed)
    parent = draw_tree(rng, n_splits)
    n = len(parent)
    profits_and_prices = (
        rng.integers(0, 4, (2, n)) / 2 if has_ties else rng.exponential(size=(2, n))
    )
    profit, price = profits_and_prices * (rng.random(n) < 0.8)
    critical_prices = weakest_links(parent, profit, price)
    has_parent = parent >= 0
    assert (critical_prices[has_parent] <= critical_prices[parent[has_parent]]).all()
    lams = np.unique(critical_prices[np.isfinite(critical_prices)])
    # at each price at which a node is dropped, just above it, and at two others
    for lam in np.concatenate([lams, lams * 1.01, [0.0, 0.37]]):
        gain = profit - lam * price
        subtree_gain = gain.copy()
        for h in range(n - 1, 0, -1):
            subtree_gain[parent[h]] += max(subtree_gain[h], 0.0)
        optimum = max(subtree_gain[0], 0.0)
        assert gain[critical_prices > lam].sum() == pytest.approx(optimum, abs=1e-9)


def test_cost_complexity_pruning_follows_breimans_recursion(prune_case):
    """``cost(h) = min(error_h + alpha, cost(left) + cost(right))``, with ``alpha`` per leaf."""
    problem = prune_case.problem
    sequence = prune_by_complexity(problem)
    for alpha in [0.0, *choose_levels(sequence.levels), 1.0]:

        def compute_cost(h, alpha=alpha):
            if not problem.is_inner[h]:
                return problem.error[h] + alpha
            cost_of_children = sum(
                compute_cost(child) for child in np.flatnonzero(problem.parent == h)
            )
            return min(problem.error[h] + alpha, cost_of_children)

        optimum = sum(compute_cost(h) for h in np.flatnonzero(problem.parent < 0))
        is_kept = sequence.kept_at(alpha)
        n_leaves = is_kept.sum() + prune_case.forest.n_trees
        assert problem.training_error(is_kept) + alpha * n_leaves == pytest.approx(
            optimum, abs=1e-9
        )


def test_greedy_pruning_drops_the_item_with_the_best_ratio(prune_case):
    sequence = greedy_prune(prune_case.problem, prune_case.forest, prune_case.costs)
    problem, feature = prune_case.problem, prune_case.forest.trees.feature
    costs = prune_case.costs
    groups = [np.flatnonzero(costs.group == g) for g in range(len(costs.shared))]
    candidates = [(k,) for k in range(8)] + [tuple(columns.tolist()) for columns in groups]

    def drop_columns(is_kept, columns):
        is_kept = is_kept & ~np.isin(feature, columns)
        for h in np.flatnonzero(problem.parent >= 0):
            is_kept[h] &= is_kept[problem.parent[h]]
        return is_kept

    is_kept = problem.is_inner
    step = 0
    while is_kept.any():
        step += 1
        is_kept_next = sequence.kept_at(step)
        ratios = []
        is_dropped = []
        for columns in candidates:
            if not (is_kept & np.isin(feature, columns)).any():
                continue
            is_kept_after = drop_columns(is_kept, columns)
            loss = problem.training_error(is_kept_after) - problem.training_error(is_kept)
            saving = problem.cost(is_kept) - problem.cost(is_kept_after)
            ratios.append(max(loss, 0.0) / saving if saving > 1e-12 else np.inf)
            is_dropped.append((is_kept_after == is_kept_next).all())
        # several candidates may drop the same nodes, and one of them has the smallest ratio
        assert min(np.array(ratios)[is_dropped]) <= min(ratios) * (1 + 1e-9) + 1e-15
        is_kept = is_kept_next


def test_levels_are_found_by_budget_and_evenly_spaced(prune_case):
    for sequence in prune_case.list_sequences():
        highest_cost = sequence.costs[0]
        for budget in (0.0, 0.4 * highest_cost, highest_cost, 2 * highest_cost):
            level = sequence.level_at(budget=budget)
            index = int(np.searchsorted(sequence.levels, level))
            assert sequence.costs[index] <= budget + 1e-9
            assert index == 0 or sequence.costs[index - 1] > budget
        few_levels = sequence.evenly_spaced_levels(5)
        assert len(few_levels) <= 7  # the five, the first and the last
        assert few_levels[0] == 0.0
        assert few_levels[-1] == sequence.levels[-1]
        with pytest.raises(InputError, match="no pruning costs"):
            sequence.level_at(budget=-1.0)


def test_prunings_between_exact_prunings_fill_the_gaps_of_the_hull(prune_case):
    """They are within the budget, and no worse than the cheaper exact pruning."""
    problem = prune_case.problem
    exact_sequence = PruneSequence(problem, breakpoints(problem))
    baselines = [
        prune_each_tree(problem),
        greedy_prune(problem, prune_case.forest, prune_case.costs),
    ]
    n_better = 0
    has_parent = problem.parent >= 0
    for budget in np.linspace(0.0, exact_sequence.costs[0], 25):
        is_kept = pruning_within(exact_sequence, float(budget), baselines)
        is_kept_exactly = exact_sequence.kept_at(exact_sequence.level_at(budget=float(budget)))
        assert (is_kept[has_parent] <= is_kept[problem.parent[has_parent]]).all()
        assert (is_kept_exactly <= is_kept).all()
        assert problem.cost(is_kept) <= budget + 1e-9
        exact_error = problem.training_error(is_kept_exactly)
        assert problem.training_error(is_kept) <= exact_error + 1e-12
        n_better += problem.training_error(is_kept) < exact_error - 1e-9
        if budget - problem.cost(is_kept_exactly) < 0.3:
            is_kept_with_gap = pruning_within(exact_sequence, float(budget), baselines, gap=0.3)
            np.testing.assert_array_equal(is_kept_with_gap, is_kept_exactly)
    assert n_better >= 1
