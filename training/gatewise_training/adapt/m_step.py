"""The M-step of Adapt-LIN: f1 and g, linear, for fixed q (Adapt, NIPS 2017, OPT2).

Minimises over ``V = [f1, g]`` (a row a feature) and intercepts ``b``, which are not penalised::

    mean_i w_i [ (1 - q_i) loss(f1_i, y_i) + gate_i(g_i) ] + gamma * Omega(V)

where the gate's loss comes from the distance between q and g (:mod:`.qstep`): for
Kullback-Leibler it is the cross-entropy ``(1 - q_i) softplus(g_i) + q_i softplus(-g_i)``. The
certificate is :meth:`MStep.kkt_residual`: 0 exactly at the optimum. The penalty is in
:mod:`.group_lasso`, the solver in :mod:`.prox_newton`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from gatewise_training.adapt.group_lasso import GroupLasso
from gatewise_training.adapt.qstep import CrossEntropy, Free, GateLoss
from gatewise_training.learners.gated_rounds import log_loss

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class LinearPair:
    """Linear f1 and g: ``[f1, g] = z @ weights + bias``."""

    weights: Array  # (n_features, n_margins + 1)
    bias: Array  # (n_margins + 1,)

    def outputs(self, z: Array) -> Array:
        """Margins of f1 and, last, g, shape (n, n_margins + 1)."""
        out: Array = z @ self.weights + self.bias
        return out


@dataclass(frozen=True, eq=False)
class Place:
    """A pair with its outputs on the problem's rows, which are expensive and needed often."""

    pair: LinearPair
    out: Array  # (n, n_margins + 1): its outputs
    target: Array  # (n, n_margins)

    def beyond(self, other: Place, push: float) -> Place:
        """Extrapolate from another place past this one, by a share of their distance."""
        a, b = self.pair, other.pair
        pair = LinearPair(
            a.weights + push * (a.weights - b.weights), a.bias + push * (a.bias - b.bias)
        )
        return Place(pair, self.out + push * (self.out - other.out), self.target)

    @property
    def gate(self) -> Array:
        """``g``, shape (n,)."""
        return self.out[:, -1]

    @property
    def f1_loss(self) -> Array:
        """Loss of f1, shape (n,)."""
        return self._f1[0]

    @property
    def f1_slope(self) -> Array:
        """Its derivative by the margins, shape (n, n_margins)."""
        return self._f1[1]

    @cached_property
    def _f1(self) -> tuple[Array, Array]:
        loss, slope = _loss_and_slope(self.out, self.target)
        return loss, slope

    @property
    def f1_bend(self) -> Array:
        """Its second derivatives, each margin by itself, shape (n, n_margins)."""
        p = self.f1_slope + self.target
        return p * (1.0 - p)


@dataclass(frozen=True, eq=False)
class View:
    """Gradient, proximal-gradient step and KKT residual of the problem at a place."""

    gradient: LinearPair  # of the smooth part
    ahead: LinearPair  # where one proximal-gradient step leads
    residual: float  # the largest entry of that step, times the curvature bound


@dataclass(frozen=True, eq=False)
class MStep:
    """One M-step's problem."""

    z: Array  # (n, n_features): standardised features
    target: Array  # (n, n_margins)
    q: Array  # (n,)
    weight: Array  # (n,): of mean 1
    penalty: GroupLasso  # without its weight `gamma`
    gamma: float
    lipschitz: float  # bound on the curvature of the smooth part; see :func:`curvature_bound`
    gate: GateLoss | None = None  # cross-entropy to q by default

    @cached_property
    def _kept(self) -> Array:
        return self.weight * (1.0 - self.q)

    @cached_property
    def _gate(self) -> GateLoss:
        return CrossEntropy(self.q) if self.gate is None else self.gate

    def at(self, free: Free) -> MStep:
        """Pose the same problem after another q-step."""
        return replace(self, q=free.q, gate=free.gate)

    def place(self, pair: LinearPair) -> Place:
        """Evaluate a pair on this problem's rows."""
        return Place(pair, pair.outputs(self.z), self.target)

    def loss_at(self, place: Place) -> float:
        """The mean loss, without the penalty."""
        total = self._kept @ place.f1_loss + self.weight @ self._gate.value(place.gate)
        return float(total) / len(place.out)

    def objective_at(self, place: Place) -> float:
        """The mean loss plus the penalty."""
        return self.loss_at(place) + self.gamma * self.penalty.value(place.pair.weights)

    def objective(self, pair: LinearPair) -> float:
        """The mean loss plus the penalty."""
        return self.objective_at(self.place(pair))

    def gradient(self, pair: LinearPair) -> LinearPair:
        """Gradient of the smooth part, in the pair's shapes."""
        return self._gradient_at(self.place(pair))

    def curvature_at(self, place: Place) -> Array:
        """Second derivatives of the mean loss by each row's own outputs, of their shape."""
        bend = np.empty_like(place.out)
        bend[:, :-1] = self._kept[:, None] * place.f1_bend
        bend[:, -1] = self.weight * self._gate.curvature(place.gate)
        return bend / len(bend)

    def view(self, place: Place) -> View:
        """Gradient, proximal-gradient step and KKT residual at a place."""
        pair, gradient, step = place.pair, self._gradient_at(place), 1.0 / self.lipschitz
        ahead = LinearPair(
            self.penalty.prox(pair.weights - step * gradient.weights, step * self.gamma),
            pair.bias - step * gradient.bias,
        )
        moved = np.abs(ahead.weights - pair.weights).max(initial=0.0)
        moved = max(moved, np.abs(ahead.bias - pair.bias).max())
        return View(gradient, ahead, float(self.lipschitz * moved))

    def kkt_residual(self, pair: LinearPair) -> float:
        """Length of the proximal-gradient step, largest entry; 0 only at the optimum."""
        return self.view(self.place(pair)).residual

    def _gradient_at(self, place: Place) -> LinearPair:
        slope = np.empty_like(place.out)
        slope[:, :-1] = self._kept[:, None] * place.f1_slope
        slope[:, -1] = self.weight * self._gate.slope(place.gate)
        slope /= len(slope)
        return LinearPair(self.z.T @ slope, slope.sum(axis=0))


@numba.njit(cache=True, nogil=True)
def _loss_and_slope(out: Any, target: Any) -> Any:
    """Log loss of margins, the first columns of `out`, and its derivative."""
    loss, slope = np.empty(len(target)), np.empty(target.shape)
    for i in range(len(target)):
        loss[i] = log_loss(out[i], target[i], slope[i])
        for c in range(target.shape[1]):
            slope[i, c] -= target[i, c]
    return loss, slope


def curvature_bound(z: Array, weight: Array, n_margins: int, gate: float = 0.25) -> float:
    """Bound the curvature of the smooth part.

    The largest eigenvalue of the features' second moments, times 1/4 (1/2 for softmax) or,
    if larger, `gate`: the bound on the curvature of the gate's loss.
    """
    wide = np.column_stack([z, np.ones(len(z))]) * np.sqrt(weight / len(z))[:, None]
    largest = float(np.linalg.norm(wide.T @ wide, 2))
    return max(0.25 if n_margins == 1 else 0.5, gate) * max(largest, 1e-12)
