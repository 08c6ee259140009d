"""Proximal Newton steps for the M-step, on the features that it needs.

At weights ``w_0`` with gradient ``s`` and curvature ``G`` of the loss, a step minimises over ``w``
the penalty ``gamma P(w)`` plus a quadratic model of the loss,

    Q(w) = <s, w - w_0> + 1/2 <w - w_0, G (w - w_0)>,

and then walks from ``w_0`` towards that minimum as far as the true objective falls (Armijo). The
minimum is found by proximal gradient with Nesterov's momentum (Beck & Teboulle, 2009): with ``L``
at least the largest curvature, ``v_1 = w_0`` and ``t_1 = 1``,

    w_k     = prox(v_k - (s + G (v_k - w_0)) / L, gamma / L)
    t_{k+1} = (1 + sqrt(1 + 4 t_k^2)) / 2
    v_{k+1} = w_k + (t_k - 1) / t_{k+1} (w_k - w_{k-1}).

If ``<w_k - v_k, w_k - w_{k-1}> < 0``, the momentum points uphill, and ``t_k`` is reset to 1
(O'Donoghue & Candes, 2015). Two measures make a step fast:

- **Few features.** A feature is in the model if it has a weight or if one proximal-gradient
  step would give it one. The other features already satisfy their optimality condition.
- **Cheap iterations.** The model needs one matrix per output: the second moments of the features,
  weighted by the curvature of the loss. An iteration then does not read the rows. The curvature
  between the classes of a softmax is left out, and the line search corrects for it. If a matrix
  would cost more time than it saves, the rows are used instead.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from gatewise_training.adapt.group_lasso import GroupLasso
from gatewise_training.adapt.m_step import Iterate, LinearPair, MStep, ProximalStep

Array = NDArray[np.float64]

#: Largest number of iterations of the inner problem; an inexact step is good enough.
MAX_INNER_STEPS = 60

#: Largest number of columns for which second moments save more time than they cost. For n rows and
#: k columns they cost ``n k^2`` products, and an iteration over the rows ``2 n k``.
MAX_MOMENT_COLUMNS = 2 * MAX_INNER_STEPS

#: Share of the predicted decrease that a step must reach; the usual value of Armijo's rule.
ARMIJO_SHARE = 1e-4

#: Largest number of halvings of a step in the line search, to a millionth of the step.
MAX_HALVINGS = 20


def solve(
    problem: MStep, start: LinearPair, *, tol: float = 1e-6, max_iter: int = 1000
) -> LinearPair:
    """Solve an M-step until its KKT residual is below `tol`; the objective never rises."""
    iterate = problem.evaluate(start)
    objective = problem.objective_at(iterate)
    for _ in range(max_iter):
        proximal_step = problem.proximal_step(iterate)
        next_iterate, objective = newton_step(problem, iterate, proximal_step, objective)
        if proximal_step.residual < tol or next_iterate is iterate:
            break
        iterate = next_iterate
    return iterate.pair


def newton_step(
    problem: MStep, iterate: Iterate, proximal_step: ProximalStep, objective: float
) -> tuple[Iterate, float]:
    """Make one step from an iterate with its objective; return the new iterate and objective.

    The objective never rises. If no step lowers it, the iterate itself is returned.
    """
    # select the features in the model; the intercepts are the last row
    pair = iterate.pair
    has_weight = pair.weights.any(axis=1) | proximal_step.endpoint.weights.any(axis=1)
    features = np.flatnonzero(has_weight).astype(np.intp)
    columns = np.column_stack([problem.z[:, features], np.ones(len(problem.z))])
    w_0 = np.vstack([pair.weights[features], pair.bias])
    slope = np.vstack([proximal_step.gradient.weights[features], proximal_step.gradient.bias])
    gradient_target = np.vstack(
        [proximal_step.endpoint.weights[features], proximal_step.endpoint.bias]
    )
    # minimise the quadratic model plus the penalty
    penalty = problem.penalty.select_rows(features)
    model = _QuadraticModel(columns, problem.curvature_at(iterate))
    inner_problem = InnerProblem(
        w_0, slope, penalty.own, penalty.group, penalty.shared, problem.gamma
    )
    # a tenth of the residual keeps the error of the step below the progress that it makes
    newton_target = model.minimise(inner_problem, penalty, 0.1 * proximal_step.residual)
    # search along the Newton step, or else along the gradient step, which always leads downhill
    for target in (newton_target, gradient_target):
        move = target - w_0
        decrease = problem.gamma * (penalty.value(target) - penalty.value(w_0))
        decrease += float(np.vdot(slope, move))
        weight_move = WeightMove(features, move, columns @ move, decrease)
        accepted_step = _search_line(problem, iterate, objective, weight_move)
        if accepted_step is not None:
            return accepted_step
    return iterate, objective


class InnerProblem(NamedTuple):
    """The slope of the loss at ``w_0`` and the penalty, for the features in the model."""

    w_0: Any  # (n_rows, n_outputs)
    slope: Any  # (n_rows, n_outputs)
    own: Any  # (n_rows,): prices of :class:`.GroupLasso`
    group: Any  # (n_rows,)
    shared: Any  # (n_groups,)
    gamma: float


class _QuadraticModel:
    """Curvature ``G_c = columns' diag(curvature_c) columns`` of the model, for each output c."""

    def __init__(self, columns: Array, curvature: Array) -> None:
        self._columns = columns
        self._curvature = curvature
        self._moments: Array | None = None
        n = len(columns)
        if columns.shape[1] <= MAX_MOMENT_COLUMNS:
            # float32 halves the work, and is precise enough for the model
            columns_32 = columns.astype(np.float32)
            curvature_32 = (n * curvature).astype(np.float32)
            moments = np.matmul(columns_32.T * curvature_32.T[:, np.newaxis], columns_32)
            self._moments = moments.astype(np.float64) / n
            largest_diagonal = self._moments.diagonal(axis1=1, axis2=2).max()
        else:
            largest_diagonal = ((columns**2).T @ curvature).max()
        #: Lower bound on the largest curvature.
        self.largest_diagonal = max(float(largest_diagonal), 1e-12)

    def product(self, move: Array) -> Array:
        """Compute ``G_c move_c`` of each output from the rows, in the shape of `move`."""
        curved_move: Array = self._columns.T @ (self._curvature * (self._columns @ move))
        return curved_move

    def minimise(self, inner: InnerProblem, penalty: GroupLasso, tolerance: float) -> Array:
        """Minimise the model plus the penalty approximately, by proximal gradient with momentum."""
        if self._moments is None:
            return _minimise_by_rows(self, inner, penalty, tolerance)
        w: Array = _minimise_by_moments(self._moments, inner, tolerance, self.largest_diagonal)
        return w


