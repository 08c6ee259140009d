"""A comparison of runs on a terminal, and as a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gatewise.console import table
from gatewise.formats import listed
from gatewise_sim.report.comparison.figures import BY_KEY, FIGURES, ComparedFigure
from gatewise_sim.report.tables import Cell, PageTable, plain_text

_SIDE_BY_SIDE: Final = 4  # runs; more are shown one below the other
_CHOSEN: Final = ("accuracy", "offload_rate", "cost", "bytes", "p50", "p95", "fallback", "money")
_HOW: Final = (
    "Below a figure its difference to {}. Better, worse, beyond: the 95 % interval of the "
    "difference leaves out 0; within: chance alone may make it. The intervals take the runs as "
    "independent: for runs on the same rows the truth is rather surer."
)


def print_comparison(comparison: Mapping[str, Any]) -> None:
    """Print figures, differences to the first run, and the settings that differ."""
    runs, settings = comparison["runs"], comparison["settings"]
    names = [run["name"] for run in runs]
    _print_figures(comparison)
    if len(runs) <= _SIDE_BY_SIDE and settings:
        print()
        rows = [[s["name"], *map(_setting_text, s["values"])] for s in settings]
        table("settings that differ", ["", *names], rows)
    elif settings:
        print(f"\nsettings that differ: {', '.join(s['name'] for s in settings)}")
    if len(runs) > 1:
        print(f"\n{conclusion(comparison)}")


def _print_figures(comparison: Mapping[str, Any]) -> None:
    """Print a line for each figure; for many runs a line for each run, with the main figures."""
    runs, figures = comparison["runs"], _figures(comparison)
    many = len(runs) > _SIDE_BY_SIDE
    if many:
        figures = [figure for figure in figures if figure.key in _CHOSEN]
        title = f"{len(runs)} runs; *: beyond the 95 % interval of the difference to the first"
    elif len(runs) == 1:
        title = f"{runs[0]['dataset']}: {runs[0]['kind'].removeprefix('gatewise-')}"
    else:
        title = f"differences to {runs[0]['name']}; within: inside the 95 % intervals"
    columns = [["", *(figure.name for figure in figures)]]
    for run in runs:
        found = [_difference(comparison, figure, run) for figure in figures]
        texts = [figure_text(figure, run, bounds=len(runs) == 1) for figure in figures]
        if many:
            beyond = [difference is not None and difference["beyond"] for difference in found]
            texts = [f"{t} *" if far else t for t, far in zip(texts, beyond, strict=True)]
        columns.append([run["name"], *texts])
        if not many and run is not runs[0]:
            pairs = list(zip(figures, found, strict=True))
            columns.append(
                ["difference", *("" if d is None else change_text(f, d["value"]) for f, d in pairs)]
            )
            columns.append(["", *(verdict(f, d) for f, d in pairs)])
    header, *rows = columns if many else [list(row) for row in zip(*columns, strict=True)]
    table(title, header, rows)


def comparison_page(comparison: Mapping[str, Any]) -> str:
    """Make the page of a comparison as HTML."""
    # Here, since a table on a terminal needs no plotting library.
    from gatewise_sim.report.page import Page, Plot, Section, write_page
    from gatewise_sim.report.plots.figure_strips import strips_plot

    runs, figures = comparison["runs"], _figures(comparison)
    names = [run["name"] for run in runs]
    sections = []
    strips = strips_plot(runs, figures)
    if strips is not None:
        text = (
            "Each on a scale of its own; bars are 95 % intervals, where there are any. The runs "
            "are in the order of the table, from above."
        )
        sections.append(
            Section(
                key="strips",
                title="Every figure that differs",
                text=text,
                figures=[Plot(plot=strips)],
            )
        )
    rows = [[f.name, *(_cell(comparison, f, run) for run in runs)] for f in figures]
    sections.append(
        Section(
            key="figures",
            title="In numbers",
            text=_HOW.format(names[0]) if len(runs) > 1 else "",
            wide=strips is None or len(runs) > _SIDE_BY_SIDE,
            tables=[PageTable("All figures", ["", *names], rows)],
        )
    )
    settings = [[s["name"], *map(_setting_text, s["values"])] for s in comparison["settings"]]
    if settings:
        sections.append(
            Section(
                key="settings",
                title="Settings that differ",
                wide=True,
                tables=[PageTable("Settings that differ", ["", *names], settings)],
            )
        )
    files = [[run["name"], f"{run['file']} ({run['kind']})"] for run in runs]
    sections.append(
        Section(key="files", title="The reports", wide=True, pairs=[PageTable("", [], files)])
    )
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


def figure_text(figure: ComparedFigure, run: Mapping[str, Any], *, bounds: bool = False) -> str:
    """Write a run's figure, with its interval if asked for; a dash where there is none."""
    found = run["figures"].get(figure.key)
    text = figure.text(found)
    if found is not None and figure.key.startswith("money") and run["currency"]:
        text += f" {run['currency']}"
    ends = figure.interval(found) if bounds else ""
    return f"{text} ({ends})" if ends else text


def change_text(figure: ComparedFigure, value: float) -> str:
    """Write a difference with its sign; shares in percentage points."""
    if value == 0:
        return "0"
    text = figure.form(abs(value))
    if text.endswith(" %"):
        text = f"{text[:-2]} pp"
    return f"{'+' if value > 0 else '-'}{text}"


def verdict(figure: ComparedFigure, difference: Mapping[str, Any] | None) -> str:
    """Name a difference: better, worse, beyond or within chance; empty where that is unknown."""
    if difference is None or difference["beyond"] is None:
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


def _setting_text(value: Any) -> str:
    return "-" if value is None or value == "" else plain_text(value)


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
    """A figure, and below it its difference, or for the first run its interval."""
    text = figure_text(figure, run)
    if run is comparison["runs"][0]:
        return text, figure.interval(run["figures"].get(figure.key))
    difference = _difference(comparison, figure, run)
    if difference is None:
        return text
    parts = [change_text(figure, difference["value"]), verdict(figure, difference)]
    return text, " ".join(filter(None, parts))
