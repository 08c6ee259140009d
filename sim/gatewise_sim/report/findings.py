"""Findings of a run in words: summary sentence, key figures, audits and outages."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from gatewise.formats import (
    Format,
    count,
    duration,
    interval,
    joules,
    listed,
    millis,
    money,
    number,
    percent,
    plural,
)
from gatewise_sim.fleet.outages import FaultSpan
from gatewise_sim.report.document import Report
from gatewise_sim.report.policy_result import (
    Estimate,
    PolicyResult,
    TimelineBin,
    value_of,
)

#: Smallest share that rounds to 100 % without decimals.
_ROUNDS_TO_ALL: Final = 0.995
#: Smallest drop of accuracy in an outage that the summary mentions. Smaller drops could disappear
#: by the rounding of a percentage.
_MIN_ACCURACY_DROP: Final = 0.002
#: Width of an interval above which the summary mentions it, because the figure alone would mislead.
_WIDE_INTERVAL: Final = 0.1


@dataclass(frozen=True)
class KeyFigure:
    """A figure of the system, with its interval and a note about the baselines."""

    name: str
    value: str
    interval: str = ""
    note: str = ""


def format_interval(estimate: Estimate | None, formatter: Format) -> str:
    """Format the interval of a figure; empty without an interval."""
    if estimate is None or estimate.low is None or estimate.high is None:
        return ""
    return interval(estimate.low, estimate.high, formatter)


class SummarySentence(NamedTuple):
    """Sentence that summarises a run."""

    main_clause: str
    continuation: str


def summary_sentence(report: Report) -> SummarySentence:
    """Summarise the run in one sentence.

    If the rows break a promise of the bundle, a sentence about it comes first.
    """
    main_clause, continuation = _summarise_run(report)
    if report.promise is None:
        return SummarySentence(main_clause, continuation)
    return SummarySentence(report.promise, f" {main_clause}{continuation}")


def _summarise_run(report: Report) -> tuple[str, str]:
    system = report.system
    if not system.answers.n_answered:
        return "No instance was answered", "."
    if system.is_cloud_too_late and not report.faults:
        fallback_share = percent(system.answers.fallback / system.instances)
        deadline = millis(report.settings.get("deadline_ms"))
        accuracy_text = (
            "" if system.accuracy is None else f"; {percent(system.accuracy.value)} right"
        )
        quantifier = "Hardly any" if system.answers.cloud else "No"
        return (
            f"{quantifier} answer of the cloud comes within the deadline of {deadline}",
            f": devices answer {fallback_share} of all instances as fallbacks{accuracy_text}.",
        )
    clauses = []
    p95 = value_of(system.latency_ms.get("p95"))
    if p95 is not None:
        clauses.append(f"95 % of the answers come within {millis(p95)}")
    if report.faults:
        clauses.append(_describe_outages(report))
    continuation = f"; {', and '.join(clauses)}" if clauses else ""
    return _write_main_clause(report), f"{continuation}."


def _write_main_clause(report: Report) -> str:
    """Describe the accuracy, and the savings compared with offloading every instance."""
    system = report.system
    cloud_only = report.find_policy("cloud_only")
    savings = listed(_list_savings(report, system, cloud_only))
    remark = _write_interval_remark(system)
    if system.accuracy is None:
        clause = f"{percent(report.offload_rate)} of the instances go to the cloud"
        if savings:
            clause += f", which takes {savings} than offloading all of them"
    else:
        clause = f"{percent(system.accuracy.value)} right"
        if cloud_only is not None and cloud_only.accuracy is not None:
            cloud_accuracy = percent(cloud_only.accuracy.value)
            is_same = cloud_accuracy == percent(system.accuracy.value) and not remark
            clause += ", the same as" if is_same else f" against {cloud_accuracy} for"
            clause += " offloading every instance"
        if cloud_only is not None and not system.offload_rate.value:
            clause += "; no instance leaves its device"
        if savings:
            clause += f", with {savings}"
    bill = report.money
    if cloud_only is None and bill is not None and bill.total > 0:
        clause += f", for {money(bill.total, bill.currency)} a month"
    return clause + remark


def _write_interval_remark(system: PolicyResult) -> str:
    """Describe the wide intervals of accuracy and offload rate; empty if they are narrow."""
    estimates = {"right": system.accuracy, "offloaded": system.offload_rate}
    interval_texts = []
    for adjective, estimate in estimates.items():
        if estimate is not None and (estimate.high or 0.0) - (estimate.low or 0.0) > _WIDE_INTERVAL:
            interval_texts.append(f"{format_interval(estimate, percent)} {adjective}")
    return f" (too few rows to tell more than {listed(interval_texts)})" if interval_texts else ""


def _list_savings(
    report: Report, system: PolicyResult, cloud_only: PolicyResult | None
) -> list[str]:
    # Savings make no sense for a system that never offloads, because its accuracy is different.
    if cloud_only is None or not system.offload_rate.value:
        return []
    savings = []

    def add_saving(saved_share: float, comparative: str, resource: str) -> None:
        share_text = percent(abs(saved_share), 0 if abs(saved_share) < _ROUNDS_TO_ALL else 1)
        savings.append(f"{share_text} {comparative if saved_share >= 0 else 'more'} {resource}")

    if cloud_only.bytes.total:
        add_saving(1 - system.bytes.total / cloud_only.bytes.total, "fewer", "bytes")
    if cloud_only.joules_per_device_day:
        add_saving(
            1 - system.joules_per_device_day / cloud_only.joules_per_device_day, "less", "energy"
        )
    elif report.cost_reduction is not None:
        add_saving(report.cost_reduction, "less", "feature cost")
    if system.money is not None and cloud_only.money is not None and cloud_only.money.total > 0:
        cloud_money = money(cloud_only.money.total, system.money.currency)
        savings.append(f"{number(system.money.total)} instead of {cloud_money} a month")
    return savings


def _describe_outages(report: Report) -> str:
    """Describe the outages, and their effect on the answers."""
    faults = report.faults
    fault_names = {
        plural(fault.count, "worker") if fault.what == "workers" else f"the {fault.what}": None
        for fault in faults
    }
    total_duration = duration(sum(fault.end - fault.begin for fault in faults))
    frequency = (
        f"{len(faults)} times, {total_duration} in all,"
        if len(faults) > 1
        else f"for {total_duration}"
    )
    return f"with {' or '.join(fault_names)} down {frequency} {_describe_outage_effect(report)}"


def _describe_outage_effect(report: Report) -> str:
    """Describe the fallbacks or the accuracy during outages."""
    faults = report.faults
    bins = report.system.timeline
    begin = min(fault.begin for fault in faults)
    # Requests of the last moments of an outage may still become fallbacks until their deadline.
    settled_at = max(fault.end for fault in faults) + 1e-3 * float(
        report.settings.get("deadline_ms") or 0.0
    )
    bins_in_outage = [
        time_bin
        for time_bin in bins
        if any(fault.begin <= (time_bin.begin + time_bin.end) / 2 < fault.end for fault in faults)
    ]
    accuracy_during = _compute_accuracy(bins_in_outage)
    bins_before = [time_bin for time_bin in bins if time_bin.end <= begin]
    bins_after = [time_bin for time_bin in bins if time_bin.begin >= settled_at]
    accuracy_after = _compute_accuracy(bins_after)
    normal_bins = bins_before if _compute_accuracy(bins_before) is not None else bins_after
    normal_accuracy = _compute_accuracy(normal_bins)
    n_instances = sum(time_bin.instances for time_bin in bins_in_outage)
    if n_instances and not any(time_bin.fallback for time_bin in bins_in_outage):
        return "no answer was a fallback"
    if accuracy_during is None or normal_accuracy is None:
        if not n_instances:
            return "no instance came"
        fallback_share = percent(
            sum(time_bin.fallback for time_bin in bins_in_outage) / n_instances
        )
        return f"the devices answered {fallback_share} of the instances themselves in its place"
    # Ignore a drop within two standard errors, which can be chance.
    scale = report.system.scale
    standard_error = math.hypot(
        _compute_standard_error(bins_in_outage, scale), _compute_standard_error(normal_bins, scale)
    )
    if normal_accuracy - accuracy_during < max(_MIN_ACCURACY_DROP, 2 * standard_error):
        return f"accuracy stayed about the same ({percent(accuracy_during)})"
    drop_text = f"accuracy fell to {percent(accuracy_during)}"
    if accuracy_after is None:
        return f"{drop_text} until the end"
    # the accuracy has recovered if it has risen again by more than half of the drop
    has_recovered = accuracy_after > accuracy_during + 0.5 * (normal_accuracy - accuracy_during)
    return f"{drop_text} and {'recovered' if has_recovered else 'has not recovered since'}"


def _compute_standard_error(bins: Sequence[TimelineBin], scale: float) -> float:
    """Compute the standard error of the accuracy, which is not 0 even if all answers are right.

    Each simulated instance stands for `scale` instances of the fleet.
    """
    n_instances = sum(time_bin.instances for time_bin in bins) / scale
    accuracy = min(_compute_accuracy(bins) or 0.0, n_instances / (n_instances + 1.0))
    return math.sqrt(accuracy * (1 - accuracy) / max(n_instances, 1.0))


def _compute_accuracy(bins: Sequence[TimelineBin]) -> float | None:
    known_bins = [
        (time_bin.accuracy, time_bin.instances)
        for time_bin in bins
        if time_bin.accuracy is not None and time_bin.instances
    ]
    n_known = sum(n_instances for _, n_instances in known_bins)
    return (
        sum(accuracy * n_instances for accuracy, n_instances in known_bins) / n_known
        if n_known
        else None
    )


def key_figures(report: Report) -> list[KeyFigure]:
    """List the system's figures, each with its interval and the figures of the baselines."""
    system = report.system
    latency = system.latency_ms
    key_figure_list: list[KeyFigure] = []
    level_text = percent(report.confidence_level, 0)

    def add_figure(name: str, estimate: Estimate | None, formatter: Format, note: str) -> None:
        bounds_text = format_interval(estimate, formatter)
        interval_text = f"{level_text} interval {bounds_text}" if bounds_text else ""
        key_figure_list.append(KeyFigure(name, formatter(value_of(estimate)), interval_text, note))

    def baseline_note(figure_of: Callable[[PolicyResult], float | None], formatter: Format) -> str:
        amount_texts = []
        for key in ("cloud_only", "edge_only"):
            policy = report.find_policy(key)
            if policy is not None and (amount := figure_of(policy)) is not None:
                amount_texts.append(f"{policy.name.lower()} {formatter(amount)}")
        return ", ".join(amount_texts)

    # accuracy and offload rate
    if system.accuracy is not None:
        note = baseline_note(lambda policy: value_of(policy.accuracy), percent)
        add_figure("accuracy", system.accuracy, percent, note)
    note = f"of {count(system.instances)} instances"
    add_figure("offloaded", system.offload_rate, percent, note)
    # latency
    if latency.get("p95") is not None:
        note = baseline_note(lambda policy: value_of(policy.latency_ms.get("p95")), millis)
        add_figure("95 % answered within", latency["p95"], millis, note)
    if latency.get("offloaded_p95") is not None:
        note = f"half within {millis(value_of(latency.get('offloaded_p50')))}"
        add_figure("offloaded: 95 % within", latency["offloaded_p95"], millis, note)
    # bytes, features, energy, money
    if system.bytes.total:
        note = f"{number(value_of(system.bytes.up))} up, {number(value_of(system.bytes.down))} down"
        baseline_text = baseline_note(lambda policy: policy.bytes.total or None, number)
        note = f"{note}; {baseline_text}" if baseline_text else note
        add_figure("bytes per instance", Estimate(value=system.bytes.total), number, note)
    note = baseline_note(lambda policy: value_of(policy.feature_cost), number)
    add_figure("feature cost per instance", system.feature_cost, number, note)
    if system.joules_per_device_day:
        note = baseline_note(lambda policy: policy.joules_per_device_day, joules)
        if system.battery_days is not None:
            note = f"battery lasts {number(system.battery_days)} days; {note}"
        add_figure(
            "energy per device and day", Estimate(value=system.joules_per_device_day), joules, note
        )
    if system.money is not None and system.money.total > 0:
        note = baseline_note(
            lambda policy: None if policy.money is None else policy.money.total, number
        )
        money_text = money(system.money.total, system.money.currency)
        key_figure_list.append(KeyFigure("cost per month", money_text, note=note))
    return key_figure_list


