"""Plots of one run: accuracy against cost, latency, spending, classes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from gatewise.formats import millis, number, percent
from gatewise_sim.report.document import ClassResult, PolicyResult, Report
from gatewise_sim.report.document import Figure as Measured
from gatewise_sim.report.plots.style import (
    COLOURS,
    MARKERS,
    Look,
    draw,
    error_bars,
    head,
    limit_to_shares,
    log_ticks,
    percent_ticks,
    widened,
)
from gatewise_sim.report.tables import Spending

#: How much longer the axis of accuracy may become for operating points far below.
_LONGEST_AXIS = 4.0
#: Share of an axis within which two marks cover each other, and the sizes of marks that do.
_MARK_SHARE = 0.04
_MARK_SIZE = 9.0
_MARK_STEP = 6.0
_PART_COLOURS = {
    "device": "edge",
    "network": "network",
    "the cloud": "cloud",
    "waiting": "waiting",
    "request": "system",
    "response": "edge",
    "protocol": "idle",
    "up": "system",
    "down": "edge",
    "radio": "network",
    "features": "feature",
    "stages": "edge",
    "idle": "idle",
    "data": "network",
    "workers": "cloud",
    "energy": "waiting",
    "requests": "system",
    "devices": "idle",
}

Limits = tuple[tuple[float, float], tuple[float, float]]


class _Mark(NamedTuple):
    """A policy's place in the plot of accuracy against cost."""

    policy: PolicyResult
    cost: Measured
    accuracy: Measured


def frontier_plot(report: Report) -> Markup:
    """Plot the operating points, the active one, the high-cost model, and each policy's result."""
    frontier = report.frontier
    marks = _marks(report)

    def paint(figure: Figure) -> None:
        # operating points, their hull, and a ring around the active one
        axes = figure.add_subplot()
        blue = COLOURS["system"]
        dots: Look = {"s": 12, "color": blue, "alpha": 0.45, "linewidths": 0}
        axes.scatter(*_places(frontier.points), **dots)
        axes.plot(*_places(frontier.hull), color=blue, linewidth=1.4)
        ring: Look = {
            "markersize": 13,
            "fillstyle": "none",
            "markeredgewidth": 1.5,
            "clip_on": False,
        }
        axes.plot(*_places([frontier.active]), "o", color=blue, label="active point", **ring)
        if frontier.reference_accuracy is not None:
            line: Look = {"color": COLOURS["muted"], "linestyle": (0, (5, 3)), "linewidth": 1.2}
            axes.axhline(frontier.reference_accuracy, label="high-cost model", **line)
        # a mark for each policy, smaller where it would hide another
        limits = frontier_limits(report)
        if limits is not None:
            axes.set_xlim(*limits[0])
            axes.set_ylim(*limits[1])
            sizes = _mark_sizes(marks, limits)
            for mark in marks:
                key = mark.policy.key
                error_bars(
                    axes, mark.cost, mark.accuracy, key, label=mark.policy.name, size=sizes[key]
                )
        percent_ticks(axes.yaxis)
        head(axes, "accuracy")
        axes.set_xlabel("cost per instance", loc="right")
        legend = figure.legend(loc="outside lower left", ncols=3)
        for artist in legend.findobj(Line2D):
            artist.set_markersize(_MARK_SIZE)

    # the same in words, for those who do not see the plot
    active = frontier.active
    texts = [
        f"{mark.policy.name} {percent(mark.accuracy.value)} at cost {number(mark.cost.value)}"
        for mark in marks
    ]
    texts.append(f"active operating point {percent(active.accuracy)} at cost {number(active.cost)}")
    if frontier.reference_accuracy is not None:
        texts.append(f"high-cost model {percent(frontier.reference_accuracy)} on validation rows")
    return draw(
        paint, "frontier", "Accuracy against cost", description=f"{'; '.join(texts)}.", height=300
    )


def _places(points: Sequence[Any]) -> tuple[list[float], list[float]]:
    """Costs and accuracies of operating points."""
    return [point.cost for point in points], [point.accuracy for point in points]


def _marks(report: Report) -> list[_Mark]:
    return [
        _Mark(policy, policy.cost, policy.accuracy)
        for policy in report.policies
        if policy.cost and policy.accuracy
    ]


