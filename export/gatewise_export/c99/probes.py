"""Generate rows and windows for self-tests, with values at which C and Python could differ."""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gatewise.models.kernel_machine import KernelModel
from gatewise.models.linear import LinearModel
from gatewise.models.trees import TreeEnsemble
from gatewise_export.c99.cascade import Cascade

#: Largest number of values in the rows of one self-test: 64 KiB, which fit a small board's flash.
MAX_CELLS = 1 << 14
#: Bounds on the number of rows, for cascades with very many or few features.
MIN_ROWS = 16
MAX_ROWS = 256
#: Number of generated windows.
N_WINDOWS = 16
#: Share of extreme values among a feature's values. Most of the other values test thresholds.
EXTREME_SHARE = 0.15
#: Extreme values for every feature: both zeros, subnormal numbers and large numbers.
EXTREMES = np.array(
    [0.0, -0.0, 1e-45, -1e-45, 1e-39, 1.0, -1.0, 1e6, -1e6, 1e18, -1e18], np.float32
)


def probe_rows(cascade: Cascade) -> NDArray[np.float32]:
    """Generate rows, shape (n, n_features), with values at and next to tree thresholds.

    Features of linear models and kernel machines get values around their means and landmarks. All
    features get extreme values, and NaN if the stages accept it. No row has a refused value.
    """
    rng = np.random.default_rng(0)
    values_of_feature = _values_of_features(cascade)
    n_slots = max(len(values_of_feature), 1)
    n_rows = int(np.clip(MAX_CELLS // n_slots, MIN_ROWS, MAX_ROWS))
    rows = np.zeros((n_rows, len(cascade.feature_names)), np.float32)
    extreme_values = np.append(EXTREMES, np.float32(np.nan)) if cascade.takes_missing else EXTREMES
    for feature, model_values in values_of_feature.items():
        # take most values from the models, and repeat one only after all have been used
        column = rng.choice(extreme_values, n_rows)
        if len(model_values):
            model_column = rng.permutation(np.resize(rng.permutation(model_values), n_rows))
            column = np.where(rng.random(n_rows) < EXTREME_SHARE, column, model_column)
        rows[:, feature] = column
    return rows


def _values_of_features(cascade: Cascade) -> dict[int, NDArray[np.float32]]:
    """Collect for each feature the values in its models: thresholds, means and landmarks."""
    arrays_of_feature: dict[int, list[NDArray[np.float32]]] = {}
    for stage in cascade.stages:
        model = stage.model
        for column, feature in enumerate(stage.features.tolist()):
            arrays = arrays_of_feature.setdefault(feature, [])
            if isinstance(model, TreeEnsemble):
                thresholds = np.unique(model.threshold[model.feature == column])
                neighbours = [
                    np.nextafter(thresholds, np.float32(side)) for side in (-np.inf, np.inf)
                ]
                arrays += [thresholds, *neighbours]
            elif isinstance(model, LinearModel | KernelModel):
                # the models read z = (value - mean) * scale
                with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
                    deviation = np.float32(1) / model.scale[column]
                    z_scores = np.array([-3, -1, -0.1, 0, 0.1, 1, 3], np.float32)
                    if isinstance(model, KernelModel):
                        z_scores = np.append(z_scores, model.landmarks[:, column])
                    arrays.append(model.mean[column] + z_scores * deviation)
    finite_values = {}
    for feature, arrays in sorted(arrays_of_feature.items()):
        feature_values = np.unique(np.concatenate(arrays))
        finite_values[feature] = feature_values[np.isfinite(feature_values)].astype(np.float32)
    return finite_values


def probe_windows(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[np.generic]:
    """Generate windows, shape (N_WINDOWS, *shape), of noise at several levels and offsets.

    Some windows are constant, and some are clipped to the range of `dtype`.
    """
    rng = np.random.default_rng(0)
    value_type = np.dtype(dtype)
    is_float = value_type.kind == "f"
    lowest, highest = (
        (-1.0, 1.0) if is_float else (np.iinfo(value_type).min, np.iinfo(value_type).max)
    )
    middle = (lowest + highest) / 2
    # one amplitude per window, from 1/100 of half the range to twice it, so that some are clipped
    amplitudes = (
        (highest - lowest) / 2 * 10.0 ** rng.uniform(-2, 0.3, (N_WINDOWS, *[1] * len(shape)))
    )
    windows = (
        middle
        + rng.normal(size=(N_WINDOWS, *shape)) * amplitudes / 2
        + rng.normal(size=amplitudes.shape) * amplitudes / 4
    )
    # test divisions by 0: a constant window has no variance, and a window of zeros has no energy
    windows[1::8] = (
        windows[1::8].reshape(-1, np.prod(shape, dtype=int))[:, :1].reshape(amplitudes[1::8].shape)
    )
    windows[2::8] = 0
    return np.clip(windows if is_float else np.round(windows), lowest, highest).astype(value_type)
