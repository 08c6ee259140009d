"""The q-step: the best free offload probabilities for fixed models, under a distance D(q, g).

The gate `g` is a function of the features, but the probabilities `q` are free, one for each row
(Adapt, NIPS 2017, section 3). Over q in [0, 1]^n with weighted mean(q) <= p_full, the q-step
minimises one of two objectives (OPT1):

- ``mean[(1 - q) A + q B - H(q)]``. ``A`` is the loss of f1 and the gate if f1 answers the row, and
  ``B`` the loss of f0 and the gate if f0 answers it. This is an I-projection in closed form
  (:func:`q_step`).
- ``mean[(1 - q) A + q B + (log(q / (1 - q)) - g)^2]`` of Adapt-LSTSQ. ``A`` and ``B`` are the
  losses of the models without the loss of the gate. This is a one-dimensional problem for each
  row (:func:`q_step_log_odds`).

In both, the bound on the mean has one multiplier ``beta >= 0`` for all rows, and offloading a row
costs ``B + beta``. In the code, ``A`` is `edge_loss` and ``B`` is `offload_loss`; all losses are in
nats. A :class:`Distance` selects the objective, and the loss with which the M-step then fits the
gate to q:

- :class:`KullbackLeibler` for Adapt-LIN and Adapt-GBRT: the cross-entropy;
- :class:`LogOdds` for Adapt-LSTSQ: the squared distance to the log odds of q.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numba
import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit, xlogy

from gatewise.errors import InputError
from gatewise_training.learners.gated_rounds import find_multiplier
from gatewise_training.learners.losses import softplus

Array = NDArray[np.float64]

#: Largest ``d`` for which ``d sigmoid(t) + (t - g)^2`` is convex in t. Its second derivative is ``2
#: + d q (1 - q) (1 - 2 q)`` with ``q = sigmoid(t)``, and ``q (1 - q) (1 - 2 q)`` is at least ``-1 /
#: (6 sqrt(3))``.
MAX_CONVEX_SLOPE = 12.0 * np.sqrt(3.0)

#: Newton's method ends at steps below this share of ``1 + |t| + |g|``, which is some 20 times the
#: rounding of a float64.
MIN_RELATIVE_STEP = 4e-15

#: Smallest curvature by which a slope is divided. Between two minima the second derivative is 0 or
#: negative; a step that this makes too long is replaced by a bisection.
MIN_CURVATURE = 1e-6

#: Error of the mean, or relative width of the bracket, at which the search for ``beta`` ends. It is
#: some 450 times the rounding of a float64.
MEAN_TOLERANCE = 1e-13


def q_step(
    edge_loss: Array, offload_loss: Array, p_full: float, weight: Array | None = None
) -> Array:
    """Compute the best offload probabilities ``q_i = sigmoid(A_i - B_i - beta)``, (n,).

    ``beta >= 0`` is the smallest value that meets the bound on the mean. It is the multiplier of
    the constraint, and 0 if the constraint is slack.

    Examples
    --------
    >>> q = q_step(np.array([3.0, 0.0]), np.array([0.0, 0.0]), p_full=0.5)
    >>> round(float(q.mean()), 6), bool(q[0] > q[1])
    (0.5, True)
    """
    if not 0.0 <= p_full <= 1.0:
        raise InputError(f"p_full must be in [0, 1], not {p_full}")
    # q_i = sigmoid(A_i - B_i - beta)
    gain = edge_loss - offload_loss
    if p_full == 0.0:  # no finite beta gives a mean of 0
        return np.zeros_like(gain)
    beta = find_multiplier(gain, _compute_weight_shares(len(gain), weight), p_full, 0.0)
    return np.asarray(expit(gain - beta), np.float64)


def q_step_log_odds(
    edge_loss: Array, offload_loss: Array, g: Array, p_full: float, weight: Array | None = None
) -> Array:
    """Compute the log odds of the best offload probabilities for a squared distance, (n,).

    ``t = log(q / (1 - q))`` of each row is the global minimum of
    ``(B - A + beta) sigmoid(t) + (t - g)^2``. Both t and beta are found by Newton's method inside
    brackets.

    If ``|B - A + beta|`` exceeds :data:`MAX_CONVEX_SLOPE`, about 20.8 nats, the objective of a row
    may have two minima. The row then jumps from one minimum to the other as beta rises, so the mean
    may jump past the bound. In this case the mean is below the bound, and not equal to it.

    Examples
    --------
    >>> t = q_step_log_odds(np.array([3.0, 0.0]), np.zeros(2), np.zeros(2), p_full=0.5)
    >>> bool(t[0] > 0 > t[1]), round(float(expit(t).mean()), 6)
    (True, 0.5)
    """
    if not 0.0 < p_full <= 1.0:
        raise InputError(f"p_full must be in (0, 1] for a squared distance, not {p_full}")
    weight_shares = _compute_weight_shares(len(g), weight)
    loss_gap = offload_loss - edge_loss
    t = g
    beta = lowest_beta = 0.0
    highest_beta = np.inf
    for _ in range(200):  # doubling reaches any useful beta, and bisection resolves it, in fewer
        t = _find_best_log_odds(loss_gap + beta, g, t)
        excess = float(weight_shares @ expit(t)) - p_full
        if abs(excess) <= MEAN_TOLERANCE or (excess < 0.0 and beta == 0.0):
            break
        if excess > 0.0:
            lowest_beta = beta
        else:
            highest_beta = beta
        has_narrow_bracket = (
            highest_beta < np.inf and highest_beta - lowest_beta <= MEAN_TOLERANCE * highest_beta
        )
        if has_narrow_bracket:  # a row jumps at this beta; use the side that meets the bound
            t = _find_best_log_odds(loss_gap + highest_beta, g, t)
            break
        mean_decrease = _compute_mean_decrease(loss_gap + beta, t, weight_shares)
        # where all q are 0 or 1 in float64, the mean does not change, and Newton has no step
        next_beta = beta + excess / mean_decrease if mean_decrease > 0.0 else np.inf
        if not lowest_beta < next_beta < highest_beta:
            next_beta = (
                2.0 * lowest_beta + 1.0
                if highest_beta == np.inf
                else 0.5 * (lowest_beta + highest_beta)
            )
        beta = next_beta
    return t


def _compute_mean_decrease(d: Array, t: Array, weight_shares: Array) -> float:
    """Compute ``-d mean(q) / d beta = mean[(q (1 - q))^2 / f''(t)]`` at the minima t of f.

    ``f(t) = d sigmoid(t) + (t - g)^2``, so ``f''(t) = 2 + d q (1 - q) (1 - 2 q)``, which is 0 where
    the two minima of a row begin.
    """
    q = expit(t)
    one_minus_q = expit(-t)  # 1 - q would lose its digits near q = 1
    curvature = np.maximum(2.0 + d * q * one_minus_q * (one_minus_q - q), MIN_CURVATURE)
    return float(weight_shares @ ((q * one_minus_q) ** 2 / curvature))


def entropy(q: Array) -> Array:
    """Compute ``H(q)`` of each row in nats, shape (n,); 0 at 0 and 1."""
    return np.asarray(-xlogy(q, q) - xlogy(1.0 - q, 1.0 - q), np.float64)


class GateLoss(Protocol):
    """Loss of the gate in the M-step, convex in g, with its slope and curvature per row, (n,)."""

    def value(self, g: Array) -> Array: ...
    def slope(self, g: Array) -> Array: ...
    def curvature(self, g: Array) -> Array: ...


@dataclass(frozen=True, eq=False)
class CrossEntropy:
    """``(1 - q) softplus(g) + q softplus(-g)``, which equals ``softplus(g) - q g``."""

    q: Array

    def value(self, g: Array) -> Array:
        return softplus(g) - self.q * g

    def slope(self, g: Array) -> Array:
        slope: Array = expit(g) - self.q
        return slope

    def curvature(self, g: Array) -> Array:
        offload_probability = expit(g)
        curvature: Array = offload_probability * (1.0 - offload_probability)
        return curvature


@dataclass(frozen=True, eq=False)
class Squares:
    """``(g - log_odds)^2``, where `log_odds` are those of q."""

    log_odds: Array

    def value(self, g: Array) -> Array:
        squares: Array = (g - self.log_odds) ** 2
        return squares

    def slope(self, g: Array) -> Array:
        return 2.0 * (g - self.log_odds)

    def curvature(self, g: Array) -> Array:
        return np.full_like(g, 2.0)


@dataclass(frozen=True, eq=False)
class FreeProbabilities:
    """Free offload probabilities, and the two parts of ``D(q, g)``."""

    q: Array  # (n,)
    gate_loss: GateLoss  # loss of the gate in the M-step
    constant: Array  # (n,): the part of ``D(q, g)`` that does not depend on g


class KullbackLeibler:
    """``KL(q || sigmoid(g))``, which is the cross-entropy of the gate minus the entropy of q."""

    curvature_bound: ClassVar[float] = 0.25  # largest curvature of the gate's loss, at g = 0

    def q_step(
        self, edge_loss: Array, offload_loss: Array, g: Array, p_full: float, weight: Array
    ) -> FreeProbabilities:
        """Find the best q for a gate and for the losses of f1 and f0 on each row, in nats."""
        q = q_step(edge_loss + softplus(g), offload_loss + softplus(-g), p_full, weight)
        return self.with_probabilities(q)

    def with_probabilities(self, q: Array) -> FreeProbabilities:
        """Use the given offload probabilities, each inside (0, 1)."""
        return FreeProbabilities(q, CrossEntropy(q), -entropy(q))


class LogOdds:
    """``(log(q / (1 - q)) - g)^2``."""

    curvature_bound: ClassVar[float] = 2.0  # the curvature of a square, everywhere

    def q_step(
        self, edge_loss: Array, offload_loss: Array, g: Array, p_full: float, weight: Array
    ) -> FreeProbabilities:
        log_odds = q_step_log_odds(edge_loss, offload_loss, g, p_full, weight)
        return FreeProbabilities(expit(log_odds), Squares(log_odds), np.zeros_like(g))

    def with_probabilities(self, q: Array) -> FreeProbabilities:
        return FreeProbabilities(q, Squares(logit(q)), np.zeros_like(q))


#: A distance ``D(q, g)``.
Distance = KullbackLeibler | LogOdds


def _compute_weight_shares(n_rows: int, weight: Array | None) -> Array:
    """Scale the rows' weights to a sum of 1; rows without weights count equally."""
    return np.full(n_rows, 1.0 / n_rows) if weight is None else weight / weight.sum()


