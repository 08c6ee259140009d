"""A fleet for real: broker, workers and devices as processes, over MQTT."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatewise_training._lazy import lazy_names

if TYPE_CHECKING:
    from gatewise_sim.live.fleet import LiveRun, check_live, run_live
    from gatewise_sim.live.passes import Run, Settings, check, run

__all__ = [
    "LiveRun",
    "Run",
    "Settings",
    "check",
    "check_live",
    "run",
    "run_live",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "LiveRun": "fleet",
        "Run": "passes",
        "Settings": "passes",
        "check": "passes",
        "check_live": "fleet",
        "run": "passes",
        "run_live": "fleet",
    },
)
