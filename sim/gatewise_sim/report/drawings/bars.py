"""Bars: one a leg, whole or split into parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from markupsafe import Markup, escape

from gatewise_sim.report import words
from gatewise_sim.report.drawings.marks import FILLS, STYLES, Fill, swatch
from gatewise_sim.report.svg import Linear, document, tag, text_width

__all__ = ["draw_bars", "legend"]

_ROW: Final = 26.0


def draw_bars(
    rows: Sequence[tuple[str, str, Mapping[str, float]]],
    *,
    title: str,
    unit: str,
    width: float,
    name: str,
    form: Callable[[float], str] = words.number,
) -> Markup:
    """Draw one bar a leg against the longest, with its number.

    Parameters
    ----------
    rows : sequence of (key, name, parts)
        Of each leg. Parts have the fills of :data:`~gatewise_sim.report.drawings.marks.FILLS`; a
        single part without a name has the leg's own colour.
    title, unit : str
        What is measured, and in what.
    width, name
        As :func:`gatewise_sim.report.drawings.picture.pictured` gives them.
    form : callable
        Writes a figure.
    """
    left = 8.0 + max([text_width(label, bold=True) for _, label, _ in rows] + [40.0])
    longest = max([sum(parts.values()) for _, _, parts in rows] + [1e-12])
    room = max([text_width(form(sum(p.values()))) for _, _, p in rows] + [30.0])
    x = Linear(0.0, longest, left, width - 10 - room)
    drawn: list[Markup] = []
    for i, (key, label, parts) in enumerate(rows):
        mid, total, colour = _ROW * (i + 0.5), sum(parts.values()), STYLES.get(key, ("ink", ""))[0]
        drawn.append(tag("text", label, x=left - 8, y=mid + 4, cls=f"direct end {colour}"))
        begin = 0.0
        for part, value in parts.items():
            if value > 0:
                fill = FILLS[part] if part else Fill(colour)
                wide = max(x(begin + value) - x(begin), 0.6)
                drawn.append(
                    tag("rect", tag("title", f"{label}, {part}: {form(value)} {unit}".strip()),
                        x=x(begin), y=mid - 8, width=wide, height=16.0, **fill.attributes)
                )  # fmt: skip
            begin += value
        if len(parts) > 1:  # what lies side by side is kept apart
            edges = _edges(list(parts.values()))
            drawn += [
                tag("line", x1=x(e), x2=x(e), y1=mid - 8, y2=mid + 8, cls="gap") for e in edges
            ]
        drawn.append(tag("text", form(total), x=x(total) + 6, y=mid + 4, cls="value"))
    said = "; ".join(
        f"{label} {f'{form(sum(parts.values()))} {unit}'.strip()}{_split(parts, form)}"
        for _, label, parts in rows
    )
    return document(width, _ROW * len(rows), *drawn, title=title, description=f"{said}.", name=name)


def legend(parts: Mapping[str, str]) -> Markup:
    """A list of parts with a sample of each fill; the value is what is said about it."""
    items = [
        Markup("<li>{}<span>{} <b>{}</b></span></li>").format(swatch(FILLS[part]), part, said)
        if said
        else Markup("<li>{}<span>{}</span></li>").format(swatch(FILLS[part]), part)
        for part, said in parts.items()
    ]
    return Markup('<ul class="legend">{}</ul>').format(Markup("").join(escape(i) for i in items))


def _edges(values: Sequence[float]) -> list[float]:
    """Where a part ends and another begins."""
    ends, total = [], sum(values)
    for k in range(1, len(values)):
        here = sum(values[:k])
        if 0 < here < total and values[k - 1] > 0:
            ends.append(here)
    return ends


def _split(parts: Mapping[str, float], form: Callable[[float], str]) -> str:
    if len(parts) < 2:
        return ""
    return " (" + ", ".join(f"{part} {form(v)}" for part, v in parts.items()) + ")"
