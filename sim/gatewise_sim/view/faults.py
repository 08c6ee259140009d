"""Faults as spans of time: what is down, since when, and what is still to come."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

__all__ = ["Fault", "Faults"]

_MOST: Final = 64
_SAME: Final = 1.0  # s: news of one and the same may differ by so much


@dataclass(frozen=True)
class Fault:
    """Something is down from `begin` to `end`, in s since the run's begin.

    Attributes
    ----------
    what : str
    begin : float
    end : float
        Infinity = not known, or never.
    planned : bool
        Whether it was told ahead.
    """

    what: str
    begin: float
    end: float = math.inf
    planned: bool = False

    def when(self, at: float | None) -> Literal["to come", "on", "over", "any"]:
        """Tell how it stands at a time (s); None = there is no now."""
        if at is None:
            return "any"
        if at < self.begin:
            return "to come"
        return "on" if at < self.end else "over"


class Faults:
    """Put together from single news: down, up; told ahead or as it happens.

    The same told twice, ahead and when it happens, is one. Of too many, the oldest that are over
    are forgotten, then the farthest to come.
    """

    def __init__(self) -> None:
        self._spans: list[Fault] = []

    def tell(self, what: str, up: bool, at: float, now: float | None) -> None:
        """Take in one piece of news.

        Parameters
        ----------
        what : str
        up : bool
        at : float
            When, in s.
        now : float or None
            Where the leg stands, in s; None = it has not begun, so that this is told ahead.
        """
        for i in reversed(range(len(self._spans))):
            span = self._spans[i]
            if span.what != what or not span.begin - _SAME <= at <= span.end + _SAME:
                continue
            if not up and at > span.end - _SAME:
                continue  # back, and down once more
            if up:
                self._spans[i] = replace(span, end=max(at, span.begin))
            return
        if not up:
            self._spans.append(Fault(what, at, planned=now is None))
            self._spans.sort(key=lambda span: span.begin)
            if len(self._spans) > _MOST:
                over = self._spans[0].when(now or 0.0) == "over"
                del self._spans[0 if over else -1]

    def again(self) -> None:
        """Begin a new leg: what was told ahead stays, since it comes in every leg."""
        self._spans = [span for span in self._spans if span.planned]

    @property
    def spans(self) -> Sequence[Fault]:
        """All that are known, by their begin."""
        return tuple(self._spans)
