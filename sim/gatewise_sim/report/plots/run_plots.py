"""Plots of a run: accuracy against cost, and latency."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from gatewise.formats import millis, number, percent
from gatewise_sim.report.document import Report
from gatewise_sim.report.plots.style import (
    COLOURS,
    draw_error_bars,
    draw_svg,
    set_log_ticks,
    set_percent_ticks,
    title_y_axis,
    widen_range,
)
from gatewise_sim.report.policy_result import Estimate, PolicyResult

#: Largest factor by which operating points may extend the axis of accuracy. With a larger factor
#: the marks of the policies would be too close together.
_MAX_AXIS_FACTOR = 4.0
#: Share of an axis within which two marks overlap.
_OVERLAP_SHARE = 0.04
#: Size of a mark, and difference in size of overlapping marks, in points.
_MARK_SIZE = 9.0
_MARK_SIZE_STEP = 6.0

Limits = tuple[tuple[float, float], tuple[float, float]]


class _Mark(NamedTuple):
    """A policy with its position in the plot of accuracy against cost."""

    policy: PolicyResult
    cost: Estimate
    accuracy: Estimate


def frontier_plot(report: Report) -> Markup:
    """Plot the operating points, the active one, the high-cost model, and each policy's result."""
    frontier = report.frontier
    marks = _list_marks(report)

    def paint(figure: Figure) -> None:
        # operating points, their hull, and a ring around the active one
        axes = figure.add_subplot()
        blue = COLOURS["system"]
        points = _list_coordinates(frontier.points)
        axes.scatter(*points, s=12, color=blue, alpha=0.45, linewidths=0)
        axes.plot(*_list_coordinates(frontier.hull), color=blue, linewidth=1.4)
        axes.plot(
            *_list_coordinates([frontier.active]), "o", color=blue, label="active point",
            markersize=13, fillstyle="none", markeredgewidth=1.5, clip_on=False,
        )  # fmt: skip
        if frontier.reference_accuracy is not None:
            axes.axhline(
                frontier.reference_accuracy, label="high-cost model", color=COLOURS["muted"],
                linestyle=(0, (5, 3)), linewidth=1.2,
            )  # fmt: skip
        # a mark for each policy; overlapping marks have different sizes
        limits = frontier_limits(report)
        if limits is not None:
            axes.set_xlim(*limits[0])
            axes.set_ylim(*limits[1])
            sizes = _choose_mark_sizes(marks, limits)
            for mark in marks:
                key = mark.policy.key
                label = mark.policy.name
                draw_error_bars(axes, mark.cost, mark.accuracy, key, label=label, size=sizes[key])
        set_percent_ticks(axes.yaxis)
        has_agreement = frontier.measured == "agreement"
        title_y_axis(axes, "accuracy; of the line, agreement" if has_agreement else "accuracy")
        axes.set_xlabel("cost per instance", loc="right")
        legend = figure.legend(loc="outside lower left", ncols=8)
        for artist in legend.findobj(Line2D):
            artist.set_markersize(_MARK_SIZE)

    # the description for screen readers
    active = frontier.active
    clauses = [
        f"{mark.policy.name} {percent(mark.accuracy.value)} at cost {number(mark.cost.value)}"
        for mark in marks
    ]
    clauses.append(
        f"active operating point {percent(active.accuracy)} at cost {number(active.cost)}"
    )
    if frontier.reference_accuracy is not None:
        clauses.append(f"high-cost model {percent(frontier.reference_accuracy)} on validation rows")
    return draw_svg(
        paint,
        "frontier",
        "Accuracy against cost",
        description=f"{'; '.join(clauses)}.",
        height_px=300,
    )


def _list_coordinates(points: Sequence[Any]) -> tuple[list[float], list[float]]:
    """List the costs and the accuracies of operating points."""
    return [point.cost for point in points], [point.accuracy for point in points]


def _list_marks(report: Report) -> list[_Mark]:
    return [
        _Mark(policy, policy.cost, policy.accuracy)
        for policy in report.policies
        if policy.cost and policy.accuracy
    ]


