"""Tables of a run for the page of its report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from gatewise.formats import Format, count, joules, listed, millis, number, percent
from gatewise_sim.report.document import Report
from gatewise_sim.report.findings import format_interval
from gatewise_sim.report.policy_result import (
    AnswerCounts,
    ClassResult,
    Estimate,
    PolicyResult,
)

#: A text, or a text and a smaller text below it.
Cell = str | tuple[str, str]

RecordT = TypeVar("RecordT")

#: Fields of ByteUse, JouleUse and Bill that are parts of a sum.
_BYTE_PARTS: Final = ("request", "response", "protocol")
_ENERGY_PARTS: Final = ("radio", "features", "stages")
_BILL_PARTS: Final = ("data", "workers", "energy", "features", "requests", "devices")
#: Largest number of column names in a cell of the table of stages.
_MAX_NAMES: Final = 14
#: Text of each reason of an answer; a reason without a text is shown as it is.
_REASON_TEXTS: Final = {
    "stopped": "the score of a stage was high enough",
    "edge-only": "the policy never offloads",
    "offloaded": "the cloud answered",
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


def _make_table(
    name: str, records: Iterable[RecordT], cells_by_heading: Mapping[str, Callable[[RecordT], Cell]]
) -> PageTable:
    """Make a table with a row for each record; a function of the record makes each cell."""
    rows = [[make_cell(record) for make_cell in cells_by_heading.values()] for record in records]
    return PageTable(name, list(cells_by_heading), rows)


def estimate_cell(figure: Estimate | float | None, formatter: Format) -> Cell:
    """Format a figure, with its interval in small type if there is one."""
    if not isinstance(figure, Estimate):
        return formatter(figure)
    interval_text = format_interval(figure, formatter)
    return (formatter(figure.value), interval_text) if interval_text else formatter(figure.value)


def answer_tables(report: Report) -> list[PageTable]:
    """Make the tables of answers by route, the system's answers by reason, and the workers."""
    outcomes = [
        name
        for name in AnswerCounts.__struct_fields__
        if name in ("edge", "cloud", "fallback", "lost")
        or any(getattr(policy.answers, name) for policy in report.policies)
    ]
    headings = ["", *(outcome.replace("_", " ") for outcome in outcomes)]
    rows_by_outcome = [
        [policy.name, *(count(getattr(policy.answers, outcome)) for outcome in outcomes)]
        for policy in report.policies
    ]
    tables = [PageTable("Answers by route", headings, rows_by_outcome)]
    reasons = sorted(report.system.reasons.items(), key=lambda reason_count: -reason_count[1])
    if n_total := sum(n_answers for _, n_answers in reasons):
        rows_by_reason = [
            [_REASON_TEXTS.get(reason, reason), count(n_answers), percent(n_answers / n_total, 2)]
            for reason, n_answers in reasons
            if n_answers > 0
        ]
        tables.append(PageTable("Gatewise's answers by reason", [], rows_by_reason))
    if worker_policies := [
        policy
        for policy in report.policies
        if policy.key in ("system", "cloud_only") and policy.workers
    ]:
        tables.append(_make_worker_table(worker_policies))
    return tables


def _make_worker_table(policies: Sequence[PolicyResult]) -> PageTable:
    cells_by_heading: dict[str, Callable[[PolicyResult], Cell]] = {
        "": lambda policy: policy.name,
        "busy": lambda policy: percent(policy.utilisation),
        "batch": lambda policy: number(policy.workers.get("batch")),
        "queued": lambda policy: millis(policy.workers.get("wait_ms")),
    }
    if any(policy.workers.get("expired") for policy in policies):
        cells_by_heading["expired"] = lambda policy: count(policy.workers.get("expired"))
    if any(policy.workers.get("busy") for policy in policies):
        cells_by_heading["refused"] = lambda policy: count(policy.workers.get("busy"))
    return _make_table("Cloud workers", policies, cells_by_heading)


def stage_table(report: Report) -> PageTable:
    """List each stage with its answers and the columns that it adds."""
    return _make_table(
        "Stage by stage",
        report.stages,
        {
            "": lambda stage: stage.name,
            "answers": lambda stage: (count(stage.answers), percent(stage.share)),
            "price": lambda stage: number(stage.price),
            "columns": lambda stage: count(stage.columns),
            "new columns": lambda stage: _list_first_names(stage.acquires),
        },
    )


