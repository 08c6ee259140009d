"""Measure the CPU time of exact pruning: for all prices, for single ones, and of other solvers.

A price is the weight of the feature cost in the objective. The frontier has the optimum for every
price. Everything runs in one process with one thread. The cut and OR-tools alternate. The times of
the frontier and of the cuts are medians of repetitions; other times are of one run. The results
contain the differences of the objectives, which must be near zero.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestClassifier

from benchmarks.data.folds import Fold
from benchmarks.harness import memory, reset_memory_peak
from benchmarks.trees import maxflow
from benchmarks.trees.pruning import sklearn_forest
from gatewise.console import note
from gatewise.costs import FeatureCosts
from gatewise_training.prune import PruneProblem, PruningPath, build_problem
from gatewise_training.prune.forest import Forest
from gatewise_training.prune.path import breakpoints
from gatewise_training.prune.presolve import reduce_problem
from gatewise_training.prune.solvers import dantzig_wolfe, lp, mincut, primal_dual

#: Repetitions whose median is reported.
N_REPETITIONS = 3
#: Number of prices that a user without the frontier would solve separately.
N_SOLVES = 50
#: Single prices keep about these shares of the cost of the unpruned forest.
SHARES = (0.9, 0.5, 0.2)
#: The same share for the comparison with general solvers.
SOLVERS_SHARE = 0.5
#: Numbers of trees and instances of the problems for general solvers, in ascending order.
SIZES = ((5, 500), (10, 1000), (20, 2000), (40, 2000), (40, 4000), (40, 8000))
#: Time limit of HiGHS for one price in seconds; the first size above the limit is the last.
HIGHS_LIMIT_SECONDS = 150.0
#: CPU seconds; a method that takes longer at one size is skipped at larger sizes.
MAX_METHOD_SECONDS = 30.0


def measure_timings(
    fold: Fold, costs: FeatureCosts, *, n_trees: int, quick: bool
) -> dict[str, Any]:
    """Measure the whole frontier of a forest, single prices and other solvers.

    Training rows grow the forest, validation rows are the instances.
    """
    assert fold.validation is not None
    n_repetitions, instances = 1 if quick else N_REPETITIONS, fold.validation[0]
    _compile_kernels(costs)
    model, growth_seconds = _call_timed(lambda: sklearn_forest(fold, n_trees))
    forest = Forest.from_sklearn(model)
    bytes_before = memory(peak=False)
    reset_memory_peak()
    problem, build_seconds = _call_timed(lambda: build_problem(forest, instances, costs))
    node_prices, frontier_times = _time_frontier(problem, n_repetitions)
    peak_bytes = memory(peak=True)
    frontier_seconds = median(frontier_times)
    note(f"timing: the whole frontier took {frontier_seconds:.1f} CPU s")
    path = PruningPath(forest, problem, node_prices)
    positive_prices = node_prices[(node_prices > 0) & np.isfinite(node_prices)]
    lams = np.geomspace(
        positive_prices.min(), positive_prices.max(), 5 if quick else N_SOLVES
    ).tolist()
    closure, _ = reduce_problem(problem)
    return {
        "forest": {"trees": n_trees, "nodes": forest.n_nodes, "fit_cpu": _round(growth_seconds)},
        "problem": {
            "instances": len(instances),
            "purchases": problem.n_columns,
            "uses": len(problem.column_nodes),
            "reduced_nodes": closure.n_nodes,
            "reduced_purchases": len(closure.column_price),
            "reduced_uses": len(closure.columns),
            "build_cpu": _round(build_seconds),
        },
        "frontier": {
            "cpu": _round(frontier_seconds),
            "runs": [_round(seconds) for seconds in frontier_times],
            "breakpoints": len(np.unique(positive_prices)),
            "peak_gb": _round(peak_bytes / 1e9),
            "before_gb": _round(bytes_before / 1e9),
        },
        "single": _time_single_solves(path, lams, frontier_seconds),
        "cuts": _time_cuts(path, n_repetitions),
        "solvers": measure_solvers(fold, costs, SIZES[:1] if quick else SIZES, n_repetitions),
    }


def _time_frontier(
    problem: PruneProblem, n_repetitions: int
) -> tuple[NDArray[np.float64], list[float]]:
    """Compute the price at which each node is pruned; also return the CPU seconds of each run."""
    times = []
    for _ in range(n_repetitions):
        node_prices, seconds = _call_timed(lambda: breakpoints(problem))
        times.append(seconds)
    return node_prices, times


def _time_single_solves(
    path: PruningPath, lams: list[float], frontier_seconds: float
) -> dict[str, Any]:
    """Time a cut for each price, and compare the objectives with those of the frontier."""
    solutions, seconds = _call_timed(lambda: [mincut.solve(path.problem, lam) for lam in lams])
    note(f"timing: {len(lams)} single solves took {seconds:.1f} CPU s")
    return {
        "solves": len(lams),
        "cpu": _round(seconds),
        "ratio": _round(seconds / frontier_seconds),
        "largest_difference": max(
            abs(solution.objective - path.at(lam=solution.lam).objective) for solution in solutions
        ),
    }


def _price_of_share(path: PruningPath, share: float) -> float:
    """Price that keeps about this share of the unpruned cost.

    It is just above a breakpoint, where the optimum is unique.
    """
    return path.at(budget=share * float(path.sequence.costs[0])).lam * (1 + 1e-6)


def _time_cuts(path: PruningPath, n_repetitions: int) -> list[dict[str, Any]]:
    """Time this project's cut and OR-tools alternately on the same reduced problems."""
    if not maxflow.available():
        note(maxflow.MISSING)
    closure, _ = reduce_problem(path.problem)
    rows = []
    for share in SHARES:
        lam = _price_of_share(path, share)
        cut_seconds: list[float] = []
        ortools_cuts: list[dict[str, Any]] = []
        for _ in range(n_repetitions):
            (_, flow, _), seconds = _call_timed(lambda: mincut.best_closure(closure, lam))  # noqa: B023
            cut_seconds.append(seconds)
            if maxflow.available():
                ortools_cuts.append(maxflow.max_flow(closure, lam))
        row = {"share": share, "lam": lam, "cpu": _round(median(cut_seconds))}
        if ortools_cuts:
            row |= {
                "ortools_cpu": _round(median(ortools_cut["cpu"] for ortools_cut in ortools_cuts)),
                "ortools_build_cpu": _round(
                    median(ortools_cut["build_cpu"] for ortools_cut in ortools_cuts)
                ),
                "arcs": ortools_cuts[0]["arcs"],
                "flow_difference": abs(ortools_cuts[0]["flow"] - flow),
                "rounding": ortools_cuts[0]["resolution"],
            }
        note(f"timing: a cut at {share:.0%} of the cost: {row}")
        rows.append(row)
    return rows


