"""The course of a run: who answered, how well, how late; what was down is shaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from markupsafe import Markup

from gatewise_sim.report import words
from gatewise_sim.report.drawings.bins import joined
from gatewise_sim.report.drawings.marks import FILLS, axis_x, grid_y
from gatewise_sim.report.drawings.times import TimeScale
from gatewise_sim.report.svg import Linear, Log, document, path, tag, text_width, ticks

__all__ = ["ROUTES", "draw_timeline"]

ROUTES: Final = ("edge", "cloud", "fallback", "error")
_LEFT: Final = 50.0
_RIGHT: Final = 18.0
_TOP: Final = 20.0
_BOTTOM: Final = 40.0
_THINNEST: Final = 2.5
_UNITS: Final = (("second", 1.0), ("minute", 60.0), ("hour", 3600.0), ("day", 86_400.0))

_Bin = Mapping[str, Any]
_Scale = Linear | Log


def draw_timeline(
    bins: Sequence[_Bin],
    faults: Sequence[Mapping[str, Any]],
    scale: TimeScale,
    *,
    begin: float,
    end: float,
    title: str,
    width: float,
    name: str,
) -> Markup:
    """Draw a part of the run in two or three panels over one axis of time.

    Parameters
    ----------
    bins : sequence of mapping
        ``begin, end, instances``, numbers by route, ``accuracy``, ``edge_accuracy``, ``p95_ms``
        (the last three may be None), sorted by time. Where nothing was stepped there is none.
    faults : sequence of mapping
        ``what, begin, end, count``.
    scale : TimeScale
    begin, end : float
        What is drawn, in seconds since the run's beginning.
    title : str
    width, name
        As :func:`gatewise_sim.report.drawings.picture.pictured` gives them.
    """
    tall = 84.0 if width < 600 else 110.0
    x = Linear(begin, end, _LEFT, width - _RIGHT)
    near = [f for f in faults if f["begin"] < end and f["end"] > begin]
    seen = joined(
        [b for b in bins if b["end"] > begin and b["begin"] < end],
        (end - begin) / (x.end - x.start) * _THINNEST,
        [t for f in near for t in (f["begin"], f["end"])],
    )
    panels = [_answers]
    if any(b["accuracy"] is not None for b in seen):
        panels.append(_accuracy)
    if any(b["p95_ms"] is not None for b in seen):
        panels.append(_lateness)
    gap = 41.0
    top = _TOP - 12
    drawn: list[Markup] = []
    bottoms = []
    for panel in panels:
        bottoms.append(top + gap + tall)
        drawn += panel(seen, x, top + gap, bottoms[-1])
        top = bottoms[-1]
    height = top + _BOTTOM
    bands = _bands(near, x, _TOP, bottoms[-1])
    times = scale.ticks(begin, end, int((x.end - x.start) / 62))
    axis = [
        *axis_x(x, times, [scale.label(t) for t in times], bottoms[-1]),
        tag("text", scale.unit, x=x.end, y=height - 6, cls="axis end"),
    ]
    over = []
    for b in seen:
        left, right = _sides(b, x)
        over.append(
            tag("rect", tag("title", _said(b, scale)), x=left, y=_TOP, width=right - left,
                height=bottoms[-1] - _TOP, cls="sense")
        )  # fmt: skip
    return document(
        width,
        height,
        *bands,
        *drawn,
        *axis,
        *over,
        title=title,
        description=_described(seen, near, scale),
        name=name,
    )


# -- panels ----------------------------------------------------------------------------------


def _answers(bins: Sequence[_Bin], x: Linear, top: float, bottom: float) -> list[Markup]:
    rates = [sum(b[r] for r in ROUTES) / b["stepped"] for b in bins]
    most = max([*rates, 1e-12])
    unit, size = next((u for u in _UNITS if most * u[1] >= 1), _UNITS[-1])
    y = Linear(0.0, 1.05 * most * size, bottom, top)
    at = ticks(y.lo, y.hi, 4)
    drawn = _frame(f"answers a {unit}", y, at, [words.number(v) for v in at], x)
    sides = [_sides(b, x) for b in bins]
    below = [0.0] * len(bins)
    for route in ROUTES:
        # All of a route in one piece: its pattern goes on from bin to bin.
        piece = []
        for k, (b, (left, right)) in enumerate(zip(bins, sides, strict=True)):
            rate = b[route] / b["stepped"] * size
            if rate > 0:
                low, high = y(below[k]), y(below[k] + rate)
                piece.append(f"M{left:.2f},{low:.2f} V{high:.2f} H{right:.2f} V{low:.2f} Z")
            below[k] += rate
        if piece:
            look = FILLS[route].attributes
            look["cls"] += " tint" * (route == "edge")
            drawn.append(tag("path", d=" ".join(piece), shape_rendering="crispEdges", **look))
    tops = [y(b["edge"] / b["stepped"] * size) for b in bins]
    return [*drawn, *_steps(sides, tops, "stroke edge brim")]


def _accuracy(bins: Sequence[_Bin], x: Linear, top: float, bottom: float) -> list[Markup]:
    values = [b[k] for b in bins for k in ("accuracy", "edge_accuracy") if b[k] is not None]
    pad = max(0.01, 0.12 * (max(values) - min(values)))
    y = Linear(max(0.0, min(values) - pad), min(1.0, max(values) + pad), bottom, top)
    at = ticks(y.lo, y.hi, 4)
    keys = [("Gatewise", "system"), ("the device alone", "edge dashed")]
    drawn = _frame("accuracy", y, at, [f"{100 * v:.4g} %" for v in at], x, keys=keys, base=False)
    for field, style in (("edge_accuracy", "edge dashed"), ("accuracy", "system")):
        drawn += _line(bins, field, x, y, style)
    return drawn


def _lateness(bins: Sequence[_Bin], x: Linear, top: float, bottom: float) -> list[Markup]:
    values = [b["p95_ms"] for b in bins if b["p95_ms"]]
    y = Log(min(values) / 1.3, max(values) * 1.3, bottom, top)
    at = y.decades()
    if len(at) > 5:
        at = [v for v in at if f"{v:e}"[0] in "15"]
    drawn = _frame(
        "ms until 95 % of the offloaded are answered (log scale)"
        if x.end > 600
        else "ms, 95 % of the offloaded (log scale)",
        y, at, [words.number(v) for v in at], x, base=False,
    )  # fmt: skip
    return [*drawn, *_line(bins, "p95_ms", x, y, "cloud")]


def _frame(
    title: str,
    y: _Scale,
    at: Sequence[float],
    labels: Sequence[str],
    x: Linear,
    *,
    keys: Sequence[tuple[str, str]] = (),
    base: bool = True,
) -> list[Markup]:
    """Grid, and above it what is shown, with the samples of its lines."""
    head = y.end - 11
    drawn = [
        *grid_y(y, at, labels, x.start, x.end),
        tag("text", title, x=0.0, y=head, cls="axis halo"),
    ]
    if base:
        drawn.append(tag("line", x1=x.start, x2=x.end, y1=y.start, y2=y.start, cls="base"))
    at_x = text_width(title, 11.0) + 16
    for name, style in keys:
        drawn.append(
            tag(
                "line", x1=at_x, x2=at_x + 20, y1=head - 4, y2=head - 4, cls=f"stroke curve {style}"
            )
        )
        colour = style.split()[0]
        drawn.append(tag("text", name, x=at_x + 25, y=head, cls=f"direct small-key halo {colour}"))
        at_x += 25 + text_width(name, 11.0, bold=True) + 14
    return drawn


def _line(bins: Sequence[_Bin], field: str, x: Linear, y: _Scale, style: str) -> list[Markup]:
    """A level for each bin that is known."""
    known = [b for b in bins if b[field] is not None]
    sides = [_sides(b, x) for b in known]
    return _steps(sides, [y(b[field]) for b in known], f"stroke curve {style}")


def _sides(b: _Bin, x: Linear) -> tuple[float, float]:
    """Left and right of a bin on the drawing; it can be seen, and is within."""
    left, right = max(x(b["begin"]), x.start), min(x(b["end"]), x.end)
    if right - left < _THINNEST:
        left = min(max((left + right - _THINNEST) / 2, x.start), x.end - _THINNEST)
        right = left + _THINNEST
    return left, right


def _steps(
    sides: Sequence[tuple[float, float]], levels: Sequence[float], style: str
) -> list[Markup]:
    """A line of steps; where a time between was not stepped, it is interrupted."""
    parts: list[list[tuple[float, float]]] = []
    for (left, right), level in zip(sides, levels, strict=True):
        if not parts or left > parts[-1][-1][0] + _THINNEST:
            parts.append([])
        parts[-1] += [(left, level), (right, level)]
    return [tag("polyline", points=path(part), cls=style) for part in parts]


def _bands(
    faults: Sequence[Mapping[str, Any]], x: Linear, top: float, bottom: float
) -> list[Markup]:
    """What was down: a shaded band, its name above it where there is room."""
    drawn = []
    free = 0.0
    for fault in faults:
        x1, x2 = x(max(fault["begin"], x.lo)), x(min(fault["end"], x.hi))
        x2 = max(x2, x1 + 2.0)
        drawn.append(
            tag("rect", x=x1, y=top, width=x2 - x1, height=bottom - top, cls="fill band waiting")
        )
        drawn += [
            tag("line", x1=edge, x2=edge, y1=top, y2=bottom, cls="stroke edge-of-band")
            for edge in (x1, x2)
        ]
        text = words.outage(fault)
        half = text_width(text, 11.0, bold=True) / 2
        middle = min(max((x1 + x2) / 2, half), x.end + _RIGHT - half)
        if middle - half >= free:
            drawn.append(
                tag("text", text, x=middle, y=top - 6, cls="direct small-key middle waiting")
            )
            free = middle + half + 6
    return drawn


def _said(b: _Bin, scale: TimeScale) -> str:
    parts = [f"{route} {words.number(b[route])}" for route in ROUTES if b[route]]
    if b["accuracy"] is not None:
        parts.append(f"accuracy {words.percent(b['accuracy'])}")
    if b["p95_ms"] is not None:
        parts.append(f"95 % of the offloaded within {words.millis(b['p95_ms'])}")
    return f"{scale.span(b['begin'], b['end'])}: {', '.join(parts)}"


def _described(bins: Sequence[_Bin], faults: Sequence[Mapping[str, Any]], scale: TimeScale) -> str:
    down = "; ".join(f"{words.outage(f)} {scale.span(f['begin'], f['end'])}" for f in faults)
    sums = ", ".join(
        f"{route} {words.number(sum(b[route] for b in bins))}"
        for route in ROUTES
        if any(b[route] for b in bins)
    )
    known = [b["accuracy"] for b in bins if b["accuracy"] is not None]
    said = f"Answers in the times stepped: {sums or 'none'}. "
    if known:
        said += f"Accuracy between {words.percent(min(known))} and {words.percent(max(known))}. "
    return said + (f"Down: {down}." if down else "Nothing was down.")
