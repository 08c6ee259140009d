"""The drawings of a sweep: accuracy against cost, and figures over one of the settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from markupsafe import Markup

from gatewise_sim.experiment.sweep.settings import setting
from gatewise_sim.report import words
from gatewise_sim.report.drawings.marks import STYLES, axis_x, grid_y, shape, whisker
from gatewise_sim.report.drawings.placing import Box, Label, between, place_labels
from gatewise_sim.report.svg import Linear, Log, document, path, tag, text_width, ticks
from gatewise_sim.sweep.summary import FORMS, cost_unit

__all__ = ["Axis", "axis_of", "draw_panel", "draw_points", "series_legend"]

_WIDTH: Final = 360.0
_FAR: Final = 20.0  # from here on a scale is logarithmic: largest over smallest
_NUMBERED: Final = 30  # points; of more only those on the frontier have their number
_LOOKS: Final = tuple(STYLES)
_FIRST: Final = ("devices", "workers", "seconds", "offload_rate", "budget", "max_loss")


@dataclass(frozen=True)
class Axis:
    """The setting that runs along the x axis, and the lines that the others make.

    Attributes
    ----------
    name : str
    values : tuple
        In the order of the axis.
    numeric : bool
        Whether distances mean anything.
    series : tuple of str
        Other settings of each line, as text; one empty text if there are none.
    """

    name: str
    values: tuple[Any, ...]
    numeric: bool
    series: tuple[str, ...]


def axis_of(document: Mapping[str, Any]) -> Axis | None:
    """Choose the setting of the x axis: numbers first; None if only one point was asked for."""
    several = [s for s in document["sweeps"] if len(s["values"]) > 1]
    if not several:
        return None

    def rank(sweep: Mapping[str, Any]) -> tuple[bool, int]:
        name = sweep["name"]
        order = _FIRST.index(name) if name in _FIRST else len(_FIRST)
        return not _numeric(sweep["values"]), order

    chosen = min(several, key=rank)
    numeric = _numeric(chosen["values"])
    values = sorted(chosen["values"]) if numeric else chosen["values"]
    series = dict.fromkeys(_series(p, chosen["name"], several) for p in document["points"])
    return Axis(chosen["name"], tuple(values), numeric, tuple(series))


def draw_points(document: Mapping[str, Any], *, name: str = "points") -> Markup | None:
    """Draw accuracy against cost, a numbered mark a point; None where either is not known.

    Points that no other beats in both are joined; the cheapest within reach of the best has a
    ring; bars are 95 % intervals.
    """
    key = document["cost"]
    shown = [
        (at, point, point["figures"][key], point["figures"]["accuracy"])
        for at, point in enumerate(document["points"])
        if key in point["figures"] and "accuracy" in point["figures"]
    ]
    if not shown:
        return None
    height, left, right, top, bottom = 290.0, 50.0, 14.0, 26.0, 42.0
    x = _scale([v for _, _, c, _ in shown for v in _ends(c)], left + 12, _WIDTH - right - 12)
    y = _share_scale([v for *_, a in shown for v in _ends(a)], height - bottom, top)
    places = {at: (x(c["value"]), y(a["value"])) for at, _, c, a in shown}
    best = sorted(places[at] for at, point, *_ in shown if point["frontier"])
    line = _stairs(best)
    numbered = [
        (at, p) for at, p, *_ in shown
        if len(shown) <= _NUMBERED or p["frontier"] or at == document["cheapest"]
    ]  # fmt: skip
    numbered.sort(key=lambda pair: (pair[0] != document["cheapest"], not pair[1]["frontier"]))
    labels = [
        Label(str(at + 1), *places[at], "system" if p["frontier"] else "cloud", 11.0)
        for at, p in numbered
    ]
    shares, prices = ticks(y.lo, y.hi, 6), _ticks(x)
    drawn = [
        *grid_y(y, shares, [f"{100 * v:.4g} %" for v in shares], left, _WIDTH - right),
        *axis_x(x, prices, [words.number(v) for v in prices], y.start),
        tag("line", x1=left, x2=_WIDTH - right, y1=y.start, y2=y.start, cls="base"),
        tag("text", cost_unit(document), x=_WIDTH - right, y=height - 6, cls="axis end"),
        tag("text", "accuracy", x=0.0, y=12.0, cls="axis"),
        tag("polyline", points=path(line), cls="stroke hull"),
    ]
    for at, point, cost, accuracy in sorted(shown, key=lambda item: item[1]["frontier"]):
        cx, cy = places[at]
        style = "system" if point["frontier"] else "cloud_only"
        colour = STYLES[style][0]
        for axis, figure in ((x, cost), (y, accuracy)):
            low, high = (axis(v) for v in (_ends(figure)[0], _ends(figure)[-1]))
            if abs(high - low) > 1:
                drawn.append(whisker(low, cy, high, cy, colour) if axis is x
                             else whisker(cx, low, cx, high, colour))  # fmt: skip
        if at == document["cheapest"]:
            drawn.append(tag("circle", cx=cx, cy=cy, r=9.0, cls="stroke ring"))
        said = f"{at + 1}: {_said(document, point)}"
        drawn.append(tag("g", tag("title", said), shape(style, cx, cy, 5.0)))
    frame = Box(left + 2, top - 8, _WIDTH, y.start - 2)
    drawn += place_labels(labels, frame=frame, avoid=between(line))
    told = "; ".join(f"{at + 1}: {_said(document, p)}" for at, p, *_ in shown[:_NUMBERED])
    more = f"; and {len(shown) - _NUMBERED} more" if len(shown) > _NUMBERED else ""
    return _picture(height, drawn, "Accuracy against cost", f"{told}{more}.", name)


def draw_panel(document: Mapping[str, Any], key: str, axis: Axis, *, name: str) -> Markup | None:
    """Draw one figure over the axis' setting, a line a series, with 95 % intervals.

    None where no point has the figure.
    """
    several = [s for s in document["sweeps"] if len(s["values"]) > 1]
    shown = [
        (axis.series.index(_series(p, axis.name, several)), p["settings"][axis.name],
         p["figures"][key], p)
        for p in document["points"] if key in p["figures"]
    ]  # fmt: skip
    if not shown:
        return None
    height, left, right, top, bottom = 210.0, 52.0, 14.0, 26.0, 42.0
    ends = [v for *_, figure, _ in shown for v in _ends(figure)]
    form = FORMS[key].form
    if form(0.5).endswith("%"):
        y: Linear | Log = _share_scale(ends, height - bottom, top)
        at_y = ticks(y.lo, y.hi, 5)
        texts = [f"{100 * v:.4g} %" for v in at_y]
    else:
        y = _scale(ends, height - bottom, top)
        at_y = _ticks(y)
        texts = [words.number(v) for v in at_y]
    x, at_x, x_texts = _x_axis(axis, left + 16, _WIDTH - right - 16)
    drawn = [
        *grid_y(y, at_y, texts, left, _WIDTH - right),
        *axis_x(x, at_x, x_texts, y.start),
        tag("line", x1=left, x2=_WIDTH - right, y1=y.start, y2=y.start, cls="base"),
        tag("text", axis.name.replace("_", " "), x=_WIDTH - right, y=height - 6, cls="axis end"),
        tag("text", _panel_unit(document, key), x=0.0, y=12.0, cls="axis"),
    ]
    said = []
    for number, label in enumerate(axis.series):
        own = sorted(
            ((x(axis.values.index(v) if not axis.numeric else v), f, p)
             for n, v, f, p in shown if n == number),
            key=lambda item: item[0],
        )  # fmt: skip
        look = _LOOKS[number] if len(axis.series) <= len(_LOOKS) else "cloud_only"
        colour = STYLES[look][0]
        # Lines side by side: intervals at the same setting would lie on each other.
        aside = (4.0 if axis.numeric else 6.0) * (number - (len(axis.series) - 1) / 2)
        spots = [(cx + aside, y(f["value"])) for cx, f, _ in own]
        if axis.numeric:
            drawn.append(tag("polyline", points=path(spots), cls=f"stroke {colour}"))
        for (cx, cy), (_, figure, point) in zip(spots, own, strict=True):
            low, high = y(_ends(figure)[0]), y(_ends(figure)[-1])
            if abs(high - low) > 1:
                drawn.append(whisker(cx, low, cx, high, colour))
            note = f"{setting(point['settings'])}: {form(figure['value'])}"
            drawn.append(tag("g", tag("title", note), shape(look, cx, cy, 5.0)))
        values = ", ".join(
            f"{setting({axis.name: p['settings'][axis.name]}).partition('=')[2]}: "
            f"{form(f['value'])}"
            for _, f, p in own
        )
        said.append(f"{label}: {values}" if label else values)
    told = "; ".join(said[:_NUMBERED])
    return _picture(height, drawn, f"{FORMS[key].name} by {axis.name}", f"{told}.", name)


def series_legend(axis: Axis) -> Markup:
    """A list of the lines, each with its mark; empty where there is one line, or too many."""
    if not 1 < len(axis.series) <= len(_LOOKS):
        return Markup("")
    items = Markup("").join(
        Markup("<li>{}<span>{}</span></li>").format(
            tag("svg", shape(_LOOKS[i], 7.0, 7.0, 5.5), viewBox="0 0 14 14", cls="swatch",
                aria_hidden="true"),
            label,
        )
        for i, label in enumerate(axis.series)
    )  # fmt: skip
    return Markup('<ul class="legend">{}</ul>').format(items)


# -- parts ---------------------------------------------------------------------------------


def _picture(
    height: float, drawn: Sequence[Markup], title: str, description: str, name: str
) -> Markup:
    return document(_WIDTH, height, *drawn, title=title, description=description, name=name)


def _numeric(values: Sequence[Any]) -> bool:
    return all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)


def _series(point: Mapping[str, Any], axis: str, several: Sequence[Mapping[str, Any]]) -> str:
    names = [sweep["name"] for sweep in several if sweep["name"] != axis]
    return setting({name: point["settings"][name] for name in names})


def _ends(figure: Mapping[str, Any]) -> list[float]:
    return [v for v in (figure["low"], figure["value"], figure["high"]) if v is not None]


def _scale(values: Sequence[float], start: float, end: float) -> Linear | Log:
    """A scale that holds values that are not negative; from 0, unless they lie far apart."""
    low, high = min(values), max(values)
    if low > 0 and high / low >= _FAR:
        return Log(low / 1.15, high * 1.15, start, end)
    return Linear(min(low, 0.0), 1.06 * high if high > 0 else 1.0, start, end)


def _share_scale(values: Sequence[float], start: float, end: float) -> Linear:
    """A scale for shares, which do not begin at 0: differences are what counts."""
    low, high = min(values), max(values)
    room = max(0.01, high - low)
    return Linear(max(0.0, low - 0.15 * room), min(1.0, high + 0.15 * room), start, end)


def _ticks(scale: Linear | Log) -> list[float]:
    return scale.decades() if isinstance(scale, Log) else ticks(scale.lo, scale.hi, 5)


def _x_axis(axis: Axis, start: float, end: float) -> tuple[Linear | Log, list[float], list[str]]:
    if not axis.numeric:
        at = [float(i) for i in range(len(axis.values))]
        texts = [setting({axis.name: v}).partition("=")[2] for v in axis.values]
        room = (end - start) / max(len(at) - 1, 1)
        longest = max(3, int(room / text_width("x", 11)))
        texts = [t if len(t) <= longest else f"{t[: longest - 1]}…" for t in texts]
        aside = 24.0 if len(at) > 1 else 0.0
        return Linear(0.0, max(at[-1], 1.0), start + aside, end - aside), at, texts
    low, high = float(axis.values[0]), float(axis.values[-1])
    far = low > 0 and high / low >= _FAR
    x = Log(low, high, start, end) if far else Linear(low, high, start, end)
    kept: list[float] = []
    for value in map(float, axis.values):  # the settings themselves, as far as there is room
        if not kept or x(value) - x(kept[-1]) > text_width(words.number(value), 11) + 8:
            kept.append(value)
    return x, kept, [f"{v:,.6g}" for v in kept]


def _stairs(best: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The frontier as what can be had for so much: flat up to the next point."""
    line = list(best[:1])
    for px, py in best[1:]:
        line += [(px, line[-1][1]), (px, py)]
    return line


def _panel_unit(document: Mapping[str, Any], key: str) -> str:
    """What stands at the y axis; the heading has the figure's name."""
    if key == document["cost"] and key.startswith("money"):
        return str(document["currency"])
    return "ms" if FORMS[key].form(1.0).endswith("ms") else ""


def _said(document: Mapping[str, Any], point: Mapping[str, Any]) -> str:
    figures, key = point["figures"], document["cost"]
    cost = FORMS[key].form(figures[key]["value"])
    accuracy = words.percent(figures["accuracy"]["value"])
    return f"{setting(point['settings'])}, {accuracy} accurate, {cost} {cost_unit(document)}"
