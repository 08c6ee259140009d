"""How far the gate is from the free offload probabilities: the distance ``D(q, g)`` of OPT.

The gate `g` is a function of the features; the probabilities `q` are free, one for each row
(Adapt, NIPS 2017, section 3). A distance says two things: which q is best for given losses and
gate (the q-step), and what the gate then has to fit (a loss, for the M-step).

- :class:`KullbackLeibler`, of Adapt-LIN and Adapt-GBRT: the gate fits q by cross-entropy.
- :class:`LogOdds`, of Adapt-LSTSQ: the gate fits the log odds of q by least squares.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from gatewise.models.losses import softplus
from gatewise_training.adapt.qstep import entropy, q_step, q_step_log_odds

__all__ = ["CrossEntropy", "Distance", "Free", "GateLoss", "KullbackLeibler", "LogOdds", "Squares"]

Array = NDArray[np.float64]


class GateLoss(Protocol):
    """What the gate pays in the M-step, row by row; convex in g.

    All three take and return arrays of shape (n,): the loss, its slope and its curvature.
    """

    def value(self, g: Array) -> Array: ...
    def slope(self, g: Array) -> Array: ...
    def curvature(self, g: Array) -> Array: ...


@dataclass(frozen=True, eq=False)
class CrossEntropy:
    """``(1 - q) softplus(g) + q softplus(-g)``."""

    q: Array

    def value(self, g: Array) -> Array:
        return softplus(g) - self.q * g

    def slope(self, g: Array) -> Array:
        out: Array = expit(g) - self.q
        return out

    def curvature(self, g: Array) -> Array:
        p = expit(g)
        out: Array = p * (1.0 - p)
        return out


@dataclass(frozen=True, eq=False)
class Squares:
    """``(g - log_odds)^2``."""

    log_odds: Array

    def value(self, g: Array) -> Array:
        out: Array = (g - self.log_odds) ** 2
        return out

    def slope(self, g: Array) -> Array:
        return 2.0 * (g - self.log_odds)

    def curvature(self, g: Array) -> Array:
        return np.full_like(g, 2.0)


@dataclass(frozen=True, eq=False)
class Free:
    """The outcome of a q-step.

    Attributes
    ----------
    q : ndarray of float64, shape (n,)
        Offload probabilities.
    gate : GateLoss
        What the gate pays for being elsewhere.
    rest : ndarray of float64, shape (n,)
        The part of ``D(q, g)`` that does not depend on g.
    """

    q: Array
    gate: GateLoss
    rest: Array


class Distance(Protocol):
    """A choice of ``D``.

    Attributes
    ----------
    curvature_bound : float
        Of the gate's loss, anywhere.
    """

    curvature_bound: ClassVar[float]

    def q_step(self, keep: Array, offload: Array, g: Array, p_full: float, weight: Array) -> Free:
        """Best q for losses of keeping and offloading each row, in nats, and a gate."""
        ...

    def given(self, q: Array) -> Free:
        """Offload probabilities inside (0, 1) that are given, and not the best of anything."""
        ...


class KullbackLeibler:
    """``KL(q || sigmoid(g))``."""

    curvature_bound: ClassVar[float] = 0.25

    def q_step(self, keep: Array, offload: Array, g: Array, p_full: float, weight: Array) -> Free:
        q = q_step(keep + softplus(g), offload + softplus(-g), p_full, weight)
        return self.given(q)

    def given(self, q: Array) -> Free:
        return Free(q, CrossEntropy(q), -entropy(q))


class LogOdds:
    """``(log(q / (1 - q)) - g)^2``."""

    curvature_bound: ClassVar[float] = 2.0

    def q_step(self, keep: Array, offload: Array, g: Array, p_full: float, weight: Array) -> Free:
        log_odds = q_step_log_odds(keep, offload, g, p_full, weight)
        return Free(expit(log_odds), Squares(log_odds), np.zeros_like(g))

    def given(self, q: Array) -> Free:
        return Free(q, Squares(logit(q)), np.zeros_like(q))
