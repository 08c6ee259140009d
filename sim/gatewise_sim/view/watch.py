"""How a simulation says where it stands: a seam that a screen, a page or nobody listens at.

The engines (virtual time and live) only know `Watch`. They call it from one thread, some ten times
a second at most, and never wait for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

__all__ = ["Several", "Silent", "Snapshot", "Watch"]


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Where one leg of a simulation stands; counts are of the whole leg so far.

    Attributes
    ----------
    at : float
        Seconds since the run's begin, simulated or real.
    answered : int
        Instances answered.
    edge, cloud, fallback, error : int
        The same by route.
    right : int or None
        Right answers among the judged; None without truth.
    judged : int or None
        Answers whose truth is known; None = all answered.
    p50_ms, p95_ms : float or None
        Latency of recent answers, in ms; None where there are none.
    in_flight : int
        Instances begun and not answered.
    workers_up, devices_up : int or None
        Of the run's now up and reachable; None where the engine does not know.
    done : float
        Share of the leg's work that is done, 0 to 1.
    piece : tuple of float or None
        Begin and end (s) of the part of the run that the news since the last snapshot is about,
        where parts are not done one after the other; None = from the last one's time to this one's.
    """

    at: float
    answered: int = 0
    edge: int = 0
    cloud: int = 0
    fallback: int = 0
    error: int = 0
    right: int | None = None
    judged: int | None = None
    p50_ms: float | None = None
    p95_ms: float | None = None
    in_flight: int = 0
    workers_up: int | None = None
    devices_up: int | None = None
    done: float = 0.0
    piece: tuple[float, float] | None = None


@runtime_checkable
class Watch(Protocol):
    """Who looks on. No call may raise, block or change the run."""

    def begin(self, title: str, seconds: float, total: int | None) -> None:
        """Start a run (or a stage of it, as a calibration).

        Parameters
        ----------
        title : str
            What is simulated.
        seconds : float
            Length of a leg on the run's own clock, in s.
        total : int or None
            Instances that a leg expects; None = not known.
        """

    def leg(self, key: str, name: str) -> None:
        """Start a leg: the system or a baseline; counts begin at 0 again.

        Parameters
        ----------
        key : str
            Its short name, e.g. ``system`` or ``edge_only``.
        name : str
            Its name for people.
        """

    def update(self, snapshot: Snapshot) -> None:
        """Hand over where the leg stands."""

    def fault(self, what: str, up: bool, at: float) -> None:
        """Say that something fails or comes back.

        May be called ahead: a time later than the last snapshot's is a fault to come.

        Parameters
        ----------
        what : str
            What it is about: ``cloud``, ``broker``, ``link``, ``worker 2``.
        up : bool
            False: it goes down at this time. True: it is back.
        at : float
            When, in s since the run's begin.
        """

    def end(self, text: str) -> None:
        """End the run with one line that says how it went."""


class Silent:
    """A watch that does nothing."""

    def begin(self, title: str, seconds: float, total: int | None) -> None:
        """Do nothing."""

    def leg(self, key: str, name: str) -> None:
        """Do nothing."""

    def update(self, snapshot: Snapshot) -> None:
        """Do nothing."""

    def fault(self, what: str, up: bool, at: float) -> None:
        """Do nothing."""

    def end(self, text: str) -> None:
        """Do nothing."""


class Several:
    """Tell several watches the same, in the order given.

    Parameters
    ----------
    *watches : Watch or None
        Who is told; None is left out.
    """

    def __init__(self, *watches: Watch | None) -> None:
        self.watches = tuple(watch for watch in watches if watch is not None)

    def begin(self, title: str, seconds: float, total: int | None) -> None:
        """Hand on to each."""
        for watch in self.watches:
            watch.begin(title, seconds, total)

    def leg(self, key: str, name: str) -> None:
        """Hand on to each."""
        for watch in self.watches:
            watch.leg(key, name)

    def update(self, snapshot: Snapshot) -> None:
        """Hand on to each."""
        for watch in self.watches:
            watch.update(snapshot)

    def fault(self, what: str, up: bool, at: float) -> None:
        """Hand on to each."""
        for watch in self.watches:
            watch.fault(what, up, at)

    def end(self, text: str) -> None:
        """Hand on to each."""
        for watch in self.watches:
            watch.end(text)
