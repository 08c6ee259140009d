"""The device's end of its link: send requests, settle them with responses, count bytes.

Thread-safe: the link delivers on a thread of its own, and several threads may wait for answers.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict

import numpy as np
from numpy.typing import NDArray

from gatewise_edge.errors import WireError
from gatewise_edge.link.breaker import Breaker
from gatewise_edge.link.coalesce import Coalescer, as_matrix, most_rows
from gatewise_edge.link.link import Link, PartLink, most_values
from gatewise_edge.link.messages import AuditMark, Request, Response, new_id
from gatewise_edge.link.offload import RESEND, InFlight, OffloadOutcome, Offloads, OutcomeKind
from gatewise_edge.link.wire.encoding import cut_parts, decode_response, encode_in_parts
from gatewise_edge.stages.plan import StagePlan


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
        self._breaker = breaker
        self._coalescer = Coalescer(coalesce)
        self._offloads = Offloads(limit=limit, on_outcome=self._inform_breaker)
        self._bytes_up = 0
        self._bytes_down = 0
        # Guards the five above. Never held while the link sends: the link's callback takes it.
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
        request. With `hold` the request waits for more
        rows until :meth:`flush`. Returns the request, perhaps unsent, and the instance's row in it;
        or why there is none, as an answer's reason.
        """
        now = self._clock()
        if deadline - now < 0.001:
            self.release()
            return "deadline"
        if isinstance(x, bytes):
            flight = InFlight(
                plan.model, plan.version, deadline, opened=now, jpeg=x, earliest=deadline
            )
            self._send_all([flight])
            return flight, 0
        typed = plan.typed(x)
        if typed.nbytes > self.most_bytes:  # sensors gave other values than the bundle's type has
            self.release()
            return "too-large"
        with self._changed:
            flight, due = self._coalescer.join(
                typed,
                model=plan.model,
                version=plan.version,
                most=most_rows(len(x), len(plan.classes)),
                now=now,
                deadline=deadline,
                hold=hold,
            )
            row = flight.rows - 1
        self._send_all(due)
        return flight, row

    def audit(
        self,
        x: NDArray[np.float32],
        plan: StagePlan,
        mark: AuditMark,
        deadline: float,
        on_response: Callable[[Response], None],
    ) -> None:
        """Send one instance that has been answered, without a retry, unless too many are out.

        `on_response` is called on the link's thread with a response that comes by the deadline.
        """
        now = self._clock()
        with self._changed:
            if not self._offloads.admit_audit(now):
                return
        typed = plan.typed(x)
        if typed.nbytes > self.most_bytes:
            return
        flight = InFlight(
            plan.model,
            plan.version,
            deadline,
            values=[typed],
            earliest=deadline,
            audit=mark,
            on_response=on_response,
        )
        self._send_all([flight])

    def flush(self) -> None:
        """Send what waits for more rows."""
        with self._changed:
            due = self._coalescer.take()
        self._send_all(due)

    def poll(self, flight: InFlight, deadline: float) -> OffloadOutcome | None:
        """Send or retry a request when it is due; return the outcome for a row's deadline."""
        now = self._clock()
        step = None
        with self._changed:
            due = self._coalescer.take(flight) if now >= flight.flush_at else []
            if flight.id:
                step = self._offloads.poll(flight, now)
        self._send_all(due)
        if step == RESEND:
            self._transmit(flight)
        with self._changed:
            return flight.outcome_of_row(deadline, self._clock())

    def wait(self, flight: InFlight, wake_at: float) -> None:
        """Wait until something may have happened to a request, or until `wake_at`."""
        with self._changed:
            if flight.outcome is None:
                self._changed.wait(max(0.0, wake_at - self._clock()))

    # -- sending and receiving -------------------------------------------------------------

    def _send_all(self, flights: list[InFlight]) -> None:
        for flight in flights:
            if self._start(flight) and not self._transmit(flight):
                with self._changed:
                    self._offloads.abandon(flight, self._clock())
            if flight.rows > 1:
                with self._changed:
                    self._changed.notify_all()

    def _start(self, flight: InFlight) -> bool:
        """Encode a request's rows and enter it; else settle it and return False."""
        now = self._clock()
        ttl_ms = math.floor(1000.0 * (flight.earliest - now))
        if ttl_ms <= 0:
            self._refuse(flight, "deadline")
            return False
        request = Request(
            id=new_id(),
            model=flight.model,
            version=flight.version,
            ttl_ms=ttl_ms,
            audit=flight.audit,
            deflate=self._deflate,
            **(
                {"X": as_matrix(flight.values, float16=self._float16)}
                if flight.jpeg is None
                else {"jpeg": flight.jpeg}
            ),
        )
        payload, content = encode_in_parts(request)
        with self._changed:
            flight.id, flight.payload, flight.content = request.id, payload, content
            if self._offloads.open(flight, now):
                return True
            flight.id, flight.payload, flight.content = b"", b"", b""
        self._refuse(flight, "full")
        return False

    def _refuse(self, flight: InFlight, why: OutcomeKind) -> None:
        flight.outcome = OffloadOutcome(why, None, 0.0)
        if flight.audit is None:
            self.release()

    def _transmit(self, flight: InFlight) -> bool:
        sent = self._link is not None and self._link.send(flight.payload)
        if sent:
            with self._changed:
                self._bytes_up += len(flight.payload)
        return sent

    def _receive(self, payload: bytes) -> None:
        """Handle a response; on the link's thread."""
        try:
            response = decode_response(payload)
        except WireError:
            response = None
        with self._changed:
            self._bytes_down += len(payload)
            if response is None:
                self._offloads.counts.invalid += 1
                return
            if response.parts_to:
                accepted = self._offloads.accept(response, self._clock())
                flight = None
            else:
                accepted = None
                flight = self._offloads.receive(response, self._clock())
            if flight is not None:
                flight.received = len(payload)
                self._changed.notify_all()
        if accepted is not None and isinstance(self._link, PartLink):
            self._link.send_parts(self._parts(accepted, accepted.transfers), response.parts_to)
        if flight is None or flight.on_response is None or flight.outcome is None:
            return
        if flight.outcome.response is not None and flight.outcome.kind == "answered":
            flight.on_response(flight.outcome.response)

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
