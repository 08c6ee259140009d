"""The drawing of a comparison: each figure a strip with a dot and an interval for every run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from markupsafe import Markup

from gatewise_sim.compare.figures import Figure
from gatewise_sim.report.drawings.marks import STYLES, shape, whisker
from gatewise_sim.report.svg import Linear, Log, document, tag

__all__ = ["LOOKS", "draw_strips", "runs_legend"]

_WIDTH: Final = 360.0
_LANE: Final = 13.0  # of one run
_FAR: Final = 20.0  # from here on a scale is logarithmic: largest over smallest
LOOKS: Final = tuple(STYLES)
"""Keys of colours and shapes, one a run; of more runs all but the first look alike."""


def look(number: int, runs: int) -> str:
    """Give the colour and shape of a run."""
    if runs <= len(LOOKS):
        return LOOKS[number]
    return LOOKS[0] if number == 0 else LOOKS[2]


def draw_strips(
    runs: Sequence[Mapping[str, Any]], figures: Sequence[Figure], *, name: str = "strips"
) -> Markup | None:
    """Draw figures below each other, each on a scale of its own; bars are 95 % intervals.

    Parameters
    ----------
    runs : sequence of mapping
        Of :func:`gatewise_sim.compare.difference.compare_runs`.
    figures : sequence of Figure
        Those that fewer than two runs have, or that are the same in all, are left out.
    name : str
        Prefix of the ids.

    Returns
    -------
    Markup or None
        None if there is nothing to draw.
    """
    shown = [figure for figure in figures if _differs(runs, figure)]
    if not shown:
        return None
    lane = _LANE if len(runs) <= len(LOOKS) else 7.0
    strip = 40.0 + lane * len(runs)
    left, right = 12.0, _WIDTH - 12.0
    drawn: list[Markup] = []
    said = []
    for i, figure in enumerate(shown):
        top = strip * i
        base = top + 24.0 + lane * len(runs)
        values = [r["figures"].get(figure.key) for r in runs]
        ends = [v for value in values if value is not None for v in _ends(value)]
        low, high = min(ends), max(ends)
        x: Linear | Log
        if low > 0 and high / low >= _FAR:
            x = Log(low, high, left, right)
        else:
            # Amounts begin at 0, so that their places show ratios; shares do not.
            low = low if figure.form(0.5).endswith("%") else min(low, 0.0)
            x = Linear(low, high, left, right)
        note = " (log scale)" if isinstance(x, Log) else ""
        drawn += [
            tag("text", tag("tspan", figure.name, cls="direct"), note, x=0.0, y=top + 14),
            tag("line", x1=0.0, x2=_WIDTH, y1=base, y2=base, cls="base"),
            tag("text", figure.form(low), x=0.0, y=base + 13, cls="tick"),
            tag("text", figure.form(high), x=_WIDTH, y=base + 13, cls="tick end"),
        ]  # fmt: skip
        told = []
        for number, (run, value) in enumerate(zip(runs, values, strict=True)):
            if value is None:
                continue
            y = top + 24.0 + lane * (number + 0.5)
            style = look(number, len(runs))
            low_x, high_x = x(_ends(value)[0]), x(_ends(value)[-1])
            drawn.append(tag("line", x1=0.0, x2=_WIDTH, y1=y, y2=y, cls="grid"))
            if high_x - low_x > 1:
                drawn.append(whisker(low_x, y, high_x, y, STYLES[style][0]))
            text = f"{run['name']}: {figure.form(value['value'])}"
            size = 4.6 if lane >= _LANE else 3.0
            drawn.append(tag("g", tag("title", text), shape(style, x(value["value"]), y, size)))
            told.append(f"{run['name']} {figure.form(value['value'])}")
        said.append(f"{figure.name}: {', '.join(told)}")
    return document(
        _WIDTH,
        strip * len(shown),
        *drawn,
        title="Every figure that differs",
        description=". ".join(said) + ".",
        name=name,
    )


def runs_legend(runs: Sequence[Mapping[str, Any]]) -> Markup:
    """A list of the runs, each with its mark; empty where most look alike."""
    if len(runs) > len(LOOKS):
        return Markup("")
    items = Markup("").join(
        Markup("<li>{}<span>{}</span></li>").format(swatch(i, len(runs)), run["name"])
        for i, run in enumerate(runs)
    )
    return Markup('<ul class="legend">{}</ul>').format(items)


def swatch(number: int, runs: int) -> Markup:
    """The mark of a run, for the text."""
    mark = shape(look(number, runs), 7.0, 7.0, 5.5)
    return tag("svg", mark, viewBox="0 0 14 14", cls="swatch", aria_hidden="true")


def _ends(value: Mapping[str, Any]) -> list[float]:
    return [v for v in (value["low"], value["value"], value["high"]) if v is not None]


def _differs(runs: Sequence[Mapping[str, Any]], figure: Figure) -> bool:
    values = [v["value"] for r in runs if (v := r["figures"].get(figure.key)) is not None]
    return len(values) > 1 and len(set(values)) > 1
