"""A comparison of runs on a terminal, and as a page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from gatewise.formats import listed
from gatewise_sim.report.comparison.figures import BY_KEY, FIGURES, ComparedFigure
from gatewise_sim.report.tables import Cell, PageTable, plain_text, print_table

_SIDE_BY_SIDE: Final = 4  # runs; more are shown one below the other
_CHOSEN: Final = ("accuracy", "offload_rate", "cost", "bytes", "p50", "p95", "fallback", "money")
_HOW: Final = (
    "Below a figure its difference to {}. Better, worse, beyond: the 95 % interval of the "
    "difference leaves out 0; within: chance alone may make it. The intervals take the runs as "
    "independent: for runs on the same rows the truth is rather surer."
)


def print_comparison(comparison: Mapping[str, Any]) -> None:
    """Print figures, differences to the first run, and the settings that differ."""
    runs, settings = comparison["runs"], settings_table(comparison)
    found = figures_table(comparison)
    if len(runs) > _SIDE_BY_SIDE:
        title = f"{len(runs)} runs; *: beyond the 95 % interval of the difference to the first"
        print_table(_below_each_other(comparison), title)
        if settings.rows:
            print(f"\nsettings that differ: {', '.join(str(row[0]) for row in settings.rows)}")
    else:
        if len(runs) == 1:
            title = f"{runs[0]['dataset']}: {runs[0]['kind'].removeprefix('gatewise-')}"
        else:
            title = f"differences to {runs[0]['name']}; within: inside the 95 % intervals"
            firsts = [[row[0], row[1][0], *row[2:]] for row in found.rows]
            found = replace(found, rows=firsts)
        print_table(found, title)
        if settings.rows:
            print()
            print_table(settings, "settings that differ")
    if len(runs) > 1:
        print(f"\n{conclusion(comparison)}")


def figures_table(comparison: Mapping[str, Any]) -> PageTable:
    """A row for each figure, a column for each run.

    Below a figure stands its difference to the first run's, and below that one its interval.
    """
    names = [run["name"] for run in comparison["runs"]]
    rows = [
        [figure.name, *(_cell(comparison, figure, run) for run in comparison["runs"])]
        for figure in _figures(comparison)
    ]
    return PageTable("All figures", ["", *names], rows)


def _below_each_other(comparison: Mapping[str, Any]) -> PageTable:
    """A row for each run, a column for each of the main figures."""
    figures = [figure for figure in _figures(comparison) if figure.key in _CHOSEN]
    rows = []
    for run in comparison["runs"]:
        row = [run["name"]]
        for figure in figures:
            found = _difference(comparison, figure, run)
            beyond = found is not None and found["beyond"]
            row.append(figure_text(figure, run) + " *" * bool(beyond))
        rows.append(row)
    return PageTable("", ["", *(figure.name for figure in figures)], rows)


def settings_table(comparison: Mapping[str, Any]) -> PageTable:
    """The settings that differ, a column for each run."""
    rows = [
        [s["name"], *("-" if v is None or v == "" else plain_text(v) for v in s["values"])]
        for s in comparison["settings"]
    ]
    names = [run["name"] for run in comparison["runs"]]
    return PageTable("Settings that differ", ["", *names], rows)


def comparison_page(comparison: Mapping[str, Any]) -> str:
    """Make the page of a comparison as HTML."""
    # Here, since a table on a terminal needs no plotting library.
    from gatewise_sim.report.page import Page, Plot, Section, write_page
    from gatewise_sim.report.plots.figure_strips import strips_plot

    runs = comparison["runs"]
    names = [run["name"] for run in runs]
    sections = []
    strips = strips_plot(runs, _figures(comparison))
    if strips is not None:
        text = (
            "Each on a scale of its own; bars are 95 % intervals, where there are any. The runs "
            "are in the order of the table, from above."
        )
        sections.append(
            Section("strips", "Every figure that differs", text, figures=[Plot(strips)])
        )
    sections.append(
        Section(
            "figures",
            "In numbers",
            _HOW.format(names[0]) if len(runs) > 1 else "",
            wide=strips is None or len(runs) > _SIDE_BY_SIDE,
            tables=[figures_table(comparison)],
        )
    )
    settings = settings_table(comparison)
    if settings.rows:
        sections.append(Section("settings", settings.name, wide=True, tables=[settings]))
    files = [[run["name"], f"{run['file']} ({run['kind']})"] for run in runs]
    sections.append(Section("files", "The reports", wide=True, pairs=[PageTable("", [], files)]))
    more = [f"{len(names) - _SIDE_BY_SIDE} more"] if len(names) > _SIDE_BY_SIDE + 1 else []
    shown = listed([*names[: _SIDE_BY_SIDE if more else None], *more])
    return write_page(
        Page(
            title=shown,
            about="A run" if len(runs) == 1 else f"{len(runs)} runs side by side: {shown}",
            headline=_headline(comparison),
            sections=sections,
            footer="Made by gatewise report from the reports' own numbers.",
        )
    )


def figure_text(figure: ComparedFigure, run: Mapping[str, Any]) -> str:
    """Write a run's figure; a dash where there is none."""
    found = run["figures"].get(figure.key)
    text = figure.text(found)
    if found is not None and figure.key.startswith("money") and run["currency"]:
        text += f" {run['currency']}"
    return text


