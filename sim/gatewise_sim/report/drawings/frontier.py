"""Accuracy against cost: all operating points, and what was measured or simulated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from markupsafe import Markup

from gatewise_sim.report import words
from gatewise_sim.report.drawings.marks import STYLES, axis_x, grid_y, shape, whisker
from gatewise_sim.report.drawings.placing import Box, Label, between, place_labels
from gatewise_sim.report.svg import Linear, document, path, tag, ticks

__all__ = ["Interval", "Mark", "draw_frontier"]

Interval = tuple[float, float, float]
"""A figure, and the ends of its interval."""

_HEIGHT: Final = 330.0


@dataclass(frozen=True)
class Mark:
    """What one leg came to.

    Parameters
    ----------
    key : str
        Of the leg; says shape and colour.
    name : str
    cost, accuracy : (value, low, high)
    """

    key: str
    name: str
    cost: Interval
    accuracy: Interval


def draw_frontier(
    frontier: Mapping[str, Any], marks: Sequence[Mark], *, width: float, name: str
) -> Markup:
    """Draw the frontier, the operating point in force as a ring, and marks with intervals.

    The axis of accuracy begins a little below what the legs came to; cheaper and much worse
    points stay off the plot, since they would press the rest into a line.

    Parameters
    ----------
    frontier : mapping
        ``points``, ``hull`` (may be empty) and ``active``, each point with ``cost`` and
        ``accuracy``.
    marks : sequence of Mark
        The first has the first choice of place for its label.
    width, name
        As :func:`gatewise_sim.report.drawings.picture.pictured` gives them.
    """
    points, active = frontier["points"], frontier["active"]
    hull = frontier["hull"] or _envelope(points)
    # Without marks, as much as is of interest around the point in force.
    ends = [a for m in marks for a in m.accuracy] or [max(0.0, active["accuracy"] - 0.1)]
    seen = [*ends, active["accuracy"], points[-1]["accuracy"]]
    room = max(0.01, max(seen) - min(seen))
    left, right, top, bottom = 50.0, 14.0, 26.0, 42.0
    costs = [p["cost"] for p in points] + [m.cost[2] for m in marks]
    x = Linear(0.0, 1.06 * max(costs) or 1.0, left, width - right)
    y = Linear(
        max(0.0, min(seen) - 0.25 * room),
        min(1.0, max(seen) + 0.12 * room),
        _HEIGHT - bottom,
        top,
    )
    line = [(x(p["cost"]), y(p["accuracy"])) for p in hull]
    dots = [(x(p["cost"]), y(p["accuracy"])) for p in points if p["accuracy"] >= y.lo]
    ring = x(active["cost"]), y(active["accuracy"])
    labels = [
        Label(m.name, x(m.cost[0]), y(m.accuracy[0]), STYLES.get(m.key, ("ink", ""))[0])
        for m in marks
    ]
    if not any(abs(ring[0] - m.x) + abs(ring[1] - m.y) < 8 for m in labels):
        labels.append(Label("operating point", *ring, "system", 11.0))
    frame = Box(left + 2, top - 8, width, y.start - 2)
    shares, prices = ticks(y.lo, y.hi, 6), ticks(x.lo, x.hi, 6)
    drawn = [
        *grid_y(y, shares, [f"{100 * v:.4g} %" for v in shares], left, width - right),
        *axis_x(x, prices, [words.number(v) for v in prices], y.start),
        tag("line", x1=left, x2=width - right, y1=y.start, y2=y.start, cls="base"),
        tag("text", "cost per instance", x=width - right, y=_HEIGHT - 6, cls="axis end"),
        tag("text", "accuracy", x=0.0, y=12.0, cls="axis"),
        tag("clipPath", tag("rect", x=left, y=top - 8, width=width, height=y.start - top + 8),
            id=f"{name}-clip"),
        tag("polyline", points=path(line), cls="stroke hull", clip_path=f"url(#{name}-clip)"),
        *(tag("circle", cx=cx, cy=cy, r=2.2, cls="point") for cx, cy in dots),
        tag("circle", cx=ring[0], cy=ring[1], r=8.0, cls="stroke ring"),
        *(w for m in marks for w in _whiskers(m, x, y)),
        *(
            tag("g", tag("title", _said(m)), shape(m.key, x(m.cost[0]), y(m.accuracy[0])))
            for m in reversed(marks)  # the first lies on top
        ),
        *place_labels(labels, frame=frame, avoid=[*between(line), ring]),
    ]  # fmt: skip
    found = "; ".join(_said(m) for m in marks) or "accuracy is not known without labels"
    return document(
        width,
        _HEIGHT,
        *drawn,
        title="Accuracy against cost",
        description=(
            f"{len(points)} operating points on validation data, from cost "
            f"{words.number(points[0]['cost'])} at {words.percent(points[0]['accuracy'])} to "
            f"{words.number(points[-1]['cost'])} at {words.percent(points[-1]['accuracy'])}; in "
            f"force is the one of cost {words.number(active['cost'])}. This run: {found}."
        ),
        name=name,
    )


def _said(mark: Mark) -> str:
    return (
        f"{mark.name}: {words.percent(mark.accuracy[0])} accurate "
        f"at cost {words.number(mark.cost[0])}"
    )


def _whiskers(mark: Mark, x: Linear, y: Linear) -> list[Markup]:
    """Intervals that are longer than the mark is large."""
    colour = STYLES.get(mark.key, ("ink", ""))[0]
    cx, cy = x(mark.cost[0]), y(mark.accuracy[0])
    y1, y2 = y(max(mark.accuracy[1], y.lo)), y(min(mark.accuracy[2], y.hi))
    x1, x2 = x(max(mark.cost[1], 0.0)), x(mark.cost[2])
    drawn = []
    if y1 - y2 > 1.0:
        drawn.append(whisker(cx, y1, cx, y2, colour))
    if x2 - x1 > 1.0:
        drawn.append(whisker(x1, cy, x2, cy, colour))
    return drawn


def _envelope(points: Sequence[Mapping[str, float]]) -> list[Mapping[str, float]]:
    """Points that no cheaper one is as good as."""
    kept: list[Mapping[str, float]] = []
    for point in sorted(points, key=lambda p: (p["cost"], -p["accuracy"])):
        if not kept or point["accuracy"] > kept[-1]["accuracy"]:
            kept.append(point)
    return kept
