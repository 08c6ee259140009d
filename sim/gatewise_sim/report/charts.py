"""The drawings of the report page, from the report's own numbers.

Drawn 400 units wide, so that letters stay readable on a phone; colours come from the
page's style sheet (classes ``system``, ``edge`` and ``cloud``), so that light and dark differ
there alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from markupsafe import Markup

from gatewise_sim.report import words
from gatewise_sim.report.svg import Linear, Log, document, tag, ticks

__all__ = ["NAMES", "bars", "frontier", "latency"]

NAMES = {"system": "Gatewise", "edge_only": "all edge", "cloud_only": "all cloud"}
_CLASSES = {"system": "system", "edge_only": "edge", "cloud_only": "cloud"}
_WIDTH = 400.0


def frontier(report: Mapping[str, Any]) -> Markup:
    """Accuracy against cost: validation frontier, its hull, and what this run measured.

    The axis of accuracy begins a little below what was measured; cheaper and much worse
    points stay off the plot, since they would press the rest into a line.
    """
    points, hull, active = (report["frontier"][key] for key in ("points", "hull", "active"))
    cost, accuracy = report["cost"]["full"], report["accuracy"]
    measured = {
        key: (cost[key], accuracy[key])
        for key in ("system", "cloud_only", "edge_only")
        if cost[key] is not None and accuracy[key] is not None
    }
    ys = [a for _, a in measured.values()] + [active["accuracy"], points[-1]["accuracy"]]
    room = max(0.01, max(ys) - min(ys))
    height, left, right, top, bottom = 300.0, 48.0, 14.0, 16.0, 40.0
    x = Linear(
        0.0,
        1.06 * max([p["cost"] for p in points] + [c for c, _ in measured.values()]) or 1.0,
        left,
        _WIDTH - right,
    )
    y = Linear(
        max(0.0, min(ys) - 0.5 * room), min(1.0, max(ys) + 0.12 * room), height - bottom, top
    )
    line = [(x(p["cost"]), y(p["accuracy"])) for p in hull]
    dots = [(x(p["cost"]), y(p["accuracy"])) for p in points if p["accuracy"] >= y.lo]
    ring = x(active["cost"]), y(active["accuracy"])
    places = {key: (x(c), y(a)) for key, (c, a) in measured.items()}
    labels = _label_places(places, avoid=[*line, *_between(line), ring])
    marks = [
        *_grid_y(y, ticks(y.lo, y.hi, 6), left, _WIDTH - right),
        *_axis_x(x, ticks(x.lo, x.hi, 6), height - bottom),
        tag("line", x1=left, x2=_WIDTH - right, y1=y.start, y2=y.start, cls="base"),
        tag("text", "cost per instance", x=_WIDTH - right, y=height - 6, cls="axis end"),
        tag("text", "accuracy", x=left, y=top - 6, cls="axis"),
        tag("clipPath", tag("rect", x=left, y=top - 4, width=_WIDTH, height=y.start - top + 4),
            id="frontier-clip"),
        tag("polyline", points=_path(line), cls="hull", clip_path="url(#frontier-clip)"),
        *(tag("circle", cx=cx, cy=cy, r=2.2, cls="point") for cx, cy in dots),
        tag("circle", cx=ring[0], cy=ring[1], r=6.5, cls="ring"),
        *(_diamond(*places[key], _CLASSES[key]) for key in places),
        *(tag("text", NAMES[key], x=lx, y=ly, cls=f"direct halo {_CLASSES[key]} {anchor}")
          for key, (lx, ly, anchor) in labels.items()),
    ]  # fmt: skip
    said = "; ".join(
        f"{NAMES[k]} {words.percent(a)} accurate at cost {words.number(c)}"
        for k, (c, a) in measured.items()
    )
    return document(
        _WIDTH,
        height,
        *marks,
        title="Accuracy against cost",
        description=(
            f"{len(points)} operating points on validation data, from cost "
            f"{words.number(points[0]['cost'])} at {words.percent(points[0]['accuracy'])} to "
            f"{words.number(points[-1]['cost'])} at {words.percent(points[-1]['accuracy'])}. "
            f"Measured in this run: {said}."
        ),
        name="frontier",
    )


def latency(report: Mapping[str, Any]) -> Markup:
    """Time to the answer: one histogram a policy over one logarithmic axis."""
    edges = report["latency_histogram"]["edges_ms"]
    counts = report["latency_histogram"]["counts"]
    keys = [k for k in ("system", "edge_only", "cloud_only") if sum(counts[k])]
    row, left, right, top, bottom = 84.0, 14.0, 14.0, 6.0, 40.0
    height = top + row * len(keys) + bottom
    x = Log(edges[0], edges[-1], left, _WIDTH - right)
    marks = _axis_x(x, x.decades(), height - bottom, grid=top)
    said = []
    for i, key in enumerate(keys):
        base = top + row * (i + 1) - 8
        share = max(counts[key])
        for (lo, hi), n in zip(pairwise(edges), counts[key], strict=True):
            if n:
                tall = max(1.5, (row - 34) * n / share)
                width = max(1.0, x(hi) - x(lo) - 1)
                marks.append(
                    tag("rect", x=x(lo) + 0.5, y=base - tall, width=width, height=tall,
                        cls=f"fill {_CLASSES[key]}")
                )  # fmt: skip
        marks.append(tag("line", x1=left, x2=_WIDTH - right, y1=base, y2=base, cls="base"))
        p = report["latency_ms"][key]
        figures = f"half within {words.millis(p['p50'])}, 99 % within {words.millis(p['p99'])}"
        label = tag("tspan", NAMES[key], cls=f"direct {_CLASSES[key]}")
        marks.append(tag("text", label, f"  {figures}", x=left, y=base - row + 21, cls="small"))
        said.append(f"{NAMES[key]}: {figures}")
    marks.append(
        tag("text", "ms to the answer (log scale)", x=_WIDTH - right, y=height - 6, cls="axis end")
    )
    return document(
        _WIDTH,
        height,
        *marks,
        title="Time to the answer",
        description=". ".join(said) + ".",
        name="latency",
    )


def bars(values: Mapping[str, float | None], *, title: str, unit: str, name: str) -> Markup:
    """One bar a policy, labelled with its number, against the longest.

    Parameters
    ----------
    values : mapping of policy key to value
    title, unit : str
        What is measured, and in what.
    name : str
        Prefix of the ids.
    """
    shown = [(key, v) for key, v in values.items() if v is not None]
    row, left = 30.0, 72.0
    height = row * len(shown)
    longest = max([v for _, v in shown] + [1e-12])
    x = Linear(0.0, longest, left, _WIDTH - 84)
    marks: list[Markup] = []
    for i, (key, value) in enumerate(shown):
        mid = row * i + row / 2
        marks += [
            tag("text", NAMES[key], x=left - 8, y=mid + 4, cls=f"direct end {_CLASSES[key]}"),
            tag("rect", x=left, y=mid - 9, width=x(value) - left, height=18, rx=2,
                cls=f"fill {_CLASSES[key]}"),
            tag("text", words.number(value), x=x(value) + 6, y=mid + 4, cls="value"),
        ]  # fmt: skip
    said = "; ".join(f"{NAMES[key]} {words.number(v)} {unit}" for key, v in shown)
    return document(_WIDTH, height, *marks, title=title, description=said + ".", name=name)


def _grid_y(y: Linear, at: Sequence[float], x1: float, x2: float) -> list[Markup]:
    marks = []
    for value in at:
        marks.append(tag("line", x1=x1, x2=x2, y1=y(value), y2=y(value), cls="grid"))
        label = f"{100 * value:.4g} %"
        marks.append(tag("text", label, x=x1 - 5, y=y(value) + 4, cls="tick end"))
    return marks


def _axis_x(
    x: Linear | Log, at: Sequence[float], y: float, *, grid: float | None = None
) -> list[Markup]:
    marks = []
    for value in at:
        if grid is not None:
            marks.append(tag("line", x1=x(value), x2=x(value), y1=grid, y2=y, cls="grid"))
        marks.append(tag("text", f"{value:g}", x=x(value), y=y + 15, cls="tick middle"))
    return marks


def _diamond(x: float, y: float, style: str) -> Markup:
    r = 5.5
    corners = [(x, y - r), (x + r, y), (x, y + r), (x - r, y)]
    return tag("polygon", points=_path(corners), cls=f"fill mark {style}")


Place = tuple[float, float]


def _between(line: Sequence[Place], steps: int = 12) -> list[Place]:
    """Points along the segments of a line."""
    return [
        (ax + (bx - ax) * k / steps, ay + (by - ay) * k / steps)
        for (ax, ay), (bx, by) in pairwise(line)
        for k in range(1, steps)
    ]


def _label_places(
    places: Mapping[str, Place], *, avoid: Sequence[Place]
) -> dict[str, tuple[float, float, str]]:
    """Put a label beside each mark where it covers least; (x, y, anchor class)."""
    taken: list[Place] = [*avoid, *places.values()]
    out = {}
    for key, (cx, cy) in places.items():
        width = 7.5 * len(NAMES[key])
        best: tuple[float, float, float, str] | None = None
        for dy in (16, -9, 28, -21):
            for anchor, sign in (("", 1), ("end", -1)):
                lx, ly = cx + sign * 8, cy + dy
                x1 = lx if sign > 0 else lx - width
                hidden = sum(
                    x1 - 5 < px < x1 + width + 5 and ly - 15 < py < ly + 7 for px, py in taken
                )
                outside = 100 * (x1 < 44 or x1 + width > _WIDTH or ly < 22)
                if best is None or hidden + outside < best[0]:
                    best = hidden + outside, lx, ly, anchor
        assert best is not None
        _, lx, ly, anchor = best
        out[key] = lx, ly, anchor
        start = lx if not anchor else lx - width
        taken += [(start + width * k / 4, ly - 4) for k in range(5)]
    return out


def _path(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{px:.2f},{py:.2f}" for px, py in points)
