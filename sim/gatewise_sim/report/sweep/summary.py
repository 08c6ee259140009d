"""Findings of a sweep: which setting is cheapest, at which accuracy and latency.

The cheapest point is that of the least cost among those whose accuracy is at most half a
percentage point below the best of all. Cost is money where there is a price list (for a million
instances if the points differ in how many there are, else for a month), and else the full cost of
an instance. Equal costs: the lower p95 latency wins, then the earlier point. Where a still cheaper
point falls short of that accuracy by no more than its interval allows, that is said as well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gatewise.errors import InputError
from gatewise.formats import millis, percent
from gatewise_sim.fleet.estimate.intervals import Measurement
from gatewise_sim.report.comparison.figures import BY_KEY, difference, figures_of_report
from gatewise_sim.report.model import SWEEP_KIND, Report
from gatewise_sim.report.output import to_csv
from gatewise_sim.report.sweep.setting_text import Value, setting

_TOLERANCE: Final = 0.005  # of accuracy, below the best
_MORE_INSTANCES: Final = ("devices", "workload", "seconds")


@dataclass(frozen=True, eq=False)
class PointResult:
    """A point of a sweep: one combination of the settings, and its result."""

    settings: dict[str, Value]
    digest: str  # of all that was simulated: the name of the point's file
    report: dict[str, Any] | None  # as the point alone would give; None if it failed
    error: str = ""  # why it failed
    kept: bool = False  # whether an earlier run had finished it


def summarise(
    sweeps: Mapping[str, Sequence[Value]],
    points: Sequence[PointResult],
    of: Mapping[str, Any],
    command: str,
) -> dict[str, Any]:
    """Make the document of a sweep."""
    entries = [_entry(point) for point in points]
    reports = [point.report for point in points if point.report is not None]
    bills = [bill for r in reports if isinstance(bill := r.get("money"), Mapping)]
    document: dict[str, Any] = {
        "kind": SWEEP_KIND,
        "answer": "",
        "cheapest": None,
        "fastest": None,
        "cost": cost_of(sweeps, entries),
        "currency": bills[0].get("currency") if bills else None,
        "dataset": reports[0].get("dataset") if reports else None,
        "confidence_level": 0.95,
        "sweeps": [{"name": k, "values": list(v)} for k, v in sweeps.items()],
        "points": entries,
        "of": dict(of),
        "command": command,
    }
    _mark_frontier(document)
    document["cheapest"] = _cheapest(document)
    times = {at: p95 for at, e in enumerate(entries) if (p95 := _value(e, "p95")) is not None}
    document["fastest"] = min(times, key=lambda at: times[at], default=None)
    document["answer"] = _answer(document)
    return document


def cost_of(sweeps: Mapping[str, Sequence[Value]], points: Sequence[Mapping[str, Any]]) -> str:
    """Choose the figure that stands for cost; every finished point has it."""
    done = [point["figures"] for point in points if not point["error"]]
    wanted = ["money", "cost"]
    if any(name in _MORE_INSTANCES for name in sweeps):
        wanted.insert(0, "money_per_million")
    return next((key for key in wanted if done and all(key in f for f in done)), "cost")


def csv_text(document: Mapping[str, Any]) -> str:
    """Write the points as a table: settings, error, then each figure with its interval."""
    keys = [k for k in BY_KEY if any(k in point["figures"] for point in document["points"])]
    rows = []
    for point in document["points"]:
        row = {**point["settings"], "digest": point["digest"], "error": point["error"]}
        for key in keys:
            figure = point["figures"].get(key, {})
            row[key] = figure.get("value")
            row |= {f"{key}_{end}": figure.get(end) for end in ("low", "high")}
        rows.append(row)
    return to_csv(rows)


def cost_unit(document: Mapping[str, Any]) -> str:
    """The unit of a sweep's cost."""
    return {
        "money": f"{document['currency']} a month",
        "money_per_million": f"{document['currency']} per million instances",
    }.get(document["cost"], "cost per instance")


def sorted_points(document: Mapping[str, Any]) -> list[tuple[int, Mapping[str, Any]]]:
    """Give the points with their places, cheapest first, then fastest; what failed comes last."""

    def order(pair: tuple[int, Mapping[str, Any]]) -> tuple[float, float, int]:
        at, point = pair
        cost, p95 = _value(point, document["cost"]), _value(point, "p95")
        return math.inf if cost is None else cost, math.inf if p95 is None else p95, at

    return sorted(enumerate(document["points"]), key=order)


