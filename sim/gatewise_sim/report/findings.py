"""What a run found, in words: the answer in a sentence, caveats, key figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

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
from gatewise_sim.report.document import (
    FaultSpan,
    Figure,
    PolicyResult,
    Report,
    TimelineBin,
    value,
)

_BUSY: Final = 0.85  # of the workers' time: queues grow without bound soon after
#: Saved share that 0 digits would round to all.
_NEARLY_ALL: Final = 0.995
_NOTICED: Final = 0.002  # of accuracy
_UNSURE: Final = 0.1  # the length of a share's interval that stands in the answer
_TIMINGS: Final = {
    "edge_ms": "the time of a stage",
    "run_us": "the time of a run of the high-cost model",
    "instance_us": "the time of an instance in a run",
    "message_us": "a worker's time for a message",
    "broker_us": "the broker's time for a message",
    "hop_ms": "the time between broker and worker",
    "proxy_ms": "the time of the proxy",
}


@dataclass(frozen=True)
class KeyFigure:
    """A figure of the system: name, value, interval, and what it compares with."""

    name: str
    value: str
    interval: str = ""
    note: str = ""


def bounds(figure: Figure | None, form: Format) -> str:
    """The ends of a figure's interval; empty without one."""
    if figure is None or figure.low is None or figure.high is None:
        return ""
    return interval(figure.low, figure.high, form)


def answer(report: Report) -> tuple[str, str]:
    """The answer in one sentence, as what matters most and what follows from it."""
    system, cloud = report.system, report.policy("cloud_only")
    if not system.answers.answered:
        return "No instance was answered", "."
    if system.answers.cloud_too_late and not report.faults:
        share = percent(system.answers.fallback / system.instances)
        deadline = millis(report.settings.get("deadline_ms"))
        right = "" if system.accuracy is None else f"; {percent(system.accuracy.value)} right"
        which = "Hardly any" if system.answers.cloud else "No"
        return (
            f"{which} answer of the cloud comes within the deadline of {deadline}",
            f": the devices answer by themselves, {share} of all instances as fallbacks{right}.",
        )
    savings = listed(_savings(report, system, cloud))
    alone = not system.offload_rate.value and report.policy("cloud_only") is not None
    unsure = _unsure(system)
    if system.accuracy is None:
        first = f"{percent(report.offload_rate)} of the instances go to the cloud"
        if savings:
            first += f", which takes {savings} than offloading all of them"
    else:
        first = f"{percent(system.accuracy.value)} right"
        if cloud is not None and cloud.accuracy is not None:
            reference = percent(cloud.accuracy.value)
            same = reference == percent(system.accuracy.value) and not unsure
            first += ", the same as" if same else f" against {reference} for"
            first += " offloading every instance"
        if alone:
            first += "; no instance leaves its device"
        if savings:
            first += f", with {savings}"
    bill = report.money
    if cloud is None and bill is not None and bill.total > 0:
        first += f", for {money(bill.total, bill.currency)} a month"
    first += unsure
    rest = []
    p95 = value(system.latency_ms.get("p95"))
    if p95 is not None:
        rest.append(f"95 % of the answers come within {millis(p95)}")
    if report.faults:
        rest.append(_outage(report))
    return first, "".join(f"{'; ' if i == 0 else ', and '}{r}" for i, r in enumerate(rest)) + "."


def _unsure(system: PolicyResult) -> str:
    """Intervals of accuracy and offload rate in words; empty if they are short."""
    shares = {"right": system.accuracy, "offloaded": system.offload_rate}
    texts = []
    for word, figure in shares.items():
        if figure is not None and (figure.high or 0.0) - (figure.low or 0.0) > _UNSURE:
            texts.append(f"{bounds(figure, percent)} {word}")
    return f" (too few rows to tell more than {listed(texts)})" if texts else ""


def _savings(report: Report, system: PolicyResult, cloud: PolicyResult | None) -> list[str]:
    # Whoever never offloads has saved nothing: it has another accuracy.
    if cloud is None or not system.offload_rate.value:
        return []
    found = []

    def add(share: float, less: str, what: str) -> None:
        digits = 0 if abs(share) < _NEARLY_ALL else 1
        found.append(f"{percent(abs(share), digits)} {less if share >= 0 else 'more'} {what}")

    if cloud.bytes.total:
        add(1 - system.bytes.total / cloud.bytes.total, "fewer", "bytes")
    ours, theirs = system.joules_per_device_day, cloud.joules_per_device_day
    if theirs:
        add(1 - ours / theirs, "less", "energy")
    elif report.cost_reduction is not None:
        add(report.cost_reduction, "less", "feature cost")
    if system.money is not None and cloud.money is not None and cloud.money.total > 0:
        theirs_in_words = money(cloud.money.total, system.money.currency)
        found.append(f"{number(system.money.total)} instead of {theirs_in_words} a month")
    return found