def _find_best_log_odds(d: Array, g: Array, start: Array) -> Array:
    """Find the global minimum over t of ``d sigmoid(t) + (t - g)^2`` of each row.

    `start` may be any log odds, (n,); the minimum of a similar `d` saves steps.
    """
    # mirror rows with d < 0, which is possible because sigmoid(t) = 1 - sigmoid(-t)
    sign = np.where(d < 0.0, -1.0, 1.0)
    d = np.abs(d)
    g = g * sign
    start = start * sign
    # a stationary point has d sigmoid'(t) = 2 (g - t), and sigmoid' is in [0, 1/4]; hence t is in
    # [g - d / 8, g]
    t = _find_stationary_point(d, g, start, g - d / 8.0, g)
    rows = np.flatnonzero(d > MAX_CONVEX_SLOPE)
    if len(rows):
        t[rows] = _find_lower_minimum(d[rows], g[rows], start[rows])
    return sign * t


def _find_lower_minimum(d: Array, g: Array, start: Array) -> Array:
    """Find the lower of the two minima, one on each side of the interval of concavity.

    Each ``d`` must exceed :data:`MAX_CONVEX_SLOPE`. A side without a minimum gives its end next to
    that interval, or g, neither of which is lower than the minimum of the other side.
    """
    # f'' = 0 if u = tanh(t / 2) solves u^3 - u + 8 / d = 0, which has two roots in (0, 1), given by
    # Viete's formula for three real roots: u_k = 2 / sqrt(3) cos(angle - 2 pi k / 3), k = 1 and 0
    angle = np.arccos(-MAX_CONVEX_SLOPE / d) / 3.0
    u = 2.0 / np.sqrt(3.0) * np.cos(angle[:, None] - np.array([2.0, 0.0]) * np.pi / 3.0)
    # 1 - 1e-16 is the largest float64 below 1, where arctanh is infinite
    concave_from, concave_to = 2.0 * np.arctanh(np.clip(u, 0.0, 1.0 - 1e-16)).T
    left_end = np.minimum(g, concave_from)
    right_end = np.maximum(g - d / 8.0, concave_to)
    left_minimum = _find_stationary_point(d, g, start, np.minimum(g - d / 8.0, left_end), left_end)
    right_minimum = _find_stationary_point(d, g, start, np.minimum(right_end, g), g)

    def compute_objective(t: Array) -> Array:
        objective: Array = d * expit(t) + (t - g) ** 2
        return objective

    is_left_lower = compute_objective(left_minimum) <= compute_objective(right_minimum)
    return np.where(is_left_lower, left_minimum, right_minimum)


