"""Memory of steps: results that are never needed at the same time share it.

Steps run in a fixed order. A buffer is needed from the step that writes it to the last step that
reads it; features are needed to the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Buffer:
    """A buffer of `size` floats, needed from step `first` to step `last`, both included."""

    name: str
    size: int
    first: int
    last: int


def places(buffers: Sequence[Buffer], start: int = 0) -> tuple[dict[str, int], int]:
    """Place buffers from `start` on, and count the floats up to the end of the last one.

    The largest buffer comes first, each one at the lowest place that no buffer takes that is needed
    at the same time. (Greedy by size; the least memory is a problem of bin packing.)

    >>> window, spectrum = Buffer("window", 64, 0, 1), Buffer("spectrum", 33, 1, 3)
    >>> places([window, spectrum, Buffer("bands", 5, 2, 3)])
    ({'window': 0, 'spectrum': 64, 'bands': 0}, 97)
    """
    place_of: dict[str, int] = {}
    placed: list[Buffer] = []
    for buffer in sorted(buffers, key=lambda b: (-b.size, b.first)):
        overlapping = [b for b in placed if b.first <= buffer.last and buffer.first <= b.last]
        place = start
        for other in sorted(overlapping, key=lambda b: place_of[b.name]):
            if place + buffer.size <= place_of[other.name]:
                break
            place = max(place, place_of[other.name] + other.size)
        place_of[buffer.name] = place
        placed.append(buffer)
    return place_of, max((place_of[b.name] + b.size for b in placed), default=start)
