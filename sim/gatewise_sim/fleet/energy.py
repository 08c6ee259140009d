"""Energy of devices: radios, with figures of real ones, and what else they draw, from a file.

The cost of a request depends on the one before: an isolated LTE request pays 12 J of tail for a few
millijoules of bytes, and the next one within the tail pays only for making it last longer.

What a device draws besides its radio, and how long its battery lasts, is read from a file::

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
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from gatewise.documents.toml_settings import SettingsTable, take_number
from gatewise.errors import InputError
from gatewise.formats import DAY

_Floats = NDArray[np.float64]
_Ints = NDArray[np.int64]
_Bytes = TypeVar("_Bytes", int, _Ints)  # of one transfer, or of several

JOULES_PER_WH: Final = 3600.0
SEGMENT: Final = 1460  # bytes of payload in a full Ethernet segment
HEADER: Final = 40  # bytes of IPv4 and TCP headers on every segment


def packets(n_bytes: _Bytes) -> _Bytes:
    """Segments that carry `n_bytes` of TCP payload."""
    return -(-n_bytes // SEGMENT)


def ip_bytes(n_bytes: _Bytes) -> _Bytes:
    """Bytes of IP, as an operator bills them, that carry `n_bytes` of TCP payload.

    Pure acknowledgements are not counted.
    """
    return n_bytes + HEADER * packets(n_bytes)


@dataclass(frozen=True)
class Radio:
    """Energy of a radio; all 0 by default.

    Waking up takes `wake_w` (W) for `wake_s` (s); `active_w` is drawn while a transfer is under
    way, whatever its rate; every IP byte and every segment costs microjoules (a power that grows
    with the rate is this too: 438 mW per Mbit/s are 3.5 uJ/byte); after the last transfer it stays
    awake with `tail_w` for `tail_s`, and sleeps at `idle_w`.

    ``wifi`` is Feeney and Nilsson, INFOCOM 2001 (early 802.11, point to point at 2 Mbit/s).
    ``lte`` and ``3g`` are Huang et al., MobiSys 2012 (a phone). ``gsm`` is Balasubramanian et al.,
    IMC 2009. ``nb-iot`` and ``satellite`` are assumptions: a module of class 23 dBm (about 0.7 W
    sending, 0.2 W receiving) held for 20 s by the network's inactivity timer, and a terminal of
    some watts.
    """

    name: str
    wake_w: float = 0.0
    wake_s: float = 0.0
    active_w: float = 0.0
    up_uj_per_byte: float = 0.0
    down_uj_per_byte: float = 0.0
    up_uj_per_packet: float = 0.0
    down_uj_per_packet: float = 0.0
    tail_w: float = 0.0
    tail_s: float = 0.0
    idle_w: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self)[1:]:
            take_number(getattr(self, field.name), f"radio {self.name!r}: {field.name}")

    @property
    def wake_j(self) -> float:
        """Energy of one waking up, in J."""
        return self.wake_w * self.wake_s

    @property
    def tail_j(self) -> float:
        """Energy of a whole tail, in J."""
        return self.tail_w * self.tail_s

    def payload_j(self, up: _Bytes, down: _Bytes) -> Any:
        """Energy (J) of the bytes and packets of `up` and `down` bytes of TCP payload."""
        return 1e-6 * (
            self.up_uj_per_byte * ip_bytes(up)
            + self.up_uj_per_packet * packets(up)
            + self.down_uj_per_byte * ip_bytes(down)
            + self.down_uj_per_packet * packets(down)
        )


_MW_PER_MBPS: Final = 8e-3  # mW per Mbit/s in uJ per byte

# fmt: off
_FIGURES: Final[dict[str, tuple[float, ...]]] = {
    # The fields of a radio in order: waking up (W, s), active (W), a byte up and down (uJ),
    # a packet up and down (uJ), tail (W, s), idle (W).
    "none":      (),
    "wifi":      (0, 0, 0, 1.9, 0.42, 420, 330),
    "lte":       (1.2107, 0.2601, 1.28804, 438.39 * _MW_PER_MBPS, 51.97 * _MW_PER_MBPS,
                  0, 0, 1.060, 11.576),
    "3g":        (0.6594, 0.5821, 0.81788, 868.98 * _MW_PER_MBPS, 122.12 * _MW_PER_MBPS,
                  0, 0, 0.8039, 8.0882),
    # 0.036 J per kB and 1.7 J a transfer, with the tail's 6 s at 0.25 W apart.
    "gsm":       (1.0, 1.7, 0, 36, 36, 0, 0, 0.25, 6),
    "nb-iot":    (0.2, 2, 0.2, 200, 0, 0, 0, 0.02, 20, 13e-6),
    "satellite": (2, 5, 2, 60, 0, 0, 0, 2, 10),
}
# fmt: on
RADIOS: Final = {name: Radio(name, *figures) for name, figures in _FIGURES.items()}


def radio_joules(
    radio: Radio, device: _Ints, begin: _Floats, end: _Floats, up: _Ints, down: _Ints
) -> _Floats:
    """Energy (J) that each exchange of a fleet adds to its radio, shape (n,).

    Arrays of shape (n,), sorted by device, then by begin: first and last moment (s), bytes of TCP
    payload.
    """
    first = np.ones(len(device), dtype=bool)
    first[1:] = device[1:] != device[:-1]
    before = np.where(first, -np.inf, np.roll(_running_max(end, first), 1))
    asleep: NDArray[np.bool_] = begin > before + radio.tail_s
    joules = np.asarray(radio.payload_j(up, down), np.float64)
    joules += radio.active_w * np.maximum(0.0, end - np.maximum(begin, before))
    gap = np.where(asleep, 0.0, np.maximum(0.0, begin - before))
    joules += np.where(asleep, radio.wake_j + radio.tail_j, radio.tail_w * gap)
    return np.asarray(joules, np.float64)


def _running_max(values: _Floats, first: NDArray[np.bool_]) -> _Floats:
    """Largest value so far within each group; `first` marks where groups begin."""
    # By ranks, which the groups' numbers can be added to without rounding.
    order = np.argsort(values, kind="stable")
    rank = np.empty(len(values), np.int64)
    rank[order] = np.arange(len(values))
    offset = len(values) * np.cumsum(first)
    return np.asarray(values[order[np.maximum.accumulate(rank + offset) - offset]], np.float64)


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
