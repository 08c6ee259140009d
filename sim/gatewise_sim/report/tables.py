"""The tables of a run, for its page and its CSV files."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from gatewise.formats import Format, count, joules, listed, millis, number, percent
from gatewise_sim.report.findings import bounds, when
from gatewise_sim.report.model import ClassResult, ExampleInstance, Report, StageResult, TimelineBin
from gatewise_sim.report.policy_result import Measurement, PolicyResult

__all__ = [
    "Cell",
    "PageTable",
    "Parts",
    "answer_tables",
    "breakdowns",
    "class_table",
    "csv_files",
    "details",
    "example_table",
    "frontier_table",
    "latency_table",
    "plain_text",
    "policy_rows",
    "policy_table",
    "stage_table",
    "timeline_table",
    "to_csv",
    "twin_table",
]

Cell = str | tuple[str, str] | tuple[str, str, str]
"""A text; or a text, a smaller one below it, and what it is sorted by."""

T = TypeVar("T")
Columns = dict[str, Callable[[T], Cell]]

_QUANTILES: Final = {"p50": "half within", "p95": "95 %", "p99": "99 %"}
_BILL: Final = ("data", "workers", "energy", "features", "requests", "devices")
_LISTED: Final = 14
_REASONS: Final = {
    "stopped": "a stage was sure enough",
    "edge-only": "the policy never offloads",
    "offloaded": "the cloud answered",
    "cloud-only": "the policy always offloads",
    "value": "a value is missing",
    "link-down": "fallback: no connection",
    "full": "fallback: too many requests out",
    "breaker-open": "fallback: the cloud had been silent",
    "deadline": "fallback: no time left to offload",
    "timeout": "fallback: no response in time",
    "cloud:busy": "fallback: the workers were busy",
}


@dataclass(frozen=True)
class PageTable:
    """A table for a page; the first cell of a row is its head."""

    name: str
    columns: Sequence[str]  # heads; empty for a table without
    rows: Sequence[Sequence[Cell]]
    marked: int | None = None  # a row that stands out


@dataclass(frozen=True)
class Parts:
    """What each policy spends of something, split into parts."""

    key: str
    title: str
    unit: str
    policies: dict[str, dict[str, float]]  # name to parts, the system first
    form: Format

    @property
    def table(self) -> PageTable:
        """The amounts."""
        used = list(next(iter(self.policies.values())))
        return PageTable(
            self.title,
            ["", *used, "all"],
            [
                [name, *map(self.form, parts.values()), self.form(sum(parts.values()))]
                for name, parts in self.policies.items()
            ],
        )


def _table(name: str, things: Iterable[T], columns: Columns[T]) -> PageTable:
    """A row for each thing, by a column's head and the cell under it."""
    rows = [[cell(thing) for cell in columns.values()] for thing in things]
    return PageTable(name, list(columns), rows)


def _cell(figure: Measurement | float | None, form: Format) -> Cell:
    if not isinstance(figure, Measurement):
        return form(figure)
    ends = bounds(figure, form)
    return (form(figure.value), ends) if ends else form(figure.value)


def frontier_table(report: Report) -> PageTable:
    """What each policy came to, and the operating points."""
    rows: list[list[Cell]] = [
        [p.name, _cell(p.cost, number), _cell(p.accuracy, percent), _cell(p.offload_rate, percent)]
        for p in report.policies
    ]
    rows += [
        [
            "active operating point" if p == report.frontier.active else "operating point",
            number(p.cost),
            percent(p.accuracy),
            percent(p.offload_rate),
        ]
        for p in report.frontier.points
    ]
    return PageTable("Accuracy against cost", ["", "cost", "accuracy", "offloaded"], rows)


def latency_table(report: Report) -> PageTable:
    """Quantiles of all policies, and of the system's offloaded instances."""
    rows: list[list[Cell]] = []
    for policy in report.policies:
        for prefix, name in (("", policy.name), ("offloaded_", f"{policy.name}, offloaded")):
            figures = [policy.latency_ms.get(prefix + q) for q in _QUANTILES]
            if any(figures) and (policy.key == "system" or not prefix):
                rows.append([name, *(_cell(f, millis) for f in figures)])
    return PageTable("Time to the answer", ["", *_QUANTILES.values()], rows)