def _outage(report: Report) -> str:
    """What became of accuracy while something was down."""
    faults, bins = report.faults, report.system.timeline
    down = {
        plural(f.count, "worker") if f.what == "workers" else f"the {f.what}": None for f in faults
    }
    total = duration(sum(f.end - f.begin for f in faults))
    span = f"{len(faults)} times, {total} in all," if len(faults) > 1 else f"for {total}"
    when = f"with {' or '.join(down)} down {span}"
    first, last = min(f.begin for f in faults), max(f.end for f in faults)
    # What was sent just before the end still falls back for a moment after it.
    settled = last + 1e-3 * float(report.settings.get("deadline_ms") or 0.0)
    amid = [b for b in bins if any(f.begin <= (b.begin + b.end) / 2 < f.end for f in faults)]
    during = _accuracy(amid)
    before = _accuracy([b for b in bins if b.end <= first])
    after = _accuracy([b for b in bins if b.begin >= settled])
    usual = before if before is not None else after
    n = sum(b.instances for b in amid)
    if during is None or usual is None:
        if not n:
            return f"{when} no instance came"
        share = percent(sum(b.fallback for b in amid) / n)
        return f"{when} the devices answered {share} of the instances themselves in its place"
    # No smaller fall than chance alone would bring now and then among so many.
    error = math.sqrt(during * (1 - during) / max(n, 1.0))
    if usual - during < max(_NOTICED, 2 * error):
        return f"{when} accuracy stayed about the same ({percent(during)})"
    fell = f"{when} accuracy fell to {percent(during)}"
    if after is None:
        return f"{fell} until the end"
    back = after > during + 0.5 * (usual - during)
    return f"{fell} and {'came back' if back else 'has not come back since'}"


def _accuracy(bins: Sequence[TimelineBin]) -> float | None:
    known = [(b.accuracy, b.instances) for b in bins if b.accuracy is not None and b.instances]
    weight = sum(n for _, n in known)
    return sum(v * n for v, n in known) / weight if weight else None


def caveats(report: Report) -> list[str]:
    """Caveats to the answer; most serious first."""
    found = [] if report.promise is None else [report.promise]
    for policy in report.policies:
        answers = policy.answers
        if answers.lost:
            found.append(
                f"{policy.name}: {count(answers.lost)} of {count(policy.instances)} instances got "
                "no answer; they count as wrong."
            )
        if answers.error:
            found.append(
                f"{policy.name}: {count(answers.error)} instances could not be answered: values "
                "were missing that no stage allows."
            )
    found += report.troubles
    system = report.system
    if system.answers.fallback and system.instances:
        why = " (see the run over time)" if report.faults else ""
        found.append(
            f"{percent(system.answers.fallback / system.instances, 2)} of the answers are "
            f"fallbacks{why}: the cloud was not in time, so the device answered with its own best "
            "guess."
        )
    for policy in report.policies:
        busy = policy.utilisation or 0.0
        if policy.key in ("system", "cloud_only") and busy > _BUSY:
            found.append(
                f"{policy.name}: the workers are busy {percent(busy, 0)} of the time; a little "
                "more load, and requests pile up."
            )
    if not report.labelled:
        found.append(
            "The rows have no labels (--target names their column): nothing here says how many "
            "answers are right, and there is no oracle to compare with."
        )
    if report.timings.assumed:
        texts = [_TIMINGS.get(name, name) for name in report.timings.assumed]
        found.append(f"Not measured on this machine but assumed: {listed(texts)}.")
    if system.scaled:
        found.append(
            f"Stepped {system.sampling}. Figures are estimates, with "
            f"{percent(report.confidence_level, 0)} confidence intervals."
        )
    if any(policy.engine != report.engine for policy in report.policies):
        found.append(
            "Only Gatewise itself was run live; the baselines are simulated, on the same instances."
        )
    return [*found, *report.notes]


