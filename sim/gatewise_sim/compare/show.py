"""A comparison as tables on a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from gatewise.console import table
from gatewise_sim.compare.figures import FIGURES, Figure

__all__ = [
    "bounds",
    "cell",
    "changed",
    "figures_of",
    "only_some",
    "plain_value",
    "said",
    "show",
    "verdict",
]

_SIDE_BY_SIDE: Final = 4  # runs; more are shown one below the other
_CHOSEN: Final = ("accuracy", "offload_rate", "cost", "bytes", "p50", "p95", "fallback", "money")


def show(comparison: Mapping[str, Any]) -> None:
    """Print figures, differences to the first run, and the settings that differ."""
    runs = comparison["runs"]
    figures = figures_of(comparison)
    if len(runs) == 1:
        _alone(comparison, figures)
    elif len(runs) <= _SIDE_BY_SIDE:
        _columns(comparison, figures)
    else:
        _rows(comparison, [f for f in figures if f.key in _CHOSEN])
    if comparison["settings"]:
        print()
        _settings(comparison)
    if len(runs) > 1:
        print("\n" + said(comparison))


def only_some(comparison: Mapping[str, Any]) -> str:
    """List the settings that not every kind of run has."""
    return ", ".join(s["name"] for s in comparison["settings"] if not s["common"])


def figures_of(comparison: Mapping[str, Any]) -> list[Figure]:
    """Give the figures that at least one run has."""
    return [f for f in FIGURES if any(f.key in run["figures"] for run in comparison["runs"])]


def cell(figure: Figure, run: Mapping[str, Any], *, interval: bool = False) -> str:
    """Write a run's figure, with its interval if asked for; a dash where there is none."""
    value = run["figures"].get(figure.key)
    if value is None:
        return "-"
    text = figure.form(value["value"])
    if figure.key.startswith("money") and run["currency"]:
        text += f" {run['currency']}"
    if interval and value["low"] is not None and value["low"] != value["high"]:
        text += f" ({bounds(figure, value)})"
    return text


def bounds(figure: Figure, value: Mapping[str, Any]) -> str:
    """Write the ends of an interval."""
    low, high = figure.form(value["low"]), figure.form(value["high"])
    shared = low.rpartition(" ")[2]
    if not shared[:1].isdigit() and high.endswith(f" {shared}"):
        low = low.removesuffix(f" {shared}")
    return f"{low} to {high}"


def changed(figure: Figure, value: float) -> str:
    """Write a difference with its sign; shares in percentage points."""
    text = figure.form(abs(value))
    if text.endswith(" %"):
        text = f"{text[:-2]} pp"
    if value == 0:
        return "0"
    return f"{'+' if value > 0 else '-'}{text}"


def verdict(figure: Figure, difference: Mapping[str, Any] | None) -> str:
    """Say whether a difference is more than chance: better, worse, other, within; or unknown."""
    if difference is None or difference["beyond"] is None:
        return ""
    if not difference["beyond"]:
        return "within"
    if not figure.better:
        return "beyond"
    return "better" if difference["value"] * figure.better > 0 else "worse"


def said(comparison: Mapping[str, Any]) -> str:
    """Say in a sentence which differences are beyond chance."""
    names = {figure.key: figure.name for figure in FIGURES}
    known = [d for d in comparison["differences"] if d["beyond"] is not None]
    if not known:
        return "No figure has an interval in both: whether a difference is chance is not known."
    beyond = list(dict.fromkeys(d["figure"] for d in known if d["beyond"]))
    if not beyond:
        return "Where there are 95 % intervals, no difference is beyond them."
    return f"Beyond the 95 % intervals: {'; '.join(names[key] for key in beyond)}."


def _alone(comparison: Mapping[str, Any], figures: Sequence[Figure]) -> None:
    runs = comparison["runs"]
    rows = [[f.name, cell(f, runs[0], interval=True)] for f in figures]
    table(_title(runs[0]), ["", runs[0]["name"]], rows)


def _columns(comparison: Mapping[str, Any], figures: Sequence[Figure]) -> None:
    runs = comparison["runs"]
    found = {(d["figure"], d["run"]): d for d in comparison["differences"]}
    header = ["", runs[0]["name"]]
    for run in runs[1:]:
        header += [run["name"], "difference", ""]
    rows = []
    for figure in figures:
        row = [figure.name, cell(figure, runs[0])]
        for run in runs[1:]:
            difference = found.get((figure.key, run["name"]))
            text = "" if difference is None else changed(figure, difference["value"])
            row += [cell(figure, run), text, verdict(figure, difference)]
        rows.append(row)
    title = f"differences to {runs[0]['name']}; within: inside the 95 % intervals"
    table(title, header, rows)


def _rows(comparison: Mapping[str, Any], figures: Sequence[Figure]) -> None:
    runs = comparison["runs"]
    found = {(d["figure"], d["run"]): d for d in comparison["differences"]}
    rows = []
    for run in runs:
        row = [run["name"]]
        for figure in figures:
            difference = found.get((figure.key, run["name"]))
            mark = " *" if difference is not None and difference["beyond"] else ""
            row.append(cell(figure, run) + mark)
        rows.append(row)
    title = f"{len(runs)} runs; *: beyond the 95 % interval of the difference to the first"
    table(title, ["", *(f.name for f in figures)], rows)


def _settings(comparison: Mapping[str, Any]) -> None:
    runs = comparison["runs"]
    settings = [s for s in comparison["settings"] if s["common"]]
    if len(runs) <= _SIDE_BY_SIDE:
        rows = [[s["name"], *map(plain_value, s["values"])] for s in settings]
        table("settings that differ", ["", *(run["name"] for run in runs)], rows)
    else:
        print("settings that differ: " + ", ".join(s["name"] for s in settings))
    if only := only_some(comparison):
        print(f"of some kinds of run only: {only}")


def plain_value(value: Any) -> str:
    """Write a setting of any kind; a dash where there is none."""
    if value is None or value == "":
        return "-"
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def _title(run: Mapping[str, Any]) -> str:
    return f"{run['dataset']}: {run['kind'].removeprefix('gatewise-')}"
