"""What a watch is told of a live run."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gatewise_sim.fleet.progress import ProgressListener, Snapshot
from gatewise_sim.fleet.routes import ROUTES
from gatewise_sim.live.outcome import Outcome
from gatewise_sim.live.processes import Pass
from gatewise_sim.live.site import Site

__all__ = ["UPDATE_SECONDS", "Watching"]

UPDATE_SECONDS: Final = 0.25
_RECENT: Final = 500


@dataclass(eq=False)
class Watching:
    """Tells a watch how a run goes, from what the devices say."""

    watch: ProgressListener
    total: int
    truth: NDArray[np.int64] | None
    _made: Pass = field(default_factory=Pass)
    _routes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ROUTES, 0))
    _right: int = 0
    _judged: int = 0
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))
    _next: float = 0.0

    def hear(self, made: Pass, new: Sequence[Outcome]) -> None:
        """Take in new answers."""
        self._made = made
        for outcome in new:
            self._routes[outcome.route] += 1
            self._recent.append(outcome.latency_ms)
            if self.truth is not None and self.truth[outcome.row] >= 0:
                self._judged += 1
                self._right += outcome.label == int(self.truth[outcome.row])

    def update(self, at: float, site: Site, *, last: bool = False) -> None:
        """Tell, unless that was just done."""
        if at < self._next and not last:
            return
        self._next = at + 0.8 * UPDATE_SECONDS
        answered = len(self._made.outcomes)
        p50, p95 = np.percentile(self._recent, (50, 95)) if self._recent else (None, None)
        judges = self.truth is not None
        self.watch.advance(
            Snapshot(
                at=max(at, 0.0),
                answered=answered,
                edge=self._routes["edge"],
                cloud=self._routes["cloud"],
                fallback=self._routes["fallback"],
                error=self._routes["error"],
                right=self._right if judges else None,
                judged=self._judged if judges else None,
                p50_ms=None if p50 is None else float(p50),
                p95_ms=None if p95 is None else float(p95),
                in_flight=self._made.out,
                workers_up=site.workers_up,
                devices_up=self._made.up,
                done=answered / max(self.total, 1),
            )
        )
