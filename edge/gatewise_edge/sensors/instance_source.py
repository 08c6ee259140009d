"""The iterator of instances that ``gatewise edge`` answers, and readers of bytes and lines."""

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
"""A row or a window, the error of one that cannot be read, or None if the device reads sensors."""
Item = tuple[Instance, dict[str, Any]]
"""An instance, and further fields of its answer's line.

The field ``kept`` has the columns that are copied to the answer. A window of a stream has the
fields ``start``, the number of its first sample, ``time`` in seconds, and ``gap`` if it follows a
gap.
"""

#: Number of bytes to read at a time. It is small, because all instances that were read before a
#: request to stop are still answered.
_PIECE_BYTES: Final = 4096


class InstanceSource:
    """An iterator of instances, which are read in batches.

    If an instance is None, the device reads `sensors`.
    """

    def __init__(self, batches: Iterable[Iterable[Item]], sensors: Sensors | None = None) -> None:
        self._batches = iter(batches)
        self._ready: deque[Item] = deque()
        self.sensors = sensors

    @property
    def counts(self) -> dict[str, int]:
        """Counts of the signal from which windows are cut; empty without a signal."""
        return {}

    @property
    def held(self) -> int:
        """Number of instances that were read and not returned yet; they are answered on a stop."""
        return len(self._ready)

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        while not self._ready:
            self._ready.extend(next(self._batches))
        return self._ready.popleft()


def read_pieces(descriptor: int, name: str, stop: Stop) -> Iterator[bytes]:
    """Read bytes as they arrive, until the end; a request to stop ends the wait for them."""
    while True:
        try:
            with stop.interrupts():
                select.select([descriptor], [], [])
            piece = os.read(descriptor, _PIECE_BYTES)
        except OSError as error:
            raise InputError(f"{name} cannot be read: {error.strerror}") from None
        if not piece:
            return
        yield piece


def split_lines(pieces: Iterable[bytes], longest: int) -> Iterator[Sequence[str | None]]:
    """Split bytes into lines as they arrive; None replaces a line longer than `longest` bytes."""
    remainder = b""
    is_too_long = False  # whether the current line is
    for piece in chain(pieces, [b"\n"]):
        *lines, remainder = (remainder + piece).split(b"\n")
        texts: list[str | None] = [line.decode("utf-8", "replace") for line in lines]
        if is_too_long and texts:
            texts[0] = None
            is_too_long = False
        if is_too_long or len(remainder) > longest:
            remainder = b""
            is_too_long = True
        yield texts
