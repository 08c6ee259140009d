"""Findings of a sweep: which setting is cheapest, at which accuracy and latency.

The cheapest point is that of the least cost among those whose accuracy is at most half a
percentage point below the best. Cost is money where there is a price list (for a million instances
if the points differ in how many there are, else for a month), and else the full cost of an
instance. Equal costs: the lower p95 latency wins, then the earlier point. Those whose cost is the
same within the intervals are named beside it, as is a still cheaper point that falls short of that
accuracy by no more than its interval allows.

Devices, workload, time and the like are not chosen: points are compared with those of the same
fleet.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gatewise.errors import InputError
from gatewise.formats import Format, interval, listed, millis, percent
from gatewise_sim.fleet.estimate.intervals import Measurement
from gatewise_sim.report.comparison.figures import BY_KEY, difference, figures_of_report
from gatewise_sim.report.model import SWEEP_KIND, Report
from gatewise_sim.report.output import to_csv
from gatewise_sim.report.sweep.setting_text import Value, setting

_TOLERANCE: Final = 0.005  # of accuracy, below the best
_MORE_INSTANCES: Final = ("devices", "workload", "seconds")
_OF_FLEET: Final = (
    *_MORE_INSTANCES, "mix", "day_start", "outages", "seed", "calibration", "prices",
    "device_energy",
)  # fmt: skip
"""Settings that describe a fleet and what it meets; the others are chosen."""
_LISTED: Final = 4


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
        "choices": [],
        "cost": cost_of(sweeps, entries),
        "currency": bills[0].get("currency") if bills else None,
        "dataset": reports[0].get("dataset") if reports else None,
        "confidence_level": 0.95,
        "sweeps": [{"name": k, "values": list(v)} for k, v in sweeps.items()],
        "points": entries,
        "of": dict(of),
        "command": command,
    }
    fleets: dict[str, list[int]] = {}
    for at, entry in enumerate(entries):
        fleets.setdefault(setting(_fleet_of(entry)), []).append(at)
    for fleet in fleets.values():
        _mark_frontier(document, fleet)
    if not all(name in _OF_FLEET for name in sweeps):
        found = (_choice(document, fleet) for fleet in fleets.values())
        document["choices"] = [choice for choice in found if choice is not None]
    if len(fleets) == 1 and document["choices"]:
        document |= {key: document["choices"][0][key] for key in ("cheapest", "fastest")}
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


def _fleet_of(point: Mapping[str, Any]) -> dict[str, Value]:
    return {k: v for k, v in point["settings"].items() if k in _OF_FLEET}


def _chosen_settings(point: Mapping[str, Any]) -> dict[str, Value]:
    return {k: v for k, v in point["settings"].items() if k not in _OF_FLEET}


def _differ(first: Mapping[str, Any], second: Mapping[str, Any], key: str) -> bool:
    """Whether a figure of two points differs by more than the intervals, where there are any."""
    step = difference(*(Measurement(**point["figures"][key]) for point in (first, second)))
    return step.value != 0 if step.beyond is None else step.beyond


def _mark_frontier(document: Mapping[str, Any], fleet: Sequence[int]) -> None:
    """Mark the points of a fleet that no other beats.

    One beats another that is beyond the intervals in cost or accuracy, and no better in either.
    """
    key, points = document["cost"], [document["points"][at] for at in fleet]
    known = [p for p in points if _value(p, key) is not None and _value(p, "accuracy") is not None]

    def beats(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
        cost, accuracy = (
            one["figures"][name]["value"] - other["figures"][name]["value"]
            for name in (key, "accuracy")
        )
        if cost > 0 or accuracy < 0:
            return False
        return _differ(one, other, key) or _differ(one, other, "accuracy")

    for point in known:
        point["frontier"] = not any(beats(other, point) for other in known)


def _choice(document: Mapping[str, Any], fleet: Sequence[int]) -> dict[str, Any] | None:
    """Choose among the points of a fleet; None if none is finished."""
    points, key = document["points"], document["cost"]
    known = [a for at in fleet if (a := _value(points[at], "accuracy")) is not None]
    enough = max(known) - _TOLERANCE if known else -math.inf
    good = [
        at
        for at, point in sorted_points(document)
        if at in fleet
        and _value(point, key) is not None
        and (not known or ((a := _value(point, "accuracy")) is not None and a >= enough))
    ]
    if not good:
        return None
    cheapest, *others = good
    times = {at: p95 for at in fleet if (p95 := _value(points[at], "p95")) is not None}
    return {
        "fleet": _fleet_of(points[cheapest]),
        "cheapest": cheapest,
        "ties": [at for at in others if not _differ(points[cheapest], points[at], key)],
        "fastest": min(times, key=lambda at: times[at], default=None),
    }


def _answer(document: Mapping[str, Any]) -> str:
    points, choices = document["points"], document["choices"]
    done = [point for point in points if not point["error"]]
    if not done:
        return f"None of {len(points)} settings could be simulated."
    if not choices:
        parts = _unchosen(document, done)
    elif document["cheapest"] is None:
        parts = _by_fleet(document)
    else:
        parts = _chosen(document, choices[0])
    if len(done) < len(points):
        parts.append(f"{len(points) - len(done)} of {len(points)} settings failed.")
    return " ".join(parts)


def _unchosen(document: Mapping[str, Any], done: Sequence[Mapping[str, Any]]) -> list[str]:
    """What becomes of each fleet, where nothing else was swept."""
    texts = [f"{setting(p['settings'])}: {_described(document, p)}" for p in done]
    parts = [f"{_some(texts)}."]
    compared = {"accuracy": "accuracy", document["cost"]: cost_unit(document)}
    same = [
        name
        for key, name in compared.items()
        if all(key in p["figures"] and not _differ(done[0], p, key) for p in done)
    ]
    if len(done) > 1 and same:
        parts.append(f"By the 95 % intervals there is no difference in {listed(same)}.")
    return parts


def _by_fleet(document: Mapping[str, Any]) -> list[str]:
    """What is cheapest for each of several fleets."""
    points, choices = document["points"], document["choices"]
    names = listed(list(choices[0]["fleet"])).replace("_", " ")
    best = [points[choice["cheapest"]] for choice in choices]
    first = f"Cheapest{_how_good(points, several=True)}"
    settings = {setting(_chosen_settings(point)) for point in best}
    if len(settings) == 1:
        text = f"{first}, whatever the {names}: {settings.pop()}, {_described(document, *best)}."
        return [text, *_ties(document, choices)]
    texts = [
        f"{setting(choice['fleet'])}: {setting(_chosen_settings(point))}, "
        f"{_described(document, point)}"
        for choice, point in zip(choices, best, strict=True)
    ]
    return [f"{first}, by {names}: {_some(texts)}."]


def _chosen(document: Mapping[str, Any], choice: Mapping[str, Any]) -> list[str]:
    """What is cheapest, what is as cheap, and what is fastest."""
    points = document["points"]
    best, fast = points[choice["cheapest"]], choice["fastest"]
    parts = [
        f"Cheapest{_how_good(points)}: {setting(best['settings'])}, {_described(document, best)}."
    ]
    parts += _ties(document, [choice])
    if fast is not None and _value(points[fast], "p95") != _value(best, "p95"):
        other = points[fast]
        parts.append(f"Fastest: {setting(other['settings'])}, {_described(document, other)}.")
    if (doubtful := _doubtful(document)) is not None:
        parts.append(
            f"Cheaper still, and by its interval perhaps as accurate: "
            f"{setting(points[doubtful]['settings'])}, {_described(document, points[doubtful])}; "
            "more rows or a longer run would tell."
        )
    return parts


def _ties(document: Mapping[str, Any], choices: Sequence[Mapping[str, Any]]) -> list[str]:
    """What is as cheap as the cheapest, in each of the fleets."""
    found = [
        [setting(_chosen_settings(document["points"][at])) for at in choice["ties"]]
        for choice in choices
    ]
    common = [text for text in found[0] if all(text in texts for texts in found)]
    return [f"As cheap, by the 95 % intervals: {_some(common)}."] if common else []


def _some(texts: Sequence[str]) -> str:
    """The first of several texts, and how many more there are."""
    more = [f"{len(texts) - _LISTED} more (see the table)"] if len(texts) > _LISTED else []
    return "; ".join([*texts[:_LISTED], *more])


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


def _how_good(points: Sequence[Mapping[str, Any]], *, several: bool = False) -> str:
    known = [a for p in points if (a := _value(p, "accuracy")) is not None]
    if not known:
        return ""
    best = "" if several else f" ({percent(max(known))})"
    return f" within {100 * _TOLERANCE:g} points of the best accuracy{best}"


def _described(document: Mapping[str, Any], *points: Mapping[str, Any]) -> str:
    """Accuracy, cost and latency of points in a few words."""

    def text(key: str, form: Format) -> str:
        values = [value for p in points if (value := _value(p, key)) is not None]
        if not values:
            return ""
        return interval(min(values), max(values), form) or form(values[0])

    key, unit, parts = document["cost"], cost_unit(document), []
    if accuracy := text("accuracy", percent):
        parts.append(f"{accuracy} accurate")
    if cost := text(key, BY_KEY[key].form):
        parts.append(f"{cost} {unit}" if key != "cost" else f"{unit} {cost}")
    if p95 := text("p95", millis):
        parts.append(f"95 % answered within {p95}")
    return ", ".join(parts)
