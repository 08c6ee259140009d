"""Caps on the cost of any instance at operating points."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Real

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
