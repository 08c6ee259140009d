"""Several instances in one message: rows that come within a small wait share a request.

One id, one time to live (the smallest of the rows), one outcome for all rows; whether that outcome
came in time is judged for each row by itself. Pure logic: times are seconds on any steady clock.
A message is sent when its wait is over, when it is full, or when somebody says so; without a
wait every row is a message of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gatewise.costs import request_bytes
from gatewise_edge.link.messages import MAX_ROWS
from gatewise_edge.link.offload import Outcome, OutcomeKind, Outstanding
from gatewise_edge.link.wire import MAX_PAYLOAD

__all__ = ["MOST_ROWS", "Coalescer", "Message", "Share", "as_matrix", "most_rows"]

#: Rows of a message at most: beyond it a request of many rows makes the others wait.
MOST_ROWS: Final = 32
#: A wait takes at most this part of what is left until a row's deadline.
_PART: Final = 0.25
#: What a response's fields beside its arrays take, in bytes, generously.
_RESPONSE_FIELDS: Final = 512


@dataclass(slots=True, eq=False)
class Message:
    """Rows that go, or went, together."""

    model: str
    version: str
    most: int
    flush_at: float
    rows: list[NDArray[np.float32]] = field(default_factory=list)
    #: The rows' earliest and latest deadlines.
    first: float = math.inf
    last: float = -math.inf
    #: The request, once it is out; or why there is none.
    item: Outstanding | None = None
    refused: OutcomeKind | None = None
    closed: bool = False


@dataclass(slots=True, eq=False)
class Share:
    """One row's share in a message.

    Attributes
    ----------
    row : int
        Which of the message's.
    deadline : float
        The row's own.
    outcome : Outcome or None
        None while it is open.
    """

    message: Message
    row: int
    deadline: float
    outcome: Outcome | None = None

    @property
    def wake_at(self) -> float:
        """When to poll next, if nothing comes before."""
        item = self.message.item
        if item is None:
            return min(self.message.flush_at, self.deadline)
        if item.outcome is not None:
            return item.opened + item.outcome.seconds
        return min(item.wake_at, self.deadline)

    @property
    def bytes(self) -> float:
        """Payload bytes, up and down, that fall to this row."""
        item = self.message.item
        if item is None:
            return 0.0
        return (len(item.payload) * (1 + item.retries) + item.received) / len(self.message.rows)

    def settle(self, now: float) -> None:
        """See whether the message's outcome is there, and in time for this row."""
        if self.outcome is not None:
            return
        item, refused = self.message.item, self.message.refused
        if refused is not None:
            self.outcome = Outcome(refused, None, 0.0)
        elif item is not None and item.outcome is not None:
            settled = item.opened + item.outcome.seconds
            late = item.outcome.kind == "answered" and settled >= self.deadline
            self.outcome = Outcome("timeout", None, item.outcome.seconds) if late else item.outcome
        elif now >= self.deadline:
            error, opened = (None, now) if item is None else (item.error, item.opened)
            self.outcome = Outcome("timeout", error, now - opened)


class Coalescer:
    """Gathers rows into messages.

    Parameters
    ----------
    wait : float, default 0
        Seconds that a message waits for more rows; 0: it never does.
    """

    def __init__(self, wait: float = 0.0) -> None:
        self._wait = wait
        self._open: Message | None = None

    def join(
        self,
        x: NDArray[np.float32],
        *,
        model: str,
        version: str,
        most: int,
        now: float,
        deadline: float,
        hold: bool = False,
    ) -> tuple[Share, list[Message]]:
        """Put a row into a message.

        Parameters
        ----------
        x : ndarray of float32, shape (k,)
        model, version : str
            Rows for different ones never share a message.
        most : int
            Rows of a message for this model; see :func:`most_rows`.
        now, deadline : float
        hold : bool, default False
            Wait for more rows whatever `wait` says, for a quarter of the time at most: the caller
            is about to bring them, and to call :meth:`take`.

        Returns
        -------
        share : Share
        due : list of Message
            To be sent now.
        """
        wait = math.inf if hold else self._wait
        flush_at = now + min(wait, _PART * (deadline - now))
        if wait == 0:
            return _put(x, Message(model, version, 1, flush_at, closed=True), deadline)
        due: list[Message] = []
        message = self._open
        if message is not None and (message.model, message.version) != (model, version):
            due += self.take()
            message = None
        if message is None:
            message = self._open = Message(model, version, most, flush_at)
        share, _ = _put(x, message, deadline)
        message.flush_at = min(message.flush_at, flush_at)
        if len(message.rows) >= message.most:
            due += self.take()
        return share, due

    def take(self, message: Message | None = None) -> list[Message]:
        """Close the message that waits for rows, or only `message` if it is that one."""
        if self._open is None or message not in (None, self._open):
            return []
        taken, self._open = self._open, None
        taken.closed = True
        return [taken]


def _put(x: NDArray[np.float32], message: Message, deadline: float) -> tuple[Share, list[Message]]:
    message.rows.append(x)
    message.first = min(message.first, deadline)
    message.last = max(message.last, deadline)
    return Share(message, len(message.rows) - 1, deadline), [message]


def most_rows(columns: int, classes: int) -> int:
    """How many rows fit a request, and their answers a response."""
    up = (MAX_PAYLOAD - request_bytes(0)) // max(4 * columns, 1)
    # Per row: probabilities, label, exit.
    down = (MAX_PAYLOAD - _RESPONSE_FIELDS) // (4 * classes + 4)
    return max(1, min(MOST_ROWS, MAX_ROWS, up, down))


def as_matrix(
    rows: list[NDArray[np.float32]], *, float16: bool
) -> NDArray[np.float32] | NDArray[np.float16]:
    """Stack a message's rows; as float16 if asked for and no value is too large for it.

    Halves have 11 significant bits and end at 65504; below 6e-5 they lose bits, below 3e-8 they
    are 0. A message with a value that would become infinite goes as float32.

    Examples
    --------
    >>> row = np.array([0.1, 70000.0], np.float32)
    >>> as_matrix([row], float16=True).dtype, as_matrix([row[:1]], float16=True)
    (dtype('float32'), array([[0.1]], dtype=float16))
    """
    X = np.stack(rows)
    if not float16:
        return X
    with np.errstate(over="ignore", under="ignore"):
        half = X.astype(np.float16)
    return X if np.isinf(half).any() else half
