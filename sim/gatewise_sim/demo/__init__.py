"""The main job: train, pack, deploy over MQTT, measure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatewise_training._lazy import lazy_names

if TYPE_CHECKING:
    from gatewise_sim.demo.run import Options, run_demo

__all__ = [
    "Options",
    "run_demo",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Options": "run",
        "run_demo": "run",
    },
)
