"""Place the buffers of steps; buffers that are never needed at the same time share memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Buffer:
    """A buffer of `size` floats that is needed while `steps` run; other steps may overwrite it.

    With a `container` the buffer begins at the offset of the buffer with that name.
    """

    name: str
    size: int
    steps: frozenset[int]
    container: str | None = None


def place_buffers(buffers: Sequence[Buffer], start: int = 0) -> tuple[dict[str, int], int]:
    """Place buffers from `start` on; return their offsets and the end of the last one.

    The largest buffers are placed first, together with the buffers that they contain. Each gets the
    lowest offset at which it overlaps no buffer that is needed at the same time. The memory is not
    always minimal, because minimal memory is a bin-packing problem.

    >>> from dataclasses import replace
    >>> channels, power = Buffer("channels", 64, {0, 1}), Buffer("power", 33, {1, 2, 3})
    >>> place_buffers([channels, power, Buffer("bands", 5, {2, 3})])
    ({'channels': 0, 'power': 64, 'bands': 0}, 97)
    >>> place_buffers([channels, replace(power, container="channels"), Buffer("bands", 5, {2, 3})])
    ({'channels': 0, 'power': 0, 'bands': 33}, 64)
    """
    offsets: dict[str, int] = {}
    placed_buffers: list[Buffer] = []
    containers = [buffer for buffer in buffers if buffer.container is None]
    for container in sorted(containers, key=lambda buffer: (-buffer.size, min(buffer.steps))):
        buffer_group = [
            container,
            *(buffer for buffer in buffers if buffer.container == container.name),
        ]
        conflicts = [
            (
                buffer.size,
                offsets[placed_buffer.name],
                offsets[placed_buffer.name] + placed_buffer.size,
            )
            for buffer in buffer_group
            for placed_buffer in placed_buffers
            if placed_buffer.steps & buffer.steps
        ]
        # move up to the nearest end of an overlapping buffer, until no buffer overlaps
        offset = start
        while conflict_ends := [
            placed_end
            for size, placed_start, placed_end in conflicts
            if offset < placed_end and placed_start < offset + size
        ]:
            offset = min(conflict_ends)
        offsets |= dict.fromkeys((buffer.name for buffer in buffer_group), offset)
        placed_buffers += buffer_group
    return offsets, max(
        (offsets[buffer.name] + buffer.size for buffer in placed_buffers), default=start
    )