def change_text(figure: ComparedFigure, value: float) -> str:
    """Write a difference with its sign; shares in percentage points."""
    if value == 0:
        return "0"
    text = figure.form(abs(value))
    if text.endswith(" %"):
        text = f"{text[:-2]} pp"
    return f"{'+' if value > 0 else '-'}{text}"


def verdict(figure: ComparedFigure, difference: Mapping[str, Any]) -> str:
    """Name a difference: better, worse, beyond or within chance; empty where that is unknown."""
    if difference["beyond"] is None:
        return ""
    if not difference["beyond"]:
        return "within"
    if not figure.better:
        return "beyond"
    return "better" if difference["value"] * figure.better > 0 else "worse"


def conclusion(comparison: Mapping[str, Any]) -> str:
    """Name in a sentence the differences that are beyond chance."""
    known = [d for d in comparison["differences"] if d["beyond"] is not None]
    if not known:
        return "No figure has an interval in both: whether a difference is chance is not known."
    beyond = list(dict.fromkeys(d["figure"] for d in known if d["beyond"]))
    if not beyond:
        return "Where there are 95 % intervals, no difference is beyond them."
    return f"Beyond the 95 % intervals: {'; '.join(BY_KEY[key].name for key in beyond)}."


def _figures(comparison: Mapping[str, Any]) -> list[ComparedFigure]:
    """The figures that at least one run has."""
    return [f for f in FIGURES if any(f.key in run["figures"] for run in comparison["runs"])]


def _difference(
    comparison: Mapping[str, Any], figure: ComparedFigure, run: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    wanted = figure.key, run["name"]
    found = (d for d in comparison["differences"] if (d["figure"], d["run"]) == wanted)
    return next(found, None)


def _headline(comparison: Mapping[str, Any]) -> tuple[str, str]:
    """What the first two runs came to, and which differences are more than chance."""
    parts = []
    for run in comparison["runs"][:2]:
        texts = [
            f"{BY_KEY[key].text(run['figures'][key])} {word}"
            for key, word in (("accuracy", "accurate"), ("offload_rate", "offloaded"))
            if key in run["figures"]
        ]
        parts.append(f"{run['name']}: {', '.join(texts)}")
    more = len(comparison["runs"]) - len(parts)
    if more:
        parts.append(f"and {more} more")
    rest = conclusion(comparison) if len(comparison["runs"]) > 1 else ""
    return "; ".join(parts) + ".", f" {rest}"


def _cell(comparison: Mapping[str, Any], figure: ComparedFigure, run: Mapping[str, Any]) -> Cell:
    text = figure_text(figure, run)
    if run is comparison["runs"][0]:
        return text, figure.interval(run["figures"].get(figure.key))
    difference = _difference(comparison, figure, run)
    if difference is None:
        return text
    parts = [change_text(figure, difference["value"]), verdict(figure, difference)]
    return text, " ".join(filter(None, parts))
