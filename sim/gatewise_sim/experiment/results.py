"""The report of a simulation, from what each leg's fleet did.

Where each key of ``report.json`` comes from:

- ``instances, offload_rate, accuracy, feature_cost, cost_reduction, bytes, latency_ms, answers,
  transport``: as in every report of Gatewise, plain numbers, of the legs' estimates.
- ``legs``: one :class:`Leg` each: means and quantiles of
  :class:`gatewise_sim.fleet.estimate.result.FleetEstimate` with their intervals; ``joules`` of
  the radio that the link names and of the device's file; ``money`` of the price
  list (null without one), see :mod:`gatewise_sim.experiment.usage`.
- ``timeline, classes, breakdown.ms``: of the system's estimate. ``faults``: of the outages.
- ``frontier``: the bundle's operating points, measured on validation data when it was trained.
- ``breakdown.bytes``: payloads, and what the protocol puts around them.
- ``checked, twin, run``: of a live run only.
- ``settings, command``: the scenario. ``calibration``: the service times used.

Nothing in it depends on the clock, the machine or where files are, but ``run``, and what a live
leg measured.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Final

from gatewise_sim.experiment import usage
from gatewise_sim.fleet.energy.device import DeviceEnergy
from gatewise_sim.fleet.estimate.stepping import Estimate, FleetEstimate
from gatewise_sim.fleet.money import Prices
from gatewise_sim.fleet.routes import ROUTES, Routes
from gatewise_sim.fleet.settings import FleetSettings

__all__ = ["KIND", "LEVEL", "Leg", "headline_keys", "leg_entry", "plain_estimate", "versions"]

KIND: Final = "gatewise-simulation"
LEVEL: Final = 0.95
"""Confidence level of all intervals."""
_VERSIONS: Final = ("gatewise", "numpy", "onnxruntime")


@dataclass(frozen=True, eq=False)
class Leg:
    """What the fleet did under one choice of what is sent.

    Attributes
    ----------
    key, name : str
    engine : str
        ``virtual`` or ``live``.
    routes : Routes
    settings : FleetSettings
    estimate : FleetEstimate
    lost : int
        Instances without an answer.
    """

    key: str
    name: str
    engine: str
    routes: Routes
    settings: FleetSettings
    estimate: FleetEstimate
    lost: int = 0

    def mean(self, name: str) -> float:
        """Mean of a figure per instance; 0 if there were none."""
        found = self.estimate.means.get(name)
        return 0.0 if found is None or math.isnan(found.value) else found.value

    def total(self, name: str) -> float:
        """Sum of a figure over all instances."""
        return self.mean(name) * self.estimate.instances

    def answers(self) -> dict[str, int]:
        """Instances by what became of them."""
        counts = {route: round(self.total(route)) for route in ROUTES}
        return counts | {
            "late": round(self.estimate.devices.get("late", 0)),
            "retries": round(self.estimate.devices.get("retries", 0)),
            "lost": self.lost,
        }


def leg_entry(
    leg: Leg, *, judged: bool, energy: DeviceEnergy | None, prices: Prices | None
) -> dict[str, Any]:
    """Make the entry of a leg in ``legs``.

    Parameters
    ----------
    leg : Leg
    judged : bool
        Whether the truth is known; else ``accuracy`` is None.
    energy : DeviceEnergy or None
    prices : Prices or None
    """
    estimate, means = leg.estimate, leg.estimate.means
    spent = usage.spent(leg, energy)
    bill = None if prices is None else prices.month(usage.of(leg, spent)).as_dict()
    return {
        "key": leg.key,
        "name": leg.name,
        "engine": leg.engine,
        "sampling": estimate.stepped,
        "instances": round(estimate.instances),
        "accuracy": plain_estimate(means.get("accuracy")) if judged else None,
        **{k: plain_estimate(means.get(k)) for k in ("offload_rate", "cost", "feature_cost")},
        "latency_ms": {k: plain_estimate(v) for k, v in estimate.latency_ms.items()},
        "bytes": {
            "up": plain_estimate(means.get("bytes_up")),
            "down": plain_estimate(means.get("bytes_down")),
            **_byte_parts(leg),
        },
        "joules": {
            "radio": leg.mean("radio_j"),
            "features": leg.mean("feature_j"),
            "stages": leg.mean("stage_j"),
        },
        "joules_per_device_day": spent.per_device_day,
        "battery_days": spent.battery_days,
        "answers": leg.answers(),
        "money": bill,
        "utilisation": estimate.utilisation,
        "workers": estimate.workers,
        "histogram": estimate.histogram,
        "breakdown_ms": estimate.breakdown_ms,
        "reasons": estimate.reasons,
    }


def headline_keys(legs: Mapping[str, Leg], *, judged: bool) -> dict[str, Any]:
    """Make the keys that every report of Gatewise has, as plain numbers."""
    system = legs["system"]
    three = [legs.get(key) for key in ("system", "edge_only", "cloud_only")]
    there = {leg.key: leg for leg in three if leg is not None}
    feature_cost = {key: leg.mean("feature_cost") for key, leg in there.items()}
    reference = feature_cost.get("cloud_only")
    return {
        "instances": round(system.estimate.instances),
        "offload_rate": system.mean("offload_rate"),
        "accuracy": {key: leg.mean("accuracy") if judged else None for key, leg in there.items()},
        "feature_cost": feature_cost,
        "cost_reduction": 1 - feature_cost["system"] / reference if reference else None,
        "bytes": {
            key: round(leg.total("bytes_up") + leg.total("bytes_down"))
            for key, leg in there.items()
            if key != "edge_only"
        },
        "latency_ms": {
            key: {
                q: value.value
                for q in ("p50", "p95", "p99")
                if (value := leg.estimate.latency_ms.get(q)) is not None
            }
            for key, leg in there.items()
        },
        "answers": system.answers(),
    }


def breakdown(system: Leg, energy: DeviceEnergy | None) -> dict[str, Any]:
    """Where the system's milliseconds, bytes and joules go, per instance."""
    instances = system.estimate.instances
    return {
        "ms": system.estimate.breakdown_ms,
        "bytes": _byte_parts(system),
        "joules": {
            "radio": system.mean("radio_j"),
            "features": system.mean("feature_j"),
            "stages": system.mean("stage_j"),
            "idle": usage.spent(system, energy).idle / instances if instances else 0.0,
        },
    }


def _byte_parts(leg: Leg) -> dict[str, float]:
    """Bytes of an instance: both payloads, and what the protocol puts around them."""
    request, response = leg.mean("payload_up"), leg.mean("payload_down")
    everything = leg.mean("bytes_up") + leg.mean("bytes_down")
    return {"request": request, "response": response, "protocol": everything - request - response}


def classes(system: Leg, labels: Sequence[Any]) -> list[dict[str, Any]]:
    """Give the system's classes their labels."""
    return [
        {**entry, "label": str(labels[entry["class_index"]])}
        for entry in system.estimate.classes
        if 0 <= entry["class_index"] < len(labels)
    ]


def plain_estimate(estimate: Estimate | None) -> dict[str, float] | None:
    """Write an estimate as JSON holds it."""
    return None if estimate is None else dict(estimate._asdict())


def versions() -> dict[str, str]:
    """Give the versions of what the figures depend on."""
    return {"python": platform.python_version()} | {name: version(name) for name in _VERSIONS}
