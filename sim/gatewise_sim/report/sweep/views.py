"""A sweep on a terminal, and as a page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gatewise.console import table
from gatewise_sim.report.comparison.figures import BY_KEY
from gatewise_sim.report.page import Page, Plot, Section, write_page
from gatewise_sim.report.plots.sweep_plots import lines_plot, points_plot, sweep_axis
from gatewise_sim.report.sweep.setting_text import setting, value_text
from gatewise_sim.report.sweep.summary import cost_unit, sorted_points
from gatewise_sim.report.tables import Cell, PageTable

_COLUMNS: Final = {
    "accuracy": "accuracy",
    "offload_rate": "offloaded",
    "p50": "p50",
    "p95": "p95",
    "offloaded_p95": "p95 offloaded",
    "bytes": "bytes",
    "joules": "J",
    "fallback": "fallback",
    "utilisation": "busy",
}
_ON_PAGE_ONLY: Final = ("p50", "bytes", "joules", "utilisation")
_PLOTTED: Final = ("accuracy", "p95", "offloaded_p95")
_INTERVALS: Final = ("accuracy", "cost", "p50", "p95", "offloaded_p95")
"""Figures whose interval stands below them; the others' are in the files."""


def print_sweep(document: Mapping[str, Any], folder: Path) -> None:
    """Print the points, cheapest first, and the answer."""
    shown = {k: name for k, name in _columns(document).items() if k not in _ON_PAGE_ONLY}
    names = [sweep["name"] for sweep in document["sweeps"]]
    rows = []
    for at, point in sorted_points(document):
        values = [value_text(point["settings"][name], name) for name in names]
        cells = [_figure_text(point, key) for key in shown]
        rows.append([str(at + 1), *values, *cells, "*" if point["frontier"] else ""])
    table(
        f"{document['dataset'] or 'sweep'}: {len(document['points'])} points, cheapest first",
        ["", *names, *shown.values(), ""],
        rows,
    )
    if any(point["frontier"] for point in document["points"]):
        print("*: no other is both cheaper and more accurate")
    for at, point in enumerate(document["points"]):
        if point["error"]:
            print(f"{at + 1} failed: {point['error']}")
    print(f"\n{document['answer']}\n{folder / 'sweep.html'}")


def sweep_page(document: Mapping[str, Any]) -> str:
    """Make the page of a sweep as HTML."""
    names = ", ".join(sweep["name"] for sweep in document["sweeps"])
    first, _, rest = document["answer"].partition(". ")
    sections = [*_points(document), _lines(document), _every_point(document), _repeat(document)]
    failures = [
        f"{setting(p['settings'])} failed: {p['error']}" for p in document["points"] if p["error"]
    ]
    return write_page(
        Page(
            title=f"sweep of {names}",
            about=f"Gatewise on {document['dataset'] or 'your data'}, what if: "
            f"{len(document['points'])} settings of {names}, simulated",
            headline=(f"{first.rstrip('.')}.", f" {rest}"),
            warnings=failures,
            sections=[section for section in sections if section is not None],
            footer="The same numbers, and more, are in sweep.json and sweep.csv; the report of "
            "each setting is in the folder points, for gatewise report points/*.json.",
        )
    )


def _columns(document: Mapping[str, Any]) -> dict[str, str]:
    """Key of a figure to its heading; cost comes after accuracy."""
    cost = document["cost"]
    unit = {
        "money": f"{document['currency']}/month",
        "money_per_million": f"{document['currency']}/10^6",
    }.get(cost, "cost")
    found = {}
    for key, name in _COLUMNS.items():
        if any(key in point["figures"] for point in document["points"]):
            found[key] = name
        if key == "accuracy":
            found[cost] = unit
    return found