def _mark_sizes(marks: Sequence[_Mark], limits: Limits) -> dict[str, float]:
    """Size of each policy's mark: where marks lie on each other, each is larger than the last."""
    (left, right), (low, high) = limits
    sizes: dict[str, float] = {}
    for index, mark in enumerate(marks):
        covered = [
            sizes[earlier.policy.key]
            for earlier in marks[:index]
            if abs(mark.cost.value - earlier.cost.value) < _MARK_SHARE * (right - left)
            and abs(mark.accuracy.value - earlier.accuracy.value) < _MARK_SHARE * (high - low)
        ]
        sizes[mark.policy.key] = max(covered) + _MARK_STEP if covered else _MARK_SIZE
    return sizes


def frontier_limits(report: Report) -> Limits | None:
    """Ends of the axes of cost and accuracy; None where no policy has an accuracy.

    All operating points are in between, unless the policies would then be too near each other.
    """
    marks = _marks(report)
    if not marks:
        return None
    points = report.frontier.points
    active = report.frontier.active
    reference = report.frontier.reference_accuracy
    accuracies = [active.accuracy] if reference is None else [active.accuracy, reference]
    for mark in marks:
        interval = (mark.accuracy.low, mark.accuracy.high)
        accuracies += [mark.accuracy.value, *(end for end in interval if end is not None)]
    low, high = widened(min(accuracies), max(accuracies))
    all_accuracies = [low, high, *(point.accuracy for point in points)]
    if max(all_accuracies) - min(all_accuracies) <= _LONGEST_AXIS * (high - low):
        low, high = min(all_accuracies), max(all_accuracies)
    margin = 0.08 * (high - low)
    right = max(
        active.cost, *(mark.cost.value for mark in marks), *(point.cost for point in points)
    )
    return (0.0, 1.05 * right or 1.0), (max(0.0, low - margin), min(1.0, high + margin))


class _Curve(NamedTuple):
    """A policy's latencies, of all instances or of the offloaded ones."""

    name: str
    policy: PolicyResult
    counts: Sequence[float]
    style: str
    prefix: str = ""


def _curves(report: Report) -> list[_Curve]:
    """Curves of the latency plot; broken lines, so that two at one place can both be seen."""
    curves = []
    for key, style in (("system", "-"), ("edge_only", "--"), ("cloud_only", "-.")):
        policy = report.policy(key)
        if policy is None or not sum(policy.histogram.all):
            continue
        curves.append(_Curve(policy.name, policy, policy.histogram.all, style))
        offloaded = policy.histogram.offloaded
        if key == "system" and 0 < sum(offloaded) < sum(policy.histogram.all):
            name = f"{policy.name}, offloaded"
            curves.append(_Curve(name, policy, offloaded, ":", "offloaded_"))
    return curves


def latency_plot(report: Report) -> Markup | None:
    """Plot the share of answers that have come by a time; None without any."""
    curves = _curves(report)
    if not curves:
        return None
    deadline = report.settings.get("deadline_ms")

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        axes.set_xscale("log")
        for curve in curves:
            shares = [0.0, *(count / sum(curve.counts) for count in accumulate(curve.counts))]
            look: Look = {"color": COLOURS[curve.policy.key], "label": curve.name}
            axes.plot(curve.policy.histogram.edges_ms, shares, curve.style, **look)
        if deadline:
            line: Look = {"color": COLOURS["muted"], "linestyle": (0, (2, 3)), "linewidth": 1.4}
            axes.axvline(deadline, label="deadline", **line)
        log_ticks(axes.xaxis, number)
        percent_ticks(axes.yaxis)
        axes.set_ylim(0, 1.02)
        head(axes, "share of answers that have come")
        axes.set_xlabel("ms since the instance came", loc="right")
        figure.legend(loc="outside lower left", ncols=2)

    texts = []
    for curve in curves:
        p50, p95 = (curve.policy.latency_ms.get(curve.prefix + q) for q in ("p50", "p95"))
        if p50 is not None and p95 is not None:
            within = f"half within {millis(p50.value)}, 95 % within {millis(p95.value)}"
            texts.append(f"{curve.name}: {within}")
    return draw(
        paint, "latency", "Time to the answer", description=f"{'; '.join(texts)}.", height=300
    )


