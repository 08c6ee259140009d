"""Alarms of a fleet's audits, and how many instances they took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


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


def count_alarms(
    alarms: RaisedAlarms, before: NDArray[np.int64], workers: int
) -> tuple[AlarmCount, ...]:
    """Count a run's alarms at its devices and at its workers.

    `before` are the instances that each device had observed when the data changed, shape
    (n_devices,). A worker tests what it is sent: one of several sees its share of the fleet's.

    Examples
    --------
    >>> for found in count_alarms(RaisedAlarms({1: 250, 3: 90}, [900]), np.full(5, 100), 1):
    ...     print(found.place, found.raised, found.early, found.instances)
    device 2 1 150.0
    fleet 1 0 400.0
    """
    devices = [float(at - before[device]) for device, at in alarms.devices.items()]
    fleet = [float(at * workers - before.sum()) for at in alarms.workers]
    return _count("device", len(before), devices), _count("fleet", workers, fleet)


def _count(place: str, tests: int, since: Sequence[float]) -> AlarmCount:
    found = [instances for instances in since if instances > 0]
    return AlarmCount(
        place=place,
        tests=tests,
        raised=len(since),
        early=len(since) - len(found),
        instances=float(np.median(found)) if found else None,
    )
