"""Selection of the operating points on the accuracy-cost curve, and on its upper convex hull."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter

from gatewise.operating_point import OperatingPoint


def select_undominated(
    points: Iterable[OperatingPoint],
    value: Callable[[OperatingPoint], float] = attrgetter("effective_accuracy"),
    price: Callable[[OperatingPoint], float] = attrgetter("cost"),
) -> list[OperatingPoint]:
    """List the points that no other beats in both price and value.

    Among points with equal prices and values, the cheapest is listed.
    """
    # by rising price, a point is on the curve if its value exceeds all values before it
    curve_points: list[OperatingPoint] = []
    best_value = -math.inf
    for point in sorted(points, key=lambda point: (price(point), -value(point), point.cost)):
        if value(point) > best_value + 1e-12:  # not by rounding alone
            curve_points.append(point)
            best_value = value(point)
    return curve_points


def select_hull(points: Sequence[OperatingPoint]) -> list[OperatingPoint]:
    """List the points on the upper convex hull of undominated points, sorted by cost."""
    hull_points: list[OperatingPoint] = []
    for point in points:
        while len(hull_points) >= 2 and _compute_slope(hull_points[-2], point) >= _compute_slope(
            hull_points[-2], hull_points[-1]
        ):
            hull_points.pop()
        hull_points.append(point)
    return hull_points


def _compute_slope(cheaper: OperatingPoint, costlier: OperatingPoint) -> float:
    """Compute the gain in accuracy per unit of cost from one point to a costlier point."""
    cost_rise = max(costlier.cost - cheaper.cost, 1e-12)  # equal costs make a steep slope
    return (costlier.effective_accuracy - cheaper.effective_accuracy) / cost_rise
