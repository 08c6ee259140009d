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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise.formats import DAY
from gatewise.toml_settings import SettingsTable, take_number
from gatewise_sim.fleet.energy.radio import Radio

JOULES_PER_WH: Final = 3600.0
_Floats = NDArray[np.float64]


@dataclass(frozen=True)
class DeviceEnergy:
    """Energy of one kind of device; nothing by default."""

    idle_w: float = 0.0
    """What it draws at rest, its radio apart, in W."""
    battery_wh: float | None = None
    """What its battery holds, in Wh; None if it has a plug."""
    feature_j: _Floats | float = 0.0
    """Of acquiring each feature, in J; one number for all."""
    stage_j: _Floats | float = 0.0
    """Of running each stage, in J; one number for all."""

    def __post_init__(self) -> None:
        take_number(self.idle_w, "device: idle_w")
        if self.battery_wh is not None:
            take_number(self.battery_wh, "device: battery_wh", positive=True)
        for name in ("feature_j", "stage_j"):
            figures = np.asarray(getattr(self, name), dtype=np.float64)
            bad = np.flatnonzero(~(np.isfinite(figures) & (figures >= 0)))
            if len(bad):
                at = f"[{bad[0]}]" if figures.ndim else ""
                raise InputError(f"{name}{at} must be a number of joules, at least 0")

    @classmethod
    def from_file(cls, path: str | Path, features: Sequence[str], n_stages: int) -> Self:
        """Read a TOML file as the module's head shows; `n_stages` run on the device."""
        keys = ("idle_w", "battery_wh", "stage_j", "feature_j", "features")
        table = SettingsTable.read(Path(path), "device file", keys)
        given: dict[str, Any] = table.numbers(("idle_w",))
        if "battery_wh" in table.values:
            given["battery_wh"] = table.number("battery_wh", positive=True)
        every, named = table.number("feature_j", 0.0), dict[str, float]()
        if "features" in table.values:
            named = table.table("features", features).numbers(features)
        feature_j = np.array([named.get(name, every) for name in features], np.float64)
        stage_j: _Floats | float = 0.0
        if isinstance(table.values.get("stage_j"), list):
            stage_j = np.array(table.number_list("stage_j", n_stages, "stages run on the device"))
        else:
            stage_j = table.number("stage_j", 0.0)
        return cls(**given, feature_j=feature_j, stage_j=stage_j)

    def feature_joules(self, acquired: NDArray[np.bool_]) -> _Floats:
        """Energy of acquiring sets of features, in J, shape (n,); `acquired` (n, n_features)."""
        each = np.broadcast_to(np.float64(self.feature_j), acquired.shape[1:])
        return np.asarray(acquired @ each, np.float64)

    def stage_joules(self, stages: NDArray[np.int64]) -> _Floats:
        """Energy of running the first stages, in J; `stages`: how many, shape (n,)."""
        if not np.ndim(self.stage_j):
            return np.asarray(self.stage_j * stages, np.float64)
        return np.concatenate(([0.0], np.cumsum(self.stage_j)))[stages]

    def days(self, joules_per_day: float, radio: Radio) -> float | None:
        """Days that its battery lasts; None if it has a plug.

        `joules_per_day` is spent above rest, radio, sensors and models together; the radio's
        `idle_w` is drawn day and night.
        """
        if self.battery_wh is None:
            return None
        daily = joules_per_day + (self.idle_w + radio.idle_w) * DAY
        return self.battery_wh * JOULES_PER_WH / daily if daily > 0 else math.inf
