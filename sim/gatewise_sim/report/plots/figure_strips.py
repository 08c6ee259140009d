"""Plot of a comparison: each figure a strip with a mark and an interval for every run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from markupsafe import Markup
from matplotlib.figure import Figure

from gatewise_sim.report.comparison.figures import ComparedFigure
from gatewise_sim.report.plots.style import (
    COLOURS,
    MARKERS,
    draw,
    format_ticks,
    head,
    log_ticks,
    percent_ticks,
)

__all__ = ["strips_plot"]

_FAR: Final = 20.0  # from here on a scale is logarithmic: largest over smallest
_LOOKS: Final = tuple(MARKERS)


def strips_plot(
    runs: Sequence[Mapping[str, Any]], figures: Sequence[ComparedFigure]
) -> Markup | None:
    """Plot the figures that differ, each on a scale of its own; bars are 95 % intervals."""
    shown = [figure for figure in figures if _differs(runs, figure)]
    if not shown:
        return None
    many = len(runs) > len(_LOOKS)
    lane = 7.0 if many else 13.0
    strip = 44.0 + lane * len(runs)

    def paint(drawing: Figure) -> None:
        panels = drawing.subplots(len(shown), 1, squeeze=False)[:, 0]
        for axes, figure in zip(panels, shown, strict=True):
            for number, run in enumerate(runs):
                value = run["figures"].get(figure.key)
                if value is None:
                    continue
                look = _LOOKS[2 * (number > 0) if many else number]
                x, low, high = value["value"], value["low"], value["high"]
                reach = None if low is None or high is None else [[x - low], [high - x]]
                axes.errorbar(
                    [x], [number], xerr=reach, fmt=MARKERS[look], color=COLOURS[look],
                    markersize=4 if many else 7, elinewidth=1.4,
                    label=run["name"] if axes is panels[0] else None,
                )  # fmt: skip
            _scale(axes, figure, runs)
        if not many:
            drawing.legend(loc="outside upper left", ncols=3)

    return draw(
        paint, name="strips", title="Every figure that differs",
        description=f"{'. '.join(_described(runs, figure) for figure in shown)}.",
        height=strip * len(shown) + 26,
    )  # fmt: skip


def _described(runs: Sequence[Mapping[str, Any]], figure: ComparedFigure) -> str:
    values = [(r["name"], v) for r in runs if (v := r["figures"].get(figure.key)) is not None]
    return f"{figure.name}: " + ", ".join(f"{name} {figure.form(v['value'])}" for name, v in values)


def _scale(axes: Any, figure: ComparedFigure, runs: Sequence[Mapping[str, Any]]) -> None:
    """Amounts begin at 0, so that their places show ratios; shares do not; wide ranges are log."""
    values = [v for r in runs if (v := r["figures"].get(figure.key)) is not None]
    ends = [v for value in values for v in value.values() if v is not None]
    low, high = min(ends), max(ends)
    log = low > 0 and high / low >= _FAR
    share = figure.form(0.5).endswith("%")
    head(axes, f"{figure.name}{' (log scale)' if log else ''}")
    if log:
        axes.set_xscale("log")
        log_ticks(axes.xaxis, figure.form)
    else:
        low = low if share else min(low, 0.0)
        margin = 0.04 * (high - low)
        axes.set_xlim(low - margin, high + margin)
        axes.locator_params(axis="x", nbins=4)
        if share:
            percent_ticks(axes.xaxis)
        else:
            format_ticks(axes.xaxis, figure.form)
    axes.set_ylim(len(runs) - 0.4, -0.6)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)


def _differs(runs: Sequence[Mapping[str, Any]], figure: ComparedFigure) -> bool:
    values = [v["value"] for r in runs if (v := r["figures"].get(figure.key)) is not None]
    return len(values) > 1 and len(set(values)) > 1
