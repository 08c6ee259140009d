"""Plot of a comparison: each figure a strip with a mark and an interval for every run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gatewise_sim.fleet.estimate.intervals import Measurement
from gatewise_sim.report.comparison.figures import ComparedFigure
from gatewise_sim.report.plots.style import (
    COLOURS,
    LOOKS,
    MARKERS,
    draw,
    head,
    log_where_far,
    percent_ticks,
    reach,
    widened,
)


def strips_plot(
    runs: Sequence[Mapping[str, Any]], figures: Sequence[ComparedFigure]
) -> Markup | None:
    """Plot the figures that differ, each on a scale of its own; bars are 95 % intervals."""
    known = {
        figure: {
            number: Measurement(**run["figures"][figure.key])
            for number, run in enumerate(runs)
            if run["figures"].get(figure.key) is not None
        }
        for figure in figures
    }
    shown = {f: found for f, found in known.items() if len({m.value for m in found.values()}) > 1}
    if not shown:
        return None
    many = len(runs) > len(LOOKS)
    lane = 7.0 if many else 13.0
    strip = 44.0 + lane * len(runs)

    def paint(drawing: Figure) -> None:
        panels = drawing.subplots(len(shown), 1, squeeze=False)[:, 0]
        for axes, (figure, found) in zip(panels, shown.items(), strict=True):
            for number, value in found.items():
                look = LOOKS[2 * (number > 0) if many else number]
                axes.errorbar(
                    [value.value], [number], xerr=reach(value), fmt=MARKERS[look],
                    color=COLOURS[look], markersize=4 if many else 7, elinewidth=1.4,
                    label=runs[number]["name"] if axes is panels[0] else None,
                )  # fmt: skip
            _scale(axes, figure, list(found.values()))
            axes.set_ylim(len(runs) - 0.4, -0.6)
            axes.set_yticks([])
            axes.spines["left"].set_visible(False)
        if not many:
            drawing.legend(loc="outside upper left", ncols=3)

    texts = []
    for figure, found in shown.items():
        values = [f"{runs[number]['name']} {figure.form(m.value)}" for number, m in found.items()]
        texts.append(f"{figure.name}: {', '.join(values)}")
    return draw(
        paint, name="strips", title="Every figure that differs",
        description=f"{'. '.join(texts)}.", height=strip * len(shown) + 26,
    )  # fmt: skip


def _scale(axes: Axes, figure: ComparedFigure, values: Sequence[Measurement]) -> None:
    """Amounts begin at 0, so that their places show ratios; wide ranges are logarithmic.

    Shares do not begin at 0, but their axis is five points long at least: a tenth of a point looks
    like one.
    """
    ends = [end for m in values for end in (m.value, m.low, m.high) if end is not None]
    log = log_where_far(axes, ends, figure.form)
    head(axes, f"{figure.name}{' (log scale)' if log else ''}")
    if log:
        return
    share = figure.form(0.5).endswith("%")
    high = max(ends)
    low = min(ends) if share else min(*ends, 0.0)
    if share:
        low, high = widened(low, high)
    margin = 0.04 * (high - low)
    axes.set_xlim(low - margin, high + margin)
    axes.locator_params(axis="x", nbins=4)
    if share:
        percent_ticks(axes.xaxis)
