"""The page of a run, and its tables as CSV files.

The page has a summary with caveats, and sections on accuracy against cost, latency, spending and
tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec

from gatewise.formats import duration, listed, percent, plural, read_clock, read_span
from gatewise_sim.report import tables
from gatewise_sim.report.caveats import list_caveats
from gatewise_sim.report.document import Report, RowCheck
from gatewise_sim.report.findings import (
    audit_findings,
    fault_name,
    format_span,
    key_figures,
    summary_sentence,
)
from gatewise_sim.report.output import to_csv
from gatewise_sim.report.page import Page, Plot, Section, write_page
from gatewise_sim.report.plots.run_plots import frontier_limits, frontier_plot, latency_plot
from gatewise_sim.report.plots.timeline import timeline_plot
from gatewise_sim.report.policy_result import ClassResult
from gatewise_sim.report.tables import PageTable

#: Largest number of classes in the table, which would otherwise hide the rest of the page.
_MAX_CLASSES: Final = 40
_POLICY_REMARKS: Final = {
    "confidence": "Confidence: offloads the instances with the lowest confidence, at the rate of "
    "Gatewise.",
    "random": "Random: offloads instances at random, at the rate of Gatewise.",
    "oracle": "Oracle: offloads the instances that the device gets wrong and the cloud right.",
}
#: Fields of a policy that have their own files, or are only plotted.
_NOT_IN_CSV: Final = ("histogram", "timeline", "classes")


def render_page(report: Report) -> str:
    """Make the page of a run as HTML."""
    footer = (
        "All figures are in report.json, and as tables in policies.csv, timeline.csv, classes.csv."
    )
    if report.run and report.run.get("created"):
        seconds = report.run.get("seconds")
        duration_text = f", in {duration(seconds)}" if seconds else ""
        footer = f"Run live, {report.run['created']}{duration_text}. {footer}"
    else:
        footer = f"The same timings and the same seed give the same report. {footer}"
    return write_page(
        Page(
            title=f"{report.dataset}, {plural(report.settings.get('devices') or 0, 'device')}",
            description=_describe_run(report),
            headline=summary_sentence(report),
            warnings=list_caveats(report),
            key_figures=key_figures(report),
            sections=[
                _make_accuracy_section(report),
                _make_latency_section(report),
                _make_spending_section(report),
                _make_tables_section(report),
            ],
            footer=footer,
        )
    )


def report_files(report: Report) -> dict[str, str]:
    """Make the contents of the page, the report and the CSV files, by file name."""
    return {
        **_make_csv_files(report),
        "report.html": render_page(report),
        "report.json": report.to_json(),
    }


def _make_csv_files(report: Report) -> dict[str, str]:
    system = report.system
    documents = {
        "policies": msgspec.to_builtins(report.policies),
        "timeline": msgspec.to_builtins(system.timeline),
        "classes": msgspec.to_builtins(system.classes),
    }
    return {
        f"{name}.csv": to_csv([_flatten_row(row, _NOT_IN_CSV) for row in rows])
        for name, rows in documents.items()
    }


def _flatten_row(row: Mapping[str, Any], skipped_names: Iterable[str] = ()) -> dict[str, Any]:
    flat_row: dict[str, Any] = {}
    for name, cell in row.items():
        if name in skipped_names:
            continue
        if isinstance(cell, Mapping):
            # the value of an estimate has the name of the estimate, without `_value`
            for inner_name, inner_value in _flatten_row(cell).items():
                flat_row[name if inner_name == "value" else f"{name}_{inner_name}"] = inner_value
        else:
            flat_row[name] = cell
    return flat_row


def _describe_run(report: Report) -> str:
    settings = report.settings
    span_text = settings.get("time")
    workload = settings.get("workload", "")
    engine = "run live over MQTT" if report.engine == "live" else "simulated in virtual time"
    phrases = [
        f"{plural(settings.get('devices') or 0, 'device')} over {report.transport.link}",
        plural(settings.get("workers") or 0, "cloud worker"),
        f"{duration(read_span(span_text, 'time'))} of {workload}" if span_text else workload,
    ]
    return f"{report.dataset}, {engine}: {', '.join(phrases)}"


# -- accuracy against cost --------------------------------------------------------------------


def _make_accuracy_section(report: Report) -> Section:
    points = report.frontier.points
    limits = frontier_limits(report)
    introduction = "The dots and the line are the operating points of the bundle on validation rows"
    if limits is not None:
        lowest_accuracy = limits[1][0]
        if n_below := sum(point.accuracy < lowest_accuracy for point in points):
            introduction += f" ({n_below} of {len(points)} are below the plot)"
    introduction += ". The ring is the active one, and the dashed line the high-cost model."
    if report.frontier.measured == "agreement":
        introduction += (
            " The points are shares of answers that agree with the high-cost model, not "
            "accuracies, because the bundle was made without labels."
        )
    if report.has_labels:
        level = percent(report.confidence_level, 0)
        introduction += f" The marks are the policies on your rows, with {level} intervals."
        if report.settings.get("policy", "system") == "system":
            introduction += f" The diamond, {report.system.name}, is the active point on your rows."
    else:
        introduction += " The rows have no labels, so the plot cannot show the policies."
    plots = [Plot(frontier_plot(report), "The frontier and every policy")]
    classes = _choose_classes(report)
    page_tables = [tables.class_table(classes)] if classes else []
    if 0 < len(classes) < len(report.system.classes):
        n_with_instances = sum(result.instances > 0 for result in report.system.classes)
        criterion = "instances" if n_with_instances == len(classes) else "the highest offload rates"
        remark = f"the {len(classes)} of {len(report.system.classes)} classes with {criterion}"
        page_tables = [replace(page_tables[0], text=remark)]
    if report.balanced_accuracy is not None:
        introduction += f" The mean recall of the classes is {percent(report.balanced_accuracy)}."
    return Section(
        key="frontier",
        title="Accuracy against cost",
        text=introduction,
        plots=plots,
        tables=page_tables,
    )


def _choose_classes(report: Report) -> list[ClassResult]:
    """Choose the classes with instances, or if there are many, the most often offloaded ones."""
    classes = [
        class_result
        for class_result in report.system.classes
        if class_result.instances and class_result.offload_rate is not None
    ]
    if len(classes) <= _MAX_CLASSES:
        return classes
    return sorted(classes, key=lambda class_result: -(class_result.offload_rate or 0.0))[
        :_MAX_CLASSES
    ]


# -- time to the answer -----------------------------------------------------------------------


def _make_latency_section(report: Report) -> Section:
    plots = []
    curve_plot = latency_plot(report)
    if curve_plot is not None:
        plots.append(Plot(curve_plot, "Share of the answers given by a time"))
    introduction = (
        "Time from the arrival of an instance to its answer. Devices answer easy instances."
    )
    time_plot = timeline_plot(report)
    if time_plot is not None:
        start_time_of_day = read_clock(report.settings.get("day_start", "00:00"), "day_start")
        fault_texts = [
            f"{fault_name(fault)} {format_span(fault.begin, fault.end, start_time_of_day)}"
            for fault in report.faults
        ]
        if len(fault_texts) > 4:  # too many for a sentence
            fault_texts = [*fault_texts[:3], f"{len(fault_texts) - 3} more outages"]
        introduction += (
            f" Shaded: {listed(fault_texts)}." if fault_texts else " There was no outage."
        )
        if report.system.timeline[0].edge_accuracy is not None:
            introduction += " The dashed line is the accuracy of the devices alone."
        plots.append(Plot(time_plot, "Over time"))
    return Section(key="latency", title="Time to the answer", text=introduction, plots=plots)


# -- spending ----------------------------------------------------------------------------------


def _make_spending_section(report: Report) -> Section:
    remark = "means per instance; money for the whole fleet"
    page_tables = [replace(tables.spending_table(report), text=remark)]
    if report.stages:
        page_tables.append(tables.stage_table(report))
    return Section(
        key="spending",
        title="Resources per answer",
        text="All policies answer the same instances. A stage acquires its features, runs its "
        "small model, and answers if its score is high enough. Other instances go to the cloud.",
        tables=page_tables,
    )


# -- tables -----------------------------------------------------------------------------------


def _make_tables_section(report: Report) -> Section:
    remarks = [
        text
        for policy_key, text in _POLICY_REMARKS.items()
        if report.find_policy(policy_key) is not None
    ]
    remarks.append(f"In small type: {percent(report.confidence_level, 0)} intervals.")
    page_tables = [
        replace(tables.policy_table(report), text=" ".join(remarks)),
        *tables.answer_tables(report),
    ]
    findings = [audit_findings(report)]
    if report.checked is not None:
        findings.append(_describe_row_check(report.checked))
    engine_table: PageTable | None = tables.engine_table(report)
    if engine_table is not None:
        page_tables.append(
            replace(engine_table, text="the same instances with a simulated clock and network")
        )
    introduction = (
        "Every instance gets exactly one answer. A fallback is a device's own answer to an "
        "instance that it could not offload, or that the cloud did not answer in time. Late "
        "responses came after the deadline and were not used."
    )
    return Section(
        key="tables",
        title="Tables",
        text=" ".join(filter(None, [introduction, *findings])),
        tables=page_tables,
        pair_tables=tables.detail_tables(report),
        command=report.command,
    )


def _describe_row_check(row_check: RowCheck) -> str:
    source_phrase = "the bundle's stages and high-cost model give"
    difference_texts = [
        f"{n_answers:,} {'has' if n_answers == 1 else 'have'} another {column.removesuffix('s')}"
        for column, n_answers in row_check.differing.items()
        if n_answers
    ]
    outcome = f"every one has exactly the label, route and cost that {source_phrase}."
    if difference_texts:
        outcome = f"{listed(difference_texts)} than {source_phrase}."
    return f"Of {row_check.compared:,} instances that edge or cloud answered, {outcome}"
