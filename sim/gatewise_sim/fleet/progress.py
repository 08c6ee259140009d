"""Progress events of a simulation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """State of one policy's run; counts are of the whole run so far."""

    at: float
    """Seconds since the run's begin, simulated or real."""
    edge: int = 0
    cloud: int = 0
    fallback: int = 0
    error: int = 0
    """Instances answered, by route."""
    right: int = 0
    labelled: int = 0
    """Answers with a known truth, and the right ones among them."""
    p50_ms: float | None = None
    p95_ms: float | None = None
    """Latency of recent answers to what was to be offloaded, in ms; None where there are none."""
    done: float = 0.0
    """Share of the work that is done, 0 to 1."""
    piece: tuple[float, float] | None = None
    """Begin and end (s) of the part of the run that is new in this snapshot, where parts are not
    done one after the other; None = from the last snapshot's time to this one's.
    """

    @property
    def answered(self) -> int:
        """Instances answered."""
        return self.edge + self.cloud + self.fallback + self.error


class ProgressListener:
    """Receiver of progress events, which does nothing; no call may raise, block or change the run.

    Both engines (virtual time and live) call it from one thread, some ten times a second at most,
    and never wait for it.
    """

    def begin(self, title: str, seconds: float, expected: int | None) -> None:
        """Start a run: its title, length of one policy's run (s), instances expected if known."""

    def policy(self, key: str, name: str) -> None:
        """Start a policy (``system``, a baseline) by key and name; counts begin at 0 again."""

    def advance(self, snapshot: Snapshot) -> None:
        """Take the state of the policy's run."""

    def fault(self, what: str, up: bool, at: float) -> None:
        """Take that ``cloud``, ``link`` or ``2 workers`` will go down, or be `up` again, at a time.

        `at` is in seconds since the policy's run began; each policy meets the same faults.
        """

    def end(self, text: str) -> None:
        """End the run with one line about its result."""