def class_table(classes: Sequence[ClassResult]) -> PageTable:
    """List each class with its offload rate, and its accuracy with and without the cloud."""
    return _make_table(
        "Class by class",
        classes,
        {
            "": lambda class_result: class_result.label,
            "instances": lambda class_result: count(class_result.instances),
            "offloaded": lambda class_result: percent(class_result.offload_rate),
            "recall": lambda class_result: percent(class_result.accuracy),
            "device alone": lambda class_result: percent(class_result.edge_accuracy),
            "precision": lambda class_result: percent(class_result.precision),
        },
    )


def _list_first_names(feature_names: Sequence[str]) -> str:
    """List at most `_MAX_NAMES` names, and the number of the others."""
    n_others = len(feature_names) - _MAX_NAMES
    if n_others > 0:
        return f"{', '.join(feature_names[:_MAX_NAMES])} and {n_others} more"
    return listed(feature_names) or "no new ones"


#: A figure of a policy: name, format, and function of the policy's result.
_PolicyFigure = tuple[str, Format, Callable[[PolicyResult], Estimate | float | None]]
_POLICY_FIGURES: Final[Sequence[_PolicyFigure]] = (
    ("accuracy", percent, lambda policy: policy.accuracy),
    ("offloaded", percent, lambda policy: policy.offload_rate),
    ("cost per instance", number, lambda policy: policy.cost),
    ("feature cost", number, lambda policy: policy.feature_cost),
    ("half answered within", millis, lambda policy: policy.latency_ms.get("p50")),
    ("95 % answered within", millis, lambda policy: policy.latency_ms.get("p95")),
    ("99 % answered within", millis, lambda policy: policy.latency_ms.get("p99")),
    ("offloaded: half within", millis, lambda policy: policy.latency_ms.get("offloaded_p50")),
    ("offloaded: 95 % within", millis, lambda policy: policy.latency_ms.get("offloaded_p95")),
    ("bytes up per instance", number, lambda policy: policy.bytes.up),
    ("bytes down", number, lambda policy: policy.bytes.down),
    ("energy, device and day", joules, lambda policy: policy.joules_per_device_day),
    ("battery, days", number, lambda policy: policy.battery_days),
    ("workers busy", percent, lambda policy: policy.utilisation),
)


def policy_table(report: Report) -> PageTable:
    """Make a table with a row for each figure and a column for each policy."""
    figure_rows = list(_POLICY_FIGURES)
    policies = report.policies
    if report.money is not None and any(policy.money and policy.money.total for policy in policies):
        bill_heading = f"{report.money.currency} a month"
        figure_rows.append(
            (bill_heading, number, lambda policy: policy.money.total if policy.money else None)
        )
    rows = _list_figures(figure_rows, policies)
    for name, policy_texts in (
        ("engine", [policy.engine for policy in policies]),
        ("simulated", [policy.sampling for policy in policies]),
    ):
        if len(set(policy_texts)) > 1:
            rows.append([name, *policy_texts])
    return PageTable("Every policy", _list_policy_headings(report), rows)


def comparison_table(names: Sequence[str], reports: Sequence[Report]) -> PageTable:
    """Make a table with a column for each report, under its name."""
    rows: list[list[Cell]] = [["instances", *(count(report.instances) for report in reports)]]
    rows += _list_figures(_POLICY_FIGURES, [report.system for report in reports])
    settings_of_reports = [
        {"data": report.dataset, "method": report.method, **report.settings} for report in reports
    ]
    for setting_name in dict.fromkeys(
        setting_name for report_settings in settings_of_reports for setting_name in report_settings
    ):
        setting_texts = [
            setting_text(report_settings.get(setting_name, ""))
            for report_settings in settings_of_reports
        ]
        if len(set(setting_texts)) > 1:
            rows.append([setting_name.replace("_", " "), *setting_texts])
    return PageTable("Side by side", ["", *names], rows)


def _list_figures(
    figures_of_policy: Sequence[_PolicyFigure], policies: Sequence[PolicyResult]
) -> list[list[Cell]]:
    """List the figures that at least one policy has, each with a cell for every policy."""
    rows: list[list[Cell]] = []
    for name, formatter, figure_of in figures_of_policy:
        figures = [figure_of(policy) for policy in policies]
        if any(figure is not None for figure in figures):
            rows.append([name, *(estimate_cell(figure, formatter) for figure in figures)])
    return rows


