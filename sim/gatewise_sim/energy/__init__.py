"""Energy of devices: radios, sensors, models, batteries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatewise_training._lazy import lazy_names

if TYPE_CHECKING:
    from gatewise_sim.energy.device import DeviceEnergy
    from gatewise_sim.energy.meter import (
        Acquisition,
        RadioMeter,
        battery_days,
        joules_per_device_day,
        radio_joules,
    )
    from gatewise_sim.energy.radio import RADIOS, Radio

__all__ = [
    "RADIOS",
    "Acquisition",
    "DeviceEnergy",
    "Radio",
    "RadioMeter",
    "battery_days",
    "joules_per_device_day",
    "radio_joules",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Acquisition": "meter",
        "DeviceEnergy": "device",
        "RADIOS": "radio",
        "Radio": "radio",
        "RadioMeter": "meter",
        "battery_days": "meter",
        "joules_per_device_day": "meter",
        "radio_joules": "meter",
    },
)
