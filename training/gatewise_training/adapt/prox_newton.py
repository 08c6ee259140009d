"""Proximal Newton steps for the M-step, on the features that matter.

At weights ``w_0`` with gradient ``s`` and curvature ``G`` of the loss, a step minimises over ``w``
the penalty ``gamma P(w)`` plus a quadratic model of the loss,

    Q(w) = <s, w - w_0> + 1/2 <w - w_0, G (w - w_0)>,

and then walks from ``w_0`` towards that minimum as far as the true objective falls (Armijo). The
minimum is found by proximal gradient with Nesterov's momentum (Beck & Teboulle, 2009): with ``L``
at least the largest curvature, ``v_1 = w_0`` and ``t_1 = 1``,

    w_k     = prox(v_k - (s + G (v_k - w_0)) / L, gamma / L)
    t_{k+1} = (1 + sqrt(1 + 4 t_k^2)) / 2
    v_{k+1} = w_k + (t_k - 1) / t_{k+1} (w_k - w_{k-1}).

Where ``<w_k - v_k, w_k - w_{k-1}> < 0`` momentum leads the wrong way, and ``t_k`` is 1 again
(O'Donoghue & Candes, 2015). Two things make a step fast:

- **Few features.** A feature is in the model if it has a weight or if one proximal-gradient
  step would give it one. The others meet their optimality condition already.
- **Cheap iterations.** The model needs the features' second moments, weighted by the loss's
  curvature, one matrix for each output: an iteration does not touch the rows. Between the
  classes of a softmax curvature is left out, which the line search makes up for. Where a
  matrix would cost more than it saves, the rows are used instead.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from gatewise_training.adapt.group_lasso import GroupLasso
from gatewise_training.adapt.m_step import LinearPair, MStep, Place, View

Array = NDArray[np.float64]

ITERATIONS = 60
"""Of the inner problem at most; an inexact step is good enough."""

WIDE = 2 * ITERATIONS
"""From this many features on, second moments cost more than the iterations they speed up."""

SLOPE_SHARE = 1e-4
"""Share of the fall promised that a step must keep (Armijo)."""


def solve(
    problem: MStep, start: LinearPair, *, tol: float = 1e-6, max_iter: int = 1000
) -> LinearPair:
    """Solve an M-step until its KKT residual is below `tol`; never ends above where it started."""
    place = problem.place(start)
    value = problem.objective_at(place)
    for _ in range(max_iter):
        view = problem.view(place)
        after, value = newton_step(problem, place, view, value)
        if view.residual < tol or after is place:
            break
        place = after
    return place.pair


def newton_step(problem: MStep, place: Place, view: View, value: float) -> tuple[Place, float]:
    """Take one step from a place with the objective `value`; returns the next place and its own.

    The objective never rises. It is the same place where only rounding is left.
    """
    used = place.pair.weights.any(axis=1) | view.ahead.weights.any(axis=1)
    rows = np.flatnonzero(used).astype(np.intp)
    wide = np.column_stack([problem.z[:, rows], np.ones(len(problem.z))])
    start, slope, plain = (
        np.vstack([pair.weights[rows], pair.bias])
        for pair in (place.pair, view.gradient, view.ahead)
    )
    penalty = problem.penalty.take(rows)
    model = _Quadratic(wide, problem.curvature_at(place))
    newton = model.minimise(start, slope, penalty, problem.gamma, 0.1 * view.residual)
    for goal in (newton, plain):  # the plain step always leads downwards
        move = goal - start
        promised = problem.gamma * (penalty.value(goal) - penalty.value(start))
        promised += float(np.vdot(slope, move))
        found = _walk(problem, place, value, rows, move, wide @ move, promised)
        if found is not None:
            return found
    return place, value


class _Quadratic:
    """Curvature of the model: ``G_c = wide' diag(bend_c) wide`` for each output c."""

    def __init__(self, wide: Array, bend: Array) -> None:
        self._wide, self._bend = wide, bend
        self._moments: Array | None = None
        if wide.shape[1] <= WIDE:
            # half the work, and a model needs no more digits than that
            small, scaled = wide.astype(np.float32), (wide.shape[0] * bend).astype(np.float32)
            moments = np.matmul(small.T * scaled.T[:, np.newaxis], small)
            self._moments = moments.astype(np.float64) / wide.shape[0]
            steepest = self._moments.diagonal(axis1=1, axis2=2).max()
        else:
            steepest = ((wide**2).T @ bend).max()
        self.steepest = max(float(steepest), 1e-12)
        """A first guess at the largest curvature, from below."""

    def along(self, move: Array) -> Array:
        """``G_c move_c`` of each output, of the shape of `move`, from the rows."""
        out: Array = self._wide.T @ (self._bend * (self._wide @ move))
        return out

    def minimise(
        self, start: Array, slope: Array, penalty: GroupLasso, gamma: float, enough: float
    ) -> Array:
        """Minimise model plus penalty by proximal gradient with momentum, roughly."""
        if self._moments is None:
            return _minimise(self, start, slope, penalty, gamma, enough)
        found: Array = _minimise_by_moments(
            self._moments, start, slope, penalty.own, penalty.group, penalty.shared, gamma, enough,
            self.steepest,
        )  # fmt: skip
        return found


