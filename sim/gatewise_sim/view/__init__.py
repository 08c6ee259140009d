"""What a user sees while a simulation runs: a terminal dashboard and a small local page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatewise_training._lazy import lazy_names

if TYPE_CHECKING:
    from gatewise_sim.view.session import Viewing, open_watch
    from gatewise_sim.view.watch import Several, Silent, Snapshot, Watch

__all__ = ["Several", "Silent", "Snapshot", "Viewing", "Watch", "open_watch"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Several": "watch",
        "Silent": "watch",
        "Snapshot": "watch",
        "Viewing": "session",
        "Watch": "watch",
        "open_watch": "session",
    },
)
