"""Iterators of instances, and readers of bytes and lines."""

from __future__ import annotations

import os
import select
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final

from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise_edge.sensors.sensors import Sensors
from gatewise_edge.stop_request import Stop

Instance = NDArray[Any] | dict[str, Any] | list[Any] | InputError | None
"""A row or a window; an error in its place; None where the device reads sensors."""
Item = tuple[Instance, dict[str, Any]]
"""An instance, and further fields of its answer's line.

``kept``: columns that are passed on. In a stream ``start``, the number of its first sample,
``time`` in seconds, and ``gap`` (true) if it follows one.
"""

#: Read in small pieces: instances read before a stop request are still answered.
_PIECE: Final = 4096


class InstanceSource:
    """An iterator of instances that come in batches, as a writer gives them.

    Where an instance is None the device reads `sensors`.
    """

    def __init__(self, batches: Iterable[Iterable[Item]], sensors: Sensors | None = None) -> None:
        self._batches = iter(batches)
        self._ready: deque[Item] = deque()
        self.sensors = sensors

    @property
    def counts(self) -> dict[str, int]:
        """Counts so far of the signal that windows are cut from; empty without one."""
        return {}

    @property
    def held(self) -> int:
        """Number of instances read from a writer and not returned yet; a stop answers them."""
        return len(self._ready)

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        while not self._ready:
            self._ready.extend(next(self._batches))
        return self._ready.popleft()


def read_pieces(descriptor: int, name: str, stop: Stop) -> Iterator[bytes]:
    """Read bytes as they come, to the end; a stop request ends the wait for them."""
    while True:
        try:
            with stop.interrupts():
                select.select([descriptor], [], [])
            piece = os.read(descriptor, _PIECE)
        except OSError as error:
            raise InputError(f"{name} cannot be read: {error.strerror}") from None
        if not piece:
            return
        yield piece


def split_lines(pieces: Iterable[bytes], longest: int) -> Iterator[Sequence[str | None]]:
    """Whole lines, as they come; None stands for one that is longer than `longest` bytes."""
    remainder = b""
    too_long = False
    for piece in chain(pieces, [b"\n"]):
        *lines, remainder = (remainder + piece).split(b"\n")
        texts: list[str | None] = [line.decode("utf-8", "replace") for line in lines]
        if too_long and texts:
            texts[0] = None
            too_long = False
        if too_long or len(remainder) > longest:
            remainder = b""
            too_long = True
        yield texts