def engine_table(report: Report) -> PageTable | None:
    """Make a table of a live run and of the same run in virtual time."""
    if report.twin is None:
        return None
    rows = []
    for name, live_figure in report.twin.live.items():
        formatter: Format = number
        if name.endswith("_ms"):
            formatter = millis
        elif name in ("accuracy", "offload_rate", "fallback"):
            formatter = partial(percent, digits=2)
        heading = name.removesuffix("_ms").replace("_", " ")
        rows.append([heading, formatter(live_figure), formatter(report.twin.virtual.get(name))])
    return PageTable("Live, and in virtual time", ["", "live", "virtual"], rows)


def spending_table(report: Report) -> PageTable:
    """Make a table of the parts of time, bytes, energy and money of each policy."""
    policies = report.policies
    currency = report.money.currency if report.money else ""
    quantities: tuple[tuple[str, Format, list[dict[str, float]]], ...] = (
        ("ms: {}", number, [policy.breakdown_ms for policy in policies]),
        ("bytes: {}", number, [_read_amounts(policy.bytes, _BYTE_PARTS) for policy in policies]),
        (
            "energy: {}",
            joules,
            [_read_amounts(policy.joules, _ENERGY_PARTS) for policy in policies],
        ),
        (
            f"{currency} a month: {{}}",
            number,
            [_read_amounts(policy.money, _BILL_PARTS) for policy in policies],
        ),
    )
    rows: list[list[Cell]] = []
    for label_format, formatter, amounts in quantities:
        for part_name in amounts[0]:
            part_amounts = [max(amount.get(part_name, 0.0), 0.0) for amount in amounts]
            if any(part_amounts):
                rows.append([label_format.format(part_name), *map(formatter, part_amounts)])
    return PageTable("Parts of time, bytes, energy and money", _list_policy_headings(report), rows)


def _read_amounts(record: object, names: Sequence[str]) -> dict[str, float]:
    """Get fields of a record by name, or zeros without a record."""
    if record is None:
        return dict.fromkeys(names, 0.0)
    return {name: getattr(record, name) for name in names}


def _list_policy_headings(report: Report) -> list[str]:
    return ["", *(policy.name for policy in report.policies)]


def detail_tables(report: Report) -> list[PageTable]:
    """Make the tables of the settings, and of the measurements behind the figures."""
    transport = report.transport
    settings = [
        [name.replace("_", " "), setting_text(setting)] for name, setting in report.settings.items()
    ]
    timings = msgspec.structs.asdict(report.timings)
    basis_by_name: dict[str, Any] = {
        "method": report.method,
        "transport": f"{transport.kind}, broker {transport.broker}, link {transport.link}",
        "simulated": report.system.sampling,
        "confidence level": percent(report.confidence_level, 0),
        **{f"timings: {name.replace('_', ' ')}": setting for name, setting in timings.items()},
        "radio": report.energy.radio,
        "battery, Wh": report.energy.battery_wh,
        "high-cost model": report.high_cost_model,
        "data": report.data,
        **_describe_operating_point(report),
        "duration, s": report.seconds,
        "machine": None if report.run is None else report.run.get("machine"),
        "versions": report.versions,
    }
    rows = [
        [name, setting_text(setting)]
        for name, setting in basis_by_name.items()
        if setting not in (None, "", ())
    ]
    return [PageTable("Settings", [], settings), PageTable("Basis of the figures", [], rows)]


def _describe_operating_point(report: Report) -> dict[str, Any]:
    """List accuracy, cost and class figures of the active operating point on validation rows."""
    operating_point = report.frontier.active
    texts_by_name: dict[str, Any] = {
        "operating point, on validation rows": {
            "accuracy": operating_point.accuracy,
            "cost": operating_point.cost,
            "offload rate": operating_point.offload_rate,
        }
    }
    for name in ("recall", "precision"):
        by_class = getattr(operating_point, name)
        if by_class is not None:
            shares = {label: percent(share) for label, share in by_class.items()}
            texts_by_name[f"operating point: {name}"] = shares
    return texts_by_name


def setting_text(setting: Any) -> str:
    """Format a setting of any type as text."""
    if isinstance(setting, Mapping):
        return ", ".join(
            f"{str(key).replace('_', ' ')} {setting_text(entry)}" for key, entry in setting.items()
        )
    if isinstance(setting, list | tuple):
        return ", ".join(setting_text(entry) for entry in setting)
    if isinstance(setting, bool):
        return "yes" if setting else "no"
    if isinstance(setting, float):
        return f"{setting:g}"
    return f"{setting:,}" if isinstance(setting, int) else str(setting)
