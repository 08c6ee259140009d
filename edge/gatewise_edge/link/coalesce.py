"""Several instances in one request: rows that come within a short wait share a message.

A request has one id, one time to live (the smallest of its rows) and one outcome for all rows;
whether that came in time is decided for each row. Pure logic: times are seconds on any steady
clock. A request is sent when its wait is over, when it is full or when it is flushed; without a
wait every row is a request of its own.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gatewise.costs import request_bytes
from gatewise_edge.checks import MAX_PAYLOAD
from gatewise_edge.link.messages import MAX_ROWS, RESPONSE_FIELDS
from gatewise_edge.link.offload import InFlight

#: Rows of a request at most: beyond it a request of many rows makes the others wait.
MOST_ROWS: Final = 32
#: A wait takes at most this part of what is left until a row's deadline.
_PART: Final = 0.25


class Coalescer:
    """Collect rows into requests that wait so many seconds for more rows; 0: never."""

    def __init__(self, wait: float = 0.0) -> None:
        self._wait = wait
        self._open: InFlight | None = None

    def join(
        self,
        x: NDArray[Any],
        *,
        model: str,
        version: str,
        most: int,
        now: float,
        deadline: float,
        hold: bool = False,
    ) -> tuple[InFlight, list[InFlight]]:
        """Put a row into a request, as its last one so far.

        Rows for different models or versions never share a request; `most` rows fit one. With
        `hold` it waits for more rows in any case, for a quarter of the time at most: the caller is
        about to bring them, and to call :meth:`take`. Returns the request, and the requests to be
        sent now.
        """
        wait = math.inf if hold else self._wait
        if wait == 0:
            flight = InFlight(model, version, deadline, opened=now, values=[x], earliest=deadline)
            return flight, [flight]
        due: list[InFlight] = []
        waiting = self._open
        if waiting is not None and (waiting.model, waiting.version) != (model, version):
            due, waiting = self.take(), None
        if waiting is None:
            waiting = self._open = InFlight(model, version, deadline, opened=now, most=most)
        waiting.values.append(x)
        waiting.rows = len(waiting.values)
        waiting.earliest = min(waiting.earliest, deadline)
        waiting.deadline = max(waiting.deadline, deadline)
        waiting.flush_at = min(waiting.flush_at, now + min(wait, _PART * (deadline - now)))
        if waiting.rows >= waiting.most:
            due += self.take()
        return waiting, due

    def take(self, flight: InFlight | None = None) -> list[InFlight]:
        """Close the request that waits for rows, or only `flight` if it is that one."""
        taken = self._open
        if taken is None or flight not in (None, taken):
            return []
        self._open = None
        taken.flush_at = math.inf
        return [taken]


def most_rows(columns: int, classes: int) -> int:
    """How many rows fit a request, and their answers a response."""
    up = (MAX_PAYLOAD - request_bytes(0)) // max(4 * columns, 1)
    # Per row: probabilities, label, exit.
    down = (MAX_PAYLOAD - RESPONSE_FIELDS) // (4 * classes + 4)
    return max(1, min(MOST_ROWS, MAX_ROWS, up, down))


def as_matrix(rows: list[NDArray[Any]], *, float16: bool) -> NDArray[Any]:
    """Stack a request's rows; as float16 if wanted and no value is too large for it.

    Rows of whole numbers stay as they are. Halves have 11 significant bits and end at 65504; below
    6e-5 they lose bits, below 3e-8 they are 0. A request with a value that would become infinite
    goes as float32.

    >>> row = np.array([0.1, 70000.0], np.float32)
    >>> as_matrix([row], float16=True).dtype, as_matrix([row[:1]], float16=True)
    (dtype('float32'), array([[0.1]], dtype=float16))
    """
    X = np.stack(rows)
    if not float16 or X.dtype.kind != "f":
        return X
    with np.errstate(over="ignore", under="ignore"):
        half = X.astype(np.float16)
    return X if np.isinf(half).any() else half