def key_figures(report: Report) -> list[KeyFigure]:
    """The system's figures, each with its interval and what the baselines have."""
    system, latency, found = report.system, report.system.latency_ms, []
    level = percent(report.confidence_level, 0)

    def add(name: str, figure: Figure | None, form: Format, note: str) -> None:
        ends = bounds(figure, form)
        interval = f"{level} interval {ends}" if ends else ""
        found.append(KeyFigure(name, form(value(figure)), interval, note))

    def against(get: Callable[[PolicyResult], float | None], form: Format) -> str:
        texts = []
        for key in ("cloud_only", "edge_only"):
            policy = report.policy(key)
            if policy is not None and (amount := get(policy)) is not None:
                texts.append(f"{policy.name.lower()} {form(amount)}")
        return ", ".join(texts)

    if system.accuracy is not None:
        note = against(lambda p: value(p.accuracy), percent)
        add("accuracy", system.accuracy, percent, note)
    note = f"of {count(system.instances)} instances"
    add("offloaded", system.offload_rate, percent, note)
    if latency.get("p95") is not None:
        note = against(lambda p: value(p.latency_ms.get("p95")), millis)
        add("95 % answered within", latency["p95"], millis, note)
    if latency.get("offloaded_p95") is not None:
        note = f"half within {millis(value(latency.get('offloaded_p50')))}"
        add("offloaded: 95 % within", latency["offloaded_p95"], millis, note)
    if system.bytes.total:
        note = f"{number(value(system.bytes.up))} up, {number(value(system.bytes.down))} down"
        others = against(lambda p: p.bytes.total or None, number)
        note = f"{note}; {others}" if others else note
        add("bytes per instance", Figure(value=system.bytes.total), number, note)
    note = against(lambda p: value(p.feature_cost), number)
    add("feature cost per instance", system.feature_cost, number, note)
    if system.joules_per_device_day:
        note = against(lambda p: p.joules_per_device_day, joules)
        if system.battery_days is not None:
            note = f"battery lasts {number(system.battery_days)} days; {note}"
        add("energy per device and day", Figure(value=system.joules_per_device_day), joules, note)
    if system.money is not None and system.money.total > 0:
        note = against(lambda p: None if p.money is None else p.money.total, number)
        text = money(system.money.total, system.money.currency)
        found.append(KeyFigure("cost per month", text, note=note))
    return found


def audit_findings(report: Report) -> str:
    """What audits of the system's answers found, in words; empty without audits."""
    audit = report.system.audit
    if audit is None:
        return ""
    text = f"Audits: {count(audit.compared)} of the devices' own answers were compared with the "
    text += f"high-cost model's, {number(audit.bytes)} bytes per instance"
    if audit.agreement is not None:
        text += f"; it agrees with about {percent(audit.agreement)} of all instances"
    text += f" ({percent(audit.promised)} promised)."
    if not audit.alarms:
        return f"{text} No worker's test raised an alarm."
    after = "" if audit.alarm_instances is None else f" after {count(audit.alarm_instances)} audits"
    return f"{text} {plural(audit.alarms, 'test')} of the workers raised an alarm{after}."


def fault_name(fault: FaultSpan) -> str:
    """What was down.

    >>> fault_name(FaultSpan(what="cloud", begin=0, end=1))
    'cloud was down'
    >>> fault_name(FaultSpan(what="workers", begin=0, end=1, count=2))
    '2 workers were down'
    """
    if fault.what != "workers":
        return f"{fault.what} was down"
    return f"{plural(fault.count, 'worker')} {'was' if fault.count == 1 else 'were'} down"


def when(begin: float, end: float, day_begins: float = 0.0) -> str:
    """A span of the run's time; by the clock, too, if the run begins `day_begins` s after midnight.

    >>> when(3600, 4200), when(0, 45)
    ('from 1:00 to 1:10 h', 'from 0 to 45 s')
    >>> when(3600, 4200, 11 * 3600), when(3600, 3605)
    ('from 12:00 to 12:10 (1:00 to 1:10 h after the start)', 'from 1:00:00 to 1:00:05 h')
    """
    if end < 300:
        return f"from {begin:.3g} to {duration(end)}"
    ends = round(begin), round(end)
    seconds = any(t % 60 for t in ends)

    def text(hour: str, t: int) -> str:
        return f"{hour}:{t // 60 % 60:02d}" + (f":{t % 60:02d}" if seconds else "")

    after = " to ".join(text(f"{t // 3600}", t) for t in ends)
    if not day_begins:
        return f"from {after} h"
    clock = (round(t + day_begins) for t in ends)
    times = " to ".join(text(f"{t // 3600 % 24:02d}", t) for t in clock)
    return f"from {times} ({after} h after the start)"
