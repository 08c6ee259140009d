"""Measure the CPU time of exact pruning: for all prices, for single ones, and of other solvers.

A price is the weight of the feature cost in the objective. The frontier has the optimum for every
price. Everything runs in one process with one thread. The times of the frontier and of the cuts are
medians of repetitions; other times are of one run. The results contain the differences of the
objectives, which must be near zero.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
from sklearn.ensemble import RandomForestClassifier

from benchmarks.data.folds import Fold
from benchmarks.harness import memory
from benchmarks.trees.pruning import fit_sklearn_forest
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
#: The price of the comparison with other solvers keeps about this share of the unpruned cost.
SHARE = 0.5
#: Numbers of trees and instances of the problems for other solvers, in ascending order.
SIZES = ((5, 500), (10, 1000), (20, 2000), (40, 2000), (40, 4000), (40, 8000))
#: Time limit of HiGHS for one price in seconds; the first size above the limit is the last.
HIGHS_LIMIT_SECONDS = 150.0
#: CPU seconds; a method that takes longer at one size is skipped at larger sizes.
MAX_METHOD_SECONDS = 30.0
SOLVERS: dict[str, Callable[[PruneProblem, float], Any]] = {
    "highs": lambda problem, lam: lp.solve(problem, lam, time_limit=HIGHS_LIMIT_SECONDS),
    "dantzig_wolfe": dantzig_wolfe.solve,
    "primal_dual": primal_dual.solve,
}


def measure_timings(
    fold: Fold, costs: FeatureCosts, *, n_trees: int, quick: bool
) -> dict[str, Any]:
    """Measure the whole frontier of a forest, single prices and other solvers.

    Training rows grow the forest, validation rows are the instances.
    """
    assert fold.validation is not None
    n_repetitions, instances = 1 if quick else N_REPETITIONS, fold.validation[0]
    _compile_kernels(costs)
    forest = Forest.from_sklearn(fit_sklearn_forest(fold, n_trees))
    bytes_before = memory(peak=False)
    problem, build_seconds = _call_timed(lambda: build_problem(forest, instances, costs))
    node_prices, frontier_seconds = _call_timed(lambda: breakpoints(problem), n_repetitions)
    peak_bytes = memory(peak=True)
    note(f"timing: the whole frontier took {frontier_seconds:.1f} CPU s")
    path = PruningPath(forest, problem, node_prices)
    prices = np.unique(node_prices[(node_prices > 0) & np.isfinite(node_prices)])
    lams = np.geomspace(prices[0], prices[-1], 5 if quick else N_SOLVES).tolist()
    solutions, seconds = _call_timed(lambda: [mincut.solve(problem, lam) for lam in lams])
    note(f"timing: {len(lams)} single solves took {seconds:.1f} CPU s")
    return {
        "forest": {"trees": n_trees, "nodes": forest.n_nodes},
        "problem": {
            "instances": len(instances),
            "purchases": problem.n_columns,
            "uses": len(problem.column_nodes),
            "reduced_uses": len(reduce_problem(problem)[0].columns),
            "build_cpu": round(build_seconds, 4),
        },
        "frontier": {
            "cpu": round(frontier_seconds, 4),
            "breakpoints": len(prices),
            "peak_gb": round(peak_bytes / 1e9, 4),
            "before_gb": round(bytes_before / 1e9, 4),
        },
        "single": {
            "solves": len(lams),
            "cpu": round(seconds, 4),
            "ratio": round(seconds / frontier_seconds, 4),
            "largest_difference": max(
                abs(solution.objective - path.at(lam=solution.lam).objective)
                for solution in solutions
            ),
        },
        "solvers": measure_solvers(fold, costs, SIZES[:1] if quick else SIZES, n_repetitions),
    }


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
    for n_trees, n_instances in sizes:
        forest = Forest.from_sklearn(fit_sklearn_forest(fold, n_trees))
        problem = build_problem(forest, fold.validation[0][:n_instances], costs)
        path = PruningPath(forest, problem, breakpoints(problem))
        # just above a breakpoint, where the optimum is unique
        lam = path.at(budget=SHARE * float(path.sequence.costs[0])).lam * (1 + 1e-6)
        row = {"trees": n_trees, "instances": n_instances, "uses": len(problem.column_nodes)}
        row |= _time_solvers(problem, lam, slow_methods, n_repetitions)
        note(f"timing: {row}")
        rows.append(row)
        if "highs" in slow_methods:
            break
    return rows


def _time_solvers(
    problem: PruneProblem, lam: float, slow_methods: set[str], n_repetitions: int
) -> dict[str, Any]:
    """Time the cut and the solvers that are not in `slow_methods`; add those that are too slow."""
    cut_solution, cut_seconds = _call_timed(lambda: mincut.solve(problem, lam), n_repetitions)
    row: dict[str, Any] = {"lam": lam, "cut_cpu": round(cut_seconds, 6)}
    for name, solve in SOLVERS.items():
        if name in slow_methods:
            row[name] = None
            continue
        try:
            solution, seconds = _call_timed(lambda: solve(problem, lam))  # noqa: B023
        except RuntimeError as error:  # HiGHS reached its time limit
            slow_methods.add(name)
            row[name] = {"stopped": str(error)[:120]}
            continue
        if seconds > MAX_METHOD_SECONDS and name != "highs":
            slow_methods.add(name)
        row[name] = {
            "cpu": round(seconds, 4),
            "above": solution.objective - cut_solution.objective,
            "gap": solution.objective - solution.bound,
            "ratio": round(seconds / cut_seconds, 1),
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
    for solve in (mincut.solve, *SOLVERS.values()):
        solve(problem, 0.01)


def _call_timed(function: Callable[[], Any], n_repetitions: int = 1) -> tuple[Any, float]:
    """Return the result of a function, and the median CPU seconds of its calls."""
    seconds = []
    for _ in range(n_repetitions):
        start_time = time.process_time()
        result = function()
        seconds.append(time.process_time() - start_time)
    return result, median(seconds)
