"""Put everything together: the command line, links with delay, live runs and their reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatewise_training._lazy import lazy_names

if TYPE_CHECKING:
    from gatewise_sim.demo import Options, run_demo
    from gatewise_sim.errors import RunError
    from gatewise_sim.network import PROFILES, DelayProxy, LinkProfile

__all__ = ["PROFILES", "DelayProxy", "LinkProfile", "Options", "RunError", "run_demo"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "PROFILES": "network",
        "DelayProxy": "network",
        "LinkProfile": "network",
        "Options": "demo",
        "RunError": "errors",
        "run_demo": "demo",
    },
)
