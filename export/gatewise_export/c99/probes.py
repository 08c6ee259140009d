"""Rows and windows for self-tests, at the values where C and Python could differ."""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gatewise.models.kernel_machine import KernelModel
from gatewise.models.linear import LinearModel
from gatewise.models.trees import TreeEnsemble
from gatewise_export.c99.cascade import Cascade

#: Numbers in the rows of one self-test.
MAX_CELLS = 1 << 14
MIN_ROWS = 16
MAX_ROWS = 256
#: Share of extremes among a feature's values.
EXTREME_SHARE = 0.15
#: Values that every feature takes: zeros of both signs, subnormal numbers, large ones.
EXTREMES = np.array(
    [0.0, -0.0, 1e-45, -1e-45, 1e-39, 1.0, -1.0, 1e6, -1e6, 1e18, -1e18], np.float32
)


def probe_rows(cascade: Cascade, *, seed: int = 0) -> NDArray[np.float32]:
    """Make rows, (n, n_features), with values at and next to the thresholds of trees.

    Features of linear models and kernel machines take values around their means and landmarks; all
    features take extremes, and NaN where it is a value. No row has a value that is refused.
    """
    rng = np.random.default_rng(seed)
    values = _values_of_features(cascade)
    n_slots = max(len(values), 1)
    n_rows = int(np.clip(MAX_CELLS // n_slots, MIN_ROWS, MAX_ROWS))
    rows = np.zeros((n_rows, len(cascade.feature_names)), np.float32)
    extremes = np.append(EXTREMES, np.float32(np.nan)) if cascade.takes_missing else EXTREMES
    for feature, of_models in values.items():
        # most cells from the model, without repetition as long as there are new values
        column = rng.choice(extremes, n_rows)
        if len(of_models):
            from_models = rng.permutation(np.resize(rng.permutation(of_models), n_rows))
            column = np.where(rng.random(n_rows) < EXTREME_SHARE, column, from_models)
        rows[:, feature] = column
    return rows


def _values_of_features(cascade: Cascade) -> dict[int, NDArray[np.float32]]:
    """Values that each feature of a stage meets in the models: thresholds, means, landmarks."""
    values: dict[int, list[NDArray[np.float32]]] = {}
    for stage in cascade.stages:
        model = stage.model
        for column, feature in enumerate(stage.features.tolist()):
            of_feature = values.setdefault(feature, [])
            if isinstance(model, TreeEnsemble):
                threshold = np.unique(model.threshold[model.feature == column])
                neighbours = [np.nextafter(threshold, np.float32(s)) for s in (-np.inf, np.inf)]
                of_feature += [threshold, *neighbours]
            elif isinstance(model, LinearModel | KernelModel):
                with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
                    deviation = np.float32(1) / model.scale[column]
                    z = np.array([-3, -1, -0.1, 0, 0.1, 1, 3], np.float32)
                    if isinstance(model, KernelModel):
                        z = np.append(z, model.landmarks[:, column])
                    of_feature.append(model.mean[column] + z * deviation)
    finite = {}
    for feature, arrays in sorted(values.items()):
        pool = np.unique(np.concatenate(arrays))
        finite[feature] = pool[np.isfinite(pool)].astype(np.float32)
    return finite


def probe_windows(
    shape: tuple[int, ...], dtype: DTypeLike, n: int = 16, *, seed: int = 0
) -> NDArray[np.generic]:
    """Make windows, (n, *shape): noise of several levels and offsets, some constant or clipped."""
    rng = np.random.default_rng(seed)
    kind = np.dtype(dtype)
    low, high = (-1.0, 1.0) if kind.kind == "f" else (np.iinfo(kind).min, np.iinfo(kind).max)
    middle = (low + high) / 2
    level = (high - low) / 2 * 10.0 ** rng.uniform(-2, 0.3, (n, *[1] * len(shape)))
    x = middle + rng.normal(size=(n, *shape)) * level / 2 + rng.normal(size=level.shape) * level / 4
    x[1::8] = x[1::8].reshape(-1, np.prod(shape, dtype=int))[:, :1].reshape(level[1::8].shape)
    x[2::8] = 0
    return np.clip(x if kind.kind == "f" else np.round(x), low, high).astype(kind)
