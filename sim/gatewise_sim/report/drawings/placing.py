"""Where labels go: beside their marks, off each other, off marks and lines as far as may be."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from gatewise_sim.report.svg import tag, text_width

__all__ = ["Box", "Label", "between", "place_labels"]

_Place = tuple[float, float]
_REACH = (11.0, 17.0, 25.0, 35.0, 47.0, 61.0, 78.0)
_LED = 20.0  # a label farther off its mark than this has a line to it


@dataclass(frozen=True)
class Box:
    """A rectangle."""

    x1: float
    y1: float
    x2: float
    y2: float

    def shared(self, other: Box) -> float:
        """Area that it shares with another."""
        wide = min(self.x2, other.x2) - max(self.x1, other.x1)
        tall = min(self.y2, other.y2) - max(self.y1, other.y1)
        return max(wide, 0.0) * max(tall, 0.0)

    def holds(self, x: float, y: float, margin: float = 0.0) -> bool:
        """Whether a point lies in it, or nearly."""
        return self.x1 - margin < x < self.x2 + margin and self.y1 - margin < y < self.y2 + margin

    def outside(self, frame: Box) -> float:
        """How far it sticks out of a frame."""
        over = (frame.x1 - self.x1, self.x2 - frame.x2, frame.y1 - self.y1, self.y2 - frame.y2)
        return sum(max(o, 0.0) for o in over)


@dataclass(frozen=True)
class Label:
    """A text that belongs to a mark at (x, y)."""

    text: str
    x: float
    y: float
    colour: str
    size: float = 12.0


def place_labels(labels: Sequence[Label], *, frame: Box, avoid: Iterable[_Place]) -> list[Markup]:
    """Write labels, the first with the first choice of place.

    Parameters
    ----------
    labels : sequence of Label
    frame : Box
        In which they must stay.
    avoid : iterable of (x, y)
        Points of lines and other marks; better not covered.
    """
    marks, lines = [(label.x, label.y) for label in labels], list(avoid)
    taken: list[Box] = []
    written = []
    for label in labels:
        box, distance = min(
            _candidates(label), key=lambda c: _badness(c[0], c[1], frame, marks, lines, taken)
        )
        taken.append(box)
        if distance > _LED:
            # To the nearest point of the box, and not quite up to the mark.
            tx = min(max(label.x, box.x1), box.x2)
            ty = min(max(label.y, box.y1), box.y2)
            whole = math.hypot(tx - label.x, ty - label.y) or 1.0
            off = min(7.0 / whole, 1.0)
            x1, y1 = label.x + off * (tx - label.x), label.y + off * (ty - label.y)
            written.append(tag("line", x1=x1, y1=y1, x2=tx, y2=ty, cls="lead"))
        # The box is rather too wide: the text keeps to the side of its mark.
        middle = (box.x1 + box.x2) / 2
        x, anchor = middle, "middle"
        if abs(middle - label.x) > 0.3 * (box.x2 - box.x1):
            x, anchor = (box.x1 + 2, "") if middle > label.x else (box.x2 - 2, "end")
        style = f"direct halo {label.colour} {anchor}".rstrip()
        written.append(tag("text", label.text, x=x, y=box.y2 - 4.5, cls=style))
    return written


def _candidates(label: Label) -> list[tuple[Box, float]]:
    wide, tall = text_width(label.text, label.size, bold=True) + 4, label.size + 3
    found = []
    for reach in _REACH:
        for k in range(16):
            angle = k * math.pi / 8
            # The box touches a circle around the mark from outside.
            cx = label.x + math.cos(angle) * (reach + wide / 2)
            cy = label.y + math.sin(angle) * (reach + tall / 2)
            box = Box(cx - wide / 2, cy - tall / 2, cx + wide / 2, cy + tall / 2)
            dx = max(box.x1 - label.x, 0.0, label.x - box.x2)
            dy = max(box.y1 - label.y, 0.0, label.y - box.y2)
            found.append((box, math.hypot(dx, dy)))
    return found


def _badness(
    box: Box,
    distance: float,
    frame: Box,
    marks: Sequence[_Place],
    lines: Sequence[_Place],
    taken: Sequence[Box],
) -> float:
    hidden = sum(box.holds(x, y, 4.0) for x, y in marks)
    crossed = sum(box.holds(x, y, 3.0) for x, y in lines)
    overlap = sum(box.shared(other) for other in taken)
    return 1e4 * box.outside(frame) + 1e3 * overlap + 80.0 * hidden + 8.0 * crossed + distance


def between(line: Sequence[_Place], step: float = 6.0) -> list[_Place]:
    """Points along a line, its corners among them, no farther apart than `step`."""
    found = list(line[:1])
    for (ax, ay), (bx, by) in pairwise(line):
        n = max(1, math.ceil(math.hypot(bx - ax, by - ay) / step))
        found += [(ax + (bx - ax) * k / n, ay + (by - ay) * k / n) for k in range(1, n + 1)]
    return found
