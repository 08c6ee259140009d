"""Rows that are all at hand: answered one by one, their requests sharing messages."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gatewise.errors import InputError
from gatewise_edge.device.answer import Answer, Pending
from gatewise_edge.errors import SensorError

if TYPE_CHECKING:
    from gatewise_edge.device.device import Device

__all__ = ["answer_many"]

#: Rows begun before the first is waited for, and the part of the deadline that beginning may take.
_MOST: Final = 256
_PART: Final = 0.25


def answer_many(device: Device, rows: ArrayLike) -> list[Answer | SensorError]:
    """Answer each row; see :meth:`gatewise_edge.device.device.Device.answer_many`."""
    try:
        with np.errstate(over="ignore"):
            X = np.asarray(rows, np.float32)
    except (TypeError, ValueError) as error:
        raise InputError(f"the instances must be rows of numbers: {error}") from None
    width = len(device.bundle.manifest.features)
    if X.ndim != 2 or X.shape[1] != width:
        raise InputError(f"instances of shape {X.shape}; the bundle has {width} features")
    given: list[Answer | SensorError] = []
    while len(given) < len(X):
        given += _some(device, X[len(given) : len(given) + _MOST])
    return given


def _some(device: Device, X: NDArray[np.float32]) -> list[Answer | SensorError]:
    """Answer as many of the first rows as begin within a part of the time."""
    until = time.monotonic() + _PART * device.deadline_ms / 1000.0
    steps: list[Answer | Pending | SensorError] = []
    for row in X:
        try:
            steps.append(device.begin(row, hold=True))
        except SensorError as error:
            steps.append(error)
        if time.monotonic() >= until:
            break
    device.flush()
    given: list[Answer | SensorError] = []
    for step in steps:
        try:
            given.append(device.finish(step) if isinstance(step, Pending) else step)
        except SensorError as error:
            given.append(error)
    return given
