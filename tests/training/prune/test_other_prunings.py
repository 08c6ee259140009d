"""Baselines of pruning: each follows its rule, and the exact pruning is the best."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import RandomForestClassifier

from benchmarks.trees.pruning import cost_complexity
from gatewise.errors import InputError
from gatewise_training import FeatureCosts
from gatewise_training.prune.feature_dropping import greedy_prune
from gatewise_training.prune.forest import Forest
from gatewise_training.prune.nested_prunings import PruneSequence, keep_within
from gatewise_training.prune.path import breakpoints
from gatewise_training.prune.problem import build_problem
from gatewise_training.prune.solvers import lp, mincut
from gatewise_training.prune.tree_by_tree import per_tree, weakest_links

pytestmark = pytest.mark.slow  # compiles all ways to prune

PRICED = FeatureCosts(
    [1.0, 0.5, 2.0, 0.0, 0.0, 1.5, 1.0, 1.0],
    group=[None, "a", "a", "b", "b", None, None, None],
    shared={"a": 1.0, "b": 2.0},
)


class Case:
    def __init__(self, costs):
        X, y = load_breast_cancer(return_X_y=True)
        X = X[:, :8].astype(np.float32)
        forest = RandomForestClassifier(5, max_features=3, random_state=0).fit(X[:400], y[:400])
        self.costs = costs
        self.x = X[400:]
        self.forest = Forest.from_sklearn(forest)
        self.problem = build_problem(self.forest, self.x, costs)

    def sequences(self):
        yield per_tree(self.problem)
        yield cost_complexity(self.problem)
        yield greedy_prune(self.problem, self.forest, self.costs)


@pytest.fixture(scope="module", params=["uniform", "groups"])
def case(request):
    return Case(FeatureCosts.uniform(8) if request.param == "uniform" else PRICED)


def some(levels):
    return levels[:: max(1, len(levels) // 12)]


def test_costs_and_errors_are_those_of_the_pruned_forests(case):
    for sequence in case.sequences():
        problem = case.problem
        assert (np.diff(sequence.costs) <= 1e-12).all()
        assert (np.diff(sequence.errors) >= -1e-12).all()
        assert sequence.costs[-1] == pytest.approx(0.0, abs=1e-12)  # single leaves
        for level in some(sequence.levels):
            place = int(np.searchsorted(sequence.levels, level))
            keep = sequence.keep(level)
            below = problem.parent >= 0
            assert (keep[below] <= keep[problem.parent[below]]).all()
            assert not keep[~problem.inner].any()
            pruned = case.forest.pruned(keep)
            spent = pruned.cost(case.x, case.costs).mean()
            assert sequence.costs[place] == pytest.approx(spent, abs=1e-6)
            leaves = pruned.trees.left < 0
            error = pruned.errors[leaves].sum() / pruned.counts[pruned.trees.roots].sum()
            assert sequence.errors[place] == pytest.approx(error, abs=1e-9)


def test_no_baseline_beats_the_exact_pruning(case):
    strictly = 0
    for sequence in case.sequences():
        for lam in (0.003, 0.01, 0.03):
            optimum = mincut.solve(case.problem, lam).objective
            values = sequence.errors + lam * sequence.costs
            assert values.min() >= optimum - 1e-12
            strictly += values.min() > optimum + 1e-6
    assert strictly >= 6  # sharing between trees is worth something


def test_per_tree_pruning_is_each_trees_optimum(case):
    """Against all prunings of each tree, with the features that the tree alone acquires."""
    sequence = per_tree(case.problem)
    trees, n_trees = case.forest.trees, case.forest.n_trees
    edges = np.append(trees.roots, trees.n_nodes)
    for lam in (0.002, 0.01):
        keep = sequence.keep(lam)
        for t in range(n_trees):
            alone = np.zeros(trees.n_nodes, bool)
            alone[edges[t] : edges[t + 1]] = True
            value = case.problem.objective(keep & alone, lam)
            assert value == pytest.approx(optimum_of(case.problem, alone, lam), abs=1e-12)


def optimum_of(problem, nodes, lam):
    """Optimum if only the nodes of one tree may stay."""
    forbidden = replace(problem, profit=np.where(nodes, problem.profit, -1.0))
    solution = lp.solve(forbidden, lam)
    assert not solution.keep[~nodes].any()
    return problem.objective(solution.keep, lam)


def random_tree(rng, n_splits):
    parent = [-1]
    leaves = [0]
    for _ in range(n_splits):
        h = leaves.pop(int(rng.integers(len(leaves))))
        leaves += [len(parent), len(parent) + 1]
        parent += [h, h]
    return np.array(parent, np.int32)


@given(seed=st.integers(0, 10_000), n_splits=st.integers(0, 40), ties=st.booleans())
@settings(max_examples=150, deadline=None)
def test_breakpoints_solve_every_price_at_once(seed, n_splits, ties):
    rng = np.random.default_rng(seed)
    parent = random_tree(rng, n_splits)
    n = len(parent)
    draw = rng.integers(0, 4, (2, n)) / 2 if ties else rng.exponential(size=(2, n))
    profit, price = draw * (rng.random(n) < 0.8)
    until = weakest_links(parent, profit, price)
    below = parent >= 0
    assert (until[below] <= until[parent[below]]).all()
    lams = np.unique(until[np.isfinite(until)])
    for lam in np.concatenate([lams, lams * 1.01, [0.0, 0.37]]):
        gain = profit - lam * price
        best = gain.copy()
        for h in range(n - 1, 0, -1):
            best[parent[h]] += max(best[h], 0.0)
        optimum = max(best[0], 0.0)
        assert gain[until > lam].sum() == pytest.approx(optimum, abs=1e-9)


def test_cost_complexity_pruning_is_breimans(case):
    """Against ``min(errors at h, errors below + alpha * more leaves)``, node by node."""
    problem = case.problem
    sequence = cost_complexity(problem)
    for alpha in [0.0, *some(sequence.levels), 1.0]:

        def best(h, alpha=alpha):
            if not problem.inner[h]:
                return problem.error[h] + alpha
            below = sum(best(child) for child in np.flatnonzero(problem.parent == h))
            return min(problem.error[h] + alpha, below)

        optimum = sum(best(h) for h in np.flatnonzero(problem.parent < 0))
        keep = sequence.keep(alpha)
        leaves = keep.sum() + case.forest.n_trees
        assert problem.training_error(keep) + alpha * leaves == pytest.approx(optimum, abs=1e-9)


def test_greedy_drops_the_best_ratio_each_time(case):
    sequence = greedy_prune(case.problem, case.forest, case.costs)
    problem, feature = case.problem, case.forest.trees.feature
    groups = [np.flatnonzero(case.costs.group == g) for g in range(len(case.costs.shared))]
    candidates = [(k,) for k in range(8)] + [tuple(g.tolist()) for g in groups]

    def without(keep, columns):
        keep = keep & ~np.isin(feature, columns)
        for h in np.flatnonzero(problem.parent >= 0):
            keep[h] &= keep[problem.parent[h]]
        return keep

    keep, step = problem.inner, 0
    while keep.any():
        step += 1
        after, ratios, dropped = sequence.keep(step), [], []
        for columns in candidates:
            if not (keep & np.isin(feature, columns)).any():
                continue
            rest = without(keep, columns)
            lost = problem.training_error(rest) - problem.training_error(keep)
            saved = problem.cost(keep) - problem.cost(rest)
            ratios.append(max(lost, 0.0) / saved if saved > 1e-12 else np.inf)
            dropped.append((rest == after).all())
        assert min(np.array(ratios)[dropped]) <= min(ratios) * (1 + 1e-9) + 1e-15
        keep = after


def test_levels_are_found_by_budget_and_thinned(case):
    for sequence in case.sequences():
        whole = sequence.costs[0]
        for budget in (0.0, 0.4 * whole, whole, 2 * whole):
            level = sequence.level_at(budget=budget)
            place = int(np.searchsorted(sequence.levels, level))
            assert sequence.costs[place] <= budget + 1e-9
            assert place == 0 or sequence.costs[place - 1] > budget
        thin = sequence.thinned(5)
        assert len(thin) <= 7
        assert thin[0] == 0.0
        assert thin[-1] == sequence.levels[-1]
        with pytest.raises(InputError, match="no pruning costs"):
            sequence.level_at(budget=-1.0)


def test_gaps_of_the_hull_are_filled(case):
    """Between neighbours of the exact frontier: within budget, no worse than the cheaper."""
    problem = case.problem
    exact = PruneSequence(problem, breakpoints(problem))
    baselines = [per_tree(problem), greedy_prune(problem, case.forest, case.costs)]
    better = 0
    for budget in np.linspace(0.0, exact.costs[0], 25):
        keep = keep_within(exact, float(budget), baselines)
        hull = exact.keep(exact.level_at(budget=float(budget)))
        below = problem.parent >= 0
        assert (keep[below] <= keep[problem.parent[below]]).all()
        assert (hull <= keep).all()
        assert problem.cost(keep) <= budget + 1e-9
        assert problem.training_error(keep) <= problem.training_error(hull) + 1e-12
        better += problem.training_error(keep) < problem.training_error(hull) - 1e-9
        if budget - problem.cost(hull) < 0.3:
            alone = keep_within(exact, float(budget), baselines, gap=0.3)
            np.testing.assert_array_equal(alone, hull)
    assert better >= 1
