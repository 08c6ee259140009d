"""How long answers take: the share that has come, over time on a logarithmic axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from markupsafe import Markup

from gatewise_sim.report import words
from gatewise_sim.report.drawings.marks import STYLES, axis_x, grid_y, shape
from gatewise_sim.report.drawings.placing import Box, Label, between, place_labels
from gatewise_sim.report.svg import Linear, Log, document, path, tag

__all__ = ["Curve", "draw_latency"]

_HEIGHT: Final = 330.0


@dataclass(frozen=True)
class Curve:
    """A distribution of times.

    Parameters
    ----------
    key, name : str
        Of the leg.
    edges_ms : sequence of float
        Of a histogram's bins, one more than there are counts.
    counts : sequence of float
    p50, p95 : float
        In milliseconds.
    """

    key: str
    name: str
    edges_ms: Sequence[float]
    counts: Sequence[float]
    p50: float
    p95: float

    def shares(self) -> list[tuple[float, float]]:
        """(ms, share that has come by then), from the last moment with none to the first with all.

        Examples
        --------
        >>> Curve("system", "", [1, 2, 4, 8, 16], [0, 1, 3, 0], 4, 4).shares()
        [(2, 0.0), (4, 0.25), (8, 1.0)]
        """
        total = math.fsum(self.counts)
        below = [0.0, *(c / total for c in accumulate(self.counts))]
        first = next(k for k, n in enumerate(self.counts) if n)
        last = max(k for k, n in enumerate(self.counts) if n) + 1
        # The sum may miss the whole by a rounding.
        below[last] = 1.0
        return list(zip(self.edges_ms, below, strict=True))[first : last + 1]


def draw_latency(
    curves: Sequence[Curve], *, deadline_ms: float | None = None, width: float, name: str
) -> Markup:
    """Draw the distributions; the mark is where half of the answers have come.

    Parameters
    ----------
    curves : sequence of Curve
        Each of at least one instance.
    deadline_ms : float, optional
        A line there.
    width, name
        As :func:`gatewise_sim.report.drawings.picture.pictured` gives them.
    """
    left, right, top, bottom = 50.0, 14.0, 26.0, 42.0
    lines = {c.key: c.shares() for c in curves}
    lo = min(line[0][0] for line in lines.values())
    hi = max(line[-1][0] for line in lines.values())
    x = Log(0.8 * lo, 1.25 * max(hi, 1.3 * lo), left, width - right)
    y = Linear(0.0, 1.0, _HEIGHT - bottom, top)
    at = [0.0, 0.25, 0.5, 0.75, 0.95]
    times = x.decades()
    drawn = [
        *grid_y(y, at, [words.percent(v, 0) for v in at], left, width - right),
        *axis_x(x, times, [f"{v:g}" for v in times], y.start, grid=top),
        tag("line", x1=left, x2=width - right, y1=y.start, y2=y.start, cls="base"),
        tag("text", "ms to the answer (log scale)", x=width - right, y=_HEIGHT - 6,
            cls="axis end"),
        tag("text", "answers that have come", x=0.0, y=12.0, cls="axis"),
    ]  # fmt: skip
    labels: list[Label] = []
    avoid: list[tuple[float, float]] = []
    if deadline_ms is not None and x.lo < deadline_ms < x.hi:
        at_x = x(deadline_ms)
        drawn.append(tag("line", x1=at_x, x2=at_x, y1=top, y2=y.start, cls="stroke limit"))
        side = "end" if at_x > width - 40 else "middle"
        drawn.append(tag("text", "deadline", x=at_x, y=12.0, cls=f"axis {side}"))
        avoid += between([(at_x, y.start), (at_x, y.end)])
    for curve in reversed(curves):  # the first lies on top
        colour = STYLES[curve.key][0]
        line = [(x(ms), y(share)) for ms, share in lines[curve.key]]
        whole = [(x.start, y(0.0)), *line, (x.end, y(1.0))]
        drawn.append(tag("polyline", points=path(whole), cls=f"stroke curve {colour}"))
        avoid += between(line)
    for curve in reversed(curves):
        cx, cy = x(curve.p50), y(0.5)
        label = f"{curve.name}: half within {words.millis(curve.p50)}"
        drawn.append(shape(curve.key, x(curve.p95), y(0.95), 4.0))
        drawn.append(tag("g", tag("title", label), shape(curve.key, cx, cy)))
        labels.insert(0, Label(curve.name, cx, cy, STYLES[curve.key][0]))
    frame = Box(left + 2, top - 4, width - 2, y.start - 2)
    said = ". ".join(
        f"{c.name}: half within {words.millis(c.p50)}, 95 % within {words.millis(c.p95)}"
        for c in curves
    )
    return document(
        width,
        _HEIGHT,
        *drawn,
        *place_labels(labels, frame=frame, avoid=avoid),
        title="Time to the answer",
        description=f"{said}.",
        name=name,
    )
