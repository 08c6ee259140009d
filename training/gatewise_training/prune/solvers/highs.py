"""HiGHS through scipy, for programs with shares of an error as costs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog


def minimise(
    cost: NDArray[np.float64],
    *,
    what: str,
    method: str = "highs",
    time_limit: float | None = None,
    **program: Any,
) -> tuple[NDArray[np.float64], NDArray[np.float64], int]:
    """Solve a linear program of inequalities ``A_ub x <= b_ub`` and, if given, equalities.

    HiGHS's tolerances are absolute, and one row's share of the error may be below them, so costs
    are scaled to a mean size of 1. `what` is solved, for the message; `program` holds the rest of
    :func:`scipy.optimize.linprog`'s program.

    Shapes: returns `x` (n_variables,), `multipliers` (n_inequalities,).
    """
    size = np.abs(cost)
    scale = float(size[size > 0].mean()) if size.any() else 1.0
    options = {} if time_limit is None else {"time_limit": time_limit}
    run: Any = linprog  # its overloads do not know sparse programs in parts
    result = run(cost / scale, method=method, options=options, **program)
    if result.status != 0:
        raise RuntimeError(f"HiGHS found no optimum of {what}: {result.message}")
    multipliers = -np.asarray(result.ineqlin.marginals) * scale
    return np.asarray(result.x), multipliers, int(result.nit)
