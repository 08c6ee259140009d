"""The M-step of Adapt-LIN: linear f1 and g for fixed q (Adapt, NIPS 2017, OPT2).

It minimises, over ``V = [f1, g]`` with one row per feature and over unpenalised intercepts ``b``,
::

    mean_i w_i [ (1 - q_i) loss(f1_i, y_i) + gate_i(g_i) ] + gamma * Omega(V)

where the gate's loss is given by the distance between q and g (:mod:`.qstep`). For the
Kullback-Leibler divergence it is the cross-entropy ``(1 - q_i) softplus(g_i) + q_i
softplus(-g_i)``. :attr:`ProximalStep.residual` measures how far a solution is from the optimum,
and is 0 only there. The penalty is in :mod:`.group_lasso`, and the solver in :mod:`.prox_newton`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from gatewise_training.adapt.group_lasso import GroupLasso
from gatewise_training.adapt.qstep import CrossEntropy, FreeProbabilities, GateLoss
from gatewise_training.learners.gated_rounds import log_loss

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class LinearPair:
    """Linear f1 and g: ``[f1, g] = z @ weights + bias``."""

    weights: Array  # (n_features, n_margins + 1)
    bias: Array  # (n_margins + 1,)

    def outputs(self, z: Array) -> Array:
        """Compute the margins of f1 and, in the last column, g; shape (n, n_margins + 1)."""
        outputs: Array = z @ self.weights + self.bias
        return outputs


@dataclass(frozen=True, eq=False)
class Iterate:
    """A pair and its outputs on the problem's rows, which are expensive to compute again."""

    pair: LinearPair
    outputs: Array  # (n, n_margins + 1)
    target: Array  # (n, n_margins)

    def extrapolate(self, previous: Iterate, factor: float) -> Iterate:
        """Extrapolate by `factor` times the difference of this iterate from the previous one."""
        weights, bias = self.pair.weights, self.pair.bias
        pair = LinearPair(
            weights + factor * (weights - previous.pair.weights),
            bias + factor * (bias - previous.pair.bias),
        )
        outputs = self.outputs + factor * (self.outputs - previous.outputs)
        return Iterate(pair, outputs, self.target)

    @property
    def g(self) -> Array:
        """``g``, shape (n,)."""
        return self.outputs[:, -1]

    @property
    def f1_loss(self) -> Array:
        """Loss of f1, shape (n,)."""
        return self._f1_loss_and_slope[0]

    @property
    def f1_slope(self) -> Array:
        """Derivative of f1's loss with respect to its margins, shape (n, n_margins)."""
        return self._f1_loss_and_slope[1]

    @cached_property
    def _f1_loss_and_slope(self) -> tuple[Array, Array]:
        loss, slope = _compute_loss_and_slope(self.outputs, self.target)
        return loss, slope

    @property
    def f1_curvature(self) -> Array:
        """Second derivative of f1's loss with respect to each margin, shape (n, n_margins)."""
        p = self.f1_slope + self.target
        return p * (1.0 - p)


@dataclass(frozen=True, eq=False)
class ProximalStep:
    """A proximal-gradient step, and the KKT residual of the iterate that it starts from."""

    gradient: LinearPair  # of the smooth part
    endpoint: LinearPair
    residual: float


