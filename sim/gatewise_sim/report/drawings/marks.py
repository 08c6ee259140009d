"""What all drawings share: fills that differ without colour, shapes of marks, axes.

Colours are classes of the page's style sheet, so that light and dark differ there alone. No two
things that meet in one drawing differ by colour only: fills have patterns, marks have shapes,
lines have dashes, and all of them have their names beside them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from gatewise_sim.report.svg import Linear, Log, path, tag

__all__ = [
    "FILLS",
    "NAMES",
    "STYLES",
    "Fill",
    "axis_x",
    "grid_y",
    "pattern_definitions",
    "shape",
    "swatch",
    "whisker",
]

NAMES: Final = {"system": "Gatewise", "edge_only": "all edge", "cloud_only": "all cloud"}
"""Names of the three legs that every run has."""

STYLES: Final = {
    "system": ("system", "diamond"),
    "edge_only": ("edge", "triangle"),
    "cloud_only": ("cloud", "square"),
    "confidence": ("confidence", "circle"),
    "random": ("random", "cross"),
    "oracle": ("oracle", "star"),
}
"""Colour class and shape of each leg."""


@dataclass(frozen=True)
class Fill:
    """How a surface is filled.

    Parameters
    ----------
    colour : str
        A class of the style sheet.
    pattern : {"", "stripe", "back", "dots"}
        Nothing: all over.
    """

    colour: str
    pattern: str = ""

    @property
    def attributes(self) -> dict[str, str]:
        """Of an element that is filled so."""
        if not self.pattern:
            return {"cls": f"fill {self.colour}"}
        # On paper patterns are left out, for they take minutes to print: see page.css.
        look = f"fill {self.pattern} paper-{self.colour}"
        return {"cls": look, "fill": f"url(#fill-{self.colour}-{self.pattern})"}


FILLS: Final = {
    # who answered
    "edge": Fill("edge"),
    "cloud": Fill("cloud", "stripe"),
    "fallback": Fill("waiting", "back"),
    "error": Fill("ink"),
    # milliseconds
    "device": Fill("edge"),
    "network": Fill("network", "stripe"),
    "the cloud": Fill("cloud"),
    "waiting": Fill("waiting", "back"),
    # bytes
    "request": Fill("network"),
    "response": Fill("network", "stripe"),
    "protocol": Fill("idle", "dots"),
    "up": Fill("network"),
    "down": Fill("network", "stripe"),
    # joules
    "radio": Fill("network"),
    "features": Fill("feature", "stripe"),
    "stages": Fill("edge"),
    "idle": Fill("idle", "dots"),
    # money
    "data": Fill("network"),
    "workers": Fill("cloud", "stripe"),
    "energy": Fill("feature"),
    "requests": Fill("network", "back"),
    "devices": Fill("edge"),
}
"""Fill of each part that a whole is split into."""


def pattern_definitions() -> Markup:
    """Write the patterns of all fills; once a page."""
    wanted = sorted({(f.colour, f.pattern) for f in FILLS.values() if f.pattern})
    return tag("defs", *(_pattern(colour, kind) for colour, kind in wanted))


def _pattern(colour: str, kind: str) -> Markup:
    ground = tag("rect", width=6, height=6, cls=f"fill {colour} ground")
    if kind == "dots":
        figure = tag("circle", cx=3, cy=3, r=1.4, cls=f"fill {colour}")
    else:
        # Twice beyond the edge, so that the lines of neighbouring tiles meet.
        ways = ("M-1,1 l2,-2 M0,6 l6,-6 M5,7 l2,-2", "M-1,5 l2,2 M0,0 l6,6 M5,-1 l2,2")
        figure = tag("path", d=ways[kind == "back"], cls=f"stroke {colour}")
    return tag(
        "pattern", ground, figure, id=f"fill-{colour}-{kind}", width=6, height=6,
        patternUnits="userSpaceOnUse",
    )  # fmt: skip


def swatch(fill: Fill) -> Markup:
    """A small sample of a fill, for a legend in the text."""
    box = tag("rect", width=14, height=14, rx=3, **fill.attributes)
    return tag("svg", box, viewBox="0 0 14 14", cls="swatch", aria_hidden="true")


def shape(key: str, x: float, y: float, size: float = 6.0) -> Markup:
    """The mark of a leg, centred at (x, y)."""
    colour, kind = STYLES.get(key, ("ink", "circle"))
    cls = f"fill mark {colour}"
    if kind == "circle":
        return tag("circle", cx=x, cy=y, r=0.8 * size, cls=cls)
    if kind == "square":
        s = 0.75 * size
        return tag("rect", x=x - s, y=y - s, width=2 * s, height=2 * s, cls=cls)
    if kind == "cross":
        s, w = 0.85 * size, 0.3 * size
        corners = [(-s, -s + w), (-w, 0), (-s, s - w), (-s + w, s), (0, w), (s - w, s),
                   (s, s - w), (w, 0), (s, -s + w), (s - w, -s), (0, -w), (-s + w, -s)]  # fmt: skip
    elif kind == "diamond":
        corners = [(0, -size), (size, 0), (0, size), (-size, 0)]
    elif kind == "triangle":
        corners = [(0, -size), (size, 0.8 * size), (-size, 0.8 * size)]
    else:
        radii = [1.15 * size, 0.48 * size]
        corners = [
            (radii[k % 2] * math.sin(k * math.pi / 5), -radii[k % 2] * math.cos(k * math.pi / 5))
            for k in range(10)
        ]
    return tag("polygon", points=path((x + dx, y + dy) for dx, dy in corners), cls=cls)


def whisker(x1: float, y1: float, x2: float, y2: float, colour: str) -> Markup:
    """An interval: a thin line with a small bar at each end."""
    cap = 3.0
    if x1 == x2:
        ends = f"M{x1 - cap:.2f},{y1:.2f} h{2 * cap} M{x1 - cap:.2f},{y2:.2f} h{2 * cap}"
    else:
        ends = f"M{x1:.2f},{y1 - cap:.2f} v{2 * cap} M{x2:.2f},{y1 - cap:.2f} v{2 * cap}"
    line = f"M{x1:.2f},{y1:.2f} L{x2:.2f},{y2:.2f} {ends}"
    return tag("path", d=line, cls=f"stroke whisker {colour}")


def grid_y(
    y: Linear | Log, at: Sequence[float], labels: Sequence[str], x1: float, x2: float
) -> list[Markup]:
    """Lines across, each with its label at the left."""
    marks = []
    for value, label in zip(at, labels, strict=True):
        marks.append(tag("line", x1=x1, x2=x2, y1=y(value), y2=y(value), cls="grid"))
        marks.append(tag("text", label, x=x1 - 6, y=y(value) + 4, cls="tick end"))
    return marks


def axis_x(
    x: Linear | Log,
    at: Sequence[float],
    labels: Sequence[str],
    y: float,
    *,
    grid: float | None = None,
) -> list[Markup]:
    """Labels below `y`, each with a line up to `grid` if one is given."""
    marks = []
    for value, label in zip(at, labels, strict=True):
        if grid is not None:
            marks.append(tag("line", x1=x(value), x2=x(value), y1=grid, y2=y, cls="grid"))
        marks.append(tag("text", label, x=x(value), y=y + 15, cls="tick middle"))
    return marks
