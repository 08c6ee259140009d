"""Energy of devices in virtual time: their radios, their sensors, their models.

What a radio costs is a matter of when it is used: an isolated LTE request pays 12 J of tail for a
few millijoules of bytes, and the next one within the tail pays only for making it last longer.
:class:`RadioMeter` follows one radio; :func:`radio_joules` does the same for a fleet at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from gatewise.errors import InputError
from gatewise_sim.fleet.energy.radio import HEADER, SEGMENT, Radio

__all__ = [
    "JOULES_PER_WH",
    "Acquisition",
    "RadioMeter",
    "battery_days",
    "joules_per_device_day",
    "radio_joules",
]

JOULES_PER_WH: Final = 3600.0
_DAY: Final = 86_400.0
_Floats = npt.NDArray[np.float64]
_Ints = npt.NDArray[np.int64]


class RadioMeter:
    """The energy of one device's radio, transfer by transfer.

    Parameters
    ----------
    radio : Radio

    Attributes
    ----------
    joules : float
        Spent so far above `idle_w`, the tail that is running counted whole.
    wakes : int
        How often it woke up.

    Examples
    --------
    Two requests within one tail wake the radio once and have one tail:

    >>> meter = RadioMeter(Radio("x", wake_w=1, wake_s=1, active_w=2, tail_w=1, tail_s=10))
    >>> meter.transfer(0.0, 0.5), meter.transfer(5.0, 5.5), meter.wakes
    (12.0, 5.5, 1)
    """

    def __init__(self, radio: Radio) -> None:
        self.radio = radio
        self.joules = 0.0
        self.wakes = 0
        self._busy_until = -math.inf

    def transfer(self, begin: float, end: float, *, up: int = 0, down: int = 0) -> float:
        """Account for an exchange between `begin` and `end` (s).

        Parameters
        ----------
        begin, end : float
            When its first byte enters the link and its last one leaves it. Exchanges may overlap;
            none begins before the one accounted for before it.
        up, down : int
            Bytes of TCP payload.

        Returns
        -------
        float
            What it adds (J): less than a tail if one was running, which it replaces in part.
        """
        radio, before = self.radio, self._busy_until
        asleep = begin > before + radio.tail_s
        spent = radio.payload_j(up, down)
        spent += radio.active_w * max(0.0, end - max(begin, before))
        if asleep:
            self.wakes += 1
            spent += radio.wake_j + radio.tail_j
        else:
            # The tail counted before ran until then; one of full length follows this exchange.
            spent += radio.tail_w * max(0.0, begin - before)
        self.joules += spent
        self._busy_until = max(before, end)
        return spent


def radio_joules(
    radio: Radio, device: _Ints, begin: _Floats, end: _Floats, up: _Ints, down: _Ints
) -> tuple[_Floats, npt.NDArray[np.bool_]]:
    """What each exchange of a fleet adds to its radio's energy, as :class:`RadioMeter` does.

    Parameters
    ----------
    radio : Radio
        That of every device.
    device, begin, end, up, down : ndarray, shape (n,)
        Device, first and last moment (s), bytes of TCP payload. Sorted by device, then by begin.

    Returns
    -------
    joules : ndarray of float64, shape (n,)
    woke : ndarray of bool, shape (n,)
        Whether the radio had to wake up for it.
    """
    first = np.ones(len(device), dtype=bool)
    first[1:] = device[1:] != device[:-1]
    before = np.where(first, -np.inf, np.roll(_running_max(end, first), 1))
    asleep: npt.NDArray[np.bool_] = begin > before + radio.tail_s
    segments_up, segments_down = -(-up // SEGMENT), -(-down // SEGMENT)
    joules = 1e-6 * (
        radio.up_uj_per_byte * (up + HEADER * segments_up)
        + radio.up_uj_per_packet * segments_up
        + radio.down_uj_per_byte * (down + HEADER * segments_down)
        + radio.down_uj_per_packet * segments_down
    )
    joules += radio.active_w * np.maximum(0.0, end - np.maximum(begin, before))
    gap = np.where(asleep, 0.0, np.maximum(0.0, begin - before))
    joules += np.where(asleep, radio.wake_j + radio.tail_j, radio.tail_w * gap)
    return joules, asleep


def _running_max(values: _Floats, first: npt.NDArray[np.bool_]) -> _Floats:
    """Largest value so far within each group; `first` marks where groups begin."""
    group_begin = np.maximum.accumulate(np.where(first, np.arange(len(values)), 0))
    longest = int((np.arange(len(values)) - group_begin).max(initial=0)) + 1
    best, reach = values.copy(), 1
    while reach < longest:  # best covers `reach` values up to each
        there = np.arange(len(values)) - reach
        ok = there >= group_begin
        widened = best.copy()
        widened[ok] = np.maximum(best[ok], best[there[ok]])
        best, reach = widened, 2 * reach
    return best


@dataclass(frozen=True)
class Acquisition:
    """Energy of reading features and running models on the device; nothing by default.

    Parameters
    ----------
    feature_j : ndarray of float64, shape (n_features,), or float
        Of acquiring each feature, in J.
    stage_j : ndarray of float64, shape (n_stages,), or float
        Of running each stage on the device, in J.

    Raises
    ------
    InputError
        If a figure is negative or not finite.
    """

    feature_j: _Floats | float = 0.0
    stage_j: _Floats | float = 0.0

    def __post_init__(self) -> None:
        for name in ("feature_j", "stage_j"):
            figures = np.asarray(getattr(self, name), dtype=np.float64)
            bad = np.flatnonzero(~(np.isfinite(figures) & (figures >= 0)))
            if len(bad):
                at = f"[{bad[0]}]" if figures.ndim else ""
                raise InputError(f"{name}{at} must be a number of joules, at least 0")

    def joules(self, bought: npt.NDArray[np.bool_], stages: _Ints) -> _Floats:
        """Energy of answering each row, in J, shape (n,).

        Parameters
        ----------
        bought : ndarray of bool, shape (n, n_features)
            The features that were acquired.
        stages : ndarray of int, shape (n,)
            How many stages ran on the device.
        """
        features = bought @ np.broadcast_to(np.float64(self.feature_j), bought.shape[1:])
        if np.ndim(self.stage_j):
            sums = np.concatenate(([0.0], np.cumsum(self.stage_j)))
            return np.asarray(features + sums[stages], dtype=np.float64)
        return np.asarray(features + self.stage_j * stages, dtype=np.float64)


def joules_per_device_day(joules: float, *, devices: int, seconds: float) -> float:
    """Mean energy of a device in a day, in J, of what `devices` spent in `seconds`.

    Raises
    ------
    InputError
        If there are no devices or no time has passed.
    """
    if devices < 1 or not seconds > 0:
        raise InputError(f"energy: {devices} devices in {seconds} s spend nothing")
    return joules / devices * (_DAY / seconds)


def battery_days(battery_wh: float, joules_per_day: float, *, idle_w: float = 0.0) -> float:
    """How many days a battery lasts; infinity if nothing is drawn.

    Parameters
    ----------
    battery_wh : float
        What it holds, in Wh. Its ageing and self-discharge are not counted.
    joules_per_day : float
        What the device spends above idling.
    idle_w : float, default 0
        What device and radio draw at rest, in W.

    Examples
    --------
    >>> battery_days(10.0, 3600.0)
    10.0
    """
    if not battery_wh > 0:
        raise InputError(f"battery: {battery_wh} Wh must be above 0")
    daily = joules_per_day + idle_w * _DAY
    return battery_wh * JOULES_PER_WH / daily if daily > 0 else math.inf
