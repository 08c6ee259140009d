"""Caps on an instance's cost at operating points, and the packed sizes of stages."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Real

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise.operating_point import OperatingPoint


def points_within_cost(points: Iterable[OperatingPoint], most: float) -> list[OperatingPoint]:
    """Keep the points at which no instance can cost more; InputError if there are none."""
    if not isinstance(most, Real) or not 0 <= float(most) < math.inf:
        raise InputError(f"max_instance_cost must be at least 0 and finite, not {most!r}")
    every = list(points)
    kept = [p for p in every if keeps_cost(p, most)]
    if not kept:
        known = [p.max_cost for p in every if p.max_cost is not None]
        raise cost_too_low(most, min(known, default=math.inf))
    return kept


def keeps_cost(point: OperatingPoint, most: float) -> bool:
    """Whether no instance can cost more at an operating point."""
    return point.max_cost is not None and point.max_cost <= most


def cost_too_low(most: float, lowest: float) -> InputError:
    """Make the error of a cap that nothing keeps."""
    return InputError(
        f"no operating point keeps max_instance_cost={float(most)!r} for every instance; "
        f"the lowest cap possible is {float(lowest)!r}"
    )


@dataclass(frozen=True, eq=False)
class PackedSizes:
    """Bytes of a cascade's stages as a device keeps them; 0 of one beyond the device.

    In each of `forms`, of which the smallest is packed: bytes of each stage, (n_stages,), and which
    thresholds each needs, (n_stages, n_thresholds), which stages share and which take 4 bytes.
    """

    forms: tuple[tuple[NDArray[np.int64], NDArray[np.bool_]], ...]

    @classmethod
    def plain(cls, sizes: Sequence[int]) -> PackedSizes:
        """Sizes of stages that share nothing."""
        return cls(((np.array(sizes, np.int64), np.zeros((len(sizes), 0), np.bool_)),))

    @property
    def alone(self) -> tuple[int, ...]:
        """Bytes of each stage without the others."""
        return tuple(self.total([s]) for s in range(len(self.forms[0][0])))

    def total(self, stages: Sequence[int], *, free_thresholds: int = 0) -> int:
        """Bytes of some of the stages at most, as a cascade of these alone.

        Of the thresholds beside the trees so many are not counted.
        """
        chosen = np.array(stages, np.intp)
        return min(
            int(own[chosen].sum()) + 4 * max(0, int(needs[chosen].any(0).sum()) - free_thresholds)
            for own, needs in self.forms
        )

    def kept(self, stages: Sequence[int]) -> int:
        """Bytes that a device keeps of some stages or, of none, the smallest: it answers alone.

        >>> sizes = PackedSizes.plain((30, 20, 0))
        >>> sizes.kept((0, 1)), sizes.kept(())
        (50, 20)
        """
        return self.total(stages) or min(filter(None, self.alone), default=0)
