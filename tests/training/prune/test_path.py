"""Minimum cuts and the complete frontier: against brute force and against single solves."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression

from gatewise.errors import InputError
from gatewise_training import FeatureCosts
from gatewise_training.prune import build_problem, prune
from gatewise_training.prune.forest import Forest
from gatewise_training.prune.path import breakpoints, breakpoints_by
from gatewise_training.prune.presolve import reduce_problem
from gatewise_training.prune.solvers.mincut import best_closure, solve


def small(seed: int, depth_cost: float):
    """A random forest of a few nodes, random prices, and its pruning problem."""
    rng = np.random.default_rng(seed)
    n, k, m = int(rng.integers(10, 40)), int(rng.integers(2, 5)), int(rng.integers(2, 11))
    x, y = rng.integers(0, 4, (n, k)).astype(np.float32), rng.integers(0, m, n)
    grown = RandomForestClassifier(
        int(rng.integers(1, 3)), max_leaf_nodes=int(rng.integers(3, 7)), random_state=seed
    ).fit(x, y)
    group = rng.integers(-1, 2, k).tolist()
    costs = (
        FeatureCosts.uniform(k),
        FeatureCosts(rng.random(k)),
        FeatureCosts(rng.random(k) * (rng.random(k) < 0.6), group=group,
                     shared={g: float(rng.random()) for g in set(group) if g >= 0}),
    )[seed % 3]  # fmt: skip
    rows = rng.integers(0, 4, (int(rng.integers(3, 20)), k)).astype(np.float32)
    forest = Forest.from_sklearn(grown)
    return forest, rows, costs, build_problem(forest, rows, costs, depth_cost=depth_cost)


def closures(problem):
    """All prunings."""
    inner = np.flatnonzero(problem.left >= 0)
    for bits in itertools.product([False, True], repeat=len(inner)):
        keep = np.zeros(problem.n_nodes, bool)
        keep[inner] = bits
        above = problem.parent[inner]
        if not (keep[inner] & (above >= 0) & ~keep[above]).any():
            yield keep


@pytest.mark.parametrize("depth_cost", [0.0, 0.1])
def test_cut_path_and_brute_force_agree(depth_cost):
    for seed in range(40):
        forest, rows, costs, problem = small(seed, depth_cost)
        whole = problem.left >= 0
        wanted = (
            forest.cost(rows, costs).mean()
            + depth_cost * forest.trees.splits_passed(rows).mean() / forest.n_trees
        )
        assert problem.cost(whole) == pytest.approx(wanted)
        until = breakpoints(problem)
        every = list(closures(problem))
        before = np.ones(problem.n_nodes, bool)
        for lam in sorted([0.0, 10.0, *np.random.default_rng(seed).random(4) ** 3]):
            best = min(problem.objective(keep, lam) for keep in every)
            found = solve(problem, lam)
            assert found.objective == pytest.approx(best, abs=1e-9)
            assert found.bound == pytest.approx(best, abs=1e-9)
            assert problem.objective(until > lam, lam) == pytest.approx(best, abs=1e-9)
            assert not ((until > lam) & ~before).any()  # nested
            before = until > lam


def test_every_way_to_the_breakpoints_finds_the_same():
    for seed in range(30):
        problem = small(seed, 0.05 * (seed % 2))[-1]
        until, again = breakpoints(problem), breakpoints_by(solve, problem)
        finite = np.isfinite(until)
        np.testing.assert_array_equal(finite, np.isfinite(again))
        np.testing.assert_allclose(until[finite], again[finite], atol=1e-9)


def test_reductions_leave_the_optimum():
    x, y = load_digits(return_X_y=True)
    grown = RandomForestClassifier(5, random_state=0).fit(x[:900], y[:900])
    rows = x[900:1300].astype(np.float32)
    problem = build_problem(Forest.from_sklearn(grown), rows, FeatureCosts.uniform(64))
    closure, place = reduce_problem(problem)
    assert closure.n_nodes < 0.5 * problem.n_nodes
    assert closure.column_price.sum() + closure.price.sum() == pytest.approx(
        problem.cost((place >= 0) | (place == -1))
    )
    for lam in (1e-3, 1e-2):
        kept, flow, _ = best_closure(closure, lam)
        worth = closure.profit[kept].sum() - lam * (
            closure.price[kept].sum() + closure.column_price[closure.acquired(kept)].sum()
        )
        assert worth == pytest.approx(closure.worth - flow, abs=1e-12)
        keep = np.append(kept, [False, True])[np.where(place == -2, len(kept), place)]
        assert problem.objective(keep, lam) == pytest.approx(solve(problem, lam).objective)


@pytest.fixture(scope="module")
def cancer():
    x, y = load_breast_cancer(return_X_y=True)
    names = np.array(["benign", "malignant"])[y]
    grown = RandomForestClassifier(10, random_state=0).fit(x[:400], names[:400])
    return grown, x[400:], names[400:], FeatureCosts(np.linspace(0.5, 2, 30))


def test_the_path_is_measured_by_its_forests(cancer):
    grown, x, y, costs = cancer
    path = prune(grown, x, y, costs)
    table = path.frontier()
    assert len(path) == len(table["cost"]) > 10
    assert (np.diff(table["cost"]) <= 0).all()
    assert (np.diff(table["training_error"]) >= 0).all()
    for at in range(0, len(path), 5):
        forest = path.forest.pruned(path.breakpoints > table["lam"][at])
        rows = x.astype(np.float32)
        assert table["cost"][at] == pytest.approx(forest.cost(rows, costs).mean())
        said = grown.classes_[forest.proba(rows).argmax(axis=1)]
        assert table["accuracy"][at] == pytest.approx(np.mean(said == y))


def test_points_by_price_and_by_budget(cancer):
    grown, x, y, costs = cancer
    path = prune(grown, x, y, costs)
    for lam in (0.0, 0.002, 0.01):
        point = path.at(lam=lam)
        assert point.objective == pytest.approx(solve(path.problem, lam).objective, abs=1e-12)
        assert point.objective == pytest.approx(point.training_error + lam * point.cost)
    dearest = path.at(lam=0.0).cost
    for budget in (0.0, 0.3 * dearest, 0.7 * dearest, 2 * dearest):
        point = path.at(budget=budget)
        assert point.cost <= budget + 1e-9
        dearer = [c for c in path.frontier(5)["cost"] if point.cost + 1e-9 < c <= budget]
        assert not dearer
        mixture = path.mixed(budget=budget)
        assert mixture.cost == pytest.approx(min(budget, dearest))
        assert mixture.training_error <= point.training_error + 1e-12
    with pytest.raises(InputError, match="exactly one"):
        path.at()
    with pytest.raises(InputError, match="at most -1"):
        path.at(budget=-1.0)


def test_a_mixture_draws_for_each_row(cancer):
    grown, x, y, costs = cancer
    path = prune(grown, x, y, costs)
    mixture = path.mixed(budget=0.5 * path.at(lam=0.0).cost)
    assert 0.0 < mixture.share < 1.0
    rows = np.repeat(x.astype(np.float32), 40, axis=0)
    got = mixture.proba(rows, random_state=0)
    cheap, dear = mixture.cheap.forest.proba(rows), mixture.expensive.forest.proba(rows)
    differ = (cheap != dear).any(axis=1)
    is_dear = (got == dear).all(axis=1)
    assert (is_dear | (got == cheap).all(axis=1)).all()
    assert is_dear[differ].mean() == pytest.approx(mixture.share, abs=0.05)


def test_bad_input_is_refused(cancer):
    grown, x, y, costs = cancer
    with pytest.raises(InputError, match="no solver 'magic'"):
        prune(grown, x, y, costs, solver="magic")
    with pytest.raises(InputError, match="does not know class 'other'"):
        prune(grown, x, np.where(y == "benign", y, "other"), costs)
    with pytest.raises(InputError, match="all three must agree"):
        prune(grown, x[:, :5], y, costs)
    with pytest.raises(InputError, match="not LogisticRegression"):
        prune(LogisticRegression(), x, y, costs)
    with pytest.raises(InputError, match="depth_cost"):
        prune(grown, x, y, costs, depth_cost=-1.0)
    with pytest.raises(InputError, match="lam must be"):
        solve(prune(grown, x, y, costs).problem, np.nan)
