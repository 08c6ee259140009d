"""A radio followed transfer by transfer: the reference for the arrays of a fleet."""

from __future__ import annotations

import math

from gatewise_sim.fleet.energy.radio import Radio


class RadioMeter:
    """Energy of one device's radio: `joules` above idle, a running tail counted whole; `wakes`."""

    def __init__(self, radio: Radio) -> None:
        self.radio = radio
        self.joules = 0.0
        self.wakes = 0
        self._busy_until = -math.inf

    def transfer(self, begin: float, end: float, *, up: int = 0, down: int = 0) -> float:
        """Joules that an exchange adds; none begins before the one accounted for before it."""
        radio, before = self.radio, self._busy_until
        asleep = begin > before + radio.tail_s
        spent = radio.payload_j(up, down)
        spent += radio.active_w * max(0.0, end - max(begin, before))
        if asleep:
            self.wakes += 1
            spent += radio.wake_j + radio.tail_j
        else:
            # The tail counted before ran until then; one of full length follows this exchange.
            spent += radio.tail_w * max(0.0, begin - before)
        self.joules += spent
        self._busy_until = max(before, end)
        return spent
