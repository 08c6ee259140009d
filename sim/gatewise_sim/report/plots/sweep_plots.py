"""Plots of a sweep: accuracy against cost, and figures over one of the settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from markupsafe import Markup
from matplotlib.figure import Figure

from gatewise.formats import number, percent
from gatewise_sim.fleet.estimate.intervals import Measurement
from gatewise_sim.report.comparison.figures import BY_KEY
from gatewise_sim.report.plots.style import (
    COLOURS,
    LOOKS,
    MARKERS,
    draw,
    error_bars,
    head,
    log_where_far,
    percent_ticks,
)
from gatewise_sim.report.sweep.setting_text import setting, value_text

_NUMBERED: Final = 30  # points; of more only those on the frontier have their number
_FIRST: Final = ("devices", "workers", "seconds", "offload_rate", "budget", "max_loss")


@dataclass(frozen=True)
class SweepAxis:
    """The setting along the x axis, and the lines that the others make."""

    name: str
    values: tuple[Any, ...]  # in the order of the axis
    numeric: bool  # whether distances mean anything
    series: tuple[str, ...]  # other settings of each line, as text; one empty text if none


def sweep_axis(document: Mapping[str, Any]) -> SweepAxis | None:
    """Choose the setting of the x axis: numbers first; None if there is but one point."""
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
    series = dict.fromkeys(_series(document, p, chosen["name"]) for p in document["points"])
    return SweepAxis(chosen["name"], tuple(values), numeric, tuple(series))


def points_plot(document: Mapping[str, Any], unit: str) -> Markup | None:
    """Plot accuracy against cost, a numbered mark a point; None where either is not known.

    Points that no other beats are diamonds; the cheapest within reach of the best has a ring; bars
    are 95 % intervals.
    """
    key = document["cost"]
    shown = [
        (at, p, Measurement(**p["figures"][key]), Measurement(**p["figures"]["accuracy"]))
        for at, p in enumerate(document["points"])
        if key in p["figures"] and "accuracy" in p["figures"]
    ]
    if not shown:
        return None

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        cheapest = {choice["cheapest"] for choice in document["choices"]}
        for at, point, cost, accuracy in shown:
            look = "system" if point["frontier"] else "cloud_only"
            error_bars(axes, cost, accuracy, look)
            chosen = at in cheapest
            if chosen:
                axes.plot(
                    [cost.value], [accuracy.value], "o", markersize=16, markerfacecolor="none",
                    markeredgecolor=COLOURS["system"],
                )  # fmt: skip
            if len(shown) <= _NUMBERED or point["frontier"] or chosen:
                axes.annotate(
                    str(at + 1), (cost.value, accuracy.value), (7, 5), textcoords="offset points",
                    color=COLOURS[look],
                )  # fmt: skip
        log_where_far(axes, [cost.value for _, _, cost, _ in shown], number)
        percent_ticks(axes.yaxis)
        head(axes, "accuracy")
        axes.set_xlabel(unit, loc="right")

    texts = [
        f"{at + 1}: {setting(p['settings'])}, {percent(a.value)} at {number(c.value)}"
        for at, p, c, a in shown[:_NUMBERED]
    ]
    more = f"; and {len(shown) - _NUMBERED} more" if len(shown) > _NUMBERED else ""
    return draw(
        paint, name="points", title="Accuracy against cost",
        description=f"{'; '.join(texts)}{more}.", height=300,
    )  # fmt: skip


def lines_plot(document: Mapping[str, Any], key: str, axis: SweepAxis, title: str) -> Markup | None:
    """Plot a figure over the axis' setting, a line a series; None where no point has it."""
    places = {value: value if axis.numeric else i for i, value in enumerate(axis.values)}
    lines: dict[str, list[tuple[float, Measurement]]] = {name: [] for name in axis.series}
    for point in document["points"]:
        if key in point["figures"]:
            figure = Measurement(**point["figures"][key])
            series = _series(document, point, axis.name)
            lines[series].append((places[point["settings"][axis.name]], figure))
    lines = {name: sorted(points, key=lambda p: p[0]) for name, points in lines.items() if points}
    if not lines:
        return None
    form, many = BY_KEY[key].form, len(lines) > len(LOOKS)

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        for i, (name, points) in enumerate(lines.items()):
            look = LOOKS[2 if many else i]
            axes.plot(
                [x for x, _ in points], [m.value for _, m in points], color=COLOURS[look],
                marker=MARKERS[look], markersize=6, linestyle="-" if axis.numeric else "",
                label=name,
            )  # fmt: skip
            for x, m in points:
                if m.low is not None and m.high is not None:
                    axes.plot([x, x], [m.low, m.high], color=COLOURS[look], linewidth=1.2)
        values = [m.value for points in lines.values() for _, m in points]
        log_where_far(axes, values, form, "y")
        if axis.numeric:
            log_where_far(axes, axis.values, number)
        else:
            texts = [value_text(v, axis.name) for v in axis.values]
            axes.set_xticks(range(len(texts)), texts)
            axes.margins(x=0.2)
        head(axes, title)
        axes.set_xlabel(axis.name.replace("_", " "), loc="right")
        if any(lines) and not many:
            figure.legend(loc="outside lower left", ncols=2)

    texts = [
        f"{name or 'all'}: {', '.join(form(m.value) for _, m in points)}"
        for name, points in list(lines.items())[:_NUMBERED]
    ]
    return draw(
        paint, name=f"panel-{key}", title=f"{title} by {axis.name}",
        description=f"{'; '.join(texts)}.", height=250,
    )  # fmt: skip


def _numeric(values: Sequence[Any]) -> bool:
    return all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)


def _series(document: Mapping[str, Any], point: Mapping[str, Any], axis: str) -> str:
    """The settings of a point's line, as text."""
    several = [s["name"] for s in document["sweeps"] if len(s["values"]) > 1]
    return setting({n: point["settings"][n] for n in several if n != axis})