def _minimise_by_rows(
    model: _QuadraticModel, inner: InnerProblem, penalty: GroupLasso, tolerance: float
) -> Array:
    """Minimise without second moments; `g_v`, `g_w` are ``G (v - w_0)`` and ``G (w - w_0)``."""
    w_0: Array = inner.w_0
    w_before = v = w_0
    g_before = g_v = np.zeros_like(w_0)
    lipschitz = model.largest_diagonal
    t = 1.0
    for _ in range(MAX_INNER_STEPS):
        # w_k = prox(v_k - (s + G (v_k - w_0)) / L, gamma / L)
        gradient = inner.slope + g_v
        while True:
            w = penalty.prox(v - gradient / lipschitz, inner.gamma / lipschitz)
            move = w - v
            g_w = model.product(w - w_0)
            # L is large enough if <move, G move> <= L <move, move>, up to rounding
            square = float(np.vdot(move, move))
            curvature = float(np.vdot(move, g_w - g_v))
            if curvature <= lipschitz * square * (1.0 + 1e-9):
                break
            lipschitz = max(1.5 * lipschitz, curvature / square)
        if np.vdot(move, w - w_before) < 0.0:
            t = 1.0
        # v_{k+1} = w_k + (t_k - 1) / t_{k+1} (w_k - w_{k-1})
        t_next = 0.5 * (1.0 + np.sqrt(1.0 + 4.0 * t**2))
        beta = (t - 1.0) / t_next
        v = w + beta * (w - w_before)
        g_v = g_w + beta * (g_w - g_before)
        w_before = w
        g_before = g_w
        t = t_next
        if lipschitz * np.abs(move).max() < tolerance:
            break
    return w_before


class InnerWork(NamedTuple):
    """Working arrays of :func:`_minimise_by_moments`, of shape (n_rows, n_outputs)."""

    w: Any
    w_before: Any
    v: Any
    g_w: Any  # G (w - w_0)
    g_before: Any
    g_v: Any  # G (v - w_0)
    gradient: Any
    group_squares: Any  # (n_groups,)


