"""Alarms of a fleet's audits, and how many instances they took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RaisedAlarms:
    """Alarms of a whole run: instances that a test had observed when it raised its own.

    `devices` by the device's index; `workers` of those workers that raised one.
    """

    devices: Mapping[int, int] = field(default_factory=dict)
    workers: Sequence[int] = ()


@dataclass(frozen=True, kw_only=True)
class AlarmCount:
    """Alarms of the tests at one place.

    `tests` is how many there are and `raised` how many of them raised an alarm, `early` ones before
    the data changed. `instances` is the median of the instances observed until an alarm, those of
    all devices in the fleet's; since the change where there is one.
    """

    place: str  # "device" or "fleet"
    tests: int
    raised: int
    early: int = 0
    instances: float | None = None
