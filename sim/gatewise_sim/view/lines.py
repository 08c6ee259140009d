"""The run where no terminal is: a plain line now and then."""

from __future__ import annotations

from typing import Final

from gatewise_sim.report.words import millis, percent
from gatewise_sim.view.state import LegDone, Picture
from gatewise_sim.view.words import after, clock_text, count, leg_text, roughly

__all__ = ["Lines"]

_EVERY: Final = 2.0  # s between two lines at least,
_AFTER: Final = 30.0  # and at most, in a leg that hardly moves


class Lines:
    """Says now and then where a run stands.

    Asked at every piece of news; how often it speaks depends on the clock's readings alone.
    """

    def __init__(self) -> None:
        self._leg: tuple[str, str] | None = None
        self._tenth = 0
        self._spoke = 0.0
        self._faults: set[tuple[str, float, str]] = set()
        self._legs: tuple[LegDone, ...] = ()

    def tell(self, picture: Picture, clock: float) -> list[str]:
        """Get what is to be said at a clock's reading (s); mostly nothing."""
        said = []
        if picture.legs and picture.legs != self._legs:
            said.append(f"  {leg_text(picture.legs[-1])}")
        self._legs = picture.legs
        if picture.phase == "ended":
            said.append(f"  ended after {roughly(picture.elapsed)}{after(picture.text)}")
            self._leg = None
            return said
        if (picture.title, picture.leg_name) != self._leg:
            if self._leg is None or picture.title != self._leg[0]:
                said.append(picture.title)
            if picture.leg_name:
                said.append(f"  {picture.leg_name}")
            self._leg = (picture.title, picture.leg_name)
            self._tenth, self._spoke = 0, clock
            self._faults.clear()
        said += self._told_faults(picture)
        tenth, since = int(10 * picture.now.done), clock - self._spoke
        if (tenth > self._tenth and since >= _EVERY) or since >= _AFTER:
            self._tenth, self._spoke = tenth, clock
            said.append(f"  {_line(picture)}")
        return said

    def _told_faults(self, picture: Picture) -> list[str]:
        said = []
        for fault in picture.faults:
            when = fault.when(picture.fault_time)
            down = (fault.what, fault.begin, "on")
            # What came and went between two pieces of news of a fast leg is in its report.
            if (fault.what, fault.begin, when) in self._faults or (
                when != "on" and not (when == "over" and down in self._faults)
            ):
                continue
            self._faults.add((fault.what, fault.begin, when))
            at = fault.begin if when == "on" else fault.end
            word = "down" if when == "on" else "back"
            said.append(f"  {fault.what} {word} at {clock_text(at, picture.span)}")
        return said


def _line(picture: Picture) -> str:
    now = picture.now
    parts = [f"{100 * now.done:.0f} %", f"{count(now.answered)} answered"]
    if picture.offload_rate is not None:
        parts.append(f"{percent(picture.offload_rate)} offloaded")
    if now.fallback:
        parts.append(f"{count(now.fallback)} by fallback")
    if picture.accuracy is not None:
        parts.append(f"{percent(picture.accuracy)} right")
    if now.p50_ms is not None:
        parts.append(f"p50 {millis(now.p50_ms)}, p95 {millis(now.p95_ms)}")
    if picture.left is not None:
        parts.append(f"{roughly(picture.left)} left")
    return ", ".join(parts)