@numba.njit(cache=True, nogil=True)
def _minimise_by_moments(moments: Any, inner: Any, tolerance: float, lipschitz: float) -> Any:
    """Minimise as :func:`_minimise_by_rows`, by second moments (n_outputs, n_rows, n_rows).

    This is compiled, because an iteration of numpy on a few features took a hundred times as long
    as its sums. Loops run over elements, because operations on whole arrays take two more seconds
    to compile.
    """
    w_0 = inner.w_0
    n_rows, n_outputs = w_0.shape
    work = InnerWork(
        w=w_0.copy(),
        w_before=w_0.copy(),
        v=w_0.copy(),
        g_w=np.zeros_like(w_0),
        g_before=np.zeros_like(w_0),
        g_v=np.zeros_like(w_0),
        gradient=np.empty_like(w_0),
        group_squares=np.empty(len(inner.shared)),
    )
    w, w_before, v, g_w, g_before, g_v, gradient, _ = work
    t = 1.0
    for _ in range(MAX_INNER_STEPS):
        for k in range(n_rows):
            for c in range(n_outputs):
                gradient[k, c] = inner.slope[k, c] + g_v[k, c]
        while True:
            # w_k = prox(v_k - (s + G (v_k - w_0)) / L, gamma / L)
            _write_proximal_point(inner, work, lipschitz)
            # L is large enough if <move, G move> <= L <move, move>
            square, curvature, longest = _measure_move(moments, w_0, work)
            if curvature <= lipschitz * square * (1.0 + 1e-9):
                break
            lipschitz = max(1.5 * lipschitz, curvature / square)
        if ((w - v) * (w - w_before)).sum() < 0.0:
            t = 1.0
        # v_{k+1} = w_k + (t_k - 1) / t_{k+1} (w_k - w_{k-1})
        t_next = 0.5 * (1.0 + np.sqrt(1.0 + 4.0 * t**2))
        beta = (t - 1.0) / t_next
        for k in range(n_rows):
            for c in range(n_outputs):
                v[k, c] = w[k, c] + beta * (w[k, c] - w_before[k, c])
                g_v[k, c] = g_w[k, c] + beta * (g_w[k, c] - g_before[k, c])
                w_before[k, c] = w[k, c]
                g_before[k, c] = g_w[k, c]
        t = t_next
        if lipschitz * longest < tolerance:
            break
    return w_before


@numba.njit(cache=True, nogil=True)
def _write_proximal_point(inner: Any, work: Any, lipschitz: float) -> None:
    """Write ``prox(v - gradient / L, gamma / L)`` into `work.w`; rows shrink first, then groups."""
    w = work.w
    n_rows, n_outputs = w.shape
    step = inner.gamma / lipschitz
    work.group_squares[:] = 0.0
    for k in range(n_rows):
        for c in range(n_outputs):
            w[k, c] = work.v[k, c] - work.gradient[k, c] / lipschitz
        norm = np.sqrt((w[k] ** 2).sum())
        factor = max(0.0, 1.0 - step * inner.own[k] / max(norm, 1e-200))  # a row may be 0
        for c in range(n_outputs):
            w[k, c] *= factor
        if inner.group[k] >= 0:
            work.group_squares[inner.group[k]] += (norm * factor) ** 2
    for k in range(n_rows):
        if inner.group[k] >= 0 and inner.shared[inner.group[k]] > 0.0:
            norm = np.sqrt(work.group_squares[inner.group[k]])
            factor = max(0.0, 1.0 - step * inner.shared[inner.group[k]] / max(norm, 1e-200))
            for c in range(n_outputs):
                w[k, c] *= factor


@numba.njit(cache=True, nogil=True)
def _measure_move(moments: Any, w_0: Any, work: Any) -> Any:
    """Write ``G (w - w_0)`` into `work.g_w`, and measure the move ``w - v``.

    Returns ``<move, move>``, ``<move, G move>`` and the largest absolute entry of the move.
    """
    n_rows, n_outputs = w_0.shape
    square = curvature = longest = 0.0
    for c in range(n_outputs):
        for k in range(n_rows):
            g_w_entry = 0.0
            for j in range(n_rows):
                g_w_entry += moments[c, k, j] * (work.w[j, c] - w_0[j, c])
            work.g_w[k, c] = g_w_entry
            move = work.w[k, c] - work.v[k, c]
            square += move * move
            curvature += move * (g_w_entry - work.g_v[k, c])
            longest = max(longest, abs(move))
    return square, curvature, longest


class WeightMove(NamedTuple):
    """A move of the weights of some features, and of the intercepts as its last row."""

    features: NDArray[np.intp]
    move: Array  # (n_features + 1, n_outputs)
    output_move: Array  # (n, n_outputs): change of the outputs by the whole move
    decrease: float  # predicted change of the objective, negative


def _search_line(
    problem: MStep, iterate: Iterate, objective_before: float, weight_move: WeightMove
) -> tuple[Iterate, float] | None:
    """Halve a move until the objective falls as predicted, or None if it never does."""
    if not weight_move.decrease < 0.0:
        return None
    pair = iterate.pair
    step = 1.0
    for _ in range(MAX_HALVINGS):
        weights = pair.weights.copy()
        weights[weight_move.features] += step * weight_move.move[:-1]
        moved_pair = LinearPair(weights, pair.bias + step * weight_move.move[-1])
        outputs = iterate.outputs + step * weight_move.output_move
        candidate = Iterate(moved_pair, outputs, iterate.target)
        objective = problem.objective_at(candidate)
        if objective <= objective_before + ARMIJO_SHARE * step * weight_move.decrease:
            return candidate, objective
        step *= 0.5
    return None
