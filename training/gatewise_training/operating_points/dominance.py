"""Operating points that no other point beats in a value and a price."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from operator import attrgetter

from gatewise.operating_point import OperatingPoint


def class_share(kind: str, c: int, point: OperatingPoint) -> float:
    """Recall or precision of one class, 0 where it is undefined."""
    return float(getattr(point, kind)[c] or 0.0)


def undominated(
    points: Iterable[OperatingPoint],
    value: Callable[[OperatingPoint], float],
    price: Callable[[OperatingPoint], float] = attrgetter("cost"),
) -> list[OperatingPoint]:
    """List the points that no other beats in both price and value; the cheapest of equals."""
    # by rising price: a point is on the curve if its value exceeds all before it
    curve: list[OperatingPoint] = []
    best = -math.inf
    for point in sorted(points, key=lambda p: (price(p), -value(p), p.cost)):
        if value(point) > best + 1e-12:
            curve.append(point)
            best = value(point)
    return curve


def slope(a: OperatingPoint, b: OperatingPoint) -> float:
    """Gain in merit from one point to a costlier one, for each unit of cost."""
    return (b.merit - a.merit) / max(b.cost - a.cost, 1e-12)