def timeline_table(report: Report) -> PageTable:
    """The run bin by bin."""
    columns: Columns[TimelineBin] = {
        "": lambda b: when(b.begin, b.end),
        "edge": lambda b: count(b.edge),
        "cloud": lambda b: count(b.cloud),
        "fallback": lambda b: count(b.fallback),
        "error": lambda b: count(b.error),
        "accuracy": lambda b: percent(b.accuracy),
        "device alone": lambda b: percent(b.edge_accuracy),
        "offloaded: half": lambda b: millis(b.p50_ms),
        "95 %": lambda b: millis(b.p95_ms),
    }
    return _table("The run over time", report.timeline, columns)


def class_table(report: Report) -> PageTable:
    """All classes, those that never came too."""
    columns: Columns[ClassResult] = {
        "": lambda c: c.label,
        "instances": lambda c: count(c.instances),
        "offloaded": lambda c: percent(c.offload_rate),
        "accuracy": lambda c: percent(c.accuracy),
        "device alone": lambda c: percent(c.edge_accuracy),
    }
    if any(c.precision is not None for c in report.classes):
        columns["precision"] = lambda c: percent(c.precision)
    return _table("Class by class", report.classes, columns)


def answer_tables(report: Report) -> list[PageTable]:
    """Answers by route and policy, the system's by reason, and the workers' queues."""
    routes = [
        route
        for route in (
            "edge",
            "cloud",
            "fallback",
            "error",
            "late",
            "retries",
            "audits",
            "audits_disagreed",
            "lost",
        )
        if route in ("edge", "cloud", "fallback", "lost")
        or any(getattr(p.answers, route) for p in report.policies)
    ]
    tables = [
        PageTable(
            "Answers by route",
            ["", *(route.replace("_", " ") for route in routes)],
            [
                [p.name, *(count(getattr(p.answers, route)) for route in routes)]
                for p in report.policies
            ],
        )
    ]
    reasons = sorted(report.system.reasons.items(), key=lambda item: -item[1])
    total = sum(n for _, n in reasons)
    if total:
        rows = [
            [_REASONS.get(reason, reason), count(n), percent(n / total, 2)]
            for reason, n in reasons
            if n > 0
        ]
        tables.append(PageTable("Gatewise's answers by their reason", [], rows))
    workers = [p for p in report.policies if p.key in ("system", "cloud_only") and p.workers]
    if workers:
        tables.append(_worker_table(workers))
    return tables


def _worker_table(policies: Sequence[PolicyResult]) -> PageTable:
    columns: Columns[PolicyResult] = {
        "": lambda p: p.name,
        "busy": lambda p: percent(p.utilisation),
        "batch": lambda p: number(p.workers.get("batch")),
        "queued": lambda p: millis(p.workers.get("wait_ms")),
    }
    if any(p.workers.get("expired") for p in policies):
        columns["expired"] = lambda p: count(p.workers.get("expired"))
    if any(p.workers.get("busy") for p in policies):
        columns["refused"] = lambda p: count(p.workers.get("busy"))
    return _table("Cloud workers", policies, columns)


def stage_table(report: Report) -> PageTable:
    """What each stage acquires and answers."""
    columns: Columns[StageResult] = {
        "": lambda s: s.name,
        "answers": lambda s: (count(s.answers), percent(s.share)),
        "price": lambda s: number(s.price),
        "features": lambda s: count(s.features),
        "acquired anew": lambda s: _names(s.acquires),
    }
    return _table("Stage by stage", report.stages, columns)


def example_table(report: Report) -> PageTable:
    """Easy and hard instances: who answered, and the values that this took."""
    columns: Columns[ExampleInstance] = {
        "row": lambda e: count(e.row),
        "answered by": lambda e: e.answered_by,
        "answer": lambda e: e.label,
        "truth": lambda e: e.truth or "",
        "cost": lambda e: number(e.cost),
        "acquired": lambda e: _names(
            [f"{report.features[k]} {number(e.values[k])}" for k in e.acquired]
        ),
    }
    return _table("Easy and hard instances", report.examples, columns)


