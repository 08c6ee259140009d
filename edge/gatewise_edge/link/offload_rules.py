"""Rules for the offloads of a device, and a token bucket that bounds their rate."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal, Self, get_args

from gatewise.errors import InputError

#: Units of a bound on offloads, and the form of the bound.
_UNIT_SECONDS: Final = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_BOUND_FORM: Final = re.compile(r"([0-9]+)/(s|min|h|d)", re.ASCII)

ImplausibleHandling = Literal["answer", "offload", "ignore"]


@dataclass(frozen=True, kw_only=True)
class OffloadRules:
    """Rules for the offloads of a device.

    Parameters
    ----------
    max_in_flight : int, default 32
        Largest number of requests in flight.
    max_offloads : str, optional
        Bound on the rate of offloads, such as ``"60/h"`` (:class:`TokenBucket`). Hard instances
        beyond the bound get a fallback with the reason ``offload-limit``.
    implausible : {"answer", "offload", "ignore"}, default "answer"
        Treatment of an instance with a value far outside the training range. With ``answer`` it
        gets its usual answer, with the reason ``implausible:<name>``. With ``offload`` it is
        offloaded if possible. With ``ignore`` the device does not compare values with ranges.
    private : bool, default False
        Whether requests forbid workers to store the instances.

    Raises
    ------
    InputError
        If a rule is out of range.
    """

    max_in_flight: int = 32
    max_offloads: str | None = None
    implausible: ImplausibleHandling = "answer"
    private: bool = False

    def __post_init__(self) -> None:
        if self.max_in_flight < 1:
            raise InputError(
                f"max_in_flight is {self.max_in_flight}; at least 1 request must be allowed"
            )
        if self.implausible not in get_args(ImplausibleHandling):
            handling_names = ", ".join(get_args(ImplausibleHandling))
            raise InputError(f"implausible {self.implausible!r}; choose one of {handling_names}")
        self.new_token_bucket()  # raises InputError for a malformed bound

    def new_token_bucket(self) -> TokenBucket | None:
        """Make a full token bucket; None without a bound."""
        return None if self.max_offloads is None else TokenBucket.parse(self.max_offloads)


class TokenBucket:
    """A token bucket that allows `n_offloads` at once, and that many per `period_s` on average.

    The bucket has `n_offloads` tokens at first, and fills evenly up to that number. Each offload
    takes a token. A restart of the device fills the bucket. Times are in seconds on a monotonic
    clock. Raises InputError if `n_offloads` is below 1.

    >>> token_bucket = TokenBucket.parse("2/min")
    >>> [token_bucket.take_token(now) for now in (0.0, 0.0, 0.0, 29.0, 30.0)]
    [True, True, False, False, True]
    """

    def __init__(self, n_offloads: int, period_s: float) -> None:
        if n_offloads < 1:
            raise InputError(f"the bound is {n_offloads} offloads; at least 1 must be allowed")
        self._capacity = float(n_offloads)
        self._tokens_per_second = n_offloads / period_s
        self._tokens = self._capacity
        self._filled_at: float | None = None

    @classmethod
    def parse(cls, bound: str) -> Self:
        """Read a bound such as ``60/h``; the units are s, min, h and d."""
        match = _BOUND_FORM.fullmatch(bound)
        if match is None:
            raise InputError(
                f"max-offloads {bound[:40]!r}: give a number per s, min, h or d, such as 60/h"
            )
        return cls(int(match[1]), _UNIT_SECONDS[match[2]])

    def take_token(self, now: float) -> bool:
        """Take a token for an offload; False if the bucket is empty."""
        if self._filled_at is not None:
            n_new_tokens = (now - self._filled_at) * self._tokens_per_second
            self._tokens = min(self._tokens + max(0.0, n_new_tokens), self._capacity)
        self._filled_at = now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def return_token(self) -> None:
        """Return the token of an offload that was not made."""
        self._tokens = min(self._tokens + 1.0, self._capacity)
