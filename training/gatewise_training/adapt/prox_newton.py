"""Proximal Newton steps for the M-step, on the features that matter.

A step minimises the penalty plus a quadratic model of the loss, by proximal gradient with
momentum (Beck & Teboulle, 2009, with the restarts of O'Donoghue & Candes, 2015), and then
walks towards that minimum as far as the true objective falls. Two things make it fast:

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
    """The same by the rows."""
    here = ahead = start
    bent_here = bent_ahead = np.zeros_like(start)
    steepest, momentum = model.steepest, 1.0
    for _ in range(ITERATIONS):
        down = slope + bent_ahead
        while True:
            new = penalty.prox(ahead - down / steepest, gamma / steepest)
            move = new - ahead
            bent = model.along(new - start)
            bound, seen = float(np.vdot(move, move)), float(np.vdot(move, bent - bent_ahead))
            if seen <= steepest * bound * (1.0 + 1e-9):
                break
            steepest = max(1.5 * steepest, seen / bound)
        if np.vdot(move, new - here) < 0.0:  # momentum leads the wrong way
            momentum = 1.0
        grown = 0.5 * (1.0 + np.sqrt(1.0 + 4.0 * momentum**2))
        push = (momentum - 1.0) / grown
        ahead, bent_ahead = new + push * (new - here), bent + push * (bent - bent_here)
        here, bent_here, momentum = new, bent, grown
        if steepest * np.abs(move).max() < enough:
            break
    return here


@numba.njit(cache=True, nogil=True)
def _minimise_by_moments(
    moments: Any, start: Any, slope: Any, own: Any, group: Any, shared: Any, gamma: float,
    enough: float, steepest: float,
) -> Any:  # fmt: skip
    """:func:`_minimise` by second moments, (n_outputs, n_rows, n_rows): a call for all iterations.

    In numpy an iteration of a few features took a hundred times as long as its sums.
    """
    n_rows, n_outputs = start.shape
    here, ahead, new = start.copy(), start.copy(), start.copy()
    bent_here, bent_ahead = np.zeros_like(start), np.zeros_like(start)
    bent, down = np.zeros_like(start), np.empty_like(start)
    by_group = np.empty(len(shared))
    momentum = 1.0
    for _ in range(ITERATIONS):
        for k in range(n_rows):
            for c in range(n_outputs):
                down[k, c] = slope[k, c] + bent_ahead[k, c]
        while True:
            step = gamma / steepest
            by_group[:] = 0.0
            for k in range(n_rows):
                for c in range(n_outputs):
                    new[k, c] = ahead[k, c] - down[k, c] / steepest
                norm = np.sqrt((new[k] ** 2).sum())
                left = max(0.0, 1.0 - step * own[k] / max(norm, 1e-200))
                for c in range(n_outputs):
                    new[k, c] *= left
                if group[k] >= 0:
                    by_group[group[k]] += (norm * left) ** 2
            for k in range(n_rows):
                if group[k] >= 0 and shared[group[k]] > 0.0:
                    norm = np.sqrt(by_group[group[k]])
                    left = max(0.0, 1.0 - step * shared[group[k]] / max(norm, 1e-200))
                    for c in range(n_outputs):
                        new[k, c] *= left
            bound = seen = longest = 0.0
            for c in range(n_outputs):
                for k in range(n_rows):
                    total = 0.0
                    for j in range(n_rows):
                        total += moments[c, k, j] * (new[j, c] - start[j, c])
                    bent[k, c] = total
                    move = new[k, c] - ahead[k, c]
                    bound += move * move
                    seen += move * (total - bent_ahead[k, c])
                    longest = max(longest, abs(move))
            if seen <= steepest * bound * (1.0 + 1e-9):
                break
            steepest = max(1.5 * steepest, seen / bound)
        if ((new - ahead) * (new - here)).sum() < 0.0:  # momentum leads the wrong way
            momentum = 1.0
        grown = 0.5 * (1.0 + np.sqrt(1.0 + 4.0 * momentum**2))
        push = (momentum - 1.0) / grown
        for k in range(n_rows):  # element by element: arrays compile for two more seconds
            for c in range(n_outputs):
                ahead[k, c] = new[k, c] + push * (new[k, c] - here[k, c])
                bent_ahead[k, c] = bent[k, c] + push * (bent[k, c] - bent_here[k, c])
                here[k, c], bent_here[k, c] = new[k, c], bent[k, c]
        momentum = grown
        if steepest * longest < enough:
            break
    return here


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
