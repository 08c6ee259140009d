"""The board as lines of text: a picture in, as many lines out as there is room for. Pure.

Nothing is told by colour alone: every bar and mark has its word beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from rich.text import Text

from gatewise_sim.report.words import millis, percent
from gatewise_sim.view.faults import Fault
from gatewise_sim.view.state import Picture
from gatewise_sim.view.timeline import ROUTES, Bin
from gatewise_sim.view.words import (
    after,
    answered_text,
    clock_text,
    count,
    fault_text,
    figures,
    leg_text,
    roughly,
    where_text,
)

__all__ = ["ASCII", "UNICODE", "Marks", "bar", "board", "spark"]

_STYLES: Final = {"edge": "green", "cloud": "blue", "fallback": "yellow", "error": "red"}
_WIDEST: Final = 100
_LABEL: Final = 11


@dataclass(frozen=True)
class Marks:
    """Characters to draw with.

    Attributes
    ----------
    bars : str
        Parts of a column's width, rising.
    levels : str
        Heights, rising.
    rest : str
        Of a bar that is not full.
    down, to_come, none : str
        Of the line of faults, and where nothing was told.
    """

    bars: str
    levels: str
    rest: str
    down: str
    to_come: str
    none: str


UNICODE: Final = Marks("▏▎▍▌▋▊▉█", "▁▂▃▄▅▆▇█", "·", "━", "?", " ")
ASCII: Final = Marks("#", ".:-=+*#%", ".", "x", "?", " ")


def bar(share: float, width: int, marks: Marks = UNICODE) -> str:
    """Draw a share of a width; more than nothing is always seen.

    Examples
    --------
    >>> bar(0.5, 5), bar(0.001, 5), bar(1.0, 5)
    ('██▌', '▏', '█████')
    """
    steps = len(marks.bars)
    eighths = round(min(max(share, 0.0), 1.0) * width * steps)
    if share > 0:
        eighths = max(eighths, 1)
    full, part = divmod(eighths, steps)
    return marks.bars[-1] * full + (marks.bars[part - 1] if part else "")


def spark(values: Sequence[float | None], top: float, marks: Marks = UNICODE) -> str:
    """Draw heights in [0, top], one character each; None leaves a gap.

    Examples
    --------
    >>> spark([0.0, 0.5, 1.0, None, 0.01], 1.0)
    '▁▅█ ▁'
    """
    last = len(marks.levels) - 1
    return "".join(
        marks.none
        if value is None
        else marks.levels[round(min(value / top, 1.0) * last) if value > 0 and top > 0 else 0]
        for value in values
    )


def board(picture: Picture, width: int, height: int, marks: Marks = UNICODE) -> list[Text]:
    """Draw a picture.

    Parameters
    ----------
    picture : Picture
    width, height : int
        Columns and lines there are; no line is longer, and no more lines come back. Where room is
        short, what matters least is left out.
    marks : Marks
        What the terminal can show.
    """
    width = max(min(width, _WIDEST), 1)
    parts = [part for part in _parts(picture, width, marks) if part.lines]
    kept = sorted(parts, key=lambda part: part.weight)
    # A blank line between sections while there is room.
    while kept and sum(len(part.lines) for part in kept) > height:
        kept.pop()
    shown = [part for part in parts if part in kept]
    room = height - sum(len(part.lines) for part in shown)
    lines: list[Text] = []
    for part in shown:
        if part.apart and lines and room > 0 and len(shown) == len(parts):
            lines.append(Text())
            room -= 1
        lines.extend(part.lines)
    for line in lines:
        if marks is ASCII:  # what the terminal would write in its stead might not fit
            line.plain = line.plain.encode("ascii", "replace").decode()
        line.truncate(width, overflow="ellipsis" if marks is not ASCII else "crop")
        line.no_wrap = True
    return lines


@dataclass(frozen=True, eq=False)
class _Part:
    weight: int  # the heaviest goes first
    lines: list[Text]
    apart: bool = False


def _parts(picture: Picture, width: int, marks: Marks) -> list[_Part]:
    """In the order of the screen."""
    return [
        _Part(2, [_head(picture, width)]),
        _Part(0, [_progress(picture, width, marks)]),
        _Part(3, [Text(where_text(picture))] if picture.phase == "running" else []),
        _Part(1, [_answered(picture)], apart=True),
        _Part(4, _routes(picture, width, marks)),
        _Part(5, _figures(picture, width), apart=True),
        _Part(7, _line(picture, width, marks), apart=True),
        _Part(6, _faults(picture), apart=width < 60),
        _Part(8, _legs(picture), apart=True),
    ]


def _head(picture: Picture, width: int) -> Text:
    title = picture.title or "Gatewise"
    if picture.leg_name and len(picture.leg_name) + 4 < width:
        line = Text(picture.leg_name, style="bold")
        line.append(f"   {title}" if picture.leg_name != title else "", style="not bold")
        return line
    return Text(title, style="bold")


def _progress(picture: Picture, width: int, marks: Marks) -> Text:
    if picture.phase == "waiting":
        return Text("about to begin")
    if picture.phase == "ended":
        return Text(f"ended after {roughly(picture.elapsed)}{after(picture.text)}")
    now, left = picture.now, picture.left
    said = f" {100 * now.done:3.0f} %"
    said += f"  {roughly(left)} left" if left is not None else ""
    room = max(min(width - 26, 50), 4)
    drawn = bar(now.done, room, marks)
    line = Text()
    line.append(drawn, style="cyan")
    line.append(marks.rest * (room - len(drawn)), style="dim")
    line.append(said)
    return line


def _answered(picture: Picture) -> Text:
    many, rest = answered_text(picture)
    line = Text(many, style="bold")
    line.append(rest, style="not bold")
    return line


def _routes(picture: Picture, width: int, marks: Marks) -> list[Text]:
    room = max(min(width - _LABEL - 22, 46), 3)
    lines = []
    for route in ROUTES:
        share = picture.shares.get(route, 0.0)
        line = Text(f"  {route:<{_LABEL - 2}}")
        drawn = bar(share, room, marks)
        line.append(drawn, style=_STYLES[route])
        line.append(" " * (room - len(drawn)))
        line.append(f"{100 * share:6.1f} %{count(getattr(picture.now, route)):>13}")
        lines.append(line)
    return lines


def _figures(picture: Picture, width: int) -> list[Text]:
    pairs = figures(picture)
    first, second, third = pairs[:2], pairs[2:4], pairs[4:]
    groups = [first + second, third] if width >= 72 else [first, second, third]
    return [_pairs(pairs) for pairs in groups]


def _pairs(pairs: Sequence[tuple[str, str]]) -> Text:
    line = Text()
    for i, (name, value) in enumerate(pairs):
        line.append("   " if i else "")
        line.append(f"{name} ")
        line.append(value, style="bold")
    return line


def _line(picture: Picture, width: int, marks: Marks) -> list[Text]:
    """Offload rate, fallbacks and latency along the run, faults below them."""
    columns = width - _LABEL - 14
    if columns < 12 or not picture.bins or not picture.span:
        return []
    begin, end = clock_text(0, picture.span), clock_text(picture.span, picture.span)
    axis = Text(f"{'':<{_LABEL}}{begin}{end:>{columns - len(begin)}}", style="dim")
    rows: list[tuple[str, Callable[[Bin], float | None], Callable[[float], str], str]] = [
        ("offloaded", lambda b: b.sent_rate, percent, _STYLES["cloud"]),
        ("fallback", lambda b: b.fallback_rate, percent, _STYLES["fallback"]),
        ("p95", lambda b: b.p95_ms, millis, ""),
    ]
    lines = []
    for name, get, say, style in rows:
        values = _columns(picture, columns, get)
        known = [value for value in values if value is not None]
        if not known:
            continue
        top = max(known)
        line = Text(f"{name:<{_LABEL}}")
        line.append(f"{spark(values, top, marks):<{columns}}", style=style)
        line.append(f" max {say(top)}")
        lines.append(line)
    if picture.faults:
        lines.append(Text(f"{'faults':<{_LABEL}}{_fault_marks(picture, columns, marks)}"))
    return [*lines, axis] if lines else []


def _columns(
    picture: Picture, columns: int, get: Callable[[Bin], float | None]
) -> list[float | None]:
    """One value a column: the highest of its bins, so that a short fault is not lost."""
    values: list[float | None] = []
    for column in range(columns):
        first = int(column * picture.span / columns / picture.width)
        after = max(int((column + 1) * picture.span / columns / picture.width), first + 1)
        found = [v for v in map(get, picture.bins[first:after]) if v is not None]
        values.append(max(found, default=None))
    return values


def _fault_marks(picture: Picture, columns: int, marks: Marks) -> str:
    step = picture.span / columns

    def mark(column: int) -> str:
        begin, end = column * step, (column + 1) * step
        own = [f for f in picture.faults if f.begin < end and _until(f, picture.now.at) > begin]
        if not own:
            return marks.rest
        to_come = all(f.when(picture.fault_time) == "to come" for f in own)
        return marks.to_come if to_come else marks.down

    return "".join(map(mark, range(columns)))


def _until(fault: Fault, at: float) -> float:
    """Get the end of a fault as far as one knows; what has no end lasts until now."""
    return fault.end if math.isfinite(fault.end) else max(at, fault.begin)


def _faults(picture: Picture) -> list[Text]:
    """What is down, what comes next, what was: at most two lines."""
    at = picture.fault_time
    order = {"on": 0, "to come": 1, "any": 1, "over": 2}

    def rank(fault: Fault) -> tuple[int, float]:
        when = fault.when(at)
        return order[when], -fault.begin if when == "over" else fault.begin

    shown = sorted(picture.faults, key=rank)
    lines = [
        Text(f"fault: {fault_text(fault, at, picture.span)}",
             style="bold red" if fault.when(at) == "on" else "")
        for fault in shown[:2]
    ]  # fmt: skip
    if len(shown) > 2:
        lines[-1].append(f" (and {len(shown) - 2} more)")
    return lines


def _legs(picture: Picture) -> list[Text]:
    """Legs that are over, the latest last."""
    return [Text(leg_text(leg)) for leg in picture.legs[-6:]]
