"""A bound on a device's offloads over time: a token bucket."""

from __future__ import annotations

import re
from typing import Final, Self

from gatewise.errors import InputError

_SECONDS: Final = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_FORM: Final = re.compile(r"([0-9]+)/(s|min|h|d)", re.ASCII)


class OffloadBudget:
    """At most `amount` offloads at once, and that many per `seconds` in the long run.

    The bucket holds `amount` tokens, is full at first and fills evenly. An offload takes one. It
    persists nothing: a device that starts again may offload `amount` instances at once again. Pure
    logic; times are in seconds on a steady clock. InputError if the amount is below 1.

    >>> budget = OffloadBudget.parse("2/min")
    >>> [budget.take(now) for now in (0.0, 0.0, 0.0, 29.0, 30.0)]
    [True, True, False, False, True]
    """

    def __init__(self, amount: int, seconds: float) -> None:
        if amount < 1:
            raise InputError(f"a bound of {amount} offloads: at least 1 must be allowed")
        self._capacity = float(amount)
        self._tokens_per_second = amount / seconds
        self._tokens = self._capacity
        self._filled_at: float | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a bound such as ``60/h``; the units are s, min, h and d."""
        match = _FORM.fullmatch(text)
        if match is None:
            raise InputError(f"max-offloads {text[:40]!r}: give a number per s, min, h or d: 60/h")
        return cls(int(match[1]), _SECONDS[match[2]])

    def take(self, now: float) -> bool:
        """Take a token for an offload; False if the bucket is empty."""
        if self._filled_at is not None:
            fresh = (now - self._filled_at) * self._tokens_per_second
            self._tokens = min(self._tokens + max(0.0, fresh), self._capacity)
        self._filled_at = now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def give_back(self) -> None:
        """Give back the token of an offload that was not made after all."""
        self._tokens = min(self._tokens + 1.0, self._capacity)
