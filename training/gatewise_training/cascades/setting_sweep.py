"""Sweeps: chains of one stage over a grid of settings, judged by rows they have not seen.

Settings whose fits start from one another form a path. On small data every path is fitted
five times without a fifth of the rows, which those fits then judge, and once with all rows:
that is what is kept. Fits run in parallel under joblib.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import joblib
import numpy as np

from gatewise.models.stage import Stage
from gatewise_training.cascades.fit_problem import Chain, Problem
from gatewise_training.data.validation_split import Rows

__all__ = ["sweep"]

Path = Callable[[Rows], list[Stage]]


def sweep(problem: Problem, paths: Sequence[Path], what: str) -> list[Chain]:
    """Fit every path on the rows that fit, and judge each of its stages.

    Parameters
    ----------
    problem : Problem
    paths : sequence of callable
        From row indices to fitted stages, the same number whatever the rows. Can be pickled.
    what : str
        For the progress report.

    Returns
    -------
    list of Chain
        One stage each: the stages of the first path in their order, then the next path's.
    """
    plan = problem.plan
    parts = [rows for rows, _ in plan.folds]
    if len(parts) > 1:
        parts.append(plan.fit_rows)
    jobs = [joblib.delayed(path)(rows) for path in paths for rows in parts]
    fits: list[list[Stage]] = []
    for stages in joblib.Parallel(n_jobs=problem.n_jobs, return_as="generator")(jobs):
        fits.append(stages)
        problem.report(len(fits), len(jobs), what)
    chains = []
    for first in range(0, len(fits), len(parts)):
        folds = fits[first : first + len(plan.folds)]
        for i, stage in enumerate(fits[first + len(parts) - 1]):
            answers = [
                stages[i].margins(plan.x[held])
                for stages, (_, held) in zip(folds, plan.folds, strict=True)
            ]
            chains.append(Chain((stage,), (np.concatenate(answers),)))
    return chains
