"""The pruning problem by column generation over trees: HiGHS as master, trees as sub-problems.

"Optimally pruning decision tree ensembles with feature cost" (2016), section 5. A master program
combines the prunings of each tree seen so far (:mod:`.restricted_master`). Its multipliers charge
first uses in the sub-problems: each tree's best pruning then comes bottom up
(:mod:`.tree_recursion`), trees in parallel, and goes into the master if it is new to it.
The sum of the sub-problems' optima is a lower bound, so the gap is proved at every step.

Beyond the paper, each of which can be turned off:

- the master may combine parts of prunings (Bienstock & Zuckerberg, 2010), not only whole ones;
- multipliers are smoothed towards the best so far (Wentges, 1997), which start from a few steps of
  dual ascent (:mod:`.primal_dual`).

As the master's optimum may mix prunings, the best level set of the mixture is taken, which is an
integral optimum.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from gatewise.errors import InputError
from gatewise_training.prune.problem import PruneProblem, Solution, check_price
from gatewise_training.prune.solvers import primal_dual
from gatewise_training.prune.solvers.restricted_master import ConvexMaster, PartitionMaster
from gatewise_training.prune.tree_recursion import PricedTrees, improved, level_sets, merged

_MASTERS = {"partition": PartitionMaster, "convex": ConvexMaster}


def solve(
    problem: PruneProblem,
    lam: float,
    *,
    master: Literal["partition", "convex"] = "partition",
    smoothing: float = 0.5,
    warm_up: int = 20,
    tolerance: float = 1e-11,
    max_iterations: int = 1000,
    n_jobs: int = 1,
) -> Solution:
    """Prune by Dantzig-Wolfe decomposition."""
    lam = check_price(lam)
    if master not in _MASTERS:
        raise InputError(f"master must be one of {', '.join(_MASTERS)}, not {master!r}")
    if warm_up < 0 or not 0.0 <= smoothing < 1.0:
        raise InputError("warm_up must be at least 0, and smoothing in [0, 1)")
    problem = merged(problem)
    trees = PricedTrees(problem, lam, n_jobs)
    combined = _MASTERS[master](trees)
    best, center = np.zeros(problem.n_nodes, np.bool_), None
    objective, bound = float(problem.objective(best, lam)), -np.inf
    if warm_up:
        start = primal_dual.solve(
            problem, lam, tolerance=0.0, max_iterations=warm_up, n_jobs=n_jobs
        )
        best, objective, bound, center = start.keep, start.objective, start.bound, start.beta
        combined.add(best)
        combined.add(trees.best(trees.charges(center))[0])
    step = 0
    while step < max_iterations and objective - bound > tolerance:
        step += 1
        beta, share = combined.solve()
        for keep, value in (level_sets(problem, share, lam), improved(problem, best, lam)):
            if value < objective:
                best, objective = keep, value
        mixed = beta
        if center is not None:
            mixed = smoothing * center + (1.0 - smoothing) * beta
        new = False
        for charged in (mixed, beta):
            keep, gain = trees.best(trees.charges(charged))
            value = trees.bound(gain)
            if value > bound:
                bound, center = value, charged
            new = combined.add(keep) or new
        if not new:  # the master spans the prunings that its multipliers make best: it is optimal
            break
    return Solution(best, objective, min(bound, objective), lam, step)
