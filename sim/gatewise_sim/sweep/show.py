"""A sweep as a table on a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gatewise.console import table
from gatewise_sim.experiment.sweep.settings import setting
from gatewise_sim.sweep.summary import FORMS, sorted_points

__all__ = ["COLUMNS", "columns", "show"]

COLUMNS: Final = {
    "accuracy": "accuracy",
    "offload_rate": "sent",
    "p50": "p50",
    "p95": "p95",
    "offloaded_p95": "p95 sent",
    "bytes": "bytes",
    "joules": "J",
    "fallback": "fallback",
    "utilisation": "busy",
}
"""Figures that a sweep's tables show, and their short names; cost comes after accuracy."""


_ON_PAPER: Final = ("p50", "bytes", "joules", "utilisation")
"""Those that a terminal has no room for."""


def columns(document: Mapping[str, Any]) -> dict[str, str]:
    """Give the columns of a sweep's table: key of a figure to its heading."""
    cost = document["cost"]
    unit = {
        "money": f"{document['currency']}/month",
        "money_per_million": f"{document['currency']}/10^6",
    }.get(cost, "cost")
    found = {}
    for key, name in COLUMNS.items():
        if any(key in point["figures"] for point in document["points"]):
            found[key] = name
        if key == "accuracy":
            found[cost] = unit
    return found


def show(document: Mapping[str, Any], folder: Path) -> None:
    """Print the points, cheapest first, and the answer."""
    shown = {key: name for key, name in columns(document).items() if key not in _ON_PAPER}
    names = [sweep["name"] for sweep in document["sweeps"]]
    rows = []
    for at, point in sorted_points(document):
        told = [setting({name: point["settings"][name]}).partition("=")[2] for name in names]
        cells = [
            FORMS[key].form(figure["value"]) if (figure := point["figures"].get(key)) else "-"
            for key in shown
        ]
        mark = "*" if point["frontier"] else ""
        rows.append([str(at + 1), *told, *cells, mark])
    count = len(document["points"])
    table(
        f"{document['dataset'] or 'sweep'}: {count} points, cheapest first",
        ["", *names, *shown.values(), ""],
        rows,
    )
    if any(point["frontier"] for point in document["points"]):
        print("*: no other is both cheaper and more accurate")
    for at, point in enumerate(document["points"]):
        if point["error"]:
            print(f"{at + 1} failed: {point['error']}")
    print(f"\n{document['answer']}\n{folder / 'sweep.html'}")
