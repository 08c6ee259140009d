"""What a leg used, in joules and on a bill."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gatewise_edge.link.wire import request_topic, response_topic
from gatewise_sim.fleet.energy.device import DeviceEnergy
from gatewise_sim.fleet.energy.meter import joules_per_device_day
from gatewise_sim.fleet.energy.radio import HEADER, packets
from gatewise_sim.fleet.money import Usage
from gatewise_sim.live.outcome import publish_bytes

if TYPE_CHECKING:
    from gatewise_sim.experiment.results import Leg

__all__ = ["Spent", "messages", "of", "spent"]

_NAME = "0" * 8  # of a device, in its topics
_WORKER_US = 1000


@dataclass(frozen=True, slots=True)
class Spent:
    """Joules of all devices in the whole run.

    Attributes
    ----------
    active : float
        Of radios, sensors and models.
    idle : float
        At rest, radio and device.
    per_device_day : float
        Both, of one device in a day.
    battery_days : float or None
        None if it has a plug, or nothing is drawn.
    """

    active: float
    idle: float
    per_device_day: float
    battery_days: float | None


def spent(leg: Leg, energy: DeviceEnergy | None) -> Spent:
    """Add up what a leg's devices drew."""
    settings, radio = leg.settings, leg.settings.link.radio
    active = sum(leg.total(name) for name in ("radio_j", "feature_j", "stage_j"))
    watts = radio.idle_w + (0.0 if energy is None else energy.idle_w)
    idle = watts * settings.seconds * settings.devices

    def a_day(joules: float) -> float:
        return joules_per_device_day(joules, devices=settings.devices, seconds=settings.seconds)

    days = None if energy is None else energy.days(a_day(active), radio)
    return Spent(
        active,
        idle,
        a_day(active + idle),
        None if days is None or math.isinf(days) else days,
    )


def messages(leg: Leg) -> tuple[float, float]:
    """How many requests and responses were sent, repeated ones and refusals included."""
    sizes = leg.routes.sizes
    up = leg.total("payload_up") / sizes.request(int(leg.settings.deadline_ms))
    down = leg.total("payload_down") / sizes.response(_WORKER_US)
    return up, down


def of(leg: Leg, spent: Spent) -> Usage:
    """What a bill is made of.

    An operator bills IP: each message is a packet or more, and so is each PUBACK, which goes
    alone (a device that has both to send at a time may save one).
    """
    sizes, settings = leg.routes.sizes, leg.settings
    requests, responses = messages(leg)
    up = publish_bytes(request_topic(_NAME), sizes.request(int(settings.deadline_ms)))
    down = publish_bytes(response_topic(_NAME), sizes.response(_WORKER_US))
    headers = HEADER * (requests * (packets(up) + 1) + responses * (packets(down) + 1))
    return Usage(
        seconds=settings.seconds,
        devices=settings.devices,
        workers=0 if leg.key == "edge_only" else settings.workers,
        bytes=leg.total("bytes_up") + leg.total("bytes_down") + headers,
        joules=spent.active + spent.idle,
        feature_units=leg.total("feature_cost"),
        requests=requests,
    )
