"""CPU seconds of exact pruning: the whole frontier, single prices, and other solvers.

Everything runs alternately in one process with one thread. Figures are medians over the turns. The
objectives of all solvers are compared, so that no time belongs to a wrong solution.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
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

N_TURNS = 3
"""Repetitions whose median is reported."""
N_SOLVES = 50
"""Prices of the separate solves, which a user would try without the frontier."""
SHARES = (0.9, 0.5, 0.2)
"""Single prices keep about these shares of the cost of the unpruned forest."""
SIZES = ((5, 500), (10, 1000), (20, 2000), (40, 2000), (40, 4000), (40, 8000))
"""Numbers of trees and instances of the problems for general solvers, in ascending order."""
HIGHS_LIMIT_SECONDS = 150.0
"""Time limit of HiGHS for one price in seconds; the first size above the limit is the last."""
MAX_METHOD_SECONDS = 30.0
"""CPU seconds; a method that takes longer at one size is skipped at larger sizes."""


def measure_timings(
    fold: Fold, costs: FeatureCosts, *, n_trees: int, quick: bool
) -> dict[str, Any]:
    """Measure the whole frontier of a forest, single prices and other solvers.

    Training rows grow the forest, validation rows are the instances.
    """
    assert fold.validation is not None
    n_turns, instances = 1 if quick else N_TURNS, fold.validation[0]
    # build the problem of a forest and the instances that pay for features
    _compile_kernels(costs)
    model, growth_seconds = _call_timed(lambda: sklearn_forest(fold, n_trees))
    forest = Forest.from_sklearn(model)
    bytes_before = memory(peak=False)
    reset_memory_peak()
    problem, build_seconds = _call_timed(lambda: build_problem(forest, instances, costs))
    # the frontier for all prices
    frontier_seconds: list[float] = []
    for _ in range(n_turns):
        prune_prices, seconds = _call_timed(lambda: breakpoints(problem))
        frontier_seconds.append(seconds)
    peak_bytes = memory(peak=True)
    note(f"timing: the whole frontier took {median(frontier_seconds):.1f} CPU s")
    path = PruningPath(forest, problem, prune_prices)
    # single prices, whose objectives must equal those of the frontier
    levels = prune_prices[(prune_prices > 0) & np.isfinite(prune_prices)]
    lams = np.geomspace(levels.min(), levels.max(), 5 if quick else N_SOLVES)
    solutions, single_seconds = _call_timed(lambda: [mincut.solve(problem, lam) for lam in lams])
    note(f"timing: {len(lams)} single solves took {single_seconds:.1f} CPU s")
    largest_difference = max(
        abs(solution.objective - path.at(lam=solution.lam).objective) for solution in solutions
    )
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
            "cpu": _round(median(frontier_seconds)),
            "runs": [_round(turn_seconds) for turn_seconds in frontier_seconds],
            "breakpoints": len(np.unique(levels)),
            "peak_gb": _round(peak_bytes / 1e9),
            "before_gb": _round(bytes_before / 1e9),
        },
        "single": {
            "solves": len(lams),
            "cpu": _round(single_seconds),
            "ratio": _round(single_seconds / median(frontier_seconds)),
            "largest_difference": largest_difference,
        },
        "cuts": _time_cuts(path, n_turns),
        "solvers": measure_solvers(fold, costs, SIZES[:1] if quick else SIZES, n_turns),
    }


def _time_cuts(path: PruningPath, n_turns: int) -> list[dict[str, Any]]:
    """Time this project's cut and OR-tools alternately on the same reduced problems."""
    if not maxflow.available():
        note(maxflow.MISSING)
    closure, _ = reduce_problem(path.problem)
    full_cost = float(path.sequence.costs[0])
    rows = []
    for share in SHARES:
        lam = path.at(budget=share * full_cost).lam
        lam *= 1 + 1e-6  # near the breakpoint, where the optimum is unique
        cut_seconds: list[float] = []
        ortools_cuts: list[dict[str, Any]] = []
        for _ in range(n_turns):
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
    fold: Fold, costs: FeatureCosts, sizes: tuple[tuple[int, int], ...], n_turns: int
) -> list[dict[str, Any]]:
    """Time all solvers for one price on larger and larger problems, until HiGHS exceeds its limit.

    Each row has CPU seconds and the difference of the objective from that of the cut, and the gap
    that primal-dual proves. None marks a solver that is skipped because it was too slow before.
    """
    assert fold.validation is not None
    methods: dict[str, Callable[[PruneProblem, float], Any]] = {
        "highs": lambda problem, lam: lp.solve(problem, lam, time_limit=HIGHS_LIMIT_SECONDS),
        "dantzig_wolfe": dantzig_wolfe.solve,
        "primal_dual": primal_dual.solve,
    }
    slow_methods: set[str] = set()
    rows: list[dict[str, Any]] = []
    models: dict[int, Forest] = {}
    for n_trees, n_instances in sizes:
        # make one problem and price for all solvers
        if n_trees not in models:
            models = {n_trees: Forest.from_sklearn(sklearn_forest(fold, n_trees))}
        problem = build_problem(models[n_trees], fold.validation[0][:n_instances], costs)
        path = PruningPath(models[n_trees], problem, breakpoints(problem))
        lam = path.at(budget=0.5 * float(path.sequence.costs[0])).lam * (1 + 1e-6)
        cut_solution, cut_seconds = _call_repeatedly(lambda: mincut.solve(problem, lam), n_turns)  # noqa: B023
        row: dict[str, Any] = {
            "trees": n_trees,
            "instances": len(fold.validation[0][:n_instances]),
            "lam": lam,
            "uses": len(problem.column_nodes),
            "cut_cpu": round(cut_seconds, 6),
        }
        # time the other solvers that were not too slow before
        for name, method in methods.items():
            if name in slow_methods:
                row[name] = None
                continue
            try:
                solution, method_seconds = _call_timed(lambda: method(problem, lam))  # noqa: B023
            except RuntimeError as error:
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
        note(f"timing: {row}")
        rows.append(row)
        if "highs" in slow_methods:
            break
    return rows


def _compile_kernels(costs: FeatureCosts) -> None:
    """Compile the kernels before the timings."""
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


def _call_repeatedly(function: Callable[[], Any], n_turns: int) -> tuple[Any, float]:
    solutions_and_seconds = [_call_timed(function) for _ in range(n_turns)]
    return solutions_and_seconds[0][0], median(seconds for _, seconds in solutions_and_seconds)


def _round(seconds: float) -> float:
    return round(seconds, 4)