def _points(document: Mapping[str, Any]) -> list[Section]:
    plot = points_plot(document, cost_unit(document))
    if plot is None:
        return []
    heads = _columns(document)
    keys = [key for key in (document["cost"], "accuracy", "p95") if key in heads]
    rows = [
        [f"{at + 1}: {setting(p['settings'])}", *(_figure_text(p, key) for key in keys)]
        for at, p in sorted_points(document)
        if p["frontier"]
    ]
    best = PageTable("What more accuracy costs", ["", *(heads[key] for key in keys)], rows)
    return [
        Section(
            key="points",
            title="Accuracy against cost",
            text="One mark a setting, numbered as in the table; bars are 95 % intervals. "
            "Diamonds: no other setting is both cheaper and more accurate. The ring: the cheapest "
            "within half a point of the best accuracy.",
            figures=[Plot(plot=plot)],
        ),
        Section(
            key="best",
            title=best.name,
            text="The diamonds, from the cheapest on. A difference smaller than the intervals may "
            "be chance.",
            tables=[best],
        ),
    ]


def _lines(document: Mapping[str, Any]) -> Section | None:
    axis = sweep_axis(document)
    if axis is None:
        return None
    plots = []
    for key in dict.fromkeys((_PLOTTED[0], document["cost"], *_PLOTTED[1:])):
        title = cost_unit(document) if key == document["cost"] else BY_KEY[key].name
        plot = lines_plot(document, key, axis, title)
        if plot is not None:
            plots.append(Plot(plot=plot))
    if not plots:
        return None
    return Section(
        key="lines",
        title=f"By {axis.name.replace('_', ' ')}",
        text="Bars are 95 % intervals.",
        wide=True,
        figures=plots,
    )


def _every_point(document: Mapping[str, Any]) -> Section:
    shown = _columns(document)
    points = sorted_points(document)
    names = [sweep["name"] for sweep in document["sweeps"]]
    rows: list[list[Cell]] = []
    for at, point in points:
        values: list[Cell] = [
            (value_text(value, name), "", _sortable(value))
            for name, value in point["settings"].items()
        ]
        mark = " *" if point["frontier"] else ""
        rows.append([f"{at + 1}{mark}", *values, *(_cell(point, key) for key in shown)])
    heads = ["point", *(name.replace("_", " ") for name in names), *shown.values()]
    order = [at for at, _ in points]
    cheapest = document["cheapest"]
    return Section(
        key="table",
        title="Every setting",
        text="Cheapest first; below a figure its 95 % interval. *: no other is both cheaper and "
        "more accurate.",
        wide=True,
        tables=[
            PageTable(
                "Every setting", heads, rows, None if cheapest is None else order.index(cheapest)
            )
        ],
        sortable=True,
    )


def _repeat(document: Mapping[str, Any]) -> Section:
    job = dict(document["of"]["job"])
    scenario = job.pop("scenario", None) or {}
    base = [[key, str(value)] for key, value in job.items() if not isinstance(value, dict)]
    base += [[key.replace("_", " "), str(value)] for key, value in scenario.items()]
    basis = [[f"SHA-256 of {f}", digest] for f, digest in document["of"]["files"].items()]
    basis.append(["gatewise", document["of"]["gatewise"]])
    return Section(
        key="repeat",
        title="Run it again",
        text="Settings that are finished are not run again: into the same folder, the same "
        "command goes on where it stopped.",
        wide=True,
        command=document["command"],
        pairs=[
            PageTable("What was simulated where no sweep says otherwise", [], base),
            PageTable("What the figures rest on", [], basis),
        ],
    )


def _cell(point: Mapping[str, Any], key: str) -> Cell:
    """A figure, its interval below it where it matters, and what it is sorted by."""
    found = point["figures"].get(key)
    ends = BY_KEY[key].interval(found) if key in _INTERVALS else ""
    return BY_KEY[key].text(found), ends, _sortable(None if found is None else found["value"])


def _figure_text(point: Mapping[str, Any], key: str) -> str:
    return BY_KEY[key].text(point["figures"].get(key))


def _sortable(value: Any) -> str:
    """A value for the script that sorts: numbers as such, nothing as an empty text."""
    if value is None:
        return ""
    return str(int(value)) if isinstance(value, bool) else str(value)
