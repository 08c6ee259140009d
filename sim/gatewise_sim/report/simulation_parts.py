"""Where milliseconds, bytes, joules and money of each policy go: bars split into parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from markupsafe import Markup

from gatewise_sim.report import words
from gatewise_sim.report.drawings.bars import draw_bars, legend
from gatewise_sim.report.drawings.picture import Picture, pictured
from gatewise_sim.report.simulation_words import priced, value

__all__ = ["Chart", "where_it_goes"]

_MONEY: Final = ("data", "workers", "energy", "features", "requests", "devices")

_Report = Mapping[str, Any]
_Parts = dict[str, float]


@dataclass(frozen=True)
class Chart:
    """One drawing with its legend and the numbers behind it.

    Attributes
    ----------
    title, unit : str
    drawing : Picture
    legend : Markup
    columns : list of str
    rows : list of list of str
    """

    title: str
    unit: str
    drawing: Picture
    legend: Markup
    columns: list[str]
    rows: list[list[str]]


def where_it_goes(report: _Report) -> list[Chart]:
    """Make the charts that there are figures for."""
    asked: list[tuple[str, str, str, Callable[[_Report, _Report], _Parts]]] = [
        ("Milliseconds", "mean per instance, from arrival to answer", "ms", _ms),
        ("Bytes", "mean per instance, on the device's link", "bytes", _bytes),
        ("Joules", "mean per instance, of the device", "joules", _joules),
    ]
    if priced(report):
        currency = report["money"]["currency"]
        asked.append((f"{currency} a month", "of the whole fleet", "money", _money))
    found = []
    for title, unit, name, parts_of in asked:
        rows = {entry["key"]: parts_of(entry, report) for entry in report["legs"]}
        used = [p for p in rows["system"] if any(parts.get(p, 0) > 0 for parts in rows.values())]
        if used:
            found.append(_chart(report, title, unit, name, rows, used))
    return found


def _chart(
    report: _Report, title: str, unit: str, name: str, rows: Mapping[str, _Parts], used: list[str]
) -> Chart:
    names = {entry["key"]: entry["name"] for entry in report["legs"]}
    drawn = [(key, names[key], {p: parts.get(p, 0.0) for p in used}) for key, parts in rows.items()]
    system = rows["system"]
    total = sum(system.values())
    form = words.joules if name == "joules" else words.number
    shares = {
        p: f"{form(system[p])}, {words.percent(system[p] / total, 0)}" if total else form(system[p])
        for p in used
    }
    return Chart(
        title=title,
        unit=unit,
        drawing=pictured(
            partial(draw_bars, drawn, title=f"{title}, {unit}", unit="", form=form), name
        ),
        legend=legend(shares),
        columns=["", *used, "all"],
        rows=[
            [label, *(form(parts[p]) for p in used), form(sum(parts.values()))]
            for _, label, parts in drawn
        ],
    )


def _ms(entry: _Report, report: _Report) -> _Parts:
    parts = dict(entry["breakdown_ms"])
    return {"the cloud" if p == "cloud" else p: max(ms, 0.0) for p, ms in parts.items()}


def _bytes(entry: _Report, report: _Report) -> _Parts:
    sizes = entry["bytes"]
    if "protocol" in sizes:
        return {p: value(entry, "bytes", p) or 0.0 for p in ("request", "response", "protocol")}
    return {p: value(entry, "bytes", p) or 0.0 for p in ("up", "down")}


def _joules(entry: _Report, report: _Report) -> _Parts:
    # Idling is a matter of time alone: the same for all.
    idle = report["breakdown"]["joules"].get("idle") or 0.0
    return {p: entry["joules"][p] for p in ("radio", "features", "stages")} | {"idle": idle}


def _money(entry: _Report, report: _Report) -> _Parts:
    return {p: entry["money"][p] for p in _MONEY}
