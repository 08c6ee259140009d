"""Log losses of margins, with the derivatives that boosting and proximal gradient need.

A binary model has margins of shape (n, 1), and a model of M > 2 classes has margins of shape
(n, M).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

Array = NDArray[np.float64]

#: Smallest second derivative per row, because LightGBM divides by their sum in each leaf.
HESSIAN_FLOOR = 1e-7


def softplus(margins: Array) -> Array:
    """Compute ``log(1 + exp(m))`` for each entry, without overflow."""
    losses: Array = np.logaddexp(0.0, margins)
    return losses


def one_hot(y: NDArray[np.int64], n_classes: int) -> Array:
    """Encode classes in the shape of the margins, with (n, 1) of 0 and 1 for two classes."""
    if n_classes == 2:
        return y[:, None].astype(np.float64)
    return np.eye(n_classes)[y]


def prior_margins(target: Array, weight: Array) -> Array:
    """Compute the margins of the best constant model, shape (n_margins,)."""
    # the clip keeps the margin of a class without rows finite
    class_share = np.clip(np.average(target, weights=weight, axis=0), 1e-6, 1.0 - 1e-6)
    margins = (
        np.log(class_share / (1.0 - class_share)) if len(class_share) == 1 else np.log(class_share)
    )
    return np.asarray(margins, np.float64)


def log_loss(margins: Array, target: Array) -> Array:
    """Compute ``-log p(y | margins)`` of each row, shape (n,)."""
    if margins.shape[1] == 1:
        return softplus(margins[:, 0]) - target[:, 0] * margins[:, 0]
    shifted_margins = margins - margins.max(axis=1, keepdims=True)
    loss: Array = np.log(np.exp(shifted_margins).sum(axis=1)) - (target * shifted_margins).sum(
        axis=1
    )
    return loss


def log_loss_gradient(margins: Array, target: Array) -> Array:
    """Compute the derivative of :func:`log_loss` with respect to the margins, in their shape."""
    p = expit(margins) if margins.shape[1] == 1 else _compute_softmax(margins)
    gradient: Array = p - target
    return gradient


def log_loss_hessian(margins: Array) -> Array:
    """Compute the diagonal second derivatives ``p (1 - p)``, in the shape of the margins."""
    p = expit(margins) if margins.shape[1] == 1 else _compute_softmax(margins)
    curvature: Array = p * (1.0 - p)
    return curvature


def _compute_softmax(margins: Array) -> Array:
    """Compute the softmax of each row; scipy's function takes several times as long on few rows."""
    exponentials = np.exp(margins - margins.max(axis=1, keepdims=True))
    probabilities: Array = exponentials / exponentials.sum(axis=1, keepdims=True)
    return probabilities