def _names(features: Sequence[str]) -> str:
    """The first of many names, and how many more there are."""
    more = len(features) - _LISTED
    if more > 0:
        return f"{', '.join(features[:_LISTED])} and {more} more"
    return listed(features) or "nothing new"


_Get = Callable[[PolicyResult], Measurement | float | None]
_FIGURES: Final[Sequence[tuple[str, Format, _Get]]] = (
    ("accuracy", percent, lambda p: p.accuracy),
    ("offloaded", percent, lambda p: p.offload_rate),
    ("cost per instance", number, lambda p: p.cost),
    ("feature cost", number, lambda p: p.feature_cost),
    ("half answered within", millis, lambda p: p.latency_ms.get("p50")),
    ("95 % answered within", millis, lambda p: p.latency_ms.get("p95")),
    ("99 % answered within", millis, lambda p: p.latency_ms.get("p99")),
    ("offloaded: half within", millis, lambda p: p.latency_ms.get("offloaded_p50")),
    ("offloaded: 95 % within", millis, lambda p: p.latency_ms.get("offloaded_p95")),
    ("bytes up per instance", number, lambda p: p.bytes.up),
    ("bytes down", number, lambda p: p.bytes.down),
    ("energy, device and day", joules, lambda p: p.joules_per_device_day),
    ("battery, days", number, lambda p: p.battery_days),
    ("workers busy", percent, lambda p: p.utilisation),
)


def policy_rows(report: Report) -> list[tuple[str, Format, list[Measurement | float | None]]]:
    """All figures of all policies: name, format, a value for each policy."""
    figures, policies = list(_FIGURES), report.policies
    if report.money is not None and any(p.money and p.money.total for p in policies):
        unit = f"{report.money.currency} a month"
        figures.append((unit, number, lambda p: p.money.total if p.money else None))
    rows = [(name, form, [get(policy) for policy in policies]) for name, form, get in figures]
    return [each for each in rows if any(figure is not None for figure in each[2])]


def policy_table(report: Report) -> PageTable:
    """All figures of all policies, a column each, so that it grows downwards."""
    rows: list[list[Cell]] = [
        [name, *(_cell(figure, form) for figure in figures)]
        for name, form, figures in policy_rows(report)
    ]
    if any(policy.engine != report.engine for policy in report.policies):
        rows.append(["engine", *(policy.engine for policy in report.policies)])
    return PageTable("Every policy", ["", *(policy.name for policy in report.policies)], rows)


def twin_table(report: Report) -> PageTable | None:
    """A live run beside itself in virtual time."""
    if report.twin is None:
        return None
    rows = []
    for name, live in report.twin.live.items():
        form: Format = number
        if name.endswith("_ms"):
            form = millis
        elif name in ("accuracy", "offload_rate", "fallback"):
            form = partial(percent, digits=2)
        text = name.removesuffix("_ms").replace("_", " ")
        rows.append([text, form(live), form(report.twin.virtual.get(name))])
    return PageTable("Live, and in virtual time", ["", "live", "virtual"], rows)


