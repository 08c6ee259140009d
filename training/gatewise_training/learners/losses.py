"""Log losses on margins, with the derivatives that boosting and proximal gradient need.

Margins of shape (n, 1) are a binary model's, of shape (n, M) a model's of M classes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

Array = NDArray[np.float64]

HESSIAN_FLOOR = 1e-7
"""Least second derivative per row, because LightGBM's leaves divide by their sum."""


def softplus(m: Array) -> Array:
    """``log(1 + exp(m))`` without overflow, elementwise."""
    out: Array = np.logaddexp(0.0, m)
    return out


def one_hot(y: NDArray[np.int64], n_classes: int) -> Array:
    """Targets in the shape of the margins: (n, 1) of 0 and 1 for two classes, else (n, M)."""
    if n_classes == 2:
        return y[:, None].astype(np.float64)
    return np.eye(n_classes)[y]


def prior_margins(target: Array, weight: Array) -> Array:
    """Margins of the best constant model: the classes' log odds, shape (n_margins,)."""
    share = np.clip(np.average(target, weights=weight, axis=0), 1e-6, 1.0 - 1e-6)
    out = np.log(share / (1.0 - share)) if len(share) == 1 else np.log(share)
    return np.asarray(out, np.float64)


def log_loss(margins: Array, target: Array) -> Array:
    """``-log p(y | margins)`` of each row, shape (n,)."""
    if margins.shape[1] == 1:
        return softplus(margins[:, 0]) - target[:, 0] * margins[:, 0]
    shifted = margins - margins.max(axis=1, keepdims=True)
    loss: Array = np.log(np.exp(shifted).sum(axis=1)) - (target * shifted).sum(axis=1)
    return loss


def log_loss_gradient(margins: Array, target: Array) -> Array:
    """Derivative of :func:`log_loss` with respect to the margins, of their shape."""
    p = expit(margins) if margins.shape[1] == 1 else _softmax(margins)
    gradient: Array = p - target
    return gradient


def log_loss_hessian(margins: Array) -> Array:
    """Diagonal second derivatives ``p (1 - p)``, of the margins' shape."""
    p = expit(margins) if margins.shape[1] == 1 else _softmax(margins)
    curvature: Array = p * (1.0 - p)
    return curvature


def _softmax(margins: Array) -> Array:
    """Softmax of each row; scipy's own takes several times as long on few rows."""
    e = np.exp(margins - margins.max(axis=1, keepdims=True))
    out: Array = e / e.sum(axis=1, keepdims=True)
    return out
