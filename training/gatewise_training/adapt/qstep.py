"""The q-step: the best free offload probabilities for given models, under a distance D(q, g).

The gate `g` is a function of the features; the probabilities `q` are free, one for each row
(Adapt, NIPS 2017, section 3). Over q in [0, 1]^n with weighted mean(q) <= p_full the q-step
minimises (OPT1) one of

- ``mean[(1 - q) A + q B - H(q)]``, where ``A`` is what the low-cost model and the gate lose by
  keeping a row and ``B`` what is lost by offloading it: an I-projection in closed form,
  :func:`q_step`;
- ``mean[(1 - q) A + q B + (log(q / (1 - q)) - g)^2]``, where ``A`` and ``B`` are the models'
  losses alone (Adapt-LSTSQ): a problem in one dimension for each row,
  :func:`q_step_log_odds`.

In both the bound on the mean has one multiplier ``beta >= 0`` for all rows: offloading a row
costs ``B + beta``. A :class:`Distance` chooses between them, and gives the loss with which the
M-step then fits the gate to q:

- :class:`KullbackLeibler`, of Adapt-LIN and Adapt-GBRT: cross-entropy;
- :class:`LogOdds`, of Adapt-LSTSQ: squared distance to the log odds of q.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit, xlogy

from gatewise.errors import InputError
from gatewise_training.learners.gated_rounds import multiplier
from gatewise_training.learners.losses import softplus

Array = NDArray[np.float64]

CONVEX = 12.0 * np.sqrt(3.0)
"""Up to this slope ``d`` of the sigmoid, ``d sigmoid(t) + (t - g)^2`` is convex in t."""

ROUNDING = 4e-15
"""Step of Newton's method, as a share of the numbers in play, that ends it."""


def q_step(keep: Array, offload: Array, p_full: float, weight: Array | None = None) -> Array:
    """Offload probabilities ``q_i = sigmoid(A_i - B_i - beta)`` in closed form.

    ``beta >= 0`` is the smallest that meets the bound on the mean: the multiplier of the
    constraint, 0 where the constraint is slack.

    Shapes: `keep, offload` (n,), `weight` (n,); returns (n,).

    Examples
    --------
    >>> q = q_step(np.array([3.0, 0.0]), np.array([0.0, 0.0]), p_full=0.5)
    >>> round(float(q.mean()), 6), bool(q[0] > q[1])
    (0.5, True)
    """
    if not 0.0 <= p_full <= 1.0:
        raise InputError(f"p_full must be in [0, 1], not {p_full}")
    gain = keep - offload
    if p_full == 0.0:
        return np.zeros_like(gain)
    beta = multiplier(gain, _shares(len(gain), weight), p_full, 0.0)
    return np.asarray(expit(gain - beta), np.float64)


def q_step_log_odds(
    keep: Array, offload: Array, g: Array, p_full: float, weight: Array | None = None
) -> Array:
    """Log odds of the offload probabilities that are best for a squared distance to the gate.

    Each row's ``t = log(q / (1 - q))`` is the global minimum of
    ``(B - A + beta) sigmoid(t) + (t - g)^2``. Both t and beta are found by Newton's method
    inside brackets.
    Where the losses differ by more than 20.8 nats that function has two minima, and as beta
    rises such a row jumps from one to the other: the bound is met, but not always with
    equality.

    Shapes: `keep, offload` (n,), `g` (n,), `weight` (n,); returns (n,).

    Examples
    --------
    >>> t = q_step_log_odds(np.array([3.0, 0.0]), np.zeros(2), np.zeros(2), p_full=0.5)
    >>> bool(t[0] > 0 > t[1]), round(float(expit(t).mean()), 6)
    (True, 0.5)
    """
    if not 0.0 < p_full <= 1.0:
        raise InputError(f"p_full must be in (0, 1] for a squared distance, not {p_full}")
    share = _shares(len(g), weight)

    gap, t, low, high, beta = offload - keep, g, 0.0, np.inf, 0.0
    for _ in range(200):
        t = _best_log_odds(gap + beta, g, t)
        p, rest = expit(t), expit(-t)
        excess = float(share @ p) - p_full
        if abs(excess) <= 1e-13 or (excess < 0.0 and beta == 0.0):
            break
        low, high = (beta, high) if excess > 0.0 else (low, beta)
        # the mean's derivative by beta, through each row's t
        bend = np.maximum(2.0 + (gap + beta) * p * rest * (rest - p), 1e-6)
        ahead = beta + excess / float(share @ ((p * rest) ** 2 / bend))
        if not low < ahead < high:
            ahead = 2.0 * low + 1.0 if high == np.inf else 0.5 * (low + high)
        if (
            np.isfinite(high) and high - low <= 1e-13 * high
        ):  # a jump: take the side that meets the bound
            t = _best_log_odds(gap + high, g, t)
            break
        beta = ahead
    return t