def audit_findings(report: Report) -> str:
    """Describe the audits of the system's answers; empty without audits."""
    audit = report.system.audit
    if audit is None:
        return ""
    summary = f"Audits: {count(audit.compared)} of the devices' answers were compared with the "
    summary += f"high-cost model's, {number(audit.bytes)} bytes per instance"
    if audit.agreement is not None:
        summary += f"; it agrees with about {percent(audit.agreement)} of all instances"
    summary += f" ({percent(audit.promised)} promised)."
    if not audit.alarms:
        return f"{summary} No worker's test raised an alarm."
    observed_text = ""
    if audit.alarm_instances is not None:
        observed_text = f", the first one after {count(audit.alarm_instances)} instances"
    return (
        f"{summary} {plural(audit.alarms, 'test')} of the workers raised an alarm{observed_text}."
    )


def fault_name(fault: FaultSpan) -> str:
    """Describe the part that was down.

    >>> fault_name(FaultSpan(what="cloud", begin=0, end=1))
    'cloud was down'
    >>> fault_name(FaultSpan(what="workers", begin=0, end=1, count=2))
    '2 workers were down'
    """
    if fault.what != "workers":
        return f"{fault.what} was down"
    return f"{plural(fault.count, 'worker')} {'was' if fault.count == 1 else 'were'} down"


