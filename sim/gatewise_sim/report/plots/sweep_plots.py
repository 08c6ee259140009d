"""Plot of a sweep: accuracy against cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from markupsafe import Markup
from matplotlib.figure import Figure

from gatewise.formats import number, percent
from gatewise_sim.fleet.estimate.intervals import Measurement
from gatewise_sim.report.plots.style import (
    COLOURS,
    draw,
    error_bars,
    head,
    log_where_far,
    percent_ticks,
)
from gatewise_sim.report.sweep.setting_text import setting

_NUMBERED: Final = 30  # points; of more only those on the frontier have their number


def points_plot(document: Mapping[str, Any], unit: str) -> Markup | None:
    """Plot accuracy against cost, a numbered mark a point; None where either is not known.

    Points that no other beats in both are joined; the cheapest within reach of the best has a
    ring; bars are 95 % intervals.
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
        best = sorted((c.value, a.value) for _, p, c, a in shown if p["frontier"])
        axes.plot(*zip(*best, strict=True), color=COLOURS["system"], drawstyle="steps-post")
        for at, point, cost, accuracy in shown:
            look = "system" if point["frontier"] else "cloud_only"
            error_bars(axes, cost, accuracy, look)
            chosen = at == document["cheapest"]
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
