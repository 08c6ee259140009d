"""Solvers of the pruning problem, compared with brute force and with each other.

Brute force shares no code with the library. For every pruning of each tree, it passes each row
through scikit-learn's own trees and adds up the prices. h is a node, k a feature, and `lam` the
price of a unit of cost in training errors.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_wine
from sklearn.ensemble import RandomForestClassifier

from gatewise.errors import InputError
from gatewise_training import FeatureCosts
from gatewise_training.prune.forest import Forest
from gatewise_training.prune.other_prunings import prune_each_tree
from gatewise_training.prune.path import breakpoints
from gatewise_training.prune.problem import PruneProblem, build_problem
from gatewise_training.prune.solvers import dantzig_wolfe, lp, mincut, primal_dual
from gatewise_training.prune.tree_recursion import PricedTrees, best_level_set, even_shares, repair
from tests.support.papers_program import solve_papers_program

pytestmark = pytest.mark.slow  # compiles all pruning methods

TOLERANCE = 1e-9
SHAPES = ((1, 4), (2, 3), (3, 2), (4, 2))  # trees and depth, for at most some hundred prunings


@dataclass
class SmallCase:
    """A small problem, with the error and the cost of each of its prunings."""

    problem: PruneProblem
    errors: np.ndarray
    costs: np.ndarray
    lams: tuple[float, ...]  # prices of cost to solve it at

    def optimum(self, lam):
        return float((self.errors + lam * self.costs).min())


def draw_prices(rng, kind, n):
    if kind == "uniform":
        return FeatureCosts.uniform(n)
    own = rng.uniform(0.1, 3.0, n).round(2)
    if kind == "non-uniform":
        own[0] = 0.0  # nodes that test only the first feature stay at any price
        return FeatureCosts(own)
    group = rng.integers(-1, 3, n)
    own = np.where(group == 1, 0.0, own)  # the features of group 1 have only a shared price
    shared = {int(g): float(rng.uniform(0.1, 4.0)) for g in set(group.tolist()) - {-1}}
    requires = {g: g - 1 for g in shared if g - 1 in shared and kind == "chained"}
    return FeatureCosts(own, group=group, shared=shared, requires=requires)


def list_prunings(tree, h=0):
    """List the sets of nodes that can be the inner nodes of a subtree."""
    if tree.children_left[h] < 0:
        return [frozenset()]
    left_prunings = list_prunings(tree, tree.children_left[h])
    right_prunings = list_prunings(tree, tree.children_right[h])
    return [frozenset()] + [
        left_nodes | right_nodes | {h}
        for left_nodes in left_prunings
        for right_nodes in right_prunings
    ]


def walk_row(tree, row, is_kept, costs, row_number):
    """List the acquisitions of a row in a pruned tree, and count its splits."""
    h = 0
    acquired = set()
    depth = 0
    while h in is_kept:
        k = int(tree.feature[h])
        acquired.add((row_number, "feature", k))
        groups = [int(costs.group[k])] if costs.group[k] >= 0 else []
        while groups:  # groups require other groups
            acquired.add((row_number, "group", groups[-1]))
            groups += costs.requires[groups.pop()]
        depth += 1
        goes_left = row[k] <= np.float32(tree.threshold[h])
        h = int((tree.children_left if goes_left else tree.children_right)[h])
    return acquired, depth


def sum_leaf_errors(tree, is_kept):
    """Count the examples outside the most frequent class of their leaf."""
    n_errors = 0.0
    open_nodes = [0]
    while open_nodes:
        h = open_nodes.pop()
        if h in is_kept:
            open_nodes += [tree.children_left[h], tree.children_right[h]]
        else:
            class_shares = tree.value[h, 0] / tree.value[h, 0].sum()
            n_errors += tree.weighted_n_node_samples[h] * (1.0 - class_shares.max())
    return n_errors


def list_errors_and_costs(forest, x, costs, depth_cost):
    """Compute the training error and the cost of every pruning of a forest."""
    acquisitions: dict[Any, int] = {}
    prunings_of_trees = []
    for estimator in forest.estimators_:
        tree = estimator.tree_
        options = []
        for is_kept in list_prunings(tree):
            walks = [walk_row(tree, row, is_kept, costs, number) for number, row in enumerate(x)]
            acquired = set().union(*(row_acquired for row_acquired, _ in walks))
            for acquisition in acquired:
                acquisitions.setdefault(acquisition, len(acquisitions))
            mean_depth = np.mean([depth for _, depth in walks])
            error = sum_leaf_errors(tree, is_kept) / tree.weighted_n_node_samples[0]
            options.append((error, mean_depth, acquired))
        prunings_of_trees.append(options)
    acquisition_prices = [
        costs.own[k] if kind == "feature" else costs.shared[k] for _, kind, k in acquisitions
    ]
    # combine the prunings of all trees
    errors = np.zeros(1)
    depths = np.zeros(1)
    acquired = np.zeros((1, len(acquisitions)), bool)
    for options in prunings_of_trees:
        is_acquired = np.zeros((len(options), len(acquisitions)), bool)
        for acquired_mask, (_, _, acquired_by_option) in zip(is_acquired, options, strict=True):
            acquired_mask[[acquisitions[acquisition] for acquisition in acquired_by_option]] = True
        errors = np.add.outer(errors, [error for error, _, _ in options]).ravel()
        depths = np.add.outer(depths, [depth for _, depth, _ in options]).ravel()
        acquired = (acquired[:, None] | is_acquired[None]).reshape(-1, len(acquisitions))
    n_trees = len(prunings_of_trees)
    feature_costs = acquired @ np.array(acquisition_prices, float).reshape(-1) / len(x)
    return errors / n_trees, feature_costs + depth_cost * depths / n_trees


def draw_small_case(seed):
    rng = np.random.default_rng(seed)
    n_classes = int(rng.integers(2, 11))
    n_features = int(rng.integers(2, 7))
    n_trees, depth = SHAPES[seed % len(SHAPES)]
    n = 12 * n_classes
    X = rng.normal(size=(n, n_features)).astype(np.float32)
    y = rng.permutation(np.arange(n) % n_classes)
    X[:, 0] += y  # the first feature depends on the class
    forest = RandomForestClassifier(
        n_trees, max_depth=depth, criterion="entropy", max_features=None, random_state=seed
    ).fit(X, y)
    kind_of_groups = ("grouped", "chained")[seed // 12 % 2]
    costs = draw_prices(rng, ("uniform", "non-uniform", kind_of_groups)[seed % 3], n_features)
    depth_cost = 0.2 if seed // 3 % 2 else 0.0
    x = rng.normal(size=(int(rng.integers(1, 12)), n_features)).astype(np.float32)
    x[:, 0] += rng.integers(0, n_classes, len(x))
    problem = build_problem(Forest.from_sklearn(forest), x, costs, depth_cost=depth_cost)
    errors, mean_costs = list_errors_and_costs(forest, x, costs, depth_cost)
    # near the price at which error and cost weigh the same, the optimum keeps some of the nodes
    middle_lam = (errors.max() - errors.min()) / max(mean_costs.max(), 1e-9)
    lams = tuple(float(middle_lam * factor) for factor in rng.uniform(0.05, 2.0, 2))
    return SmallCase(problem, errors, mean_costs, lams)


def test_every_solver_finds_the_optimum_of_48_small_problems():
    n_partial = 0  # optima that keep some, but not all nodes
    for seed in range(48):
        case = draw_small_case(seed)
        problem = case.problem
        sequence = prune_each_tree(problem)
        critical_prices = breakpoints(problem)
        for lam in (0.0, *case.lams, 10.0 * max(case.lams)):
            optimum = pytest.approx(case.optimum(lam), abs=TOLERANCE)
            assert problem.objective(critical_prices > lam, lam) == optimum, seed
        lam_index = seed // 12 % 2  # changes after all shapes, kinds of prices and depth costs
        lam = case.lams[lam_index]
        optimum = case.optimum(lam)
        exact_solutions = [
            mincut.solve(problem, lam),
            lp.solve(problem, lam),
            dantzig_wolfe.solve(problem, lam),
        ]
        for solution in exact_solutions:
            assert solution.objective == pytest.approx(optimum, abs=TOLERANCE), seed
            assert solution.bound == pytest.approx(optimum, abs=TOLERANCE), seed
            assert_pruning(problem, solution)
        if lam_index:
            assert solve_papers_program(problem, lam) == pytest.approx(optimum, abs=TOLERANCE), seed
        ascent_solution = primal_dual.solve(problem, lam, max_iterations=30)
        assert_pruning(problem, ascent_solution)
        assert ascent_solution.bound <= optimum + 1e-12
        assert ascent_solution.objective >= optimum - 1e-12
        for level in sequence.levels[:: max(1, len(sequence.levels) // 5)]:
            assert problem.objective(sequence.kept_at(level), lam) >= optimum - 1e-12
        n_partial += 0 < exact_solutions[0].is_kept.sum() < problem.is_inner.sum()
    assert n_partial > 10


def assert_pruning(problem, solution):
    """Check that the kept nodes are a pruning and have the objective of the solution."""
    is_kept = solution.is_kept
    assert is_kept.dtype == bool
    assert is_kept.shape == (problem.n_nodes,)
    assert not is_kept[~problem.is_inner].any()
    has_parent = problem.parent >= 0
    assert (is_kept[has_parent] <= is_kept[problem.parent[has_parent]]).all()
    assert solution.objective == pytest.approx(problem.objective(is_kept, solution.lam), abs=1e-12)


@pytest.fixture(scope="module")
def problem_of_wine():
    """A problem of some hundred nodes."""
    X, y = load_wine(return_X_y=True)
    X = X.astype(np.float32)
    row_order = np.random.default_rng(0).permutation(len(X))
    fit_rows, validation_rows = row_order[80:], row_order[:80]
    forest = RandomForestClassifier(6, max_features=3, random_state=0).fit(X[fit_rows], y[fit_rows])
    costs = FeatureCosts(
        1 + np.arange(13) % 4 / 2, group=["a"] * 3 + ["b"] * 2 + [None] * 8, shared={"a": 2, "b": 3}
    )
    return build_problem(Forest.from_sklearn(forest), X[validation_rows], costs)


@pytest.mark.parametrize("lam", [0.003, 0.01, 0.03])
def test_solvers_agree_on_a_problem_too_large_for_brute_force(problem_of_wine, lam):
    optimum = mincut.solve(problem_of_wine, lam).objective
    assert solve_papers_program(problem_of_wine, lam) == pytest.approx(optimum, abs=TOLERANCE)
    for solution in (lp.solve(problem_of_wine, lam), dantzig_wolfe.solve(problem_of_wine, lam)):
        assert solution.objective == pytest.approx(optimum, abs=TOLERANCE)
        assert solution.bound == pytest.approx(optimum, abs=TOLERANCE)
    ascent_solution = primal_dual.solve(problem_of_wine, lam, tolerance=1e-2)
    assert ascent_solution.bound <= optimum + 1e-12 <= ascent_solution.objective + 2e-12
    assert ascent_solution.objective - ascent_solution.bound <= 1e-2 * ascent_solution.objective


def test_fewer_iterations_leave_a_larger_gap(problem_of_wine):
    few_steps = primal_dual.solve(problem_of_wine, 0.02, tolerance=0.0, max_iterations=2)
    many_steps = primal_dual.solve(problem_of_wine, 0.02, tolerance=0.0, max_iterations=200)
    assert few_steps.iterations == 2
    assert few_steps.objective - few_steps.bound > many_steps.objective - many_steps.bound
    assert few_steps.bound < many_steps.bound
    one_step = dantzig_wolfe.solve(problem_of_wine, 0.02, max_iterations=1)
    assert one_step.iterations == 1
    assert one_step.bound < dantzig_wolfe.solve(problem_of_wine, 0.02).bound


@given(seed=st.integers(0, 10_000), scale=st.floats(0.0, 5.0), lam=st.floats(0.0, 0.2))
@settings(max_examples=60, deadline=None)
def test_any_multipliers_prove_a_lower_bound(problem_of_wine, seed, scale, lam):
    problem = problem_of_wine
    rng = np.random.default_rng(seed)
    beta = scale * rng.normal(size=len(problem.column_nodes)) * even_shares(problem, lam)
    optimum = mincut.solve(problem, lam).objective
    assert PricedTrees(problem, lam).bound_from_multipliers(beta) <= optimum + 1e-12


@given(seed=st.integers(0, 10_000), lam=st.floats(0.0, 0.2))
@settings(max_examples=60, deadline=None)
def test_repair_does_not_make_a_pruning_worse(problem_of_wine, seed, lam):
    problem = problem_of_wine
    rng = np.random.default_rng(seed)
    is_kept = problem.is_inner & (rng.random(problem.n_nodes) < 0.9)
    for h in np.flatnonzero(problem.parent >= 0):
        is_kept[h] &= is_kept[problem.parent[h]]
    is_kept_repaired, repaired_objective = repair(problem, is_kept, lam)
    assert repaired_objective <= problem.objective(is_kept, lam) + 1e-12
    assert repaired_objective == pytest.approx(problem.objective(is_kept_repaired, lam), abs=1e-12)
    has_parent = problem.parent >= 0
    assert (is_kept_repaired[has_parent] <= is_kept_repaired[problem.parent[has_parent]]).all()
    # the level sets of the mixture are the union and the intersection of the two prunings, whose
    # mean objective is at most the mean of the two
    level_set, level_objective = best_level_set(
        problem, 0.5 * is_kept + 0.5 * is_kept_repaired, lam
    )
    assert level_objective == pytest.approx(problem.objective(level_set, lam), abs=1e-12)
    assert level_objective <= (repaired_objective + problem.objective(is_kept, lam)) / 2 + 1e-12


def test_gains_equal_the_costs_of_the_papers_recursion(problem_of_wine):
    lam = 0.01
    rng = np.random.default_rng(0)
    depth_price = rng.random(problem_of_wine.n_nodes) * problem_of_wine.is_inner
    problem = replace(problem_of_wine, depth_price=depth_price)
    charges = rng.random(problem.n_nodes) * problem.error.mean() * problem.is_inner

    # cost(h) = min(error_h, charge_h + lam depth_price_h + sum of the costs of the children)
    def compute_cost(h):
        if not problem.is_inner[h]:
            return problem.error[h]
        cost_of_children = sum(compute_cost(child) for child in np.flatnonzero(problem.parent == h))
        cost_as_inner_node = charges[h] + lam * problem.depth_price[h] + cost_of_children
        return min(problem.error[h], cost_as_inner_node)

    is_kept, gain = PricedTrees(problem, lam).prune(charges)
    assert 0 < is_kept.sum() < problem.is_inner.sum()
    for h in range(problem.n_nodes):
        assert problem.error[h] - gain[h] == pytest.approx(compute_cost(h), abs=1e-12)


def test_all_nodes_with_a_profit_stay_if_features_or_cost_are_free(problem_of_wine):
    free_problem = replace(problem_of_wine, column_price=np.zeros(problem_of_wine.n_columns))
    for problem, lam in ((problem_of_wine, 0.0), (free_problem, 1.0)):
        for module in (mincut, lp, dantzig_wolfe, primal_dual):
            solution = module.solve(problem, lam)
            assert solution.objective == pytest.approx(0.0, abs=1e-12)  # leaves are pure
            assert solution.bound == pytest.approx(0.0, abs=1e-12)


def test_invalid_settings_are_refused(problem_of_wine):
    for module in (mincut, lp, dantzig_wolfe, primal_dual):
        for lam in (-1.0, np.nan, np.inf):
            with pytest.raises(InputError, match="lam"):
                module.solve(problem_of_wine, lam)
    with pytest.raises(RuntimeError, match="HiGHS"):
        lp.solve(problem_of_wine, 0.01, time_limit=0.0)


def test_projection_ends_if_rounding_makes_a_tie():
    # a step of exactly the price brings the other node's share to the cut, where it alternated
    from gatewise_training.prune.solvers.primal_dual import _ascend

    price = 1 / 300
    beta = np.full(2, price / 2)
    start, nodes = np.array([0, 2]), np.array([0, 1], np.int32)
    _ascend(start, nodes, np.array([price]), np.array([0.0, 1.0]), 1.0, beta)
    np.testing.assert_allclose(beta, [0.0, price], atol=1e-15)
