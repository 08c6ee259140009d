"""Plot of a run over time: answers by route, accuracy and latency, with what was down."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from markupsafe import Markup
from matplotlib.figure import Figure

from gatewise.formats import listed, number, percent, plural
from gatewise_sim.report.document import FaultSpan, Report, TimelineBin
from gatewise_sim.report.findings import fault_name, when
from gatewise_sim.report.plots.style import (
    COLOURS,
    draw,
    head,
    log_ticks,
    percent_ticks,
)

_WIDE: Final = 860.0
_SHORT: Final = 0.12  # of the run: a shorter outage is drawn once more, larger
_ROUTES: Final = {"edge": "edge", "cloud": "cloud", "fallback": "waiting", "error": "muted"}
_UNITS: Final = ((6 * 3600.0, 3600.0, "hours"), (300.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))


def timeline_plots(report: Report) -> list[tuple[str, Markup]]:
    """Plot the whole run, and the time around the longest outage if that is short."""
    bins = report.system.timeline
    if not bins:
        return []
    end = float(report.settings.get("seconds") or bins[-1].end)
    spans = [("", 0.0, end)]
    if report.faults:
        fault = max(report.faults, key=lambda f: f.end - f.begin)
        length = fault.end - fault.begin
        around = max(0.0, fault.begin - 0.8 * length), min(end, fault.end + 1.2 * length)
        inside = [b for b in bins if b.end > around[0] and b.begin < around[1]]
        if length < _SHORT * end and len(inside) > 3:
            spans.append((f"Around the time when the {fault_name(fault)}", *around))
    return [
        (title, _plot(report, first, last, f"time-{i}"))
        for i, (title, first, last) in enumerate(spans)
    ]


def _plot(report: Report, first: float, last: float, name: str) -> Markup:
    bins = [b for b in report.system.timeline if b.end > first and b.begin < last]
    faults = [f for f in report.faults if f.end > first and f.begin < last]
    unit, word = next((size, w) for least, size, w in _UNITS if last - first >= least)
    edges = [b.begin / unit for b in bins] + [bins[-1].end / unit]

    def steps(values: Sequence[float | None]) -> list[float]:
        """A value for each edge; NaN leaves a gap."""
        found = [float("nan") if v is None else v for v in values]
        return [*found, found[-1]]

    def paint(figure: Figure) -> None:
        labelled = any(b.accuracy is not None for b in bins)
        offloaded = any(b.p95_ms is not None for b in bins)
        panels = figure.subplots(
            1 + labelled + offloaded, 1, sharex=True, squeeze=False,
            height_ratios=[1.2, *([1.0] * (labelled + offloaded))],
        )[:, 0].tolist()  # fmt: skip
        for axes in panels:
            for fault in faults:
                axes.axvspan(
                    fault.begin / unit, fault.end / unit, color=COLOURS["waiting"], alpha=0.16,
                    linewidth=0,
                )  # fmt: skip
        answers = panels.pop(0)
        low = [0.0] * len(edges)
        for route, colour in _ROUTES.items():
            counts = [getattr(b, route) / (b.end - b.begin) for b in bins]
            if not any(counts):
                continue
            high = [a + c for a, c in zip(low, steps(counts), strict=True)]
            answers.fill_between(
                edges, low, high, step="post", color=COLOURS[colour], alpha=0.75, linewidth=0,
                label=route,
            )  # fmt: skip
            low = high
        answers.set_ylim(bottom=0)
        head(answers, f"answers a second{_shaded(faults)}")
        if labelled:
            axes = panels.pop(0)
            for values, style, key, label in (
                ([b.accuracy for b in bins], "-", "system", "accuracy"),
                ([b.edge_accuracy for b in bins], "--", "edge", "device alone"),
            ):
                axes.plot(
                    edges, steps(values), style, drawstyle="steps-post", color=COLOURS[key],
                    linewidth=1.5, label=label,
                )  # fmt: skip
            percent_ticks(axes.yaxis)
            head(axes, "accuracy")
        if offloaded:
            axes = panels.pop(0)
            axes.set_yscale("log")
            axes.plot(
                edges, steps([b.p95_ms for b in bins]), drawstyle="steps-post", linewidth=1.5,
                color=COLOURS["network"], label="latency",
            )  # fmt: skip
            log_ticks(axes.yaxis, number)
            head(axes, "ms within which 95 % of the offloaded are answered")
        figure.axes[-1].set_xlim(first / unit, last / unit)
        figure.axes[-1].set_xlabel(f"{word} since the start", loc="right")
        if any(axes.get_legend_handles_labels()[0] for axes in figure.axes):
            figure.legend(loc="outside lower left", ncols=7)

    return draw(
        paint, name=name, title="The run over time", description=_described(bins, faults),
        width=_WIDE, height=400,
    )  # fmt: skip


def _shaded(faults: Sequence[FaultSpan]) -> str:
    names = dict.fromkeys(fault_name(f) for f in faults)
    return f"; shaded: {listed(list(names))}" if 0 < len(names) <= 2 else ""


def _described(bins: Sequence[TimelineBin], faults: Sequence[FaultSpan]) -> str:
    known = [b.accuracy for b in bins if b.accuracy is not None]
    parts = [f"{plural(len(bins), 'bin')} {when(bins[0].begin, bins[-1].end)}"]
    if known:
        parts.append(f"accuracy between {percent(min(known))} and {percent(max(known))}")
    parts += [f"{fault_name(f)} {when(f.begin, f.end)}" for f in faults[:5]]
    return f"{'; '.join(parts)}."
