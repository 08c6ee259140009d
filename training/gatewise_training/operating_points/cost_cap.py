"""Caps on the cost of any instance at operating points."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Real

from gatewise.errors import InputError
from gatewise.operating_point import OperatingPoint


def points_within_cost(points: Iterable[OperatingPoint], max_cost: float) -> list[OperatingPoint]:
    """List the points at which no instance costs above `max_cost`; InputError if none is left."""
    if not isinstance(max_cost, Real) or not 0 <= float(max_cost) < math.inf:
        raise InputError(f"max_instance_cost must be at least 0 and finite, not {max_cost!r}")
    all_points = list(points)
    affordable_points = [point for point in all_points if keeps_cost(point, max_cost)]
    if not affordable_points:
        largest_costs = [point.max_cost for point in all_points if point.max_cost is not None]
        raise cost_too_low(max_cost, min(largest_costs, default=math.inf))
    return affordable_points


def keeps_cost(point: OperatingPoint, max_cost: float) -> bool:
    """Whether no instance costs more than `max_cost` at an operating point."""
    return point.max_cost is not None and point.max_cost <= max_cost


def cost_too_low(max_cost: float, lowest_cap: float) -> InputError:
    """Make the error for a cap below `lowest_cap`, the lowest cap that a point keeps."""
    return InputError(
        f"no operating point keeps max_instance_cost={float(max_cost)!r} for every instance; "
        f"the lowest cap possible is {float(lowest_cap)!r}"
    )