def _minimise(
    model: _Quadratic,
    start: Array,
    slope: Array,
    penalty: GroupLasso,
    gamma: float,
    enough: float,
) -> Array:
    """Minimise by the rows: ``w``, ``w_last`` and ``v`` as above, ``g_*`` is ``G (* - w_0)``."""
    w_last = v = start
    g_last = g_v = np.zeros_like(start)
    lipschitz, t = model.steepest, 1.0
    for _ in range(ITERATIONS):
        down = slope + g_v
        while True:
            w = penalty.prox(v - down / lipschitz, gamma / lipschitz)
            move = w - v
            g_w = model.along(w - start)
            bound, seen = float(np.vdot(move, move)), float(np.vdot(move, g_w - g_v))
            if seen <= lipschitz * bound * (1.0 + 1e-9):
                break
            lipschitz = max(1.5 * lipschitz, seen / bound)
        if np.vdot(move, w - w_last) < 0.0:  # momentum leads the wrong way
            t = 1.0
        t_next = 0.5 * (1.0 + np.sqrt(1.0 + 4.0 * t**2))
        beta = (t - 1.0) / t_next
        v, g_v = w + beta * (w - w_last), g_w + beta * (g_w - g_last)
        w_last, g_last, t = w, g_w, t_next
        if lipschitz * np.abs(move).max() < enough:
            break
    return w_last


@numba.njit(cache=True, nogil=True)
def _minimise_by_moments(
    moments: Any, start: Any, slope: Any, own: Any, group: Any, shared: Any, gamma: float,
    enough: float, lipschitz: float,
) -> Any:  # fmt: skip
    """:func:`_minimise` by second moments, (n_outputs, n_rows, n_rows): a call for all iterations.

    In numpy an iteration of a few features took a hundred times as long as its sums.
    """
    n_rows, n_outputs = start.shape
    w_last, v, w = start.copy(), start.copy(), start.copy()
    g_last, g_v = np.zeros_like(start), np.zeros_like(start)
    g_w, down = np.zeros_like(start), np.empty_like(start)
    by_group = np.empty(len(shared))
    t = 1.0
    for _ in range(ITERATIONS):
        for k in range(n_rows):
            for c in range(n_outputs):
                down[k, c] = slope[k, c] + g_v[k, c]
        while True:
            step = gamma / lipschitz
            by_group[:] = 0.0
            for k in range(n_rows):
                for c in range(n_outputs):
                    w[k, c] = v[k, c] - down[k, c] / lipschitz
                norm = np.sqrt((w[k] ** 2).sum())
                left = max(0.0, 1.0 - step * own[k] / max(norm, 1e-200))
                for c in range(n_outputs):
                    w[k, c] *= left
                if group[k] >= 0:
                    by_group[group[k]] += (norm * left) ** 2
            for k in range(n_rows):
                if group[k] >= 0 and shared[group[k]] > 0.0:
                    norm = np.sqrt(by_group[group[k]])
                    left = max(0.0, 1.0 - step * shared[group[k]] / max(norm, 1e-200))
                    for c in range(n_outputs):
                        w[k, c] *= left
            bound = seen = longest = 0.0
            for c in range(n_outputs):
                for k in range(n_rows):
                    total = 0.0
                    for j in range(n_rows):
                        total += moments[c, k, j] * (w[j, c] - start[j, c])
                    g_w[k, c] = total
                    move = w[k, c] - v[k, c]
                    bound += move * move
                    seen += move * (total - g_v[k, c])
                    longest = max(longest, abs(move))
            if seen <= lipschitz * bound * (1.0 + 1e-9):
                break
            lipschitz = max(1.5 * lipschitz, seen / bound)
        if ((w - v) * (w - w_last)).sum() < 0.0:  # momentum leads the wrong way
            t = 1.0
        t_next = 0.5 * (1.0 + np.sqrt(1.0 + 4.0 * t**2))
        beta = (t - 1.0) / t_next
        for k in range(n_rows):  # element by element: arrays compile for two more seconds
            for c in range(n_outputs):
                v[k, c] = w[k, c] + beta * (w[k, c] - w_last[k, c])
                g_v[k, c] = g_w[k, c] + beta * (g_w[k, c] - g_last[k, c])
                w_last[k, c], g_last[k, c] = w[k, c], g_w[k, c]
        t = t_next
        if lipschitz * longest < enough:
            break
    return w_last


def _walk(
    problem: MStep,
    place: Place,
    value: float,
    rows: NDArray[np.intp],
    move: Array,
    drift: Array,
    promised: float,
) -> tuple[Place, float] | None:
    """Go along `move`, halving it until the objective falls as promised; None if it never does."""
    if not promised < 0.0:
        return None
    pair, share = place.pair, 1.0
    for _ in range(20):
        weights = pair.weights.copy()
        weights[rows] += share * move[:-1]
        after = LinearPair(weights, pair.bias + share * move[-1])
        found = Place(after, place.out + share * drift, place.target)
        reached = problem.objective_at(found)
        if reached <= value + SLOPE_SHARE * share * promised:
            return found, reached
        share *= 0.5
    return None
