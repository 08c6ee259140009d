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
from gatewise_edge.stop_request import StopRequest

#: A row or a window; the error of an instance that cannot be read; or None if the device reads
#: sensors.
Instance = NDArray[Any] | dict[str, Any] | list[Any] | InputError | None
#: An instance, and fields that are copied to the line of its answer.
#:
#: The field ``kept`` has the columns that are copied to the answer. A window of a stream has the
#: fields ``start``, the number of its first sample, ``time`` in seconds, and ``gap`` if it follows
#: a gap.
SourcedInstance = tuple[Instance, dict[str, Any]]

#: Number of bytes to read at a time. It is small, because the device must still answer all
#: instances that it read before a request to stop.
_CHUNK_BYTES: Final = 4096


class InstanceSource:
    """An iterator over instances, which it reads in batches.

    If an instance is None, the device reads `sensors`.
    """

    def __init__(
        self, batches: Iterable[Iterable[SourcedInstance]], sensors: Sensors | None = None
    ) -> None:
        self._batches = iter(batches)
        self._buffer: deque[SourcedInstance] = deque()
        self.sensors = sensors

    @property
    def counts(self) -> dict[str, int]:
        """Counts of the signal from which windows are cut; empty without a signal."""
        return {}

    @property
    def n_buffered(self) -> int:
        """Number of instances that were read but not returned yet."""
        return len(self._buffer)

    def __iter__(self) -> Iterator[SourcedInstance]:
        return self

    def __next__(self) -> SourcedInstance:
        while not self._buffer:
            self._buffer.extend(next(self._batches))
        return self._buffer.popleft()


def read_chunks(descriptor: int, stream_name: str, stop_request: StopRequest) -> Iterator[bytes]:
    """Read bytes as they arrive, until the end.

    A request to stop ends the wait with StopInterrupt, and an error of the descriptor becomes an
    InputError.
    """
    while True:
        try:
            with stop_request.interrupts():
                select.select([descriptor], [], [])
            chunk = os.read(descriptor, _CHUNK_BYTES)
        except OSError as error:
            raise InputError(f"{stream_name} cannot be read: {error.strerror}") from None
        if not chunk:
            return
        yield chunk


def split_lines(chunks: Iterable[bytes], max_bytes: int) -> Iterator[Sequence[str | None]]:
    """Split bytes into lines as they arrive; None replaces a line longer than `max_bytes` bytes."""
    remainder = b""
    is_line_too_long = False  # the line that the remainder belongs to
    for chunk in chain(chunks, [b"\n"]):  # it ends a last line that has no line end
        *complete_lines, remainder = (remainder + chunk).split(b"\n")
        lines = [
            None if len(line) > max_bytes else line.decode("utf-8", "replace")
            for line in complete_lines
        ]
        if is_line_too_long and lines:
            lines[0] = None
            is_line_too_long = False
        if is_line_too_long or len(remainder) > max_bytes:
            remainder = b""
            is_line_too_long = True
        yield lines
