"""What a simulation found, as people say it: the answer, what to beware of, the key figures."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from gatewise_sim.report import words

__all__ = ["answer", "caveats", "course_of_outages", "facts", "leg", "priced", "value"]

_BUSY: Final = 0.85  # of the workers' time: queues grow without bound soon after
_NOTICED: Final = 0.002  # of accuracy
_LARGE: Final = re.compile(r"\d{5,}")

_Report = Mapping[str, Any]


def leg(report: _Report, key: str) -> Mapping[str, Any] | None:
    """One leg of a report, if it was run."""
    return next((entry for entry in report["legs"] if entry["key"] == key), None)


def value(entry: Mapping[str, Any] | None, *names: str) -> float | None:
    """A figure of a leg, without its interval; None if it is not known."""
    found: Any = entry
    for name in names:
        found = None if found is None else found.get(name)
    figure: float | None = found["value"] if isinstance(found, Mapping) else found
    return figure


def priced(report: _Report) -> bool:
    """Whether there is a price list that charges something."""
    return any((entry["money"] or {}).get("total", 0) > 0 for entry in report["legs"])


def answer(report: _Report) -> tuple[str, str]:
    """The answer in one sentence, as what matters most and what goes on from it.

    Returns
    -------
    tuple of str
        Together they are the sentence.
    """
    system, cloud = leg(report, "system"), leg(report, "cloud_only")
    answers = report["answers"]
    if not sum(answers[route] for route in ("edge", "cloud", "fallback")):
        return "No instance was answered", "."
    accuracy, theirs = value(system, "accuracy"), value(cloud, "accuracy")
    savings = words.listed(_savings(report, system, cloud))
    bill = _bill(report) if cloud is None else ""
    if accuracy is None:
        rate = words.percent(report["offload_rate"])
        first = f"{rate} of the instances go to the cloud"
        if savings:
            first += f", which takes {savings} than always asking it"
    else:
        first = f"{words.percent(accuracy)} right"
        if theirs is not None:
            same = words.percent(theirs) == words.percent(accuracy)
            first += ", the same as" if same else f" against {words.percent(theirs)} for"
            first += " always asking the cloud"
        if savings:
            first += f", with {savings}"
    if bill:
        first += f", for {bill}"
    rest = []
    p95 = value(system, "latency_ms", "p95")
    if p95 is not None:
        rest.append(f"95 % of the answers come within {words.millis(p95)}")
    if report["faults"]:
        rest.append(_outage(report))
    return first, "".join(f"{'; ' if i == 0 else ', and '}{r}" for i, r in enumerate(rest)) + "."


def _bill(report: _Report) -> str:
    """What it costs, where there is nothing to hold it against."""
    if not priced(report):
        return ""
    return f"{words.number(report['money']['total'])} {report['money']['currency']} a month"


def _savings(
    report: _Report, system: Mapping[str, Any] | None, cloud: Mapping[str, Any] | None
) -> list[str]:
    if system is None or cloud is None:
        return []
    said = []
    ours, theirs = _bytes(system), _bytes(cloud)
    if ours is not None and theirs:
        said.append(words.compared(1 - ours / theirs, "fewer bytes", "more bytes"))
    ours, theirs = system["joules_per_device_day"], cloud["joules_per_device_day"]
    if ours is not None and theirs:
        said.append(words.compared(1 - ours / theirs, "less energy", "more energy"))
    elif report["cost_reduction"] is not None:
        said.append(
            words.compared(report["cost_reduction"], "less feature cost", "more feature cost")
        )
    if priced(report):
        bill = system["money"]
        said.append(
            f"{words.number(bill['total'])} instead of {words.number(cloud['money']['total'])} "
            f"{bill['currency']} a month"
        )
    return said


def _bytes(entry: Mapping[str, Any]) -> float | None:
    up, down = value(entry, "bytes", "up"), value(entry, "bytes", "down")
    return None if up is None or down is None else up + down


def course_of_outages(report: _Report) -> dict[str, float | None]:
    """Mean accuracy before, during and after what was down, and the share answered by fallback.

    Returns
    -------
    dict
        ``before``, ``during``, ``after``, ``alone`` (what the device alone would have got right
        during it), ``fallback`` (of the instances during it) and ``instances`` (during it); None
        where nothing is known.
    """
    faults = report["faults"]
    first, last = min(f["begin"] for f in faults), max(f["end"] for f in faults)

    def within(b: Mapping[str, Any]) -> bool:
        middle = (b["begin"] + b["end"]) / 2
        return any(f["begin"] <= middle < f["end"] for f in faults)

    timeline = report["timeline"]
    during = [b for b in timeline if within(b)]
    # What was asked just before the end still falls back for a moment after it.
    settle = last + 1e-3 * report["settings"].get("deadline_ms", 0.0)
    n = sum(b["instances"] for b in during)
    return {
        "before": _mean([b for b in timeline if b["end"] <= first], "accuracy"),
        "during": _mean(during, "accuracy"),
        "after": _mean([b for b in timeline if b["begin"] >= settle], "accuracy"),
        "alone": _mean(during, "edge_accuracy"),
        "fallback": sum(b["fallback"] for b in during) / n if n else None,
        "instances": n,
    }


def _mean(bins: Sequence[Mapping[str, Any]], name: str) -> float | None:
    known = [(b[name], b["instances"]) for b in bins if b[name] is not None and b["instances"]]
    weight = sum(n for _, n in known)
    return sum(v * n for v, n in known) / weight if weight else None


def _outage(report: _Report) -> str:
    faults = report["faults"]
    course = course_of_outages(report)
    names = {words.outage(f).removesuffix(" down"): f["what"] for f in faults}
    what = " or ".join(n if kind == "workers" else f"the {n}" for n, kind in names.items())
    total = words.duration(sum(f["end"] - f["begin"] for f in faults))
    when = f"with {what} down for {total}"
    if len(faults) > 1:
        when = f"with {what} down {len(faults)} times, {total} in all,"
    before, during, after = course["before"], course["during"], course["after"]
    usual = before if before is not None else after
    if during is None or usual is None:
        if course["fallback"] is None:
            return f"{when} no instance came"
        share = words.percent(course["fallback"])
        return f"{when} the devices answered {share} of the instances themselves in its place"
    # No smaller fall than chance alone would bring now and then among so many.
    chance = 2 * math.sqrt(during * (1 - during) / max(course["instances"] or 0.0, 1.0))
    if usual - during < max(_NOTICED, chance):
        return f"{when} accuracy stayed about the same ({words.percent(during)})"
    said = f"{when} accuracy fell to {words.percent(during)}"
    if after is None:
        return f"{said} until the end"
    back = after > during + 0.5 * (usual - during)
    return f"{said} and {'came back' if back else 'has not come back since'}"


def caveats(report: _Report) -> list[str]:
    """What a reader must know before believing the answer; most serious first."""
    said = []
    names = {entry["key"]: entry["name"] for entry in report["legs"]}
    for entry in report["legs"]:
        lost, failed = entry["answers"].get("lost", 0), entry["answers"].get("error", 0)
        if lost:
            said.append(
                f"{names[entry['key']]}: {words.count(lost)} of "
                f"{words.count(entry['instances'])} instances got no answer; they count as wrong."
            )
        if failed:
            said.append(
                f"{names[entry['key']]}: {words.count(failed)} instances could not be answered: "
                "values were missing that no stage allows."
            )
    said += report["troubles"]
    system = leg(report, "system")
    if system is not None:
        n, fallback = system["instances"], system["answers"]["fallback"]
        if fallback and n:
            why = " (see the time line)" if report["faults"] else ""
            said.append(
                f"{words.percent(fallback / n, 2)} of the answers are fallbacks{why}: the cloud "
                "was not in time, so the device answered with its own best guess."
            )
        for entry in report["legs"]:
            busy = entry["utilisation"] or 0.0
            if entry["key"] in ("system", "cloud_only") and busy > _BUSY:
                said.append(
                    f"{entry['name']}: the workers are busy {words.percent(busy, 0)} of the time; "
                    "a little more load, and requests pile up."
                )
    if all(entry["accuracy"] is None for entry in report["legs"]):
        said.append(
            "The rows have no labels: nothing here says how many answers are right, and there is "
            "no oracle to compare with."
        )
    if report["calibration"]["kind"] == "assumed":
        # A live run takes as long as it takes; what is simulated beside it does not.
        what = "devices and workers take" if report["engine"] == "virtual" else "its twin takes"
        said.append(
            f"How long {what} is assumed (a small model on an x86-64 machine), "
            "not measured on yours: --calibrate measures it."
        )
    sampling = _LARGE.sub(lambda found: f"{int(found[0]):,}", report["sampling"])
    if "whole" not in sampling and report["engine"] == "virtual":
        said.append(
            f"Sampled, not stepped in full: {sampling}. Figures are estimates, with "
            f"{words.percent(report['confidence_level'], 0)} confidence intervals."
        )
    if any(entry["engine"] != report["engine"] for entry in report["legs"]):
        said.append(
            "Only Gatewise itself was run live; the baselines are simulated, on the same instances."
        )
    return [*said, *report["notes"]]


def facts(report: _Report) -> list[dict[str, str]]:
    """The key figures: name, value, its interval, and what to hold it against."""
    system = leg(report, "system") or report["legs"][0]
    cloud, edge = leg(report, "cloud_only"), leg(report, "edge_only")
    level = report["confidence_level"]
    found = []

    def add(name: str, text: str, interval: str, note: str) -> None:
        found.append({"name": name, "value": text, "interval": interval, "note": note})

    def against(form: Any, *names: str) -> str:
        both = (("all cloud", value(cloud, *names)), ("all edge", value(edge, *names)))
        return ", ".join(f"{name} {form(v)}" for name, v in both if v is not None)

    if system["accuracy"] is not None:
        add("accuracy", words.percent(system["accuracy"]["value"]),
            words.interval(system["accuracy"], words.percent, level=level),
            against(words.percent, "accuracy"))  # fmt: skip
    add("offloaded", words.percent(value(system, "offload_rate")),
        words.interval(system["offload_rate"], words.percent, level=level),
        f"of {words.count(system['instances'])} instances")  # fmt: skip
    for quantile, name in (
        ("p95", "95 % answered within"),
        ("offloaded_p95", "offloaded: 95 % within"),
    ):
        if system["latency_ms"].get(quantile) is not None:
            add(
                name,
                words.millis(value(system, "latency_ms", quantile)),
                words.interval(system["latency_ms"][quantile], words.millis, level=level),
                against(words.millis, "latency_ms", "p95")
                if quantile == "p95"
                else f"half within {words.millis(value(system, 'latency_ms', 'offloaded_p50'))}",
            )
    ours = _bytes(system)
    if ours is not None:
        theirs = None if cloud is None else _bytes(cloud)
        add("bytes per instance", words.number(ours), "",
            f"{words.number(value(system, 'bytes', 'up'))} up, "
            f"{words.number(value(system, 'bytes', 'down'))} down"
            + (f"; all cloud {words.number(theirs)}" if theirs else ""))  # fmt: skip
    add("feature cost per instance", words.number(value(system, "feature_cost")),
        words.interval(system["feature_cost"], words.number, level=level),
        against(words.number, "feature_cost"))  # fmt: skip
    if system["joules_per_device_day"]:
        note = against(words.joules, "joules_per_device_day")
        if system["battery_days"] is not None:
            note = f"battery lasts {words.number(system['battery_days'])} days; {note}"
        add("energy per device and day", words.joules(system["joules_per_device_day"]), "", note)
    if priced(report):
        bill = system["money"]
        total = f"{words.number(bill['total'])} {bill['currency']}"
        add("cost per month", total, "",
            against(words.number, "money", "total"))  # fmt: skip
    return found