def breakdown_plot(spent: Spending) -> Markup:
    """Plot the spending of each policy, as a bar split into parts."""
    policies = spent.policies
    names = list(policies)
    totals = [sum(amounts.values()) for amounts in policies.values()]

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        left = [0.0] * len(names)
        edge: Look = {"edgecolor": COLOURS["panel"], "linewidth": 0.8}
        for part_name in next(iter(policies.values())):
            values = [amounts[part_name] for amounts in policies.values()]
            colour = COLOURS[_PART_COLOURS[part_name]]
            axes.barh(names, values, 0.62, left, label=part_name, color=colour, **edge)
            left = [a + b for a, b in zip(left, values, strict=True)]
        _write_at_bars(axes, totals, [spent.form(total) for total in totals])
        figure.legend(loc="outside lower left", ncols=4)

    texts = "; ".join(
        f"{name} {spent.form(total)}" for name, total in zip(names, totals, strict=True)
    )
    title = f"{spent.title}, {spent.unit}"
    return draw(paint, spent.key, title, description=f"{texts}.", height=56 + 23.0 * len(names))


def _write_at_bars(axes: Axes, lengths: Sequence[float], texts: Sequence[str]) -> None:
    """Write a text at the end of each bar; the first bar is the topmost, without a ruled axis."""
    longest = max(lengths) or 1.0
    for y, (length, text) in enumerate(zip(lengths, texts, strict=True)):
        axes.text(length + 0.015 * longest, y, text, va="center")
    axes.set_xlim(0, 1.24 * longest)
    axes.invert_yaxis()
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelcolor=COLOURS["ink"])
    axes.set_xticks([])


def classes_plot(classes: Sequence[ClassResult]) -> Markup:
    """Plot the offload rate of each class, and its accuracy with and without the cloud."""
    labels = [each.label for each in classes]
    rows = range(len(labels))
    judged = [
        (row, each.edge_accuracy, each.accuracy)
        for row, each in zip(rows, classes, strict=True)
        if each.accuracy is not None and each.edge_accuracy is not None
    ]

    def paint(figure: Figure) -> None:
        rate_axes, accuracy_axes = figure.subplots(1, 2, sharey=True)
        rates = [each.offload_rate or 0.0 for each in classes]
        rate_axes.barh(rows, rates, 0.6, color=COLOURS["cloud"])
        rate_axes.set_yticks(rows, labels)
        rate_axes.invert_yaxis()
        head(rate_axes, "offloaded")
        if judged:
            _paint_accuracies(accuracy_axes, judged)
            figure.legend(loc="outside lower left", ncols=2)
        else:
            accuracy_axes.remove()
        for axes in figure.axes:
            percent_ticks(axes.xaxis)
            limit_to_shares(axes, "x")
            axes.locator_params(axis="x", nbins=3)
            axes.tick_params(axis="y", length=0, labelcolor=COLOURS["ink"])
            axes.grid(visible=False, axis="y")

    texts = []
    for each in classes:
        shares = {"accuracy": each.accuracy, "device alone": each.edge_accuracy}
        known = [
            f", {name} {percent(share)}" for name, share in shares.items() if share is not None
        ]
        texts.append(f"{each.label}: {percent(each.offload_rate)} offloaded{''.join(known)}")
    height = 90 + 17.0 * len(labels)
    return draw(
        paint, "classes", "Class by class", description=f"{'; '.join(texts)}.", height=height
    )


def _paint_accuracies(axes: Axes, judged: Sequence[tuple[int, float, float]]) -> None:
    """Paint the accuracy of the device alone and of the system, a row for each class."""
    rows, alone, system = zip(*judged, strict=True)
    axes.hlines(rows, alone, system, color=COLOURS["muted"], linewidth=1.6)
    for key, values, label, size in (
        ("edge_only", alone, "device alone", 9),
        ("system", system, "Gatewise", 6),
    ):
        look: Look = {
            "fillstyle": "none",
            "markersize": size,
            "markeredgewidth": 1.6,
            "clip_on": False,
        }
        axes.plot(values, rows, MARKERS[key], color=COLOURS[key], label=label, **look)
    head(axes, "accuracy")
