"""The q-step: the best free offload probabilities for given models (an I-projection).

Minimises, over q in [0, 1]^n with weighted mean(q) <= p_full,
``mean[(1 - q) A + q B - H(q)]`` (Adapt, NIPS 2017, OPT1), where ``A`` is what the low-cost
model and the gate lose by keeping a row and ``B`` what is lost by offloading it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit, xlogy

from gatewise_training.errors import InputError

__all__ = ["entropy", "q_step"]

Array = NDArray[np.float64]


def q_step(keep: Array, offload: Array, p_full: float, weight: Array | None = None) -> Array:
    """Offload probabilities ``q_i = sigmoid(A_i - B_i - beta)`` in closed form.

    ``beta >= 0`` is the smallest that meets the bound on the mean: the multiplier of the
    constraint, 0 where the constraint is slack.

    Parameters
    ----------
    keep, offload : ndarray of float64, shape (n,)
        ``A`` and ``B``, in nats.
    p_full : float in [0, 1]
        Bound on the mean of q; 0 keeps every row.
    weight : ndarray of float64, shape (n,), optional

    Returns
    -------
    ndarray of float64, shape (n,)

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

    def excess(beta: float) -> float:
        return float(np.average(expit(gain - beta), weights=weight)) - p_full

    if excess(0.0) <= 0.0:
        return np.asarray(expit(gain), np.float64)
    # at this beta every q is below p_full / (1 + p_full)
    top = float(gain.max()) - float(np.log(p_full))
    beta = brentq(excess, 0.0, top, xtol=1e-13, rtol=1e-15)
    return np.asarray(expit(gain - beta), np.float64)


def entropy(q: Array) -> Array:
    """``H(q)`` of each row in nats, shape (n,); 0 at 0 and 1."""
    return np.asarray(-xlogy(q, q) - xlogy(1.0 - q, 1.0 - q), np.float64)