def entropy(q: Array) -> Array:
    """``H(q)`` of each row in nats, shape (n,); 0 at 0 and 1."""
    return np.asarray(-xlogy(q, q) - xlogy(1.0 - q, 1.0 - q), np.float64)


class GateLoss(Protocol):
    """The gate's loss in the M-step, row by row; convex in g.

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
    """The outcome of a q-step."""

    q: Array  # (n,): offload probabilities
    gate: GateLoss  # loss of the gate in the M-step
    rest: Array  # (n,): the part of ``D(q, g)`` that does not depend on g


class Distance(Protocol):
    """A choice of ``D``.

    `curvature_bound`: of the gate's loss, anywhere.
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


def _shares(n: int, weight: Array | None) -> Array:
    return np.full(n, 1.0 / n) if weight is None else weight / weight.sum()


def _best_log_odds(d: Array, g: Array, near: Array) -> Array:
    """Global minimum over t of ``d sigmoid(t) + (t - g)^2``, row by row."""
    # mirrored where d < 0, since sigmoid(t) = 1 - sigmoid(-t): then d >= 0 everywhere
    sign = np.where(d < 0.0, -1.0, 1.0)
    d, g, near = np.abs(d), g * sign, near * sign
    # d sigmoid'(t) = 2 (g - t), and sigmoid' is at most 1/4
    best = _stationary(d, g, near, g - d / 8.0, g)
    two = np.flatnonzero(d > CONVEX)
    if len(two):
        best[two] = _lower_minimum(d[two], g[two], near[two])
    return sign * best


def _lower_minimum(d: Array, g: Array, near: Array) -> Array:
    """The same where the function is concave in the middle: try both sides of that."""
    # the second derivative is 0 where u = tanh(t / 2) solves u^3 - u + 8 / d = 0
    angle = np.arccos(np.clip(-12.0 * np.sqrt(3.0) / d, -1.0, 1.0)) / 3.0
    u = 2.0 / np.sqrt(3.0) * np.cos(angle[:, None] - np.array([2.0, 0.0]) * np.pi / 3.0)
    first, last = 2.0 * np.arctanh(np.clip(u, 0.0, 1.0 - 1e-16)).T
    high, low = np.minimum(g, first), np.maximum(g - d / 8.0, last)
    left = _stationary(d, g, near, np.minimum(g - d / 8.0, high), high)
    right = _stationary(d, g, near, np.minimum(low, g), g)

    def value(t: Array) -> Array:
        out: Array = d * expit(t) + (t - g) ** 2
        return out

    return np.where(value(left) <= value(right), left, right)


def _stationary(d: Array, g: Array, near: Array, low: Array, high: Array) -> Array:
    """Root of the derivative in a bracket where it rises; the bracket's end if there is none."""
    none_left = d * expit(high) * expit(-high) + 2.0 * (high - g) <= 0.0
    low = np.where(none_left, high, low)
    out = np.clip(near, low, high)
    rows = np.flatnonzero(low < high)
    d, g, low, high, t = d[rows], g[rows], low[rows], high[rows], out[rows]
    before = high - low
    for _ in range(100):
        if not len(rows):
            break
        p, rest = expit(t), expit(-t)
        slope = d * p * rest + 2.0 * (t - g)
        bend = np.maximum(d * p * rest * (rest - p) + 2.0, 1e-6)
        newton = t - slope / bend
        low, high = np.where(slope <= 0.0, t, low), np.where(slope >= 0.0, t, high)
        # Newton's step where it stays inside and at least halves the one before it
        good = (newton >= low) & (newton <= high) & (2.0 * np.abs(slope) <= before * bend)
        ahead = np.where(good, newton, 0.5 * (low + high))
        before = np.abs(ahead - t)
        out[rows] = t = ahead
        left = before > ROUNDING * (1.0 + np.abs(t) + np.abs(g))
        if not left.all():  # the others are there
            rows, d, g = rows[left], d[left], g[left]
            low, high, t, before = low[left], high[left], t[left], before[left]
    return out
