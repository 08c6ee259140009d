"""The page of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from gatewise.formats import duration, listed, percent, plural, read_clock
from gatewise_sim.report import tables
from gatewise_sim.report.findings import (
    answer,
    audit_findings,
    caveats,
    fault_name,
    key_figures,
    when,
)
from gatewise_sim.report.model import ClassResult, Report, RowCheck
from gatewise_sim.report.output import to_csv
from gatewise_sim.report.page import Page, Plot, Section, write_page
from gatewise_sim.report.plots.examples import pictures_plot
from gatewise_sim.report.plots.run_plots import (
    breakdown_plot,
    classes_plot,
    computation_plot,
    frontier_limits,
    frontier_plot,
    latency_plot,
)
from gatewise_sim.report.plots.timeline import timeline_plots

_MOST_CLASSES: Final = 40
_EXPLAINED: Final = {
    "confidence": "Confidence: offloads as many as Gatewise, those with the least sure local "
    "answer.",
    "random": "Random: as many, by chance.",
    "oracle": "Oracle: offloads exactly what the device gets wrong and the cloud right.",
    "thresholds": "Thresholds: as the operating point decides, in place of the policy given.",
}


def render(report: Report) -> str:
    """Make the page of a run as HTML."""
    footer = "All numbers are in report.json, and as tables in legs.csv, timeline.csv, classes.csv."
    if report.run and report.run.get("created"):
        seconds = report.run.get("seconds")
        took = f", in {duration(seconds)}" if seconds else ""
        footer = f"Run live, {report.run['created']}{took}. {footer}"
    else:
        footer = f"The same seed gives the same report, byte for byte. {footer}"
    return write_page(
        Page(
            title=f"{report.dataset}, {plural(report.settings.get('devices') or 0, 'device')}",
            about=_about(report),
            headline=answer(report),
            warnings=caveats(report),
            figures=key_figures(report),
            sections=[section for make in _SECTIONS for section in make(report)],
            footer=footer,
        )
    )


def csv_files(report: Report) -> dict[str, str]:
    """Write the tables of a run as CSV."""
    document = report.to_dict()
    skipped = {"legs": ("histogram", "computation"), "timeline": (), "classes": ()}
    return {
        f"{name}.csv": to_csv([_flat(row, skip) for row in document[name]])
        for name, skip in skipped.items()
    }


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


def report_files(report: Report, calibration: str) -> dict[str, str]:
    """Texts by file name: page, report, tables, and the service times as they are given."""
    return {
        **csv_files(report),
        "calibration.json": calibration,
        "report.html": render(report),
        "report.json": report.to_json(),
    }


def _about(report: Report) -> str:
    settings = report.settings
    parts = [f"{plural(settings.get('devices') or 0, 'device')} over {report.transport.link}"]
    parts.append(plural(settings.get("workers") or 0, "cloud worker"))
    seconds = settings.get("seconds")
    parts.append(f"{duration(float(seconds))} of {report.workload}" if seconds else report.workload)
    how = "run live over MQTT" if report.engine == "live" else "simulated in virtual time"
    return f"{report.dataset}, {how}: {', '.join(parts)}"


def _frontier(report: Report) -> Iterator[Section]:
    points, limits = report.frontier.points, frontier_limits(report)
    text = "Dots and line: the operating points of the bundle, on validation rows"
    if limits is not None and (below := sum(p.accuracy < limits[1][0] for p in points)):
        text += f" ({below} of {len(points)} lie below the frame)"
    text += "; the ring is the active one."
    if report.labelled:
        level = percent(report.confidence_level, 0)
        text += f" Marks: what each policy comes to on your rows, with {level} intervals."
        if report.settings.get("policy", "system") == "system":
            text += (
                f" The diamond, {report.system.name}, is the active point, too: other rows, other "
                "figures."
            )
    else:
        text += " The rows have no labels, so that none of the policies can be placed here."
    yield Section("frontier", "Accuracy against cost", text, figures=[Plot(frontier_plot(report))])


def _latency(report: Report) -> Iterator[Section]:
    if (plot := latency_plot(report)) is not None:
        yield Section(
            "latency",
            "Time to the answer",
            "From an instance's arrival to its answer: the share that has come by then. What is "
            "easy never leaves the device.",
            figures=[Plot(plot)],
        )


def _examples(report: Report) -> Iterator[Section]:
    if not report.examples:
        return
    plot = pictures_plot(report.examples, report.features)
    yield Section(
        "examples",
        "What easy and hard instances look like",
        "First the cheapest of the devices' own answers, then instances of which no stage was "
        "sure; below each what was acquired of it.",
        wide=True,
        figures=[] if plot is None else [Plot(plot, wide=True)],
        tables=[tables.example_table(report)] if plot is None else [],
    )


def _breakdown(report: Report) -> Iterator[Section]:
    if parts := tables.breakdowns(report):
        yield Section(
            "breakdown",
            "What an answer takes",
            "Under every policy, on the same instances.",
            wide=True,
            figures=[Plot(breakdown_plot(p), p.title, p.unit) for p in parts],
        )


def _computation(report: Report) -> Iterator[Section]:
    found, system = tables.computations(report), report.system.name
    if not found:
        return
    first, several = found[0], len(found) > 1
    mean, once = (first.form(sum(use.values())) for use in (first.policies[system], first.once))
    yield Section(
        "computation",
        "What blocks compute",
        f"Pale: what each step takes for a window. Dark: what it takes per instance, since "
        f"many are answered before it is needed; {mean} of {once} ({first.unit}) in all. As "
        "measured for the bundle; not among the figures above.",
        wide=several,
        figures=[
            Plot(computation_plot(each, system), each.title if several else "") for each in found
        ],
    )


def _timeline(report: Report) -> Iterator[Section]:
    plots = timeline_plots(report)
    if not plots:
        return
    day_begins = read_clock(report.settings.get("day_start", "00:00"), "day_start")
    down = [f"{fault_name(f)} {when(f.begin, f.end, day_begins)}" for f in report.faults]
    if len(down) > 4:
        down = [*down[:3], f"{len(down) - 3} times more"]
    text = f"Shaded: {listed(down)}." if down else "Nothing was down."
    if report.timeline[0].edge_accuracy is not None:
        text += " The dashed line is what the devices alone would have got right."
    figures = [Plot(plot, title, wide=True) for title, plot in plots]
    yield Section("time", "The run over time", text, wide=True, figures=figures)


def _classes(report: Report) -> Iterator[Section]:
    shown = _most_offloaded(report)
    if not shown:
        return
    text = (
        "How much of each true class is offloaded, and what that does for its accuracy, which is "
        "the class's recall."
    )
    if report.balanced_accuracy is not None:
        text += f" Their mean, the balanced accuracy, is {percent(report.balanced_accuracy)}."
    if len(shown) < len(report.classes):
        text += f" Plotted: the {len(shown)} of {len(report.classes)} that are offloaded most."
    yield Section("classes", "Class by class", text, figures=[Plot(classes_plot(shown))])


def _most_offloaded(report: Report) -> list[ClassResult]:
    """Classes that came up; of very many those that are offloaded most."""
    known = [c for c in report.classes if c.instances and c.offload_rate is not None]
    if len(known) <= _MOST_CLASSES:
        return known
    return sorted(known, key=lambda c: -(c.offload_rate or 0.0))[:_MOST_CLASSES]


def _answers(report: Report) -> Iterator[Section]:
    yield Section(
        "answers",
        "Who answered, and why",
        "Every instance gets exactly one answer. Fallback: the cloud did not answer in time, "
        "so the device did. Late: responses that came after the deadline and were not used. "
        + audit_findings(report),
        wide=not _most_offloaded(report),
        tables=tables.answer_tables(report),
    )


def _checks(report: Report) -> Iterator[Section]:
    texts, twin = [], tables.twin_table(report)
    if report.checked is not None:
        texts.append(_check(report.checked))
    if twin is not None:
        texts.append("Below: the same instances once more, on a simulated clock and network.")
    if texts:
        found = [twin] if twin is not None else []
        yield Section("checks", "Checked row by row", " ".join(texts), wide=True, tables=found)


def _check(check: RowCheck) -> str:
    source = "the bundle's stages and cloud model give"
    wrong = [
        f"{n:,} {'has' if n == 1 else 'have'} another {what.removesuffix('s').replace('_', ' ')}"
        for what, n in check.differing.items()
        if n
    ]
    if wrong:
        rest = f"{listed(wrong)} than {source}."
    else:
        rest = f"every one has exactly the label, route and cost that {source}."
    return f"Of {check.compared:,} instances that edge or cloud answered, {rest}"


def _stages(report: Report) -> Iterator[Section]:
    if report.stages:
        yield Section(
            "stages",
            "Stage by stage",
            "A stage acquires its features, runs its small model, and answers if it is sure "
            "enough; what no stage answers goes to the cloud.",
            wide=True,
            tables=[tables.stage_table(report)],
        )


def _policies(report: Report) -> Iterator[Section]:
    parts = [text for key, text in _EXPLAINED.items() if report.policy(key) is not None]
    if len(report.policies) > 1:
        parts.insert(0, "All on the same instances, links and seeds.")
    parts.append(
        f"In small type: {percent(report.confidence_level, 0)} intervals, for other rows like "
        "these; of times of the offloaded alone, for another such run with the same rows."
    )
    table = tables.policy_table(report)
    yield Section("policies", "Every policy", " ".join(parts), wide=True, tables=[table])


def _repeat(report: Report) -> Iterator[Section]:
    pairs = tables.details(report)
    yield Section("repeat", "Run it again", wide=True, command=report.command, pairs=pairs)


_SECTIONS: Final = (
    _frontier, _latency, _examples, _breakdown, _computation, _timeline, _classes, _answers,
    _checks, _stages, _policies, _repeat,
)  # fmt: skip
