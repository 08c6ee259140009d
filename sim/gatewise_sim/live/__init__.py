"""A fleet for real: broker, workers and devices as processes, over MQTT."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatewise_training._lazy import lazy_names

if TYPE_CHECKING:
    from gatewise_sim.live.passes import Run, Settings, check, run

__all__ = [
    "Run",
    "Settings",
    "check",
    "run",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Run": "passes",
        "Settings": "passes",
        "check": "passes",
        "run": "passes",
    },
)
