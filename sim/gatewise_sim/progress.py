"""Progress events of a simulation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """State of one policy's run.

    `at` is in seconds since the run's begin, simulated or real, `done` the share of the work that
    is done, `answered` the instances so far. A live run also counts answers by route.
    """

    at: float
    done: float
    answered: int
    cloud: int = 0
    fallback: int = 0


class ProgressListener:
    """Receiver of progress events, which does nothing; no call may raise, block or change the run.

    Both engines call it from one thread, some ten times a second at most, and never wait for it.
    """

    def begin(self, title: str, seconds: float, expected: int | None) -> None:
        """Start a run: its title, length of one policy's run (s), instances expected if known."""

    def policy(self, key: str, name: str) -> None:
        """Start a policy by key and name; counts begin at 0 again."""

    def advance(self, snapshot: Snapshot) -> None:
        """Take the state of the policy's run."""

    def fault(self, part: str, up: bool, at: float) -> None:
        """Take that ``cloud``, ``link`` or ``2 workers`` went down, or are `up` again, at a time.

        `at` is in seconds since the policy's run began.
        """

    def end(self, text: str) -> None:
        """End the run with one line about its result."""