def measure_solvers(
    fold: Fold, costs: FeatureCosts, sizes: tuple[tuple[int, int], ...], n_repetitions: int
) -> list[dict[str, Any]]:
    """Time all solvers for one price on larger and larger problems, until HiGHS exceeds its limit.

    Each row has CPU seconds and the difference of the objective from that of the cut, and the gap
    that primal-dual proves. None marks a solver that is skipped because it was too slow before.
    """
    assert fold.validation is not None
    slow_methods: set[str] = set()
    rows: list[dict[str, Any]] = []
    models: dict[int, Forest] = {}
    for n_trees, n_instances in sizes:
        if n_trees not in models:
            models = {n_trees: Forest.from_sklearn(sklearn_forest(fold, n_trees))}
        instances = fold.validation[0][:n_instances]
        problem = build_problem(models[n_trees], instances, costs)
        path = PruningPath(models[n_trees], problem, breakpoints(problem))
        size = {"trees": n_trees, "instances": len(instances)}
        row = size | _time_solvers(path, slow_methods, n_repetitions)
        note(f"timing: {row}")
        rows.append(row)
        if "highs" in slow_methods:
            break
    return rows


def _time_solvers(path: PruningPath, slow_methods: set[str], n_repetitions: int) -> dict[str, Any]:
    """Time the cut and the solvers that are not in `slow_methods`; add those that are too slow."""
    methods: dict[str, Callable[[PruneProblem, float], Any]] = {
        "highs": lambda problem, lam: lp.solve(problem, lam, time_limit=HIGHS_LIMIT_SECONDS),
        "dantzig_wolfe": dantzig_wolfe.solve,
        "primal_dual": primal_dual.solve,
    }
    problem = path.problem
    lam = _price_of_share(path, SOLVERS_SHARE)
    cut_solution, cut_seconds = _call_repeatedly(lambda: mincut.solve(problem, lam), n_repetitions)
    row: dict[str, Any] = {
        "lam": lam,
        "uses": len(problem.column_nodes),
        "cut_cpu": round(cut_seconds, 6),
    }
    for name, method in methods.items():
        if name in slow_methods:
            row[name] = None
            continue
        try:
            solution, method_seconds = _call_timed(lambda: method(problem, lam))  # noqa: B023
        except RuntimeError as error:  # HiGHS reached its time limit
            slow_methods.add(name)
            row[name] = {"stopped": str(error)[:120]}
            continue
        if method_seconds > MAX_METHOD_SECONDS and name != "highs":
            slow_methods.add(name)
        row[name] = {
            "cpu": _round(method_seconds),
            "above": solution.objective - cut_solution.objective,
            "gap": solution.objective - solution.bound,
            "ratio": round(method_seconds / cut_seconds, 1),
        }
    return row


def _compile_kernels(costs: FeatureCosts) -> None:
    """Run each solver once, so that just-in-time compilation is not timed."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(80, costs.n_features)).astype(np.float32)
    classes = (rows[:, 0] + rng.normal(size=80) > 0).astype(np.int64)
    model = RandomForestClassifier(3, random_state=0).fit(rows, classes)
    problem = build_problem(Forest.from_sklearn(model), rows, costs)
    breakpoints(problem)
    for module in (mincut, lp, dantzig_wolfe, primal_dual):
        module.solve(problem, 0.01)


def _call_timed(function: Callable[[], Any]) -> tuple[Any, float]:
    start_time = time.process_time()
    result = function()
    return result, time.process_time() - start_time


def _call_repeatedly(function: Callable[[], Any], n_repetitions: int) -> tuple[Any, float]:
    solutions_and_seconds = [_call_timed(function) for _ in range(n_repetitions)]
    return solutions_and_seconds[0][0], median(seconds for _, seconds in solutions_and_seconds)


def _round(value: float) -> float:
    return round(value, 4)