def _choose_mark_sizes(marks: Sequence[_Mark], limits: Limits) -> dict[str, float]:
    """Compute the size of each policy's mark, larger than the earlier marks that it overlaps."""
    (min_cost, max_cost), (min_accuracy, max_accuracy) = limits
    sizes: dict[str, float] = {}
    for index, mark in enumerate(marks):
        covered_sizes = [
            sizes[earlier_mark.policy.key]
            for earlier_mark in marks[:index]
            if abs(mark.cost.value - earlier_mark.cost.value)
            < _OVERLAP_SHARE * (max_cost - min_cost)
            and abs(mark.accuracy.value - earlier_mark.accuracy.value)
            < _OVERLAP_SHARE * (max_accuracy - min_accuracy)
        ]
        sizes[mark.policy.key] = (
            max(covered_sizes) + _MARK_SIZE_STEP if covered_sizes else _MARK_SIZE
        )
    return sizes


def frontier_limits(report: Report) -> Limits | None:
    """Compute the limits of the axes of cost and accuracy; None without an accuracy.

    They include all operating points, unless the policies would then be too close together.
    """
    marks = _list_marks(report)
    if not marks:
        return None
    points = report.frontier.points
    active = report.frontier.active
    reference_accuracy = report.frontier.reference_accuracy
    accuracies = (
        [active.accuracy] if reference_accuracy is None else [active.accuracy, reference_accuracy]
    )
    for mark in marks:
        interval = (mark.accuracy.low, mark.accuracy.high)
        accuracies += [mark.accuracy.value, *(end for end in interval if end is not None)]
    low, high = widen_range(min(accuracies), max(accuracies))
    all_accuracies = [low, high, *(point.accuracy for point in points)]
    if max(all_accuracies) - min(all_accuracies) <= _MAX_AXIS_FACTOR * (high - low):
        low = min(all_accuracies)
        high = max(all_accuracies)
    # Leave room for the marks at the ends of the axes.
    margin = 0.08 * (high - low)
    max_cost = max(
        active.cost, *(mark.cost.value for mark in marks), *(point.cost for point in points)
    )
    return (0.0, 1.05 * max_cost or 1.0), (max(0.0, low - margin), min(1.0, high + margin))


class _Curve(NamedTuple):
    """A policy's latencies for all instances or for the offloaded ones."""

    name: str
    policy: PolicyResult
    counts: Sequence[float]
    style: str
    prefix: str = ""


def _list_curves(report: Report) -> list[_Curve]:
    """List the curves of the latency plot, with line styles that stay visible on each other."""
    curves = []
    for policy_key, style in (("system", "-"), ("edge_only", "--"), ("cloud_only", "-.")):
        policy = report.find_policy(policy_key)
        if policy is None or not sum(policy.histogram.all):
            continue
        curves.append(_Curve(policy.name, policy, policy.histogram.all, style))
        offloaded = policy.histogram.offloaded
        if policy_key == "system" and 0 < sum(offloaded) < sum(policy.histogram.all):
            name = f"{policy.name}, offloaded"
            curves.append(_Curve(name, policy, offloaded, ":", "offloaded_"))
    return curves


def latency_plot(report: Report) -> Markup | None:
    """Plot the share of answers that are given by a time; None without answers."""
    curves = _list_curves(report)
    if not curves:
        return None
    deadline = report.settings.get("deadline_ms")

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        axes.set_xscale("log")
        for curve in curves:
            shares = [0.0, *(count / sum(curve.counts) for count in accumulate(curve.counts))]
            edges_ms = curve.policy.histogram.edges_ms
            colour = COLOURS[curve.policy.key]
            axes.plot(edges_ms, shares, curve.style, color=colour, label=curve.name)
        if deadline:
            axes.axvline(
                deadline, label="deadline", color=COLOURS["muted"], linestyle=(0, (2, 3)),
                linewidth=1.4,
            )  # fmt: skip
        set_log_ticks(axes.xaxis, number)
        set_percent_ticks(axes.yaxis)
        axes.set_ylim(0, 1.02)  # so that a line at 1 is visible
        title_y_axis(axes, "share of answers given")
        axes.set_xlabel("ms since the arrival of the instance", loc="right")
        figure.legend(loc="outside lower left", ncols=5)

    clauses = []
    for curve in curves:
        latencies = curve.policy.latency_ms
        p50, p95 = (latencies.get(curve.prefix + name) for name in ("p50", "p95"))
        if p50 is not None and p95 is not None:
            latency_text = f"half within {millis(p50.value)}, 95 % within {millis(p95.value)}"
            clauses.append(f"{curve.name}: {latency_text}")
    return draw_svg(
        paint, "latency", "Time to the answer", description=f"{'; '.join(clauses)}.", height_px=300
    )
