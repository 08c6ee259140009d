"""Energy that a device draws besides its radio's, and how long its battery lasts, from a file.

::

    idle_w = 0.02              # at rest, radio apart
    battery_wh = 10            # left out: it has a plug
    stage_j = [0.001, 0.004]   # running each stage on the device, or one number for all
    feature_j = 0.0005         # acquiring a feature that is not named below

    [features]
    ecg = 0.2
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise.toml_settings import refuse_unknown, take_number, toml_table
from gatewise_sim.fleet.energy.radio import Radio

__all__ = ["Acquisition", "DeviceEnergy", "joules_per_device_day"]

JOULES_PER_WH: Final = 3600.0
_DAY: Final = 86_400.0
_Floats = NDArray[np.float64]
_Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Acquisition:
    """Energy (J) of reading each feature and running each stage; one number for all."""

    feature_j: _Floats | float = 0.0
    stage_j: _Floats | float = 0.0

    def __post_init__(self) -> None:
        for name in ("feature_j", "stage_j"):
            figures = np.asarray(getattr(self, name), dtype=np.float64)
            bad = np.flatnonzero(~(np.isfinite(figures) & (figures >= 0)))
            if len(bad):
                at = f"[{bad[0]}]" if figures.ndim else ""
                raise InputError(f"{name}{at} must be a number of joules, at least 0")

    def joules(self, acquired: NDArray[np.bool_], stages: _Ints) -> _Floats:
        """Energy of answering each row, in J, shape (n,).

        Shapes: `acquired` (n, n_features), `stages` (n,).
        """
        features = acquired @ np.broadcast_to(np.float64(self.feature_j), acquired.shape[1:])
        if np.ndim(self.stage_j):
            sums = np.concatenate(([0.0], np.cumsum(self.stage_j)))
            return np.asarray(features + sums[stages], dtype=np.float64)
        return np.asarray(features + self.stage_j * stages, dtype=np.float64)


@dataclass(frozen=True)
class DeviceEnergy:
    """Energy of one kind of device; nothing by default.

    Parameters
    ----------
    idle_w : float
        What it draws at rest, its radio apart, in W.
    battery_wh : float, optional
        What its battery holds, in Wh; None if it has a plug.
    acquisition : Acquisition
        Of reading features and running stages.
    """

    idle_w: float = 0.0
    battery_wh: float | None = None
    acquisition: Acquisition = field(default_factory=Acquisition)

    def __post_init__(self) -> None:
        take_number(self.idle_w, "device: idle_w")
        if self.battery_wh is not None:
            take_number(self.battery_wh, "device: battery_wh", positive=True)

    @classmethod
    def from_file(cls, path: str | Path, features: Sequence[str], n_stages: int) -> Self:
        """Read a TOML file as the module's head shows; `n_stages` run on the device."""
        path = Path(path)
        where = f"device file {path}"
        table = toml_table(path, "device file")
        refuse_unknown(table, ("idle_w", "battery_wh", "stage_j", "feature_j", "features"), where)
        given: dict[str, Any] = {}
        if "idle_w" in table:
            given["idle_w"] = take_number(table["idle_w"], f"{where}: idle_w")
        if "battery_wh" in table:
            key = f"{where}: battery_wh"
            given["battery_wh"] = take_number(table["battery_wh"], key, positive=True)
        given["acquisition"] = Acquisition(
            _feature_joules(table, features, where),
            _stage_joules(table.get("stage_j", 0.0), n_stages, where),
        )
        return cls(**given)

    def days(self, joules_per_day: float, radio: Radio) -> float | None:
        """Days that its battery lasts; None if it has a plug.

        `joules_per_day` is spent above rest, radio, sensors and models together; the radio's
        `idle_w` is drawn day and night.
        """
        if self.battery_wh is None:
            return None
        daily = joules_per_day + (self.idle_w + radio.idle_w) * _DAY
        return self.battery_wh * JOULES_PER_WH / daily if daily > 0 else math.inf


def _feature_joules(table: dict[str, Any], names: Sequence[str], where: str) -> _Floats:
    every = take_number(table.get("feature_j", 0.0), f"{where}: feature_j")
    named = table.get("features", {})
    if not isinstance(named, dict):
        raise InputError(f"{where}: features is {named!r}, not a table")
    for name in named:
        if name not in names:
            raise InputError(f"{where}: features: the bundle has no feature {name!r}")
    return np.array(
        [take_number(named.get(name, every), f"{where}: features.{name}") for name in names],
        dtype=np.float64,
    )


def _stage_joules(value: object, n_stages: int, where: str) -> _Floats | float:
    if not isinstance(value, list):
        return take_number(value, f"{where}: stage_j")
    if len(value) != n_stages:
        raise InputError(
            f"{where}: stage_j has {len(value)} figures, {n_stages} stages run on the device"
        )
    figures = [take_number(j, f"{where}: stage_j[{i}]") for i, j in enumerate(value)]
    return np.array(figures, dtype=np.float64)


def joules_per_device_day(joules: float, *, devices: int, seconds: float) -> float:
    """Mean energy of a device in a day, in J, of what `devices` spent in `seconds`."""
    if devices < 1 or not seconds > 0:
        raise InputError(f"energy: {devices} devices in {seconds} s spend nothing")
    return joules / devices * (_DAY / seconds)
