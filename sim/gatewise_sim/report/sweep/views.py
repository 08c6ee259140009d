"""A sweep on a terminal, and as a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gatewise_sim.report.comparison.figures import BY_KEY
from gatewise_sim.report.page import Page, Plot, Section, write_page
from gatewise_sim.report.plots.sweep_plots import lines_plot, points_plot, sweep_axis
from gatewise_sim.report.sweep.setting_text import setting, value_text
from gatewise_sim.report.sweep.summary import cost_unit, sorted_points
from gatewise_sim.report.tables import Cell, PageTable, print_table

_COLUMNS: Final = {
    "accuracy": "accuracy",
    "offload_rate": "offloaded",
    "p50": "p50",
    "p95": "p95",
    "offloaded_p95": "p95 offloaded",
    "bytes": "bytes",
    "joules": "energy",
    "fallback": "fallback",
    "utilisation": "busy",
}
_ON_PAGE_ONLY: Final = ("p50", "bytes", "joules", "utilisation")
_PLOTTED: Final = ("accuracy", "p95", "offloaded_p95")
_INTERVALS: Final = ("accuracy", "cost", "p95")
"""Figures whose interval stands below them on the page; the others' are in the files."""
_SHORT_INTERVALS: Final = ("accuracy", "cost")
"""The same on a terminal."""
_UNBEATEN: Final = "*: no other of the same fleet is better beyond the 95 % intervals"


def print_sweep(document: Mapping[str, Any], folder: Path) -> None:
    """Print the points, cheapest first, and the answer."""
    points = document["points"]
    keys = [key for key in _columns(document) if key not in _ON_PAGE_ONLY]
    title = f"{document['dataset'] or 'sweep'}: {len(points)} points, cheapest first"
    print_table(points_table(document, keys, _SHORT_INTERVALS), title)
    if any(point["frontier"] for point in points):
        print(_UNBEATEN)
    for at, point in enumerate(points):
        if point["error"]:
            print(f"{at + 1} failed: {point['error']}")
    print(f"\n{document['answer']}\n{folder / 'sweep.html'}")


def points_table(
    document: Mapping[str, Any], keys: Sequence[str], intervals: Sequence[str]
) -> PageTable:
    """A row for each point, cheapest first: its settings, some figures, intervals of a few."""
    heads, points = _columns(document), sorted_points(document)
    rows: list[list[Cell]] = []
    for at, point in points:
        mark = " *" if point["frontier"] else ""
        values = [value_text(value, name) for name, value in point["settings"].items()]
        figures = [_cell(point, key, with_interval=key in intervals) for key in keys]
        rows.append([f"{at + 1}{mark}", *values, *figures])
    names = [sweep["name"].replace("_", " ") for sweep in document["sweeps"]]
    cheapest = {choice["cheapest"] for choice in document["choices"]}
    return PageTable(
        "Every setting",
        ["point", *names, *(heads[key] for key in keys)],
        rows,
        [row for row, (at, _) in enumerate(points) if at in cheapest],
    )


def sweep_page(document: Mapping[str, Any]) -> str:
    """Make the page of a sweep as HTML."""
    names = ", ".join(sweep["name"] for sweep in document["sweeps"])
    first, _, rest = document["answer"].partition(". ")
    every_point = Section(
        "table",
        "Every setting",
        f"Cheapest first; below a figure its 95 % interval. {_UNBEATEN} in cost or accuracy, and "
        "no worse in the other.",
        wide=True,
        tables=[points_table(document, list(_columns(document)), _INTERVALS)],
    )
    failures = [
        f"{setting(p['settings'])} failed: {p['error']}" for p in document["points"] if p["error"]
    ]
    repeat = Section(
        "repeat",
        "Run it again",
        "Settings that are finished are not run again: into the same folder, the same command goes "
        "on where it stopped.",
        wide=True,
        command=document["command"],
    )
    return write_page(
        Page(
            title=f"sweep of {names}",
            about=f"Gatewise on {document['dataset'] or 'your data'}, what if: "
            f"{len(document['points'])} settings of {names}, simulated",
            headline=(f"{first.rstrip('.')}.", f" {rest}"),
            warnings=failures,
            sections=[*_points(document), *_lines(document), every_point, repeat],
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


def _points(document: Mapping[str, Any]) -> Iterator[Section]:
    plot = points_plot(document, cost_unit(document))
    if plot is None:
        return
    yield Section(
        "points",
        "Accuracy against cost",
        "One mark a setting, numbered as in the table; bars are 95 % intervals. "
        "Diamonds: no other of the same fleet is better beyond them. Rings: the cheapest of a "
        "fleet within half a point of its best accuracy.",
        figures=[Plot(plot)],
    )


def _lines(document: Mapping[str, Any]) -> Iterator[Section]:
    axis = sweep_axis(document)
    if axis is None:
        return
    plots = []
    for key in dict.fromkeys((_PLOTTED[0], document["cost"], *_PLOTTED[1:])):
        title = cost_unit(document) if key == document["cost"] else BY_KEY[key].name
        if (plot := lines_plot(document, key, axis, title)) is not None:
            plots.append(Plot(plot))
    if plots:
        title = f"By {axis.name.replace('_', ' ')}"
        yield Section("lines", title, "Bars are 95 % intervals.", wide=True, figures=plots)


def _cell(point: Mapping[str, Any], key: str, *, with_interval: bool) -> Cell:
    """A figure, and its interval below it if asked for."""
    found = point["figures"].get(key)
    return BY_KEY[key].text(found), BY_KEY[key].interval(found) if with_interval else ""
