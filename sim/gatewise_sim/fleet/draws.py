"""A stream of random numbers for each of a million devices, in 64 bits of state.

SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): a counter and a hash of it. A device's stream
begins where the hash of the run's seed and its number says.
"""

from __future__ import annotations

from typing import Final

__all__ = ["DeviceDraws"]

_MASK: Final = 2**64 - 1
_STEP: Final = 0x9E3779B97F4A7C15
_SCALE: Final = 2.0**-53


class DeviceDraws:
    """One device's randomness: for its link and its breaker.

    Parameters
    ----------
    seed : int
        Of the run.
    device : int

    Examples
    --------
    >>> draws, again = DeviceDraws(1, 7), DeviceDraws(1, 7)
    >>> draws.random() == again.random() != DeviceDraws(1, 8).random()
    True
    """

    __slots__ = ("_state",)

    def __init__(self, seed: int, device: int) -> None:
        self._state = _mixed(_mixed(seed & _MASK) + device * _STEP & _MASK)

    def random(self) -> float:
        """One in [0, 1)."""
        self._state = z = self._state + _STEP & _MASK
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        z = (z ^ z >> 27) * 0x94D049BB133111EB & _MASK
        return ((z ^ z >> 31) >> 11) * _SCALE


def _mixed(z: int) -> int:
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & _MASK
    return z ^ z >> 31
