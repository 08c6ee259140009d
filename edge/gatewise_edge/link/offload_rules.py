"""Rules of a device's offloads, and a bound on them over time: a token bucket."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal, Self, get_args

from gatewise.errors import InputError
from gatewise_edge.link.breaker import Breaker

_SECONDS: Final = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_FORM: Final = re.compile(r"([0-9]+)/(s|min|h|d)", re.ASCII)

Implausible = Literal["answer", "offload", "ignore"]


@dataclass(frozen=True, kw_only=True)
class OffloadRules:
    """When a device may offload an instance.

    Parameters
    ----------
    outstanding : int, default 32
        Largest number of requests in flight; several threads may wait for answers.
    breaker : Breaker or bool, default True
        Blocks requests, and the acquisition of their features, while the cloud does not reply.
        True: one with its defaults; False: none.
    max_offloads : str, optional
        Bound on offloads over time, such as ``"60/h"`` (:class:`OffloadBudget`). An instance
        beyond it is a fallback with the reason ``offload-limit``.
    implausible : {"answer", "offload", "ignore"}, default "answer"
        Treatment of an instance with a value far outside of those in training. Its answer has
        the reason ``implausible:<name>``, and is the usual one or, where possible, the cloud's;
        ``ignore`` compares no values.
    private : bool, default False
        Requests ask workers to keep nothing of the instances beyond their answers.

    Raises
    ------
    InputError
        If a rule is out of range.
    """

    outstanding: int = 32
    breaker: Breaker | bool = True
    max_offloads: str | None = None
    implausible: Implausible = "answer"
    private: bool = False

    def __post_init__(self) -> None:
        if self.outstanding < 1:
            raise InputError(
                f"outstanding is {self.outstanding}; at least 1 request must be allowed"
            )
        if self.implausible not in get_args(Implausible):
            names = ", ".join(get_args(Implausible))
            raise InputError(f"implausible {self.implausible!r}; choose one of {names}")
        self.new_budget()

    def new_breaker(self) -> Breaker | None:
        """Get the breaker, or make the one with its defaults; None where requests have none."""
        if isinstance(self.breaker, bool):
            return Breaker() if self.breaker else None
        return self.breaker

    def new_budget(self) -> OffloadBudget | None:
        """Make the bound on offloads over time; None without one."""
        return None if self.max_offloads is None else OffloadBudget.parse(self.max_offloads)


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
