"""Alarms of a fleet's audits, and how many instances they took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gatewise_sim.fleet.answers import Answers
from gatewise_sim.fleet.settings import FleetSettings


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
    alarms: RaisedAlarms | None, answers: Answers, settings: FleetSettings
) -> tuple[AlarmCount, ...]:
    """Count a run's alarms at its devices and at its workers; nothing without audits.

    A worker tests what it is sent: one of several sees its share of the fleet's.
    """
    if alarms is None:
        return ()
    before = answers.observed_before(settings.data_change, settings.devices)
    devices = [float(at - before[device]) for device, at in alarms.devices.items()]
    fleet = [float(at * settings.workers - before.sum()) for at in alarms.workers]
    return _count("device", len(before), devices), _count("fleet", settings.workers, fleet)


def _count(place: str, tests: int, since: Sequence[float]) -> AlarmCount:
    found = [instances for instances in since if instances > 0]
    return AlarmCount(
        place=place,
        tests=tests,
        raised=len(since),
        early=len(since) - len(found),
        instances=float(np.median(found)) if found else None,
    )
