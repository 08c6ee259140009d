"""Reports of schema version 1 as documents of version 2.

A simulation's has the same fields. The demo's had its own layout: its headline figures become those
of three policies; what it did not measure is left empty.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from gatewise.errors import InputError

__all__ = ["upgraded"]

_NAMES: Final = {"system": "Gatewise", "edge_only": "All edge", "cloud_only": "All cloud"}
_Z: Final = 1.959963984540054  # of 95 %
_CARRIED: Final = (
    "kind", "dataset", "method", "transport", "frontier", "settings", "command", "versions",
    "troubles", "stages", "data", "high_cost_model", "seconds", "expected",
)  # fmt: skip


def upgraded(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Lay a report of version 1 out as one of version 2."""
    if document.get("kind") != "gatewise-demo":
        return document
    instances = _at(document, "instances")
    return {
        **{name: document[name] for name in _CARRIED if name in document},
        "engine": "live",
        "legs": [
            _policy(document, key, instances) for key in _NAMES if key in _at(document, "accuracy")
        ],
        "timeline": [],
        "faults": [],
        "classes": [],
        "breakdown": {"ms": {}, "bytes": {}, "joules": {}},
        "energy": {
            "radio": "",
            "joules_per_device_day": None,
            "battery_wh": None,
            "battery_days": None,
        },
        "workload": "each row once",
        "sampling": "every row once",
        "confidence_level": 0.95,
        "calibration": {},
        "notes": [],
        "run": {"created": document.get("created"), "machine": document.get("machine")},
    }


def _policy(document: Mapping[str, Any], key: str, instances: int) -> dict[str, Any]:
    counts = _at(document, "answers" if key == "system" else f"passes.{key}")
    asked = sum(counts[route] for route in ("cloud", "fallback"))
    answered = counts["edge"] + asked
    traffic = _at(document, f"traffic.{key}")
    histogram = document.get("latency_histogram", {})

    def each(name: str) -> dict[str, float] | None:
        return {"value": traffic[name] / answered} if answered else None

    return {
        "key": key,
        "name": _NAMES[key],
        "engine": "live",
        "instances": instances,
        "accuracy": _wilson(_at(document, f"accuracy.{key}"), instances),
        "offload_rate": _wilson(asked / answered if answered else None, instances),
        "cost": _figure(_at(document, f"cost.full.{key}")),
        "feature_cost": _figure(_at(document, f"feature_cost.{key}")),
        "latency_ms": {
            q: _figure(_at(document, f"latency_ms.{key}.{q}")) for q in ("p50", "p95", "p99")
        },
        "bytes": {"up": each("up"), "down": each("down")},
        "joules": {"radio": 0.0, "features": 0.0, "stages": 0.0},
        "joules_per_device_day": None,
        "battery_days": None,
        "answers": counts,
        "money": None,
        "utilisation": None,
        "workers": {},
        "histogram": {
            "edges_ms": histogram.get("edges_ms", []),
            "all": histogram.get("counts", {}).get(key, []),
        },
        "breakdown_ms": {},
        "reasons": {},
    }


def _at(document: Mapping[str, Any], path: str) -> Any:
    """The value at a path, which must be there."""
    found: Any = document
    keys = path.split(".")
    for i, key in enumerate(keys):
        if not isinstance(found, Mapping) or key not in found:
            raise InputError(f"{'.'.join(keys[: i + 1])}: is missing")
        found = found[key]
    return found


def _figure(value: Any) -> dict[str, Any] | None:
    return None if value is None else {"value": value}


def _wilson(share: Any, n: int) -> dict[str, Any] | None:
    """Wilson's score interval of a share of `n` instances, 95 % (Wilson 1927)."""
    if not isinstance(share, float | int) or not 0 <= share <= 1 or not n:
        return _figure(share)
    middle = (share + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z / (1 + _Z**2 / n) * math.sqrt(share * (1 - share) / n + _Z**2 / (4 * n**2))
    # At the ends rounding may leave the share a bit outside.
    return {
        "value": share,
        "low": min(max(0.0, middle - half), share),
        "high": max(min(1.0, middle + half), share),
    }
