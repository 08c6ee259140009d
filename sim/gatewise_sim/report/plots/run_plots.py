"""Plots of one run: accuracy against cost, latency, what it is spent on, classes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gatewise.formats import millis, number, percent
from gatewise_sim.report.document import ClassResult, PolicyResult, Report
from gatewise_sim.report.document import Figure as Measured
from gatewise_sim.report.plots.style import (
    COLOURS,
    MARKERS,
    draw,
    error_bars,
    head,
    log_ticks,
    percent_ticks,
    widened,
)
from gatewise_sim.report.tables import Spending

_LABEL = 36
_FURTHEST = 4.0  # how much longer the axis of accuracy may be for operating points far below
_PART_COLOURS = {
    "device": "edge", "network": "network", "the cloud": "cloud", "waiting": "waiting",
    "request": "system", "response": "edge", "protocol": "idle", "up": "system", "down": "edge",
    "radio": "network", "features": "feature", "stages": "edge", "idle": "idle",
    "data": "network", "workers": "cloud", "energy": "waiting", "requests": "system",
    "devices": "idle",
}  # fmt: skip


def frontier_plot(report: Report) -> Markup:
    """Plot the operating points, the active one, the high-cost model, and each policy's result."""
    points, active = report.frontier.points, report.frontier.active
    reference = report.frontier.reference_accuracy
    placed = _placed(report)

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        blue = COLOURS["system"]
        axes.scatter(
            [p.cost for p in points], [p.accuracy for p in points], s=12, color=blue, alpha=0.45,
            linewidths=0,
        )  # fmt: skip
        axes.plot(
            [p.cost for p in report.frontier.hull], [p.accuracy for p in report.frontier.hull],
            color=blue, linewidth=1.4,
        )  # fmt: skip
        axes.plot(
            [active.cost], [active.accuracy], "o", markersize=13, markerfacecolor="none",
            markeredgecolor=blue, markeredgewidth=1.5, label="active point", clip_on=False,
        )  # fmt: skip
        if reference is not None:
            axes.axhline(
                reference, color=COLOURS["muted"], linestyle=(0, (5, 3)), linewidth=1.2,
                label="high-cost model",
            )  # fmt: skip
        for policy, cost, accuracy in placed:
            error_bars(axes, cost, accuracy, policy.key, policy.name)
        limits = frontier_limits(report)
        if limits is not None:
            axes.set_xlim(*limits[0])
            axes.set_ylim(*limits[1])
        percent_ticks(axes.yaxis)
        head(axes, "accuracy")
        axes.set_xlabel("cost per instance", loc="right")
        figure.legend(loc="outside lower left", ncols=3)

    texts = [f"{p.name} {percent(a.value)} at cost {number(c.value)}" for p, c, a in placed]
    texts.append(f"active operating point {percent(active.accuracy)} at cost {number(active.cost)}")
    if reference is not None:
        texts.append(f"high-cost model {percent(reference)} on validation rows")
    return draw(
        paint, name="frontier", title="Accuracy against cost", description=f"{'; '.join(texts)}.",
        height=300,
    )  # fmt: skip


def _placed(report: Report) -> list[tuple[PolicyResult, Measured, Measured]]:
    """The policies with their cost and accuracy."""
    return [(p, p.cost, p.accuracy) for p in report.policies if p.cost and p.accuracy]


def frontier_limits(report: Report) -> tuple[tuple[float, float], tuple[float, float]] | None:
    """Ends of the axes of cost and accuracy; None where no policy has an accuracy.

    All operating points are in between, unless the policies would then be too near each other.
    """
    placed = _placed(report)
    if not placed:
        return None
    points, active = report.frontier.points, report.frontier.active
    reference = report.frontier.reference_accuracy
    known = [active.accuracy] if reference is None else [active.accuracy, reference]
    low = min(*known, *(m.value if m.low is None else m.low for _, _, m in placed))
    high = max(*known, *(m.value if m.high is None else m.high for _, _, m in placed))
    low, high = widened(low, high)
    ends = [low, high, *(p.accuracy for p in points)]
    if max(ends) - min(ends) <= _FURTHEST * (high - low):
        low, high = min(ends), max(ends)
    margin = 0.08 * (high - low)
    right = max(active.cost, *(cost.value for _, cost, _ in placed), *(p.cost for p in points))
    return (0.0, 1.05 * right or 1.0), (max(0.0, low - margin), min(1.0, high + margin))


def latency_plot(report: Report) -> Markup | None:
    """Plot the share of answers that have come by a time; None without any."""
    curves = []
    for key in ("system", "edge_only", "cloud_only"):
        policy = report.policy(key)
        if policy is None or not sum(policy.histogram.all):
            continue
        edges = policy.histogram.edges_ms
        curves.append((policy.name, key, "-", edges, policy.histogram.all, ""))
        if key == "system" and 0 < sum(policy.histogram.offloaded) < sum(policy.histogram.all):
            name = f"{policy.name}, offloaded"
            curves.append((name, key, ":", edges, policy.histogram.offloaded, "offloaded_"))
    if not curves:
        return None
    deadline = report.settings.get("deadline_ms")

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        axes.set_xscale("log")
        for name, key, line, edges, counts, _ in curves:
            shares = [0.0, *(c / sum(counts) for c in accumulate(counts))]
            axes.plot(edges, shares, line, color=COLOURS[key], label=name)
        if deadline:
            axes.axvline(
                deadline, color=COLOURS["muted"], linestyle=(0, (2, 3)), linewidth=1.4,
                label="deadline",
            )  # fmt: skip
        log_ticks(axes.xaxis, number)
        percent_ticks(axes.yaxis)
        axes.set_ylim(0, 1.02)
        head(axes, "share of answers that have come")
        axes.set_xlabel("ms since the instance came", loc="right")
        figure.legend(loc="outside lower left", ncols=2)

    texts = []
    for name, key, _, _, _, prefix in curves:
        policy = report.policy(key)
        assert policy is not None
        p50, p95 = (policy.latency_ms.get(prefix + q) for q in ("p50", "p95"))
        if p50 is not None and p95 is not None:
            texts.append(
                f"{name}: half within {millis(p50.value)}, 95 % within {millis(p95.value)}"
            )
    return draw(
        paint, name="latency", title="Time to the answer", description=f"{'; '.join(texts)}.",
        height=300,
    )  # fmt: skip


