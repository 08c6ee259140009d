"""Solvers of the pruning problem: the same optimum as counting every pruning out, and real bounds.

Brute force shares nothing with the library: it walks each row through scikit-learn's own trees,
for every pruning of each, and adds prices up.
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
from gatewise_training.prune.path import breakpoints, breakpoints_by
from gatewise_training.prune.problem import PruneProblem, build_problem
from gatewise_training.prune.solvers import dantzig_wolfe, lp, mincut, primal_dual
from gatewise_training.prune.tree_by_tree import per_tree
from gatewise_training.prune.tree_recursion import PricedTrees, even_shares, improved, level_sets
from tests.support.papers_program import papers_optimum

pytestmark = pytest.mark.slow  # compiles all ways to prune

NEAR = 1e-9
SHAPES = ((1, 4), (2, 3), (3, 2), (4, 2))  # trees, depth: at most some hundred prunings in all


@dataclass
class Small:
    """A small problem, and what brute force knows about it."""

    problem: PruneProblem
    errors: np.ndarray
    costs: np.ndarray
    lams: tuple[float, ...]

    def optimum(self, lam):
        return float((self.errors + lam * self.costs).min())


def prices(rng, kind, n):
    if kind == "uniform":
        return FeatureCosts.uniform(n)
    own = rng.uniform(0.1, 3.0, n).round(2)
    if kind == "non-uniform":
        return FeatureCosts(own)
    group = rng.integers(-1, 3, n)
    own = np.where(group == 1, 0.0, own)  # descriptors: only their shared price counts
    shared = {int(g): float(rng.uniform(0.1, 4.0)) for g in set(group.tolist()) - {-1}}
    requires = {g: g - 1 for g in shared if g - 1 in shared and kind == "chained"}
    return FeatureCosts(own, group=group, shared=shared, requires=requires)


def prunings(tree, h=0):
    """Every set of nodes that may stay inner nodes of a subtree."""
    if tree.children_left[h] < 0:
        return [frozenset()]
    left = prunings(tree, tree.children_left[h])
    right = prunings(tree, tree.children_right[h])
    return [frozenset()] + [a | b | {h} for a in left for b in right]


def walked(tree, row, keep, costs, i):
    """Purchases and depth of a row in a pruned tree."""
    h, acquired, depth = 0, set(), 0
    while h in keep:
        k = int(tree.feature[h])
        acquired.add((i, "feature", k))
        groups = [int(costs.group[k])] if costs.group[k] >= 0 else []
        while groups:  # with all that they require
            acquired.add((i, "group", groups[-1]))
            groups += costs.requires[groups.pop()]
        depth += 1
        left = row[k] <= np.float32(tree.threshold[h])
        h = int((tree.children_left if left else tree.children_right)[h])
    return acquired, depth


def leaf_errors(tree, keep):
    total, stack = 0.0, [0]
    while stack:
        h = stack.pop()
        if h in keep:
            stack += [tree.children_left[h], tree.children_right[h]]
        else:
            share = tree.value[h, 0] / tree.value[h, 0].sum()
            total += tree.weighted_n_node_samples[h] * (1.0 - share.max())
    return total


def count_out(forest, x, costs, depth_cost):
    """Training error and cost of every pruning of a forest."""
    acquisitions: dict[Any, int] = {}
    of_trees = []
    for estimator in forest.estimators_:
        tree = estimator.tree_
        options = []
        for keep in prunings(tree):
            walks = [walked(tree, row, keep, costs, i) for i, row in enumerate(x)]
            acquired = set().union(*(b for b, _ in walks))
            for acquisition in acquired:
                acquisitions.setdefault(acquisition, len(acquisitions))
            steps = np.mean([d for _, d in walks])
            error = leaf_errors(tree, keep) / tree.weighted_n_node_samples[0]
            options.append((error, steps, acquired))
        of_trees.append(options)
    price = [costs.own[k] if what == "feature" else costs.shared[k] for _, what, k in acquisitions]
    errors, depths = np.zeros(1), np.zeros(1)
    acquired = np.zeros((1, len(acquisitions)), bool)
    for options in of_trees:
        marks = np.zeros((len(options), len(acquisitions)), bool)
        for row, (_, _, chosen) in zip(marks, options, strict=True):
            row[[acquisitions[p] for p in chosen]] = True
        errors = np.add.outer(errors, [e for e, _, _ in options]).ravel()
        depths = np.add.outer(depths, [d for _, d, _ in options]).ravel()
        acquired = (acquired[:, None] | marks[None]).reshape(-1, len(acquisitions))
    n_trees = len(of_trees)
    costs_of = acquired @ np.array(price, float).reshape(-1) / len(x)
    return errors / n_trees, costs_of + depth_cost * depths / n_trees


def small(seed):
    rng = np.random.default_rng(seed)
    n_classes, n_features = int(rng.integers(2, 11)), int(rng.integers(2, 7))
    n_trees, depth = SHAPES[seed % len(SHAPES)]
    n = 12 * n_classes
    X = rng.normal(size=(n, n_features)).astype(np.float32)
    y = rng.permutation(np.arange(n) % n_classes)
    X[:, 0] += y  # something to learn
    forest = RandomForestClassifier(
        n_trees, max_depth=depth, criterion="entropy", max_features=None, random_state=seed
    ).fit(X, y)
    grouped = ("grouped", "chained")[seed // 12 % 2]
    costs = prices(rng, ("uniform", "non-uniform", grouped)[seed % 3], n_features)
    depth_cost = 0.2 if seed // 3 % 2 else 0.0
    x = rng.normal(size=(int(rng.integers(1, 12)), n_features)).astype(np.float32)
    x[:, 0] += rng.integers(0, n_classes, len(x))
    problem = build_problem(Forest.from_sklearn(forest), x, costs, depth_cost=depth_cost)
    errors, spent = count_out(forest, x, costs, depth_cost)
    # where error and cost are worth about the same, pruning is neither none nor all
    even = (errors.max() - errors.min()) / max(spent.max(), 1e-9)
    lams = tuple(float(even * f) for f in rng.uniform(0.05, 2.0, 2))
    return Small(problem, errors, spent, lams)


def check_agreement(seeds):
    inside = 0
    for seed in seeds:
        case = small(seed)
        problem = case.problem
        apart = per_tree(problem)
        until = breakpoints(problem)
        for lam in (0.0, *case.lams, 10.0 * max(case.lams)):
            optimum = pytest.approx(case.optimum(lam), abs=NEAR)
            assert problem.objective(until > lam, lam) == optimum, seed
        way = seed // 12 % 2  # after all shapes, prices and costs of depth
        lam = case.lams[way]
        optimum = case.optimum(lam)
        exact = [
            mincut.solve(problem, lam),
            lp.solve(problem, lam),
            dantzig_wolfe.solve(problem, lam, master="convex"),
            dantzig_wolfe.solve(problem, lam, master="partition"),
        ]
        for solution in exact:
            assert solution.objective == pytest.approx(optimum, abs=NEAR), seed
            assert solution.bound == pytest.approx(optimum, abs=NEAR), seed
            assert_pruning(problem, solution)
        if way:
            assert papers_optimum(problem, lam) == pytest.approx(optimum, abs=NEAR), seed
        ascent = primal_dual.solve(problem, lam, max_iterations=30)
        assert_pruning(problem, ascent)
        assert ascent.bound <= optimum + 1e-12
        assert ascent.objective >= optimum - 1e-12
        for level in apart.levels[:: max(1, len(apart.levels) // 5)]:
            assert problem.objective(apart.keep(level), lam) >= optimum - 1e-12
        inside += 0 < exact[0].keep.sum() < problem.inner.sum()
    return inside


def assert_pruning(problem, solution):
    """What is kept is closed, inner, and worth what the solution says."""
    keep = solution.keep
    assert keep.dtype == bool
    assert keep.shape == (problem.n_nodes,)
    assert not keep[~problem.inner].any()
    below = problem.parent >= 0
    assert (keep[below] <= keep[problem.parent[below]]).all()
    assert solution.objective == pytest.approx(problem.objective(keep, solution.lam), abs=1e-12)


def test_every_solver_finds_the_optimum_of_48_small_problems():
    assert check_agreement(range(48)) > 10  # and many of the optima are neither none nor all


def test_every_way_to_the_breakpoints_finds_the_same():
    for seed in range(12):
        problem = small(seed).problem
        until, again = breakpoints(problem), breakpoints_by(mincut.solve, problem)
        below = problem.parent >= 0
        assert (until[below] <= until[problem.parent[below]]).all()  # nested
        finite = np.isfinite(until)
        np.testing.assert_array_equal(finite, np.isfinite(again))
        np.testing.assert_allclose(until[finite], again[finite], atol=1e-9)


def wine(n_trees=6, n_val=80, depth_cost=0.0):
    """A problem of some hundred nodes."""
    X, y = load_wine(return_X_y=True)
    X = X.astype(np.float32)
    order = np.random.default_rng(0).permutation(len(X))
    fit, val = order[n_val:], order[:n_val]
    forest = RandomForestClassifier(n_trees, max_features=3, random_state=0).fit(X[fit], y[fit])
    costs = FeatureCosts(
        1 + np.arange(13) % 4 / 2, group=["a"] * 3 + ["b"] * 2 + [None] * 8, shared={"a": 2, "b": 3}
    )
    return build_problem(Forest.from_sklearn(forest), X[val], costs, depth_cost=depth_cost)


@pytest.fixture(scope="module")
def middling():
    return wine()


@pytest.mark.parametrize("lam", [0.003, 0.01, 0.03])
def test_methods_agree_beyond_brute_force(middling, lam):
    optimum = mincut.solve(middling, lam).objective
    assert papers_optimum(middling, lam) == pytest.approx(optimum, abs=NEAR)
    for solution in (
        lp.solve(middling, lam),
        dantzig_wolfe.solve(middling, lam, master="convex"),
        dantzig_wolfe.solve(middling, lam, master="partition"),
    ):
        assert solution.objective == pytest.approx(optimum, abs=NEAR)
        assert solution.bound == pytest.approx(optimum, abs=NEAR)
    ascent = primal_dual.solve(middling, lam, tolerance=1e-2)
    assert ascent.bound <= optimum + 1e-12 <= ascent.objective + 2e-12
    assert ascent.objective - ascent.bound <= 1e-2 * ascent.objective


def test_early_stops_report_a_larger_gap(middling):
    early = primal_dual.solve(middling, 0.02, tolerance=0.0, max_iterations=2)
    late = primal_dual.solve(middling, 0.02, tolerance=0.0, max_iterations=200)
    assert early.iterations == 2
    assert early.objective - early.bound > late.objective - late.bound
    assert early.bound < late.bound
    one = dantzig_wolfe.solve(middling, 0.02, max_iterations=1)
    assert one.iterations == 1
    assert one.bound < dantzig_wolfe.solve(middling, 0.02).bound


@given(seed=st.integers(0, 10_000), scale=st.floats(0.0, 5.0), lam=st.floats(0.0, 0.2))
@settings(max_examples=60, deadline=None)
def test_any_multipliers_prove_a_bound(seed, scale, lam):
    problem = wine_once()
    rng = np.random.default_rng(seed)
    beta = scale * rng.normal(size=len(problem.column_nodes)) * even_shares(problem, lam)
    optimum = mincut.solve(problem, lam).objective
    assert PricedTrees(problem, lam).lower_bound(beta) <= optimum + 1e-12


@given(seed=st.integers(0, 10_000), lam=st.floats(0.0, 0.2))
@settings(max_examples=60, deadline=None)
def test_repair_never_makes_a_pruning_worse(seed, lam):
    problem = wine_once()
    rng = np.random.default_rng(seed)
    keep = problem.inner & (rng.random(problem.n_nodes) < 0.9)
    for h in np.flatnonzero(problem.parent >= 0):
        keep[h] &= keep[problem.parent[h]]
    better, value = improved(problem, keep, lam)
    assert value <= problem.objective(keep, lam) + 1e-12
    assert value == pytest.approx(problem.objective(better, lam), abs=1e-12)
    below = problem.parent >= 0
    assert (better[below] <= better[problem.parent[below]]).all()
    # the level sets of a mixture are union and intersection, on average no worse than the two
    found, level = level_sets(problem, 0.5 * keep + 0.5 * better, lam)
    assert level == pytest.approx(problem.objective(found, lam), abs=1e-12)
    assert level <= (value + problem.objective(keep, lam)) / 2 + 1e-12


_problems: list[PruneProblem] = []


def wine_once():
    if not _problems:
        _problems.append(wine())
    return _problems[0]


def test_the_recursion_is_the_papers(middling):
    lam = 0.01
    rng = np.random.default_rng(0)
    middling = replace(middling, depth_price=rng.random(middling.n_nodes) * middling.inner)
    charge = rng.random(middling.n_nodes) * middling.error.mean() * middling.inner

    def cost(h):
        if not middling.inner[h]:
            return middling.error[h]
        below = sum(cost(child) for child in np.flatnonzero(middling.parent == h))
        return min(middling.error[h], charge[h] + lam * middling.depth_price[h] + below)

    keep, gain = PricedTrees(middling, lam).best(charge)
    assert 0 < keep.sum() < middling.inner.sum()
    for h in range(middling.n_nodes):
        assert middling.error[h] - gain[h] == pytest.approx(cost(h), abs=1e-12)


def test_free_features_and_free_cost_keep_all_that_earns(middling):
    free = replace(middling, column_price=np.zeros(middling.n_columns))
    for problem, lam in ((middling, 0.0), (free, 1.0)):
        for module in (mincut, lp, dantzig_wolfe, primal_dual):
            solution = module.solve(problem, lam)
            assert solution.objective == pytest.approx(0.0, abs=1e-12)  # leaves are pure
            assert solution.bound == pytest.approx(0.0, abs=1e-12)


def test_trees_of_one_leaf_have_nothing_to_prune():
    X, y = np.zeros((6, 2), np.float32), np.array([0, 0, 0, 0, 1, 1])
    forest = RandomForestClassifier(2, bootstrap=False, random_state=0).fit(X, y)
    problem = build_problem(Forest.from_sklearn(forest), X, FeatureCosts.uniform(2))
    for module in (mincut, lp, dantzig_wolfe, primal_dual):
        solution = module.solve(problem, 0.1)
        assert not solution.keep.any()
        assert solution.objective == solution.bound == pytest.approx(1 / 3)


def test_bad_settings_are_refused(middling):
    for module in (mincut, lp, dantzig_wolfe, primal_dual):
        for lam in (-1.0, np.nan, np.inf):
            with pytest.raises(InputError, match="lam"):
                module.solve(middling, lam)
    with pytest.raises(InputError, match="master"):
        dantzig_wolfe.solve(middling, 0.1, master="both")
    with pytest.raises(RuntimeError, match="HiGHS"):
        lp.solve(middling, 0.01, time_limit=0.0)


def test_projection_ends_where_rounding_makes_a_tie():
    # a step of exactly the price puts the other node's share on the cut: it left and came back
    from gatewise_training.prune.solvers.primal_dual import _climb

    price = 1 / 300
    beta = np.full(2, price / 2)
    start, nodes = np.array([0, 2]), np.array([0, 1], np.int32)
    _climb(start, nodes, np.array([price]), np.array([0.0, 1.0]), 1.0, beta)
    np.testing.assert_allclose(beta, [0.0, price], atol=1e-15)
