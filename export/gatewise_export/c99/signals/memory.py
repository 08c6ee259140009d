"""Memory of steps: results that are never needed at the same time share it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Buffer:
    """A buffer of `size` floats, needed while `steps` run; other steps may write over it."""

    name: str
    size: int
    steps: frozenset[int]


def place_buffers(buffers: Sequence[Buffer], start: int = 0) -> tuple[dict[str, int], int]:
    """Place buffers from `start` on; get their offsets, and the end of the last one.

    The largest buffer comes first, each at the lowest offset where it overlaps no buffer that is
    needed at the same time. (Greedy by size; the least memory is a problem of bin packing.)

    >>> channels, power = Buffer("channels", 64, {0, 1}), Buffer("power", 33, {1, 2, 3})
    >>> place_buffers([channels, power, Buffer("bands", 5, {2, 3})])
    ({'channels': 0, 'power': 64, 'bands': 0}, 97)
    """
    offsets: dict[str, int] = {}
    finished: list[Buffer] = []
    for buffer in sorted(buffers, key=lambda b: (-b.size, min(b.steps))):
        rivals = [b for b in finished if b.steps & buffer.steps]
        offset = start
        for rival in sorted(rivals, key=lambda b: offsets[b.name]):
            if offset + buffer.size <= offsets[rival.name]:
                break
            offset = max(offset, offsets[rival.name] + rival.size)
        offsets[buffer.name] = offset
        finished.append(buffer)
    return offsets, max((offsets[b.name] + b.size for b in finished), default=start)