def breakdown_plot(spent: Spending) -> Markup:
    """Plot what each policy spends, as a bar split into parts."""
    policies, form = spent.policies, spent.form
    names = list(policies)
    totals = [sum(parts.values()) for parts in policies.values()]

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        left = [0.0] * len(names)
        for part in next(iter(policies.values())):
            values = [parts[part] for parts in policies.values()]
            axes.barh(
                names, values, left=left, height=0.62, label=part,
                color=COLOURS[_PART_COLOURS[part]], edgecolor=COLOURS["panel"], linewidth=0.8,
            )  # fmt: skip
            left = [a + b for a, b in zip(left, values, strict=True)]
        _write_at_bars(axes, totals, [form(total) for total in totals])
        figure.legend(loc="outside lower left", ncols=4)

    texts = "; ".join(f"{n} {form(t)}" for n, t in zip(names, totals, strict=True))
    return draw(
        paint, name=spent.key, title=f"{spent.title}, {spent.unit}", description=f"{texts}.",
        height=56 + 23.0 * len(names),
    )  # fmt: skip


def _write_at_bars(axes: Axes, ends: Sequence[float], texts: Sequence[str]) -> None:
    """Write a text at the end of each bar; the first bar is the topmost, and nothing is ruled."""
    most = max(ends) or 1.0
    for y, (end, text) in enumerate(zip(ends, texts, strict=True)):
        axes.text(end + 0.015 * most, y, text, va="center")
    axes.set_xlim(0, 1.24 * most)
    axes.invert_yaxis()
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelcolor=COLOURS["ink"])
    axes.set_xticks([])


def computation_plot(spent: Spending, policy: str) -> Markup:
    """Plot what each step of blocks takes once, and per instance under a policy, as bars."""
    one, mean, form = spent.once, spent.policies[policy], spent.form
    steps, rows = list(one), range(len(one))

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        axes.barh(rows, [one[s] for s in steps], 0.62, color=COLOURS["line"], label="once")
        axes.barh(
            rows, [mean[s] for s in steps], 0.62, color=COLOURS["system"], label="per instance"
        )
        axes.set_yticks(rows, [s if len(s) <= _LABEL else f"{s[: _LABEL - 1]}…" for s in steps])
        _write_at_bars(axes, list(one.values()), [form(mean[step]) for step in steps])
        figure.legend(loc="outside lower left", ncols=2)

    texts = "; ".join(f"{s} {form(mean[s])} of {form(one[s])}" for s in steps)
    return draw(
        paint, name=spent.key, title=f"What blocks compute, {spent.unit}",
        description=f"{texts}.", height=56 + 20.0 * len(steps),
    )  # fmt: skip


def classes_plot(classes: Sequence[ClassResult]) -> Markup:
    """Plot how much of each class is offloaded, and its accuracy with and without the cloud."""
    names = [c.label for c in classes]
    rows = range(len(names))

    def paint(figure: Figure) -> None:
        sent, right = figure.subplots(1, 2, sharey=True)
        sent.barh(rows, [c.offload_rate or 0.0 for c in classes], 0.6, color=COLOURS["cloud"])
        sent.set_yticks(rows, names)
        sent.invert_yaxis()
        head(sent, "offloaded")
        known = [
            (row, c.edge_accuracy, c.accuracy)
            for row, c in zip(rows, classes, strict=True)
            if c.accuracy is not None and c.edge_accuracy is not None
        ]
        if known:
            at, alone, system = zip(*known, strict=True)
            right.hlines(at, alone, system, color=COLOURS["muted"], linewidth=1.6)
            for key, values, label in (
                ("edge_only", alone, "device alone"),
                ("system", system, "Gatewise"),
            ):
                right.plot(
                    values, at, MARKERS[key], color=COLOURS[key], markerfacecolor="none",
                    markersize=9 if key == "edge_only" else 6, markeredgewidth=1.6, label=label,
                )  # fmt: skip
            head(right, "accuracy")
            figure.legend(loc="outside lower left", ncols=2)
        else:
            right.remove()
        for axes in figure.axes:
            percent_ticks(axes.xaxis)
            axes.locator_params(axis="x", nbins=3)
            axes.tick_params(axis="y", length=0, labelcolor=COLOURS["ink"])
            axes.grid(visible=False, axis="y")

    texts = [
        f"{c.label}: {percent(c.offload_rate)} offloaded"
        + (f", accuracy {percent(c.accuracy)}" if c.accuracy is not None else "")
        + (f", device alone {percent(c.edge_accuracy)}" if c.edge_accuracy is not None else "")
        for c in classes
    ]
    return draw(
        paint, name="classes", title="Class by class", description=f"{'; '.join(texts)}.",
        height=90 + 17.0 * len(names),
    )  # fmt: skip
