"""Self-contained pages from one template, and the page of a run.

A page makes no request to anywhere, and without script all of it is there.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from gatewise.formats import duration, listed, percent, plural
from gatewise_sim.report import tables
from gatewise_sim.report.csv_tables import csv_files
from gatewise_sim.report.findings import (
    KeyFigure,
    answer,
    audit_findings,
    caveats,
    fault_name,
    key_figures,
    when,
)
from gatewise_sim.report.model import ClassResult, Report, RowCheck
from gatewise_sim.report.plots.examples import pictures_plot
from gatewise_sim.report.plots.run_plots import (
    breakdown_plot,
    classes_plot,
    computation_plot,
    frontier_plot,
    latency_plot,
)
from gatewise_sim.report.plots.timeline import timeline_plots
from gatewise_sim.report.tables import PageTable

_PACKAGE: Final = "gatewise_sim.report"
_LINE: Final = 80
_MOST_CLASSES: Final = 40
_UNITS: Final = re.compile(r"(?<=\d) (?=%|ms\b|J\b|kJ\b|mJ\b|min\b|h\b|s\b|day|EUR\b)")
_EXPLAINED: Final = {
    "confidence": "Confidence: offloads as many as Gatewise, those with the least sure local "
    "answer.",
    "random": "Random: as many, by chance.",
    "oracle": "Oracle: offloads exactly what the device gets wrong and the cloud right.",
    "thresholds": "Thresholds: as the operating point decides, in place of the policy given.",
}


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A plot, and the numbers behind it."""

    title: str = ""  # above it; empty within a section of one plot
    note: str = ""
    plot: Markup
    phone: Markup | None = None  # in its place on a narrow page, if they are not the same
    table: PageTable | None = None


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of a page: plots first, then tables."""

    key: str  # its id
    title: str
    text: str = ""
    wide: bool = False  # over the whole width
    figures: Sequence[Plot] = ()
    tables: Sequence[PageTable] = ()
    pairs: Sequence[PageTable] = ()  # of names and values, side by side
    command: str = ""  # what repeats the run
    sortable: bool = False  # by the headings of the first table


@dataclass(frozen=True, kw_only=True)
class Page:
    """What the template fills in."""

    title: str
    about: str
    headline: tuple[str, str]  # the answer, and its less important half
    warnings: Sequence[str] = ()
    figures: Sequence[KeyFigure] = ()
    sections: Sequence[Section]
    footer: str

    @property
    def columns(self) -> int:
        """Columns of the key figures, so that none stands alone in the last row."""
        n = len(self.figures)
        return n if n < 4 else next((c for c in (4, 5, 3) if n % c != 1), 4)


def write_page(page: Page) -> str:
    """Write a page as HTML.

    Text is escaped, and the page's own policy refuses every request to elsewhere and every script
    but its own.
    """
    code = _text("page.js")
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            page=page,
            style=Markup(_text("page.css")),
            script=Markup(code),
            policy=f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'",
        )
    )


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader(_PACKAGE, "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["tied"] = lambda text: _UNITS.sub("\N{NO-BREAK SPACE}", text)
    environment.filters["shell_lines"] = _shell_lines
    return environment


def _shell_lines(command: str) -> str:
    """A long command in lines that a shell still takes."""
    return command if len(command) <= _LINE else command.strip().replace(" --", " \\\n    --")


def _text(name: str) -> str:
    return files(_PACKAGE).joinpath(name).read_text(encoding="utf-8")


# -- the page of a run -------------------------------------------------------------------------


def render(report: Report) -> str:
    """Make the page of a run as HTML."""
    devices = int(report.settings.get("devices") or 0)
    sections = [_frontier(report), _latency(report), _examples(report)]
    sections += [_breakdown(report), _computation(report), _timeline(report)]
    sections += [_classes(report), _answers(report), _checks(report), _stages(report)]
    sections += [_policies(report), _repeat(report)]
    return write_page(
        Page(
            title=f"{report.dataset}, {plural(devices, 'device')}",
            about=_about(report),
            headline=answer(report),
            warnings=caveats(report),
            figures=key_figures(report),
            sections=[section for section in sections if section is not None],
            footer=_footer(report),
        )
    )


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
    parts = [
        f"{plural(settings.get('devices') or 0, 'device')} over {report.transport.link}",
        plural(settings.get("workers") or 0, "cloud worker"),
    ]
    if report.system.reasons.get("gateway"):
        uplink = settings.get("uplink") or "none"
        above = "" if uplink == "none" else f" with {uplink} above"
        parts.insert(1, plural(settings.get("gateways") or 1, "gateway") + above)
    seconds = settings.get("seconds")
    parts.append(f"{duration(float(seconds))} of {report.workload}" if seconds else report.workload)
    how = "run live over MQTT" if report.engine == "live" else "simulated in virtual time"
    return f"{report.dataset}, {how}: {', '.join(parts)}"


def _frontier(report: Report) -> Section:
    text = (
        "Dots and line: every operating point of the bundle, on validation rows; the ring is the "
        "active one."
    )
    if report.labelled:
        level = percent(report.confidence_level, 0)
        text += f" Marks: what each policy comes to on your rows, with {level} intervals."
    else:
        text += " The rows have no labels, so that none of the policies can be placed here."
    figure = Plot(plot=frontier_plot(report), table=tables.frontier_table(report))
    return Section(key="frontier", title="Accuracy against cost", text=text, figures=[figure])


def _latency(report: Report) -> Section | None:
    plot = latency_plot(report)
    if plot is None:
        return None
    return Section(
        key="latency",
        title="Time to the answer",
        text="From an instance's arrival to its answer: the share that has come by then. What is "
        "easy never leaves the device.",
        figures=[Plot(plot=plot, table=tables.latency_table(report))],
    )


def _breakdown(report: Report) -> Section | None:
    parts = tables.breakdowns(report)
    figures = [
        Plot(
            title=each.title,
            note=each.unit,
            plot=breakdown_plot(each.key, f"{each.title}, {each.unit}", each.policies, each.form),
            table=each.table,
        )
        for each in parts
    ]
    if not figures:
        return None
    return Section(
        key="breakdown",
        title="What an answer takes",
        text="Under every policy, on the same instances.",
        wide=True,
        figures=figures,
    )


def _computation(report: Report) -> Section | None:
    found = tables.computations(report)
    if not found:
        return None
    first = found[0]
    mean, all_steps = (sum(use.values()) for use in (first.policies[report.system.name], first.one))
    return Section(
        key="computation",
        title="What blocks compute",
        text=f"Pale: what each step takes for a window. Dark: what it takes per instance, since "
        f"many are answered before it is needed; {first.form(mean)} of {first.form(all_steps)} "
        f"({first.unit}) in all. As measured for the bundle; not among the figures above.",
        wide=len(found) > 1,
        figures=[
            Plot(
                title=each.unit.capitalize() if len(found) > 1 else "",
                plot=computation_plot(each.unit, each.one, each.policies[report.system.name]),
                table=each.table,
            )
            for each in found
        ],
    )


def _timeline(report: Report) -> Section | None:
    plots = timeline_plots(report)
    if not plots:
        return None
    down = [f"{fault_name(f)} {when(f.begin, f.end)}" for f in report.faults]
    if len(down) > 4:
        down = [*down[:3], f"{len(down) - 3} times more"]
    text = f"Shaded: {listed(down)}." if down else "Nothing was down."
    if report.timeline[0].edge_accuracy is not None:
        text += " The dashed line is what the devices alone would have got right."
    table = tables.timeline_table(report)
    figures = [
        Plot(title=title, plot=plot, phone=phone, table=None if title else table)
        for title, plot, phone in plots
    ]
    return Section(key="time", title="The run over time", text=text, wide=True, figures=figures)


def _classes(report: Report) -> Section | None:
    shown = _most_offloaded(report)
    if not shown:
        return None
    text = (
        "How much of each true class is offloaded, and what that does for its accuracy, which is "
        "the class's recall."
    )
    if report.balanced_accuracy is not None:
        text += f" Their mean, the balanced accuracy, is {percent(report.balanced_accuracy)}."
    if len(shown) < len(report.classes):
        text += f" Plotted: the {len(shown)} of {len(report.classes)} that are offloaded most."
    figure = Plot(plot=classes_plot(shown), table=tables.class_table(report))
    return Section(key="classes", title="Class by class", text=text, figures=[figure])


def _most_offloaded(report: Report) -> list[ClassResult]:
    """Classes that came up; of very many those that are offloaded most."""
    known = [c for c in report.classes if c.instances and c.offload_rate is not None]
    if len(known) <= _MOST_CLASSES:
        return known
    return sorted(known, key=lambda c: -(c.offload_rate or 0.0))[:_MOST_CLASSES]


def _answers(report: Report) -> Section:
    return Section(
        key="answers",
        title="Who answered, and why",
        text="Every instance gets exactly one answer. Fallback: the cloud did not answer in time, "
        "so the device did. Late: responses that came after the deadline and were not used. "
        + audit_findings(report),
        wide=not _most_offloaded(report),
        tables=tables.answer_tables(report),
    )


def _examples(report: Report) -> Section | None:
    if not report.examples:
        return None
    plots = pictures_plot(report.examples, report.features)
    table = tables.example_table(report)
    return Section(
        key="examples",
        title="What easy and hard instances look like",
        text="First the cheapest of the devices' own answers, then instances of which no stage was "
        "sure; below each what was acquired of it.",
        wide=True,
        figures=[] if plots is None else [Plot(plot=plots[0], phone=plots[1], table=table)],
        tables=[table] if plots is None else [],
    )


def _checks(report: Report) -> Section | None:
    texts = []
    for check, source in (
        (report.checked, "the bundle's stages and cloud model give"),
        (report.expected, "the estimator's own predict, offload and cost give"),
    ):
        if check is not None:
            texts.append(_check(check, source))
    twin = tables.twin_table(report)
    if twin is not None:
        texts.append("Below: the same instances once more, on a simulated clock and network.")
    if not texts:
        return None
    return Section(
        key="checks",
        title="Checked row by row",
        text=" ".join(texts),
        wide=True,
        tables=[twin] if twin is not None else [],
    )


def _check(check: RowCheck, source: str) -> str:
    """What a live run was compared with."""
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


def _stages(report: Report) -> Section | None:
    if not report.stages:
        return None
    return Section(
        key="stages",
        title="Stage by stage",
        text="A stage acquires its features, runs its small model, and answers if it is sure "
        "enough; what no stage answers goes to the cloud.",
        wide=True,
        tables=[tables.stage_table(report)],
    )


def _policies(report: Report) -> Section:
    parts = [text for key, text in _EXPLAINED.items() if report.policy(key) is not None]
    if len(report.policies) > 1:
        parts.insert(0, "All on the same instances, links and seeds.")
    level = percent(report.confidence_level, 0)
    return Section(
        key="policies",
        title="Every policy",
        text=" ".join([*parts, f"In small type: {level} intervals."]),
        wide=True,
        tables=[tables.policy_table(report)],
    )


def _repeat(report: Report) -> Section:
    return Section(
        key="repeat",
        title="Run it again",
        wide=True,
        command=report.command,
        pairs=tables.details(report),
    )


def _footer(report: Report) -> str:
    text = "The same numbers, and more, are in report.json."
    if report.run and report.run.get("created"):
        seconds = report.run.get("seconds")
        took = f", in {duration(seconds)}" if seconds else ""
        return f"Run live, {report.run['created']}{took}. {text}"
    return f"The same seed gives the same report, byte for byte. {text}"
