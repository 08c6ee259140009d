"""Random numbers of a fleet: a stream for each device, all of them at once.

Device ``d`` has the stream of numpy's :class:`numpy.random.Philox` with key ``(root, d)``; a place
in it is a counter ``(block, purpose, sub, 0)``. Philox computes the number at a place without
those before it (Salmon et al., SC 2011), so a million devices need no state, none of them changes
another's numbers, and it does not matter how time is cut into chunks.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

_U64 = npt.NDArray[np.uint64]
_MASK: Final = np.uint64(0xFFFFFFFF)
_HALF: Final = np.uint64(32)
_M0, _M1 = np.uint64(0xD2E7470EE14C6C93), np.uint64(0xCA5A826395121157)
_W0, _W1 = 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B
_ROUNDS: Final = 10
_PIECE: Final = 8192  # blocks worked on at a time: they stay in the cache


class Streams:
    """Uniform numbers by device and place; one number drawn from `rng` is the root."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.root = int(rng.integers(0, 2**64, dtype=np.uint64))

    def uniforms(
        self,
        device: npt.ArrayLike,
        block: npt.ArrayLike,
        *,
        purpose: int,
        sub: npt.ArrayLike = 0,
    ) -> npt.NDArray[np.float64]:
        """Four numbers in [0, 1) for each device and block: float64, shape (..., 4).

        `device`, `block` and `sub` are at least 0 and broadcast to one shape; `purpose` keeps
        numbers for different ends apart.
        """
        drawn = (self.blocks(device, block, purpose=purpose, sub=sub) >> np.uint64(11)) * 2.0**-53
        return np.asarray(drawn, dtype=np.float64)

    def blocks(
        self,
        device: npt.ArrayLike,
        block: npt.ArrayLike,
        *,
        purpose: int,
        sub: npt.ArrayLike = 0,
    ) -> _U64:
        """The bits behind :meth:`uniforms`, uint64, shape (..., 4)."""
        wide = np.broadcast_arrays(*(np.asarray(a, dtype=np.uint64) for a in (device, block, sub)))
        key, first, third = (a.ravel() for a in wide)
        out = np.empty((len(key), 4), dtype=np.uint64)
        for begin in range(0, len(key), _PIECE):
            piece = slice(begin, begin + _PIECE)
            _philox(first[piece], purpose, third[piece], self.root, key[piece], out[piece])
        return out.reshape(*wide[0].shape, 4)


def _philox(first: _U64, second: int, third: _U64, root: int, key: _U64, out: _U64) -> None:
    """Philox4x64-10 of the counters (first, second, third, 0) with the keys (root, key)."""
    x0, x2 = first, third
    x1 = np.full_like(first, second)
    x3 = np.zeros_like(first)
    for step in range(_ROUNDS):
        key0 = np.uint64((root + step * _W0) % 2**64)
        key1 = key + np.uint64(step * _W1 % 2**64)
        high0, low0 = _product(_M0, x0)
        high1, low1 = _product(_M1, x2)
        x0, x1, x2, x3 = high1 ^ x1 ^ key0, low1, high0 ^ x3 ^ key1, low0
    out[:, 0], out[:, 1], out[:, 2], out[:, 3] = x0, x1, x2, x3


def _product(factor: np.uint64, x: _U64) -> tuple[_U64, _U64]:
    """Upper and lower 64 bits of a product of 128, from four products of 32 by 32 bits."""
    factor_high, factor_low = factor >> _HALF, factor & _MASK
    high, low = x >> _HALF, x & _MASK
    cross = low * factor_high
    middle = ((low * factor_low) >> _HALF) + (cross & _MASK) + high * factor_low
    return high * factor_high + (cross >> _HALF) + (middle >> _HALF), x * factor
