"""Plot of a run over time: answers by route, accuracy, latency and outages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gatewise.formats import listed, number, percent, plural
from gatewise_sim.report.document import FaultSpan, Report, TimelineBin
from gatewise_sim.report.findings import fault_name, when
from gatewise_sim.report.plots.style import (
    COLOURS,
    Look,
    draw,
    limit_to_shares,
    log_ticks,
    percent_ticks,
    title_y_axis,
)

_ROUTES: Final = {"edge": "edge", "cloud": "cloud", "fallback": "waiting", "error": "muted"}
_UNITS: Final = ((6 * 3600.0, 3600.0, "hours"), (300.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))


def timeline_plot(report: Report) -> Markup | None:
    """Plot the run over time; None without answers."""
    bins = report.system.timeline
    if not bins:
        return None
    end = float(report.settings.get("seconds") or bins[-1].end)
    unit, unit_name = next((size, name) for min_end, size, name in _UNITS if end >= min_end)
    return _Timeline(end, bins, report.faults, unit, unit_name).plot()


@dataclass(frozen=True)
class _Timeline:
    """Bins and outages of a run up to `end` (s), with the unit of the time axis in s."""

    end: float
    bins: Sequence[TimelineBin]
    faults: Sequence[FaultSpan]
    unit: float
    unit_name: str

    def plot(self) -> Markup:
        """Draw panels of answers and, if they are known, of accuracy and latency."""
        paints = [self._paint_answers]
        if any(b.accuracy is not None for b in self.bins):
            paints.append(self._paint_accuracy)
        if any(b.p95_ms is not None for b in self.bins):
            paints.append(self._paint_latency)

        def paint(figure: Figure) -> None:
            heights = [1.2, 1.0, 1.0][: len(paints)]
            panels = figure.subplots(
                len(paints), 1, sharex=True, squeeze=False, height_ratios=heights
            )
            for axes, paint_panel in zip(panels[:, 0], paints, strict=True):
                for fault in self.faults:
                    span = (fault.begin / self.unit, fault.end / self.unit)
                    axes.axvspan(*span, color=COLOURS["waiting"], alpha=0.16, linewidth=0)
                paint_panel(axes)
            figure.axes[-1].set_xlim(0.0, self.end / self.unit)
            figure.axes[-1].set_xlabel(f"{self.unit_name} since the start", loc="right")
            if any(axes.get_legend_handles_labels()[0] for axes in figure.axes):
                figure.legend(loc="outside lower left", ncols=7)

        return draw(
            paint,
            "time",
            "The run over time",
            description=self._description(),
            height=400,
        )

    @property
    def _edges(self) -> list[float]:
        return [b.begin / self.unit for b in self.bins] + [self.bins[-1].end / self.unit]

    def _steps(self, values: Sequence[float | None]) -> list[float]:
        """Give each edge the value of its bin; NaN leaves a gap."""
        steps = [float("nan") if value is None else value for value in values]
        return [*steps, steps[-1]]

    def _paint_answers(self, axes: Axes) -> None:
        low = [0.0] * len(self._edges)
        look: Look = {"step": "post", "alpha": 0.75, "linewidth": 0}
        for route, colour in _ROUTES.items():
            rates = [getattr(b, route) / (b.end - b.begin) for b in self.bins]
            if not any(rates):
                continue
            high = [a + rate for a, rate in zip(low, self._steps(rates), strict=True)]
            axes.fill_between(self._edges, low, high, color=COLOURS[colour], label=route, **look)
            low = high
        axes.set_ylim(bottom=0)
        names = list(dict.fromkeys(fault_name(f) for f in self.faults))
        shaded = f"; shaded: {listed(names)}" if 0 < len(names) <= 2 else ""
        title_y_axis(axes, f"answers per second{shaded}")

    def _paint_accuracy(self, axes: Axes) -> None:
        for name, style, key, label in (
            ("accuracy", "-", "system", "accuracy"),
            ("edge_accuracy", "--", "edge", "device alone"),
        ):
            values = self._steps([getattr(b, name) for b in self.bins])
            look: Look = {"drawstyle": "steps-post", "color": COLOURS[key], "linewidth": 1.5}
            axes.plot(self._edges, values, style, label=label, **look)
        percent_ticks(axes.yaxis)
        limit_to_shares(axes, "y")
        title_y_axis(axes, "accuracy")

    def _paint_latency(self, axes: Axes) -> None:
        axes.set_yscale("log")
        values = self._steps([b.p95_ms for b in self.bins])
        look: Look = {"drawstyle": "steps-post", "color": COLOURS["network"], "linewidth": 1.5}
        axes.plot(self._edges, values, label="latency", **look)
        log_ticks(axes.yaxis, number)
        title_y_axis(axes, "95th percentile of the latency of offloaded instances, in ms")

    def _description(self) -> str:
        accuracies = [b.accuracy for b in self.bins if b.accuracy is not None]
        texts = [f"{plural(len(self.bins), 'bin')} {when(self.bins[0].begin, self.bins[-1].end)}"]
        if accuracies:
            texts.append(
                f"accuracy between {percent(min(accuracies))} and {percent(max(accuracies))}"
            )
        texts += [f"{fault_name(f)} {when(f.begin, f.end)}" for f in self.faults[:5]]
        return f"{'; '.join(texts)}."
