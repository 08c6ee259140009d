"""The M-step of Adapt-LIN: f1 and g, linear, for fixed q (Adapt, NIPS 2017, OPT2).

Minimises over ``V = [f1, g]`` (a row a feature) and intercepts ``b``, which pay nothing::

    mean_i w_i [ (1 - q_i) (loss(f1_i, y_i) + softplus(g_i)) + q_i softplus(-g_i) ]
        + gamma * Omega(V)

by proximal gradient with momentum and restarts (FISTA). The certificate is
:func:`kkt_residual`: 0 exactly at the optimum.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from gatewise_training.adapt.group_lasso import group_lasso, prox_group_lasso
from gatewise_training.costs import FeatureCosts
from gatewise_training.losses import log_loss, log_loss_gradient, softplus

__all__ = ["LinearPair", "MStep"]

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class LinearPair:
    """Linear f1 and g: ``[f1, g] = z @ weights + bias``.

    Attributes
    ----------
    weights : ndarray of float64, shape (n_features, n_margins + 1)
    bias : ndarray of float64, shape (n_margins + 1,)
    """

    weights: Array
    bias: Array

    def outputs(self, z: Array) -> Array:
        """Margins of f1 and, last, g, shape (n, n_margins + 1)."""
        out: Array = z @ self.weights + self.bias
        return out


@dataclass(frozen=True, eq=False)
class MStep:
    """One M-step's problem.

    Attributes
    ----------
    z : ndarray of float64, shape (n, n_features)
        Standardised features.
    target : ndarray of float64, shape (n, n_margins)
    q : ndarray of float64, shape (n,)
    weight : ndarray of float64, shape (n,)
        Of mean 1.
    costs : FeatureCosts
    gamma : float
    lipschitz : float
        Bound on the curvature of the smooth part; see :func:`curvature_bound`.
    """

    z: Array
    target: Array
    q: Array
    weight: Array
    costs: FeatureCosts
    gamma: float
    lipschitz: float

    @cached_property
    def _kept(self) -> Array:
        return self.weight * (1.0 - self.q)

    def smooth(self, pair: LinearPair) -> float:
        """The mean loss, without the penalty."""
        out = pair.outputs(self.z)
        f1, g = out[:, :-1], out[:, -1]
        loss = self._kept * (log_loss(f1, self.target) + softplus(g))
        loss += self.weight * self.q * softplus(-g)
        return float(loss.mean())

    def objective(self, pair: LinearPair) -> float:
        """The mean loss plus the penalty."""
        return self.smooth(pair) + self.gamma * group_lasso(pair.weights, self.costs)

    def gradient(self, pair: LinearPair) -> LinearPair:
        """Gradient of the smooth part, in the pair's shapes."""
        out = pair.outputs(self.z)
        slope = np.empty_like(out)
        slope[:, :-1] = self._kept[:, None] * log_loss_gradient(out[:, :-1], self.target)
        slope[:, -1] = self.weight * (expit(out[:, -1]) - self.q)
        slope /= len(self.z)
        return LinearPair(self.z.T @ slope, slope.sum(axis=0))

    def kkt_residual(self, pair: LinearPair) -> float:
        """Length of the proximal-gradient step, largest entry; 0 only at the optimum."""
        step = self._step(pair)
        moved = np.abs(step.weights - pair.weights).max(initial=0.0)
        return float(self.lipschitz * max(moved, np.abs(step.bias - pair.bias).max()))

    def solve(self, start: LinearPair, *, tol: float = 1e-6, max_iter: int = 1000) -> LinearPair:
        """Proximal gradient with momentum; never ends above where it started.

        Parameters
        ----------
        start : LinearPair
        tol : float, default 1e-6
            On :meth:`kkt_residual`.
        max_iter : int, default 1000
        """
        here = ahead = start
        value, momentum = self.objective(start), 1.0
        for _ in range(max_iter):
            step = self._step(ahead)
            after = self.objective(step)
            if after > value:  # momentum overshot: a plain step from here cannot rise
                ahead, momentum = here, 1.0
                step = self._step(here)
                after = self.objective(step)
            moved = np.abs(step.weights - ahead.weights).max(initial=0.0)
            moved = max(moved, np.abs(step.bias - ahead.bias).max())
            grown = 0.5 * (1.0 + np.sqrt(1.0 + 4.0 * momentum**2))
            push = (momentum - 1.0) / grown
            ahead = LinearPair(
                step.weights + push * (step.weights - here.weights),
                step.bias + push * (step.bias - here.bias),
            )
            if after > value:  # only rounding is left
                return here
            here, value, momentum = step, after, grown
            if self.lipschitz * moved < tol and self.kkt_residual(here) < tol:
                break
        return here

    def at(self, q: Array) -> MStep:
        """Pose the same problem for another q."""
        return replace(self, q=q)

    def _step(self, pair: LinearPair) -> LinearPair:
        slope = self.gradient(pair)
        weights = pair.weights - slope.weights / self.lipschitz
        return LinearPair(
            prox_group_lasso(weights, self.costs, self.gamma / self.lipschitz),
            pair.bias - slope.bias / self.lipschitz,
        )


def curvature_bound(z: Array, weight: Array, n_margins: int) -> float:
    """Bound the curvature of the smooth part: 1/4 of the largest eigenvalue (1/2 for softmax)."""
    wide = np.column_stack([z, np.ones(len(z))]) * np.sqrt(weight / len(z))[:, None]
    largest = float(np.linalg.norm(wide.T @ wide, 2))
    return (0.25 if n_margins == 1 else 0.5) * max(largest, 1e-12)
