"""Tables of a run for the page of its report, and a summary for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from gatewise import console
from gatewise.formats import Format, count, joules, listed, millis, number, percent
from gatewise_sim.report.document import (
    AnswerCounts,
    ClassResult,
    Figure,
    PolicyResult,
    Report,
)
from gatewise_sim.report.findings import answer, audit_findings, bounds, caveats

#: A text, or a text and a smaller text below it.
Cell = str | tuple[str, str]

T = TypeVar("T")

_BYTES: Final = ("request", "response", "protocol")
_JOULES: Final = ("radio", "features", "stages")
_BILL: Final = ("data", "workers", "energy", "features", "requests", "devices")
_MAX_NAMES: Final = 14
_REASONS: Final = {
    "stopped": "the score of a stage was high enough",
    "edge-only": "the policy never offloads",
    "offloaded": "the cloud answered",
    "cloud-only": "the policy always offloads",
    "value": "a value is missing",
    "link-down": "fallback: no connection",
    "full": "fallback: too many unanswered requests",
    "breaker-open": "fallback: the circuit breaker was open",
    "deadline": "fallback: too late to offload",
    "timeout": "fallback: no response in time",
    "cloud:busy": "fallback: the workers were busy",
    "unsent": "fallback: the connection was lost",
    "offload-limit": "fallback: the limit on offloads was reached",
}


@dataclass(frozen=True)
class PageTable:
    """A table for a page, in which the first cell of a row is its heading.

    `columns` are the headings, or empty for a table without headings. `text` is a remark.
    """

    name: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    text: str = ""


def print_table(table: PageTable, *, small: bool = True) -> None:
    """Print a table on the terminal; with `small`, the smaller text of a cell is in brackets."""
    texts = [[_line(cell, small=small) for cell in row] for row in table.rows]
    console.print_table("", table.columns, texts)


def _line(cell: Cell, *, small: bool) -> str:
    if isinstance(cell, str):
        return cell
    return f"{cell[0]} ({cell[1]})" if small and cell[1] else cell[0]


def _table(name: str, items: Iterable[T], columns: Mapping[str, Callable[[T], Cell]]) -> PageTable:
    """Make a table with a row for each item; `columns` maps a heading to a function of the item."""
    rows = [[cell(item) for cell in columns.values()] for item in items]
    return PageTable(name, list(columns), rows)


def figure_cell(figure: Figure | float | None, form: Format) -> Cell:
    """Format a figure, with its interval in small type if there is one."""
    if not isinstance(figure, Figure):
        return form(figure)
    ends = bounds(figure, form)
    return (form(figure.value), ends) if ends else form(figure.value)


def answer_tables(report: Report) -> list[PageTable]:
    """Make the tables of answers by route, of the system's answers by reason, and of workers."""
    routes = [
        name
        for name in AnswerCounts.__struct_fields__
        if name in ("edge", "cloud", "fallback", "lost")
        or any(getattr(p.answers, name) for p in report.policies)
    ]
    headings = ["", *(route.replace("_", " ") for route in routes)]
    by_route = [
        [p.name, *(count(getattr(p.answers, route)) for route in routes)] for p in report.policies
    ]
    tables = [PageTable("Answers by route", headings, by_route)]
    reasons = sorted(report.system.reasons.items(), key=lambda item: -item[1])
    if total := sum(n for _, n in reasons):
        by_reason = [
            [_REASONS.get(reason, reason), count(n), percent(n / total, 2)]
            for reason, n in reasons
            if n > 0
        ]
        tables.append(PageTable("Gatewise's answers by reason", [], by_reason))
    if workers := [p for p in report.policies if p.key in ("system", "cloud_only") and p.workers]:
        tables.append(_worker_table(workers))
    return tables


