"""A sweep as one self-contained page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from markupsafe import Markup

from gatewise_sim.compare.show import bounds
from gatewise_sim.experiment.sweep.settings import setting
from gatewise_sim.report.drawings.marks import shape
from gatewise_sim.report.html import one_line_each, write_page
from gatewise_sim.report.svg import tag
from gatewise_sim.sweep.charts import axis_of, draw_panel, draw_points, series_legend
from gatewise_sim.sweep.show import columns
from gatewise_sim.sweep.summary import FORMS, cost_unit, sorted_points

__all__ = ["render"]

_PANELS: Final = ("accuracy", "p95", "offloaded_p95")
_BEST: Final = ("accuracy", "p95")
_INTERVALS: Final = ("accuracy", "cost", "p50", "p95", "offloaded_p95")
"""Figures whose interval stands below them; the others' are in the files."""


def render(document: Mapping[str, Any]) -> str:
    """Make the page of a sweep.

    Parameters
    ----------
    document : mapping
        As written to ``sweep.json``.

    Returns
    -------
    str
        HTML.
    """
    names = [sweep["name"] for sweep in document["sweeps"]]
    shown = columns(document)
    axis = axis_of(document)
    first, _, rest = document["answer"].partition(". ")
    panels = []
    if axis is not None:
        for key in dict.fromkeys((_PANELS[0], document["cost"], *_PANELS[1:])):
            drawing = draw_panel(document, key, axis, name=f"panel-{key}")
            if drawing is not None:
                panels.append({"title": _title(document, key), "drawing": drawing})
    return write_page(
        "sweep.html.j2",
        script="sort.js",
        document=document,
        names=names,
        answer=[_together(text) for text in (f"{first.rstrip('.')}.", rest)],
        failures=[
            f"{setting(point['settings'])}: {point['error']}"
            for point in document["points"]
            if point["error"]
        ],
        points=draw_points(document),
        best=_best(document),
        axis="" if axis is None else axis.name.replace("_", " "),
        legend="" if axis is None else series_legend(axis),
        panels=panels,
        columns=["", *(name.replace("_", " ") for name in names), *shown.values()],
        rows=[_row(document, at, point, shown) for at, point in sorted_points(document)],
        command=one_line_each(document["command"]),
        base=_base(document["of"]),
    )


def _together(text: str) -> str:
    """Keep a number and its unit on one line."""
    for unit in ("%", "ms"):
        text = text.replace(f" {unit}", f"\N{NO-BREAK SPACE}{unit}")
    return text


def _title(document: Mapping[str, Any], key: str) -> str:
    unit = cost_unit(document) if key == document["cost"] else ""
    name = unit or FORMS[key].name
    return name[0].upper() + name[1:]


def _best(document: Mapping[str, Any]) -> dict[str, Any]:
    """The frontier's points, cheapest first."""
    keys = (document["cost"], *_BEST)
    rows = [
        {
            "number": at + 1,
            "cells": [_text(point, key) for key in keys],
            "setting": setting(point["settings"]),
        }
        for at, point in sorted_points(document)
        if point["frontier"]
    ]
    heads = columns(document)
    return {"columns": ["", *(heads.get(key, key) for key in keys)], "rows": rows}


def _row(
    document: Mapping[str, Any], at: int, point: Mapping[str, Any], shown: Mapping[str, str]
) -> dict[str, Any]:
    cells = [
        {"text": setting({name: value}).partition("=")[2], "sort": _sortable(value), "small": ""}
        for name, value in point["settings"].items()
    ]
    for key in shown:
        figure = point["figures"].get(key)
        small = ""
        if (
            figure is not None
            and key in _INTERVALS
            and figure["low"] is not None
            and figure["low"] < figure["high"]
        ):
            small = bounds(FORMS[key], figure)
        value = None if figure is None else figure["value"]
        cells.append({"text": _text(point, key), "sort": _sortable(value), "small": small})
    look = "system" if point["frontier"] else "cloud_only"
    return {
        "number": at + 1,
        "swatch": "" if point["error"] else _swatch(look),
        "chosen": at == document["cheapest"],
        "cells": cells,
    }


def _swatch(look: str) -> Markup:
    return tag(
        "svg", shape(look, 7.0, 7.0, 5.5), viewBox="0 0 14 14", cls="key", aria_hidden="true"
    )


def _text(point: Mapping[str, Any], key: str) -> str:
    figure = point["figures"].get(key)
    return "-" if figure is None else FORMS[key].form(figure["value"])


def _sortable(value: Any) -> str:
    """A value for the script that sorts: numbers as such, nothing as an empty text."""
    if value is None:
        return ""
    return str(int(value)) if isinstance(value, bool) else str(value)


def _base(of: Mapping[str, Any]) -> list[tuple[str, str]]:
    job = dict(of["job"])
    scenario = job.pop("scenario", None) or {}
    rows = [(key, str(value)) for key, value in job.items() if not isinstance(value, dict)]
    rows += [(key.replace("_", " "), str(value)) for key, value in scenario.items()]
    rows += [(f"SHA-256 of {file}", digest) for file, digest in of["files"].items()]
    return [*rows, ("gatewise", of["gatewise"])]
