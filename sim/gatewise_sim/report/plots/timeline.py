"""Plot of a run over time: answers by route, accuracy, latency and outages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import add
from typing import Final

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gatewise.formats import listed, number, percent, plural, read_span
from gatewise_sim.fleet.outages import FaultSpan
from gatewise_sim.report.document import Report
from gatewise_sim.report.findings import fault_name, format_span
from gatewise_sim.report.plots.style import (
    COLOURS,
    ArtistOptions,
    draw_svg,
    limit_y_to_shares,
    set_log_ticks,
    set_percent_ticks,
    title_y_axis,
)
from gatewise_sim.report.policy_result import TimelineBin

#: Colour of each route, which is also the name of its number of answers in a TimelineBin.
_COLOUR_OF_ROUTE: Final = {
    "edge": "edge",
    "cloud": "cloud",
    "fallback": "waiting",
    "error": "muted",
}
_STEP_STYLE: Final[ArtistOptions] = {"drawstyle": "steps-post", "linewidth": 1.5}
#: Units of the time axis: shortest run with the unit in s, length of the unit in s, and name. The
#: axis therefore shows at least five hours or minutes.
_UNITS: Final = ((6 * 3600.0, 3600.0, "hours"), (300.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))


def timeline_plot(report: Report) -> Markup | None:
    """Plot the run over time; None without answers."""
    bins = report.system.timeline
    if not bins:
        return None
    # The settings of a report need not contain the length of the run.
    time_text = report.settings.get("time")
    run_seconds = read_span(time_text, "time") if time_text else bins[-1].end
    unit_seconds, unit_name = next(
        (unit_seconds, name)
        for min_run_seconds, unit_seconds, name in _UNITS
        if run_seconds >= min_run_seconds
    )
    return _Timeline(run_seconds, bins, report.faults, unit_seconds, unit_name).plot()


@dataclass(frozen=True)
class _Timeline:
    """Adjacent bins, sorted by time, and outages of a run, with the unit of its time axis."""

    run_seconds: float
    bins: Sequence[TimelineBin]
    faults: Sequence[FaultSpan]
    unit_seconds: float
    unit_name: str

    def plot(self) -> Markup:
        """Draw panels of answers and, if they are known, of accuracy and latency."""
        panel_painters = [self._paint_answers]
        if any(time_bin.accuracy is not None for time_bin in self.bins):
            panel_painters.append(self._paint_accuracy)
        if any(time_bin.p95_ms is not None for time_bin in self.bins):
            panel_painters.append(self._paint_latency)

        def paint(figure: Figure) -> None:
            # The panel of answers is higher, because it stacks several areas.
            relative_heights = [1.2, 1.0, 1.0][: len(panel_painters)]
            panels = figure.subplots(
                len(panel_painters), 1, sharex=True, squeeze=False, height_ratios=relative_heights
            )
            for axes, paint_panel in zip(panels[:, 0], panel_painters, strict=True):
                for fault in self.faults:
                    begin = fault.begin / self.unit_seconds
                    end = fault.end / self.unit_seconds
                    axes.axvspan(begin, end, color=COLOURS["waiting"], alpha=0.16, linewidth=0)
                paint_panel(axes)
            figure.axes[-1].set_xlim(0.0, self.run_seconds / self.unit_seconds)
            figure.axes[-1].set_xlabel(f"{self.unit_name} since the start", loc="right")
            if any(axes.get_legend_handles_labels()[0] for axes in figure.axes):
                figure.legend(loc="outside lower left", ncols=7)  # all entries in one row

        return draw_svg(
            paint, "time", "The run over time", description=self._describe(), height_px=400
        )

    @property
    def _bin_edges(self) -> list[float]:
        """Edges of the bins in units of the time axis; there is one more than there are bins."""
        times = [*(time_bin.begin for time_bin in self.bins), self.bins[-1].end]
        return [time / self.unit_seconds for time in times]

    def _step_values(self, values: Sequence[float | None]) -> list[float]:
        """Give each edge the value of the bin that begins there; NaN leaves a gap.

        The last edge repeats the value of the last bin, so that its step is drawn.
        """
        step_values = [float("nan") if bin_value is None else bin_value for bin_value in values]
        return [*step_values, step_values[-1]]

    def _paint_answers(self, axes: Axes) -> None:
        # stack the areas of the routes, each on the sum of the areas below it
        stack_bottom = [0.0] * len(self._bin_edges)
        for route, colour_name in _COLOUR_OF_ROUTE.items():
            rates = [
                getattr(time_bin, route) / (time_bin.end - time_bin.begin) for time_bin in self.bins
            ]
            if not any(rates):  # keep it out of the legend
                continue
            stack_top = list(map(add, stack_bottom, self._step_values(rates)))
            style: ArtistOptions = {"color": COLOURS[colour_name], "alpha": 0.75, "linewidth": 0}
            axes.fill_between(
                self._bin_edges, stack_bottom, stack_top, step="post", label=route, **style
            )
            stack_bottom = stack_top
        axes.set_ylim(bottom=0)
        fault_names = list(dict.fromkeys(fault_name(fault) for fault in self.faults))
        # The title has room for two names; the page lists all outages.
        shading_text = f"; shaded: {listed(fault_names)}" if 0 < len(fault_names) <= 2 else ""
        title_y_axis(axes, f"answers per second{shading_text}")

    def _paint_accuracy(self, axes: Axes) -> None:
        for field_name, line_style, colour_name, label in (
            ("accuracy", "-", "system", "accuracy"),
            ("edge_accuracy", "--", "edge", "device alone"),
        ):
            accuracies = self._step_values(
                [getattr(time_bin, field_name) for time_bin in self.bins]
            )
            colour = COLOURS[colour_name]
            axes.plot(
                self._bin_edges, accuracies, line_style, color=colour, label=label, **_STEP_STYLE
            )
        set_percent_ticks(axes.yaxis)
        limit_y_to_shares(axes)
        title_y_axis(axes, "accuracy")

    def _paint_latency(self, axes: Axes) -> None:
        axes.set_yscale("log")
        latencies_ms = self._step_values([time_bin.p95_ms for time_bin in self.bins])
        axes.plot(
            self._bin_edges, latencies_ms, color=COLOURS["network"], label="latency", **_STEP_STYLE
        )
        set_log_ticks(axes.yaxis, number)
        title_y_axis(axes, "95th percentile of the latency of offloaded instances, in ms")

    def _describe(self) -> str:
        accuracies = [time_bin.accuracy for time_bin in self.bins if time_bin.accuracy is not None]
        clauses = [
            f"{plural(len(self.bins), 'bin')} {format_span(self.bins[0].begin, self.bins[-1].end)}"
        ]
        if accuracies:
            clauses.append(
                f"accuracy between {percent(min(accuracies))} and {percent(max(accuracies))}"
            )
        clauses += [
            f"{fault_name(fault)} {format_span(fault.begin, fault.end)}"
            for fault in self.faults[:5]  # a screen reader reads the whole text
        ]
        return f"{'; '.join(clauses)}."
