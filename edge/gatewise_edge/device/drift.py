"""The alarm for a drifting offload rate: a sequential test, valid at every instance.

The manifest has the gate's offload rate in validation. Here the device tests, instance by
instance, that the rate is still within a band around it. For each of a few rates r above the
band's end b, a bet is made against the band with the likelihood ratio of r against b, a bet that
is not favourable as long as the true rate is at most b; likewise below. The bets are summed as in
the Shiryaev-Roberts procedure, ``S <- (S + 1) * bet``, so that drift is found whenever it begins.
The mean of all S less the number of instances is then a supermartingale within the band, so the
mean time to a false alarm is at least the height at which it is raised (Shin, Ramdas, Rinaldo,
"E-detectors", 2023, section 2; Shiryaev 1963).

Pure logic: no clock, no log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

from gatewise.errors import InputError

Side = Literal["above", "below"]

#: The bets: odds that many times those of the band's end.
_ODDS: Final = (1.25, 1.5, 2.0, 4.0)
#: Half the band's width: this part of the expected rate, and this much more. Validation rates
#: have a standard error of 0.02 with 400 rows at a rate of 0.2.
_PART: Final = 0.25
_MORE: Final = 0.02
#: An end so close to 0 or 1 cannot be crossed in any way that matters.
_EDGE: Final = 1e-3
#: After an alarm the rate counts as drifted until it was not raised again for this many times as
#: long as it took, or for this many instances if that is more.
_CALM: Final = 4
_SHORTEST_CALM: Final = 1000
#: The rate that an alarm reports is averaged over about so many instances.
_RECENT: Final = 200


class Drift:
    """Test whether the gate's offload rate has left its band.

    `expected`: the rate of the active operating point, in [0, 1]. `tolerance`: half the band's
    width; a quarter of `expected` plus 0.02 by default. `run_length`: instances between two false
    alarms, at least, on average. `on_alarm`: called as ``on_alarm(side, rate)`` when the rate
    leaves the band, with the recent rate.

    >>> drift = Drift(0.1, tolerance=0.05)
    >>> for i in range(400):
    ...     drift.observe(i % 10 == 0)
    >>> drift.state, drift.alarms
    ('', 0)
    >>> for i in range(400):
    ...     drift.observe(i % 3 == 0)
    >>> drift.state, drift.alarms
    ('above', 1)
    """

    def __init__(
        self,
        expected: float,
        *,
        tolerance: float | None = None,
        run_length: float = 100_000.0,
        on_alarm: Callable[[Side, float], None] | None = None,
    ) -> None:
        if not 0 <= expected <= 1:
            raise InputError(f"drift: expected is {expected}; a rate lies in 0 to 1")
        tolerance = _PART * expected + _MORE if tolerance is None else tolerance
        if not tolerance > 0 or not run_length > 1:
            raise InputError("drift: tolerance must be positive and run_length above 1")
        self.low, self.high = max(0.0, expected - tolerance), min(1.0, expected + tolerance)
        self.state: Side | Literal[""] = ""
        self.alarms = 0
        self._height = run_length
        self._on_alarm = on_alarm
        self._bets: list[tuple[Side, float, float]] = []
        if self.high < 1 - _EDGE:
            self._bets += [("above", *_bet(self.high, odds)) for odds in _ODDS]
        if self.low > _EDGE:
            self._bets += [("below", *_bet(self.low, 1 / odds)) for odds in _ODDS]
        self._if_sent = [if_sent for _, if_sent, _ in self._bets]
        self._if_not = [if_not for _, _, if_not in self._bets]
        self._sums = [0.0] * len(self._bets)
        self._recent = expected
        self._seen = 0
        self._calm_after = 0

    def observe(self, sent: bool) -> None:
        """Update with whether the gate offloads an instance."""
        self._seen += 1
        self._recent += (sent - self._recent) / _RECENT
        paid = self._if_sent if sent else self._if_not
        self._sums = [(s + 1.0) * p for s, p in zip(self._sums, paid, strict=True)]
        if self._bets and sum(self._sums) >= self._height * len(self._bets):
            self._raise()
        elif self.state and self._seen >= self._calm_after:
            self.state = ""

    def _raise(self) -> None:
        best = max(range(len(self._sums)), key=self._sums.__getitem__)
        side = self._bets[best][0]
        self._calm_after = max(_CALM * self._seen, _SHORTEST_CALM)
        entered = side != self.state
        self.state = side
        self._sums = [0.0] * len(self._bets)
        self._seen = 0
        if entered:
            self.alarms += 1
            if self._on_alarm is not None:
                self._on_alarm(side, self._recent)


def _bet(end: float, times: float) -> tuple[float, float]:
    """Pay-off of a bet on odds `times` those of `end`, if an instance is offloaded, and if not."""
    odds = times * end / (1 - end)
    rate = odds / (1 + odds)
    return rate / end, (1 - rate) / (1 - end)