@dataclass(frozen=True, eq=False)
class MStep:
    """The problem of one M-step."""

    z: Array  # (n, n_features): standardised features
    target: Array  # (n, n_margins)
    q: Array  # (n,)
    weight: Array  # (n,): of mean 1
    penalty: GroupLasso  # without its weight `gamma`
    gamma: float
    lipschitz: float  # bound on the curvature of the smooth part; see :func:`curvature_bound`
    gate: GateLoss | None = None  # cross-entropy to q by default

    @cached_property
    def _f1_weight(self) -> Array:
        return self.weight * (1.0 - self.q)

    @cached_property
    def _gate_loss(self) -> GateLoss:
        return CrossEntropy(self.q) if self.gate is None else self.gate

    def with_q(self, probabilities: FreeProbabilities) -> MStep:
        """Get the same problem with the probabilities of another q-step."""
        return replace(self, q=probabilities.q, gate=probabilities.gate_loss)

    def evaluate(self, pair: LinearPair) -> Iterate:
        """Evaluate a pair on this problem's rows."""
        return Iterate(pair, pair.outputs(self.z), self.target)

    def loss_at(self, iterate: Iterate) -> float:
        """Compute the mean loss, without the penalty."""
        loss_sum = self._f1_weight @ iterate.f1_loss + self.weight @ self._gate_loss.value(
            iterate.g
        )
        return float(loss_sum) / len(iterate.outputs)

    def objective_at(self, iterate: Iterate) -> float:
        """Compute the mean loss plus the penalty."""
        return self.loss_at(iterate) + self.gamma * self.penalty.value(iterate.pair.weights)

    def objective(self, pair: LinearPair) -> float:
        """Compute the mean loss plus the penalty of a pair."""
        return self.objective_at(self.evaluate(pair))

    def gradient(self, pair: LinearPair) -> LinearPair:
        """Compute the gradient of the smooth part, in the shapes of the pair."""
        return self._gradient_at(self.evaluate(pair))

    def curvature_at(self, iterate: Iterate) -> Array:
        """Compute the second derivatives of the mean loss, in the shape of the outputs."""
        curvature = np.empty_like(iterate.outputs)
        curvature[:, :-1] = self._f1_weight[:, None] * iterate.f1_curvature
        curvature[:, -1] = self.weight * self._gate_loss.curvature(iterate.g)
        return curvature / len(curvature)

    def proximal_step(self, iterate: Iterate) -> ProximalStep:
        """Compute ``prox(V - grad / L, gamma / L)`` at an iterate, where L is `lipschitz`."""
        pair = iterate.pair
        gradient = self._gradient_at(iterate)
        step_size = 1.0 / self.lipschitz
        endpoint = LinearPair(
            self.penalty.prox(pair.weights - step_size * gradient.weights, step_size * self.gamma),
            pair.bias - step_size * gradient.bias,
        )
        largest_move = max(
            np.abs(endpoint.weights - pair.weights).max(initial=0.0),
            np.abs(endpoint.bias - pair.bias).max(),
        )
        return ProximalStep(gradient, endpoint, float(self.lipschitz * largest_move))

    def _gradient_at(self, iterate: Iterate) -> LinearPair:
        slope = np.empty_like(iterate.outputs)
        slope[:, :-1] = self._f1_weight[:, None] * iterate.f1_slope
        slope[:, -1] = self.weight * self._gate_loss.slope(iterate.g)
        slope /= len(slope)
        return LinearPair(self.z.T @ slope, slope.sum(axis=0))


@numba.njit(cache=True, nogil=True)
def _compute_loss_and_slope(outputs: Any, target: Any) -> Any:
    """Compute the log loss of the margins (the first outputs), and its derivative."""
    loss = np.empty(len(target))
    slope = np.empty(target.shape)
    for i in range(len(target)):
        loss[i] = log_loss(outputs[i], target[i], slope[i])
        for c in range(target.shape[1]):
            slope[i, c] -= target[i, c]
    return loss, slope


def curvature_bound(z: Array, weight: Array, n_margins: int, gate_curvature: float = 0.25) -> float:
    """Bound the curvature of the smooth part, by the second moments and the losses' bounds."""
    columns = np.column_stack([z, np.ones(len(z))]) * np.sqrt(weight / len(z))[:, None]
    largest_eigenvalue = float(np.linalg.norm(columns.T @ columns, 2))
    # the curvature of the log loss is at most 1/4 for one margin, and 1/2 for a softmax
    return max(0.25 if n_margins == 1 else 0.5, gate_curvature) * max(largest_eigenvalue, 1e-12)
