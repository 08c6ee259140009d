"""Random linear models, kernel machines and rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gatewise.models.kernel_machine import KernelModel
from gatewise.models.linear import LinearModel
from gatewise.models.trees import TreeEnsemble

Model = TreeEnsemble | LinearModel | KernelModel
F32 = np.float32


def draw_linear_model(rng: np.random.Generator, n_features: int, n_outputs: int) -> LinearModel:
    """Draw a linear model."""
    magnitudes = 10.0 ** rng.integers(-3, 4, (n_features, 1))
    return LinearModel(
        mean=rng.normal(size=n_features).astype(F32),
        scale=rng.exponential(size=n_features).astype(F32),
        weights=(rng.normal(size=(n_features, n_outputs)) * magnitudes).astype(F32),
        bias=rng.normal(size=n_outputs).astype(F32),
    )


def draw_kernel_machine(
    rng: np.random.Generator, n_features: int, n_landmarks: int, n_outputs: int
) -> KernelModel:
    """Draw a kernel machine."""
    linear = draw_linear_model(rng, n_features, n_outputs)
    return KernelModel(
        mean=linear.mean,
        scale=linear.scale,
        landmarks=rng.normal(size=(n_landmarks, n_features)).astype(F32),
        rate=F32(rng.exponential() / 64),
        weights=(rng.normal(size=(n_landmarks, n_outputs)) * 10.0 ** rng.integers(-3, 4)).astype(
            F32
        ),
        bias=linear.bias,
    )


def draw_rows(
    rng: np.random.Generator, n: int, n_features: int, *, has_special_values: bool
) -> NDArray[np.float32]:
    """Draw rows of numbers with one decimal, which often equal a threshold.

    With `has_special_values`, some values are NaN, denormal, very large, or a signed zero.
    """
    x = np.round(rng.normal(size=(n, n_features)), 1).astype(F32)
    if has_special_values:
        special_values = [np.nan, np.nan, 1e-41, -1e-41, 1e6 + 0.1, 3e38, -0.0, 0.0]
        x = np.where(rng.random(x.shape) < 0.2, rng.choice(special_values, x.shape), x)
    return x.astype(F32)