@numba.njit(cache=True, nogil=True)
def _find_stationary_point(d: Array, g: Array, start: Array, low: Array, high: Array) -> Array:
    """Find the root of ``f'`` in a bracket of each row, for ``f(t) = d sigmoid(t) + (t - g)^2``.

    ``f'`` must rise inside the bracket. If all of it is at most 0, the result is `high`, and if all
    of it is positive, `low`.
    """
    solution = np.empty(len(d))
    for i in range(len(d)):
        high_t = high[i]
        slope_at_high = d[i] * _sigmoid(high_t) * _sigmoid(-high_t) + 2.0 * (high_t - g[i])
        low_t = high_t if slope_at_high <= 0.0 else low[i]
        t = min(max(start[i], low_t), high_t)
        last_step = high_t - low_t
        # bisection alone would reach the resolution of float64 in fewer than 100 steps
        for _ in range(100 if low_t < high_t else 0):
            # f'(t) = d q (1 - q) + 2 (t - g),  f''(t) = d q (1 - q) (1 - 2 q) + 2
            q = _sigmoid(t)
            one_minus_q = _sigmoid(-t)
            slope = d[i] * q * one_minus_q + 2.0 * (t - g[i])
            curvature = max(d[i] * q * one_minus_q * (one_minus_q - q) + 2.0, MIN_CURVATURE)
            if slope <= 0.0:
                low_t = t
            if slope >= 0.0:
                high_t = t
            # use Newton's step if it stays inside and is at most half the last one, else bisect
            next_t = t - slope / curvature
            is_short = 2.0 * abs(slope) <= last_step * curvature
            if not (low_t <= next_t <= high_t and is_short):
                next_t = 0.5 * (low_t + high_t)
            last_step = abs(next_t - t)
            t = next_t
            if last_step <= MIN_RELATIVE_STEP * (1.0 + abs(t) + abs(g[i])):
                break
        solution[i] = t
    return solution


@numba.njit(cache=True, nogil=True)
def _sigmoid(t: float) -> float:
    """Compute ``1 / (1 + exp(-t))``; exp overflows to infinity, which gives 0."""
    sigmoid: float = 1.0 / (1.0 + np.exp(-t))
    return sigmoid
