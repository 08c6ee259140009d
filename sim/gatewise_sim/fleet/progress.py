"""Progress events of a simulation, for any number of listeners.

Both engines (virtual time and live) call a listener from one thread, some ten times a second at
most, and never wait for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """State of one policy's run; counts are of the whole run so far."""

    at: float
    """Seconds since the run's begin, simulated or real."""
    answered: int = 0
    """Instances answered."""
    edge: int = 0
    cloud: int = 0
    fallback: int = 0
    error: int = 0
    """The same by route."""
    right: int | None = None
    """Right answers among those to labelled rows; None without labels."""
    labelled: int | None = None
    """Answers with a known truth; None = all answered."""
    p50_ms: float | None = None
    p95_ms: float | None = None
    """Latency of recent answers to what was to be offloaded, in ms; None where there are none."""
    in_flight: int = 0
    """Instances begun and not answered."""
    workers_up: int | None = None
    devices_up: int | None = None
    """Those that are up and reachable now; None where the engine has no such count."""
    done: float = 0.0
    """Share of the work that is done, 0 to 1."""
    piece: tuple[float, float] | None = None
    """Begin and end (s) of the part of the run that is new in this snapshot, where parts are not
    done one after the other; None = from the last snapshot's time to this one's.
    """


@runtime_checkable
class ProgressListener(Protocol):
    """Receiver of progress events; no call may raise, block or change the run."""

    def begin(self, title: str, seconds: float, expected: int | None) -> None:
        """Start a run: its title, length of one policy's run (s), instances expected if known."""

    def policy(self, key: str, name: str) -> None:
        """Start a policy (``system``, a baseline) by key and name; counts begin at 0 again."""

    def advance(self, snapshot: Snapshot) -> None:
        """Take the state of the policy's run."""

    def fault(self, what: str, up: bool, at: float) -> None:
        """Take that ``cloud``, ``broker``, ``link`` or ``worker 2`` goes down, or is `up` again.

        `at` is in seconds since the run's begin; a time later than the last snapshot's is a fault
        to come.
        """

    def end(self, text: str) -> None:
        """End the run with one line about its result."""


class Listeners:
    """Several listeners as one, called in the order given; those that are None are left out."""

    def __init__(self, *listeners: ProgressListener | None) -> None:
        self.listeners = tuple(each for each in listeners if each is not None)

    def begin(self, title: str, seconds: float, expected: int | None) -> None:
        for each in self.listeners:
            each.begin(title, seconds, expected)

    def policy(self, key: str, name: str) -> None:
        for each in self.listeners:
            each.policy(key, name)

    def advance(self, snapshot: Snapshot) -> None:
        for each in self.listeners:
            each.advance(snapshot)

    def fault(self, what: str, up: bool, at: float) -> None:
        for each in self.listeners:
            each.fault(what, up, at)

    def end(self, text: str) -> None:
        for each in self.listeners:
            each.end(text)
