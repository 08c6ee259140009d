"""Small helpers to draw SVG: scales, ticks and elements. Pure text in, text out."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from markupsafe import Markup, escape

__all__ = ["Linear", "Log", "document", "path", "tag", "text_width", "ticks"]


@dataclass(frozen=True)
class Linear:
    """Maps [lo, hi] of the data to [start, end] of the drawing, evenly."""

    lo: float
    hi: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        span = self.hi - self.lo or 1.0
        return self.start + (value - self.lo) / span * (self.end - self.start)


@dataclass(frozen=True)
class Log:
    """Maps [lo, hi] of the data, both above 0, to [start, end] by their logarithms."""

    lo: float
    hi: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        inner = Linear(math.log10(self.lo), math.log10(self.hi), self.start, self.end)
        return inner(math.log10(max(value, 1e-12)))

    def decades(self) -> list[float]:
        """Powers of ten within the range; also twice and five times them if it is short.

        Examples
        --------
        >>> Log(0.5, 200, 0, 1).decades(), Log(20, 110, 0, 1).decades()
        ([1.0, 10.0, 100.0], [20.0, 50.0, 100.0])
        """
        lo, hi = math.log10(self.lo) - 1e-9, math.log10(self.hi) + 1e-9
        powers = [10.0**k for k in range(math.ceil(lo), math.floor(hi) + 1)]
        if len(powers) > 2:
            return powers
        every = [m * 10.0**k for k in range(math.floor(lo), math.ceil(hi) + 1) for m in (1, 2, 5)]
        return [round(v, 12) for v in every if lo <= math.log10(v) <= hi]


def ticks(lo: float, hi: float, about: int = 5) -> list[float]:
    """Round numbers within [lo, hi], roughly `about` of them.

    Examples
    --------
    >>> ticks(0, 64)
    [0.0, 20.0, 40.0, 60.0]
    """
    span = hi - lo
    if not span > 0:
        return [lo]
    raw = span / max(about - 1, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
    first = math.ceil(lo / step - 1e-9)
    return [round(k * step, 12) for k in range(first, math.floor(hi / step + 1e-9) + 1)]


def tag(name: str, *children: str | Markup, **attributes: object) -> Markup:
    """Write one element; children that are plain text are escaped.

    Attribute names are written with ``-`` for ``_``; ``cls`` becomes ``class``; None is left
    out; numbers are rounded to a hundredth.

    Examples
    --------
    >>> tag("text", "a < b", x=1.23456, cls="label")
    Markup('<text x="1.23" class="label">a &lt; b</text>')
    """
    parts = []
    for key, value in attributes.items():
        if value is None:
            continue
        text = f"{round(value, 2):g}" if isinstance(value, float) else str(value)
        key = "class" if key == "cls" else key.replace("_", "-")
        parts.append(f' {key}="{escape(text)}"')
    inner = "".join(str(escape(child)) for child in children)
    closing = f">{inner}</{name}>" if inner else "/>"
    return Markup(f"<{name}{''.join(parts)}{closing}")


def path(points: Iterable[tuple[float, float]]) -> str:
    """Write points as a polyline or polygon takes them.

    Examples
    --------
    >>> path([(0, 1.5), (2, 3)])
    '0.00,1.50 2.00,3.00'
    """
    return " ".join(f"{x:.2f},{y:.2f}" for x, y in points)


def text_width(text: str, size: float = 12.0, *, bold: bool = False) -> float:
    """How wide a text may be, whatever sans serif the reader's system has: rather too much."""
    return len(text) * size * (0.66 if bold else 0.6)


def document(
    width: float, height: float, *children: str | Markup, title: str, description: str, name: str
) -> Markup:
    """Write a whole drawing that scales with its place and can be read aloud.

    Parameters
    ----------
    width, height : float
        Of the drawing's own coordinates.
    *children : Markup
    title, description : str
        What it shows, in short and in full, for screen readers.
    name : str
        Prefix of the ids, unique on the page.
    """
    return tag(
        "svg",
        tag("title", title, id=f"{name}-title"),
        tag("desc", description, id=f"{name}-desc"),
        *children,
        viewBox=f"0 0 {width:g} {height:g}",
        role="img",
        aria_labelledby=f"{name}-title {name}-desc",
        xmlns="http://www.w3.org/2000/svg",
    )