def _entry(point: PointResult) -> dict[str, Any]:
    figures: dict[str, Measurement] = {}
    error = point.error
    if point.report is not None:
        try:
            figures = figures_of_report(Report.from_dict(point.report))
        except InputError as problem:  # no instance came, say
            error = str(problem)
    return {
        "settings": dict(point.settings),
        "digest": point.digest,
        "error": error,
        "frontier": False,
        "figures": {key: vars(value) for key, value in figures.items()},
    }


def _value(point: Mapping[str, Any], key: str) -> float | None:
    figure = point["figures"].get(key)
    value: float | None = None if figure is None else figure["value"]
    return value


def _mark_frontier(document: Mapping[str, Any]) -> None:
    """Mark the points that no other beats in cost without being less accurate, or the reverse."""
    pairs = [(_value(p, document["cost"]), _value(p, "accuracy")) for p in document["points"]]
    for point, (cost, accuracy) in zip(document["points"], pairs, strict=True):
        if cost is None or accuracy is None:
            continue
        point["frontier"] = not any(
            c is not None and a is not None
            and c <= cost and a >= accuracy and (c < cost or a > accuracy)
            for c, a in pairs
        )  # fmt: skip


def _cheapest(document: Mapping[str, Any]) -> int | None:
    points = document["points"]
    known = [a for p in points if (a := _value(p, "accuracy")) is not None]
    enough = max(known) - _TOLERANCE if known else -math.inf
    good = (
        at
        for at, point in sorted_points(document)
        if _value(point, document["cost"]) is not None
        and (not known or ((a := _value(point, "accuracy")) is not None and a >= enough))
    )
    return next(good, None)


def _answer(document: Mapping[str, Any]) -> str:
    points = document["points"]
    failed = sum(bool(point["error"]) for point in points)
    at, fast = document["cheapest"], document["fastest"]
    if at is None:
        return f"None of {len(points)} settings could be simulated."
    best = points[at]
    parts = [
        f"Cheapest{_how_good(points)}: {setting(best['settings'])}, {_described(document, best)}."
    ]
    if fast is not None and fast != at and _value(points[fast], "p95") != _value(best, "p95"):
        other = points[fast]
        parts.append(f"Fastest: {setting(other['settings'])}, {_described(document, other)}.")
    if (doubtful := _doubtful(document)) is not None:
        parts.append(
            f"Cheaper still, and by its interval perhaps as accurate: "
            f"{setting(points[doubtful]['settings'])}, {_described(document, points[doubtful])}; "
            "a longer run would tell."
        )
    if failed:
        parts.append(f"{failed} of {len(points)} settings failed.")
    return " ".join(parts)


def _doubtful(document: Mapping[str, Any]) -> int | None:
    """Give the cheapest point of all that may be as accurate as the cheapest good one is."""
    points, key = document["points"], document["cost"]
    best = points[document["cheapest"]]
    limit, needed = _value(best, key), best["figures"].get("accuracy")
    if limit is None or needed is None:
        return None
    for at, point in sorted_points(document):
        cost, accuracy = _value(point, key), point["figures"].get("accuracy")
        if cost is None or accuracy is None or cost >= 0.99 * limit:
            continue
        step = difference(Measurement(**needed), Measurement(**accuracy))
        if step.high is not None and step.high >= -_TOLERANCE and step.value < 0:
            return at
    return None


def _how_good(points: Sequence[Mapping[str, Any]]) -> str:
    known = [a for p in points if (a := _value(p, "accuracy")) is not None]
    if not known:
        return ""
    return f" within {100 * _TOLERANCE:g} points of the best accuracy ({percent(max(known))})"


def _described(document: Mapping[str, Any], point: Mapping[str, Any]) -> str:
    """A point's accuracy, cost and latency in a few words."""
    key = document["cost"]
    parts = []
    if (accuracy := _value(point, "accuracy")) is not None:
        parts.append(f"{percent(accuracy)} accurate")
    if (cost := _value(point, key)) is not None:
        text = BY_KEY[key].form(cost)
        unit = cost_unit(document)
        parts.append(f"{text} {unit}" if key != "cost" else f"{unit} {text}")
    if (p95 := _value(point, "p95")) is not None:
        parts.append(f"95 % answered within {millis(p95)}")
    return ", ".join(parts)
