"""The device's end of its link: send requests, settle them with responses, count bytes.

Thread-safe: the link delivers on a thread of its own, and several threads may wait for answers.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise_edge.device.plan import StagePlan
from gatewise_edge.errors import WireError
from gatewise_edge.link.breaker import Breaker
from gatewise_edge.link.encoding import cut_parts, decode_response, encode_in_parts
from gatewise_edge.link.link import Link, PartLink, most_values
from gatewise_edge.link.messages import (
    MAX_TTL_MS,
    NO_MODEL,
    AuditMark,
    Request,
    Response,
    most_rows,
    new_id,
)
from gatewise_edge.link.offload import InFlight, OffloadOutcome, Offloads, OutcomeKind

_LOG = logging.getLogger(__name__)


class Uplink:
    """Requests over a link, or over none.

    At most `limit` requests are in flight. A request waits `coalesce` seconds for more rows, and
    goes as float16 where every value is within its range, and with `deflate` compressed where that
    is shorter. `clock` gives steady seconds. `most_bytes` is what the values of an instance may
    have.
    """

    def __init__(
        self,
        link: Link | None,
        *,
        limit: int,
        breaker: Breaker | None,
        coalesce: float,
        float16: bool,
        deflate: bool = False,
        clock: Callable[[], float],
    ) -> None:
        self._link = link
        self.most_bytes = most_values(link)
        self._clock = clock
        self._float16 = float16
        self._deflate = deflate
        self._served = True  # whether a worker has the model, as far as is known
        self._breaker = breaker
        self._offloads = Offloads(limit, coalesce, on_outcome=self._inform_breaker)
        self._bytes_up = 0
        self._bytes_down = 0
        # Guards the four above. Never held while the link sends: the link's callback takes it.
        self._changed = threading.Condition()

    def open(self) -> None:
        """Open the link."""
        if self._link is not None:
            self._link.open(self._receive)

    def close(self) -> None:
        """Close the link."""
        if self._link is not None:
            self._link.close()

    @property
    def counters(self) -> dict[str, int]:
        """``bytes_up``, ``bytes_down``, those of :class:`OffloadCounts` and of the breaker."""
        with self._changed:
            own = {"bytes_up": self._bytes_up, "bytes_down": self._bytes_down}
            own |= asdict(self._offloads.counts)
            return own if self._breaker is None else own | asdict(self._breaker.counts)

    @property
    def gauges(self) -> dict[str, float]:
        """Current state: ``outstanding``, ``round_trip_ms`` and ``breaker_open``."""
        with self._changed:
            trip = self._offloads.round_trip.smoothed
            now = {
                "outstanding": float(len(self._offloads)),
                "round_trip_ms": 1000.0 * trip if trip is not None else 0.0,
            }
            if self._breaker is not None:
                now["breaker_open"] = float(self._breaker.state != "closed")
            return now

    @property
    def ready(self) -> bool:
        """Whether there is a link, and it is up."""
        return self._link is not None and self._link.ready

    @property
    def full(self) -> bool:
        """Whether as many requests are in flight as may be."""
        with self._changed:
            return len(self._offloads) >= self._offloads.limit

    def admit(self, until: float) -> str | None:
        """Decide whether to make a request: None, or the answer's reason for making none.

        `until` is its deadline. A caller that was admitted calls :meth:`request` or
        :meth:`release`.
        """
        if self._link is None:
            return "no-link"
        if not self._link.ready:
            return "link-down"
        with self._changed:
            if self._clock() < self._offloads.hold_until:
                return "cloud:busy"
            if len(self._offloads) >= self._offloads.limit:
                self._offloads.counts.full += 1
                return "full"
            if self._breaker is not None and not self._breaker.admit(self._clock(), until):
                return "breaker-open"
        return None

    def release(self) -> None:
        """Give up a request that was admitted and not made."""
        with self._changed:
            if self._breaker is not None:
                self._breaker.release(self._clock())

    def request(
        self,
        x: NDArray[np.float32] | bytes,
        deadline: float,
        plan: StagePlan,
        *,
        hold: bool = False,
    ) -> tuple[InFlight, int] | str:
        """Send one instance, alone or with others.

        `x` holds the plan's ``request_inputs``, float32, or is a JPEG file, which shares no
        request. With `hold` the request waits for more rows until :meth:`flush`. Returns the
        request, perhaps unsent, and the instance's row in it; or why there is none, as an answer's
        reason.
        """
        now = self._clock()
        typed = x if isinstance(x, bytes) else plan.typed(x)
        if deadline - now < 0.001:
            self.release()
            return "deadline"
        if isinstance(typed, bytes):
            flight = _flight(plan, deadline, jpeg=typed, opened=now)
            self._send([flight])
            return flight, 0
        if typed.nbytes > self.most_bytes:  # sensors gave other values than the bundle's type has
            self.release()
            return "too-large"
        with self._changed:
            flight, due = self._offloads.join(
                typed,
                model=plan.model,
                version=plan.version,
                most=most_rows(len(x), len(plan.classes)),
                now=now,
                deadline=deadline,
                hold=hold,
            )
            row = flight.rows - 1
        self._send(due)
        return flight, row

    def admit_audit(self) -> bool:
        """Decide whether an answer may be audited: the cloud replies, and few audits are out."""
        if not self.ready:
            return False
        with self._changed:
            replies = self._breaker is None or self._breaker.state == "closed"
            return replies and self._offloads.admit_audit(self._clock())

    def audit(
        self,
        x: NDArray[np.float32],
        plan: StagePlan,
        mark: AuditMark,
        deadline: float,
        on_response: Callable[[Response], None],
    ) -> None:
        """Send one instance that has been answered and may be audited, without a retry.

        `on_response` is called on the link's thread with a response that comes by the deadline.
        """
        typed = plan.typed(x)
        if typed.nbytes <= self.most_bytes:
            more = {"audit": mark, "on_response": on_response}
            self._send([_flight(plan, deadline, values=[typed], **more)])

    def flush(self) -> None:
        """Send what waits for more rows."""
        with self._changed:
            due = self._offloads.take()
        self._send(due)

    def poll(self, flight: InFlight, deadline: float) -> OffloadOutcome | None:
        """Send or retry a request when it is due; return the outcome for a row's deadline."""
        now = self._clock()
        with self._changed:
            due = self._offloads.take(flight) if now >= flight.flush_at else []
            again = bool(flight.id) and self._offloads.poll(flight, now)
        self._send(due)
        if again:
            self._transmit(flight)
        with self._changed:
            return flight.outcome_of_row(deadline, self._clock())

    def wait(self, flight: InFlight, wake_at: float) -> None:
        """Wait until something may have happened to a request, or until `wake_at`."""
        with self._changed:
            if flight.outcome is None:
                wake_at = min(wake_at, flight.wake_at)  # a response may have come just now
                self._changed.wait(max(0.0, wake_at - self._clock()))

    # -- sending and receiving -------------------------------------------------------------

    def _send(self, flights: list[InFlight]) -> None:
        for flight in flights:
            why = self._enter(flight)
            if why is None:
                self._transmit(flight)
            else:
                flight.outcome = OffloadOutcome(why, None, 0.0)
                if flight.audit is None:
                    self.release()
            if flight.rows > 1:
                with self._changed:
                    self._changed.notify_all()

    def _enter(self, flight: InFlight) -> OutcomeKind | None:
        """Encode a request's rows and enter it; else return why it is not made."""
        now = self._clock()
        ttl_ms = min(math.floor(1000.0 * (flight.earliest - now)), MAX_TTL_MS)
        if ttl_ms <= 0:
            return "deadline"
        values: dict[str, Any] = {"jpeg": flight.jpeg}
        if flight.jpeg is None:
            values = {"X": as_matrix(flight.values, float16=self._float16)}
        request = Request(
            id=new_id(),
            model=flight.model,
            version=flight.version,
            ttl_ms=ttl_ms,
            audit=flight.audit,
            deflate=self._deflate,
            **values,
        )
        payload, content = encode_in_parts(request)
        with self._changed:
            flight.id, flight.payload, flight.content = request.id, payload, content
            if self._offloads.open(flight, now):
                return None
            flight.id, flight.payload, flight.content = b"", b"", b""
        return "full"

    def _transmit(self, flight: InFlight) -> None:
        """Hand a request to the link; settle it if that does not take it, the first time."""
        sent = self._link is not None and self._link.send(flight.payload)
        with self._changed:
            if sent:
                self._bytes_up += len(flight.payload)
            elif not flight.retries:
                self._offloads.abandon(flight, self._clock())

    def _receive(self, payload: bytes) -> None:
        """Handle a response; on the link's thread."""
        try:
            response = decode_response(payload)
        except WireError:
            response = None
        accepted = flight = None
        with self._changed:
            self._bytes_down += len(payload)
            if response is None:
                self._offloads.counts.invalid += 1
                return
            if response.parts_to:
                accepted = self._offloads.accept(response, self._clock())
            else:
                flight = self._offloads.receive(response, self._clock())
            if flight is not None:
                flight.received = len(payload)
            self._changed.notify_all()  # also where a retry is due now
        if flight is not None:
            self._log_no_model(response)
        if accepted is not None and isinstance(self._link, PartLink):
            self._link.send_parts(self._parts(accepted, accepted.transfers), response.parts_to)
        if flight is None or flight.on_response is None or flight.outcome is None:
            return
        if flight.outcome.kind == "answered":
            flight.on_response(response)

    def _log_no_model(self, response: Response) -> None:
        """Log once that no worker has the model, until one answers."""
        if response.error == NO_MODEL and self._served:
            _LOG.warning(
                "no worker serves %s %s: start one with `gatewise cloud BUNDLE`; until then the "
                "device answers by itself",
                response.model,
                response.version,
            )
        if response.error in (None, NO_MODEL):
            self._served = response.error is None

    def _parts(self, flight: InFlight, transfer: int) -> Iterator[bytes]:
        """Give a request's parts, until it ends or another worker is to have them."""
        for payload in cut_parts(flight.id, flight.content):
            with self._changed:
                now = self._clock()
                ended = flight.outcome is not None or now >= flight.deadline
                if ended or flight.transfers != transfer:
                    return
                self._bytes_up += len(payload)
                self._offloads.sent_part(flight, len(payload), now)
            yield payload

    def _inform_breaker(self, flight: InFlight, now: float) -> None:
        """Report an outcome to the breaker; called with the lock held."""
        if self._breaker is not None and flight.outcome is not None and flight.audit is None:
            replied = flight.outcome.response is not None
            self._breaker.record(replied, sent=flight.opened, now=now)


def _flight(plan: StagePlan, deadline: float, **more: Any) -> InFlight:
    """Make a request of one instance."""
    return InFlight(plan.model, plan.version, deadline, earliest=deadline, **more)


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
