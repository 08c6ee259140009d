"""The report of a simulation as one self-contained page."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from gatewise_sim.report import simulation_tables as tables
from gatewise_sim.report import simulation_words as said
from gatewise_sim.report import words
from gatewise_sim.report.drawings.bars import legend
from gatewise_sim.report.drawings.classes import draw_classes
from gatewise_sim.report.drawings.frontier import Mark, draw_frontier
from gatewise_sim.report.drawings.latency import Curve, draw_latency
from gatewise_sim.report.drawings.picture import pictured
from gatewise_sim.report.drawings.timeline import ROUTES, draw_timeline
from gatewise_sim.report.drawings.times import TimeScale
from gatewise_sim.report.html import one_line_each, write_page
from gatewise_sim.report.simulation_parts import where_it_goes

__all__ = ["render"]

_WIDE: Final = 860.0  # of the time line
_NARROW: Final = 330.0
_SMALL: Final = 0.12  # of the run: an outage shorter than this is drawn once more, larger
_MOST_CLASSES: Final = 40

_Report = Mapping[str, Any]


def render(report: _Report) -> str:
    """Make the page of a simulation's report.

    Parameters
    ----------
    report : mapping
        As written to ``report.json``.

    Returns
    -------
    str
        HTML that needs nothing else: no request goes anywhere, and without script all is there.
    """
    curves = _curves(report)
    scale = time_scale(report)
    drawn = _most_offloaded(report)
    return write_page(
        "simulation.html.j2",
        script="copy.js",
        title=f"{report['dataset']}, {report['settings']['devices']:,} devices",
        about=_about(report),
        answer=said.answer(report),
        caveats=said.caveats(report),
        facts=said.facts(report),
        frontier=pictured(partial(draw_frontier, report["frontier"], _marks(report)), "frontier"),
        frontier_how=_frontier_how(report),
        **tables.frontier(report),
        latency=pictured(
            partial(draw_latency, curves, deadline_ms=report["settings"].get("deadline_ms")),
            "latency",
        )
        if curves
        else None,
        **tables.latency(report),
        where=where_it_goes(report),
        timelines=_timelines(report, scale),
        timeline_how=_timeline_how(report, scale),
        routes=legend({r: "" for r in ROUTES if any(b[r] for b in report["timeline"])}),
        **tables.timeline(report, scale),
        classes=pictured(partial(draw_classes, drawn), "classes") if drawn else None,
        classes_how=_classes_how(report, len(drawn)),
        **tables.classes(report),
        **tables.answered(report),
        **tables.workers(report),
        checks=_checks(report),
        **tables.twin(report),
        legs_how=_legs_how(report),
        **tables.legs(report),
        command=one_line_each(report["command"]),
        details=tables.details(report),
        footer=_footer(report),
    )


def time_scale(report: _Report) -> TimeScale:
    """How moments of the run are written."""
    settings = report["settings"]
    hours, _, minutes = str(settings.get("day_start", "00:00")).partition(":")
    begins = 3600.0 * float(hours) + 60.0 * float(minutes or 0)
    return TimeScale(float(settings["seconds"]), begins)


def _about(report: _Report) -> str:
    s = report["settings"]
    parts = [
        f"{words.plural(s['devices'], 'device')} over {report['transport']['link']}",
        words.plural(s["workers"], "cloud worker"),
        f"{words.duration(float(s['seconds']))} of {report['workload']}",
    ]
    how = "run live over MQTT" if report["engine"] == "live" else "simulated in virtual time"
    return f"{report['dataset']}, {how}: {', '.join(parts)}"


def _marks(report: _Report) -> list[Mark]:
    def ends(figure: Mapping[str, float]) -> tuple[float, float, float]:
        return figure["value"], figure["low"], figure["high"]

    return [
        Mark(entry["key"], entry["name"], ends(entry["cost"]), ends(entry["accuracy"]))
        for entry in report["legs"]
        if entry["accuracy"] is not None and entry["cost"] is not None
    ]


def _frontier_how(report: _Report) -> str:
    text = (
        "Dots and line: every operating point of the bundle, on validation data; the ring is the "
        "one in force."
    )
    if not _marks(report):
        return f"{text} The rows have no labels, so that none of the policies can be placed here."
    level = words.percent(report["confidence_level"], 0)
    return f"{text} Marks: what each policy comes to on your rows, with {level} intervals."


def _curves(report: _Report) -> list[Curve]:
    found = []
    for key in ("system", "edge_only", "cloud_only"):
        entry = said.leg(report, key)
        histogram = (entry or {}).get("histogram") or {}
        if entry is not None and sum(histogram.get("all", ())):
            p50, p95 = (said.value(entry, "latency_ms", q) for q in ("p50", "p95"))
            assert p50 is not None
            assert p95 is not None
            curve = Curve(key, entry["name"], histogram["edges_ms"], histogram["all"], p50, p95)
            found.append(curve)
    return found


def _timelines(report: _Report, scale: TimeScale) -> list[dict[str, Any]]:
    """The whole run, and what is around the longest outage if it would be hard to see."""
    bins, faults = report["timeline"], report["faults"]
    if not bins:
        return []
    spans = [("", 0.0, scale.seconds)]
    if faults:
        longest = max(faults, key=lambda f: f["end"] - f["begin"])
        length = longest["end"] - longest["begin"]
        begin = max(0.0, longest["begin"] - 0.8 * length)
        end = min(scale.seconds, longest["end"] + 1.2 * length)
        inside = [b for b in bins if b["end"] > begin and b["begin"] < end]
        if length < _SMALL * scale.seconds and len(inside) > 3:
            spans.append((f"Around {scale.span(longest['begin'], longest['end'])}", begin, end))
    return [
        {
            "title": title,
            "picture": pictured(
                partial(
                    draw_timeline, bins, faults, scale, begin=begin, end=end,
                    title=title or "In the course of time",
                ),
                f"time-{k}", desk=_WIDE, phone=_NARROW,
            ),
        }
        for k, (title, begin, end) in enumerate(spans)
    ]  # fmt: skip


def _timeline_how(report: _Report, scale: TimeScale) -> str:
    faults = report["faults"]
    if not faults:
        text = "Nothing was down."
    else:
        down = [f"{words.outage(f)} {scale.span(f['begin'], f['end'])}" for f in faults]
        if len(down) > 4:
            down = [*down[:3], f"{len(down) - 3} times more"]
        text = f"Shaded: {words.listed(down)}."
    if report["timeline"] and report["timeline"][0]["edge_accuracy"] is not None:
        text += " The dashed line is what the devices alone would have got right."
    return text


def _most_offloaded(report: _Report) -> list[Mapping[str, Any]]:
    """Classes that came up; of very many those that are offloaded most."""
    known = [c for c in report["classes"] if c["instances"] and c["offload_rate"] is not None]
    if len(known) <= _MOST_CLASSES:
        return known
    return sorted(known, key=lambda c: -c["offload_rate"])[:_MOST_CLASSES]


def _classes_how(report: _Report, drawn: int) -> str:
    text = "How much of each true class is offloaded, and what that does for its accuracy."
    if drawn < len(report["classes"]):
        text += f" Drawn: the {drawn} of {len(report['classes'])} that are offloaded most."
    return text


def _legs_how(report: _Report) -> str:
    level = words.percent(report["confidence_level"], 0)
    known = {
        "confidence": "Confidence: sends as many as Gatewise, those whose local answer is least "
        "sure.",
        "random": "Random: as many, by chance.",
        "oracle": "Oracle: sends exactly what the device gets wrong and the cloud right.",
    }
    parts = [text for key, text in known.items() if said.leg(report, key) is not None]
    if len(report["legs"]) > 1:
        parts.insert(0, "All on the same instances, links and seeds.")
    return " ".join([*parts, f"In small type: {level} intervals."])


def _checks(report: _Report) -> list[str]:
    """What a live run was held against."""
    checked = report.get("checked")
    if not checked:
        return []
    wrong = [
        f"{n:,} another {what.removesuffix('s')}" for what, n in checked["differing"].items() if n
    ]
    rest = (
        f"{words.listed(wrong)} than the bundle's stages and cloud model give."
        if wrong
        else "every one has exactly the label, route and cost that the bundle's stages and cloud "
        "model give."
    )
    return [
        f"Of {checked['compared']:,} instances that edge or cloud answered, {rest} Below: the "
        "same instances once more, on a simulated clock and network."
    ]


def _footer(report: _Report) -> str:
    text = "The same numbers, and more, are in report.json; tables in legs.csv, timeline.csv and "
    text += "classes.csv."
    run = report.get("run")
    if run:
        return f"Run live, {run['created']}, in {words.duration(run['seconds'])}. {text}"
    return f"The same seed gives the same report, byte for byte. {text}"
