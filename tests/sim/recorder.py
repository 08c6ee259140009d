"""A progress listener that keeps what is reported."""

from __future__ import annotations

from collections.abc import Callable

from gatewise_sim.progress import ProgressListener, Snapshot


class Recorder(ProgressListener):
    """Keeps snapshots and faults, and may act on each snapshot."""

    def __init__(self, act: Callable[[Snapshot], None] | None = None) -> None:
        self.snapshots: list[Snapshot] = []
        self.faults: list[tuple[str, bool, float]] = []
        self._act = act

    def advance(self, snapshot: Snapshot) -> None:
        self.snapshots.append(snapshot)
        if self._act is not None:
            self._act(snapshot)

    def fault(self, part: str, up: bool, at: float) -> None:
        self.faults.append((part, up, at))
