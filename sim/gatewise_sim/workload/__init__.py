"""When instances come, at which device, and which rows they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatewise_training._lazy import lazy_names

if TYPE_CHECKING:
    from gatewise_sim.workload.draw import Arrivals, arrivals, parse
    from gatewise_sim.workload.kinds import Bursty, Diurnal, Periodic, Poisson, Replay, Workload
    from gatewise_sim.workload.row_mix import RowMix

__all__ = [
    "Arrivals",
    "Bursty",
    "Diurnal",
    "Periodic",
    "Poisson",
    "Replay",
    "RowMix",
    "Workload",
    "arrivals",
    "parse",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Arrivals": "draw",
        "Bursty": "kinds",
        "Diurnal": "kinds",
        "Periodic": "kinds",
        "Poisson": "kinds",
        "Replay": "kinds",
        "RowMix": "row_mix",
        "Workload": "kinds",
        "arrivals": "draw",
        "parse": "draw",
    },
)