def format_span(begin: float, end: float, start_time_of_day: float = 0.0) -> str:
    """Format a span of the run; also as times of day if the run starts at `start_time_of_day` (s).

    >>> format_span(3600, 4200), format_span(30, 90)
    ('from 1:00 to 1:10 h', 'from 30 to 90 s')
    >>> format_span(3600, 4200, 11 * 3600), format_span(3600, 3605)
    ('from 12:00 to 12:10 (1:00 to 1:10 h after the start)', 'from 1:00:00 to 1:00:05 h')
    """
    if end < 300:  # a clock with hours would be hard to read
        return f"from {begin:.3g} to {end:.3g} s"
    end_points = (round(begin), round(end))
    shows_seconds = any(seconds % 60 for seconds in end_points)

    def clock_text(hour: str, seconds: int) -> str:
        return f"{hour}:{seconds // 60 % 60:02d}" + (
            f":{seconds % 60:02d}" if shows_seconds else ""
        )

    since_start = " to ".join(clock_text(f"{seconds // 3600}", seconds) for seconds in end_points)
    if not start_time_of_day:
        return f"from {since_start} h"
    clock_end_points = [round(seconds + start_time_of_day) for seconds in end_points]
    clock_span = " to ".join(
        clock_text(f"{seconds // 3600 % 24:02d}", seconds) for seconds in clock_end_points
    )
    return f"from {clock_span} ({since_start} h after the start)"