def _worker_table(policies: Sequence[PolicyResult]) -> PageTable:
    columns: dict[str, Callable[[PolicyResult], Cell]] = {
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
    """List each stage with its answers and the columns that it adds."""
    return _table(
        "Stage by stage",
        report.stages,
        {
            "": lambda s: s.name,
            "answers": lambda s: (count(s.answers), percent(s.share)),
            "price": lambda s: number(s.price),
            "columns": lambda s: count(s.columns),
            "new columns": lambda s: _first_names(s.acquires),
        },
    )


def class_table(classes: Sequence[ClassResult]) -> PageTable:
    """List each class with its offload rate, and its accuracy with and without the cloud."""
    return _table(
        "Class by class",
        classes,
        {
            "": lambda c: c.label,
            "instances": lambda c: count(c.instances),
            "offloaded": lambda c: percent(c.offload_rate),
            "recall": lambda c: percent(c.accuracy),
            "device alone": lambda c: percent(c.edge_accuracy),
            "precision": lambda c: percent(c.precision),
        },
    )


def _first_names(features: Sequence[str]) -> str:
    """List at most `_MAX_NAMES` names, and the number of the others."""
    n_others = len(features) - _MAX_NAMES
    if n_others > 0:
        return f"{', '.join(features[:_MAX_NAMES])} and {n_others} more"
    return listed(features) or "no new ones"


#: Figures of a policy: name, format, and function of the policy's result.
FIGURES: Final[Sequence[tuple[str, Format, Callable[[PolicyResult], Figure | float | None]]]] = (
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


def policy_table(report: Report) -> PageTable:
    """Make a table with a row for each figure and a column for each policy."""
    figures = list(FIGURES)
    policies = report.policies
    if report.money is not None and any(p.money and p.money.total for p in policies):
        unit = f"{report.money.currency} a month"
        figures.append((unit, number, lambda p: p.money.total if p.money else None))
    rows: list[list[Cell]] = []
    for name, form, figure_of in figures:
        values = [figure_of(policy) for policy in policies]
        if any(figure is not None for figure in values):
            rows.append([name, *(figure_cell(figure, form) for figure in values)])
    for name, texts in (
        ("engine", [policy.engine for policy in policies]),
        ("simulated", [policy.sampling for policy in policies]),
    ):
        if len(set(texts)) > 1:
            rows.append([name, *texts])
    return PageTable("Every policy", _headings(report), rows)


def twin_table(report: Report) -> PageTable | None:
    """Make a table of a live run and of the same run in virtual time."""
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


def spending_table(report: Report) -> PageTable:
    """Make a table of the parts of time, bytes, energy and money of each policy."""
    policies = report.policies
    currency = report.money.currency if report.money else ""
    quantities: tuple[tuple[str, Format, list[dict[str, float]]], ...] = (
        ("ms: {}", number, [policy.breakdown_ms for policy in policies]),
        ("bytes: {}", number, [_parts(policy.bytes, _BYTES) for policy in policies]),
        ("energy: {}", joules, [_parts(policy.joules, _JOULES) for policy in policies]),
        (f"{currency} a month: {{}}", number, [_parts(p.money, _BILL) for p in policies]),
    )
    rows: list[list[Cell]] = []
    for label, form, amounts in quantities:
        for part in amounts[0]:
            values = [max(amount.get(part, 0.0), 0.0) for amount in amounts]
            if any(values):
                rows.append([label.format(part), *map(form, values)])
    return PageTable("Parts of time, bytes, energy and money", _headings(report), rows)


def _parts(record: object, names: Sequence[str]) -> dict[str, float]:
    """Get fields of a record by name, or zeros without a record."""
    return {name: getattr(record, name, 0.0) for name in names}


def _headings(report: Report) -> list[str]:
    return ["", *(policy.name for policy in report.policies)]


def detail_tables(report: Report) -> list[PageTable]:
    """Make the tables of the settings and of the basis of the figures."""
    transport = report.transport
    settings = [[k.replace("_", " "), plain_text(v)] for k, v in report.settings.items()]
    timings = msgspec.structs.asdict(report.timings)
    basis: dict[str, Any] = {
        "method": report.method,
        "transport": f"{transport.kind}, broker {transport.broker}, link {transport.link}",
        "simulated": report.system.sampling,
        "confidence level": percent(report.confidence_level, 0),
        **{f"timings: {k.replace('_', ' ')}": v for k, v in timings.items()},
        "radio": report.energy.radio,
        "battery, Wh": report.energy.battery_wh,
        "high-cost model": report.high_cost_model,
        "data": report.data,
        **_operating_point(report),
        "duration, s": report.seconds,
        "machine": None if report.run is None else report.run.get("machine"),
        "versions": report.versions,
    }
    rows = [[name, plain_text(v)] for name, v in basis.items() if v not in (None, "", ())]
    return [PageTable("Settings", [], settings), PageTable("Basis of the figures", [], rows)]


def _operating_point(report: Report) -> dict[str, Any]:
    """List accuracy, cost and class figures of the active operating point on validation rows."""
    point = report.frontier.active
    rows: dict[str, Any] = {
        "operating point, on validation rows": {
            "accuracy": point.accuracy,
            "cost": point.cost,
            "offload rate": point.offload_rate,
        }
    }
    for name in ("recall", "precision"):
        by_class = getattr(point, name)
        if by_class is not None:
            shares = {label: percent(share) for label, share in by_class.items()}
            rows[f"operating point: {name}"] = shares
    return rows


def plain_text(value: Any) -> str:
    """Format a setting of any type as text."""
    if isinstance(value, Mapping):
        return ", ".join(f"{str(k).replace('_', ' ')} {plain_text(v)}" for k, v in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(plain_text(v) for v in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def show_run(report: Report, folder: Path, *, as_json: bool) -> None:
    """Print the report as JSON, or a summary and the path of the page in `folder`."""
    if as_json:
        console.emit(msgspec.to_builtins(report))
    else:
        print_report(report)
        print(folder / "report.html", flush=True)


def print_report(report: Report) -> None:
    """Print the figures, the summary sentence and the caveats of a run."""
    table = policy_table(report)
    rows = [row for row in table.rows if row[0] not in ("engine", "simulated")]
    for route in ("edge", "cloud", "fallback", "error", "lost"):
        counts = [getattr(policy.answers, route) for policy in report.policies]
        if any(counts) or route in ("edge", "cloud", "fallback"):
            name = f"answered by {route}" if route not in ("error", "lost") else route
            rows.append([name, *map(count, counts)])
    print(f"{report.method}: {report.instances:,} instances")
    print_table(replace(table, rows=rows), small=False)
    audits = filter(None, [audit_findings(report)])
    print("\n".join(["", "".join(answer(report)), *audits, *caveats(report)]))
