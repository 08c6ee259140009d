"""A comparison as one self-contained page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from gatewise_sim.compare.chart import draw_strips, runs_legend
from gatewise_sim.compare.show import (
    bounds,
    cell,
    changed,
    figures_of,
    only_some,
    plain_value,
    said,
    verdict,
)
from gatewise_sim.report.html import write_page

__all__ = ["render"]

_MANY: Final = 4


def render(comparison: Mapping[str, Any]) -> str:
    """Make the page of a comparison.

    Parameters
    ----------
    comparison : mapping
        Of :func:`gatewise_sim.compare.difference.compare_runs`.

    Returns
    -------
    str
        HTML.
    """
    runs, figures = comparison["runs"], figures_of(comparison)
    names = [run["name"] for run in runs]
    return write_page(
        "comparison.html.j2",
        runs=runs,
        named=_listed(names),
        many=len(runs) > _MANY,
        headline=_headline(comparison),
        legend=runs_legend(runs),
        strips=draw_strips(runs, figures),
        columns=["", *names],
        rows=[
            [figure.name, *(_cell(comparison, figure, run) for run in runs)] for figure in figures
        ],
        setting_columns=["", *names],
        settings=[
            [setting["name"], *map(plain_value, setting["values"])]
            for setting in comparison["settings"]
            if setting["common"]
        ],
        only_some=only_some(comparison),
        files=[(run["name"], f"{run['file']} ({run['kind']})") for run in runs],
    )


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MANY
    return f"{', '.join(names[:_MANY])} and {more} more" if more > 1 else ", ".join(names)


def _headline(comparison: Mapping[str, Any]) -> tuple[str, str]:
    """What the runs came to, and which differences are more than chance."""
    parts = []
    for run in comparison["runs"][:2]:
        accuracy = run["figures"].get("accuracy")
        right = "" if accuracy is None else f"{100 * accuracy['value']:.1f} % accurate, "
        rate = run["figures"]["offload_rate"]["value"] if "offload_rate" in run["figures"] else 0
        parts.append(f"{run['name']}: {right}{100 * rate:.1f} % offloaded")
    more = len(comparison["runs"]) - len(parts)
    if more:
        parts.append(f"and {more} more")
    return "; ".join(parts) + ".", said(comparison) if len(comparison["runs"]) > 1 else ""


def _cell(comparison: Mapping[str, Any], figure: Any, run: Mapping[str, Any]) -> tuple[str, str]:
    """A figure, and below it its difference, or for the first run its interval."""
    text = cell(figure, run)
    if run is comparison["runs"][0]:
        value = run["figures"].get(figure.key)
        bare = value is None or value["low"] is None or value["low"] == value["high"]
        return text, "" if bare else bounds(figure, value)
    for difference in comparison["differences"]:
        if (difference["figure"], difference["run"]) == (figure.key, run["name"]):
            verdict_ = verdict(figure, difference)
            return text, " ".join(filter(None, [changed(figure, difference["value"]), verdict_]))
    return text, ""