def breakdowns(report: Report) -> list[Parts]:
    """Where milliseconds, bytes, joules and money of each policy go, where there are figures."""
    # Idling depends on time alone: the same for all.
    idle = report.breakdown.joules.get("idle") or 0.0

    def joule_parts(policy: PolicyResult) -> dict[str, float]:
        use = policy.joules
        return {
            "radio": use.radio, "features": use.features, "stages": use.stages, "idle": idle,
        }  # fmt: skip

    def byte_parts(policy: PolicyResult) -> dict[str, float]:
        use = policy.bytes
        return {"request": use.request, "response": use.response, "protocol": use.protocol}

    def time_parts(policy: PolicyResult) -> dict[str, float]:
        parts = policy.breakdown_ms.items()
        return {"the cloud" if p == "cloud" else p: max(ms, 0.0) for p, ms in parts}

    def bill_parts(policy: PolicyResult) -> dict[str, float]:
        return {part: getattr(policy.money, part, 0.0) for part in _BILL}

    currency = report.money.currency if report.money else ""
    every: list[tuple[str, str, str, Callable[[PolicyResult], dict[str, float]], Format]] = [
        ("ms", "Milliseconds", "mean per instance, from arrival to answer", time_parts, number),
        ("bytes", "Bytes", "mean per instance, on the device's link", byte_parts, number),
        ("joules", "Joules", "mean per instance, of the device", joule_parts, joules),
        ("money", f"{currency} a month", "of the whole fleet", bill_parts, number),
    ]
    found = []
    for key, title, unit, parts_of, form in every:
        policies = {policy.name: parts_of(policy) for policy in report.policies}
        first = next(iter(policies.values()))
        used = [p for p in first if any(parts.get(p, 0) > 0 for parts in policies.values())]
        if used:
            kept = {n: {p: parts.get(p, 0.0) for p in used} for n, parts in policies.items()}
            found.append(Parts(key, title, unit, kept, form))
    return found


def details(report: Report) -> list[PageTable]:
    """Settings, and what the figures rest on."""
    transport = report.transport
    settings = [[k.replace("_", " "), plain_text(v)] for k, v in report.settings.items()]
    basis: dict[str, Any] = {
        "method": report.method,
        "transport": f"{transport.kind}, broker {transport.broker}, link {transport.link}",
        "stepped": report.sampling,
        "confidence level": percent(report.confidence_level, 0),
        **{f"calibration: {k.replace('_', ' ')}": v for k, v in report.calibration.items()},
        "radio": report.energy.radio,
        "battery, Wh": report.energy.battery_wh,
        "high-cost model": report.high_cost_model,
        "data": None if report.data is None else vars(report.data),
        "operating point, on validation rows": _validated(report),
        "seconds taken": report.seconds,
        "machine": None if report.run is None else report.run.get("machine"),
        "versions": report.versions,
    }
    rows = [[name, plain_text(v)] for name, v in basis.items() if v not in (None, "")]
    return [PageTable("Settings", [], settings), PageTable("What the figures rest on", [], rows)]


def _validated(report: Report) -> dict[str, Any] | None:
    """Figures of the active operating point, as far as its bundle has them."""
    point = report.frontier.active
    names = ("accuracy", "weighted_accuracy", "balanced_accuracy", "log_loss", "brier_score")
    found = {name: getattr(point, name) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def plain_text(value: Any) -> str:
    """A setting of any kind."""
    if isinstance(value, Mapping):
        return ", ".join(f"{k.replace('_', ' ')} {plain_text(v)}" for k, v in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(plain_text(v) for v in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def csv_files(report: Report) -> dict[str, str]:
    """Write the tables of a run as CSV."""
    document = report.to_dict()
    return {
        f"{name}.csv": to_csv([_flat(row, skip) for row in document[name]])
        for name, skip in (("legs", {"histogram"}), ("timeline", set()), ("classes", set()))
    }


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    r"""Write rows as CSV; columns are those of all rows, in their order of appearance.

    A text that a spreadsheet would take for a formula gets an apostrophe before it.

    Examples
    --------
    >>> to_csv([{"a": -1}, {"a": None, "b": "x,y"}, {"b": "=1+1"}])
    'a,b\n-1,\n,"x,y"\n,\'=1+1\n'
    """
    columns = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _no_formula(value) for name, value in row.items()} for row in rows)
    return out.getvalue()


def _no_formula(value: object) -> object:
    if not isinstance(value, str) or not value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def _flat(row: Mapping[str, Any], skip: Iterable[str]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if name in skip:
            continue
        if isinstance(value, Mapping):
            for inner, x in _flat(value, ()).items():
                flat[name if inner == "value" else f"{name}_{inner}"] = x
        else:
            flat[name] = value
    return flat
