"""The device's end of its link: send requests, settle them with responses, count bytes.

Thread-safe: the link delivers on its own thread, and several threads may wait for answers.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final

from numpy.typing import NDArray

from gatewise_edge.errors import WireError
from gatewise_edge.link.encoding import decode_response, encode_request
from gatewise_edge.link.link import Link
from gatewise_edge.link.messages import (
    MAX_TTL_MS,
    MAX_VALUE_BYTES,
    NO_MODEL,
    AuditMark,
    Request,
    Response,
    new_id,
)
from gatewise_edge.link.offload import InFlight, Offloads
from gatewise_edge.link.offload_rules import OffloadRules

_LOG = logging.getLogger(__name__)

#: Smallest time left until the deadline for which a request is made, in seconds.
_SHORTEST_TIME: Final = 0.001
#: Longest time between two checks of the link while a late request is in flight, in seconds.
_LOOK: Final = 0.5


class Uplink:
    """The requests of a device; without a link, none is admitted.

    Parameters
    ----------
    link : Link or None
        Link to the cloud; None for a device without one.
    rules : OffloadRules
        When requests may be made.
    clock : callable
        Returns monotonic seconds.

    Attributes
    ----------
    private : bool
        Whether requests ask workers not to keep their instances.
    """

    def __init__(self, link: Link | None, rules: OffloadRules, clock: Callable[[], float]) -> None:
        self._link = link
        self.private = rules.private
        self._clock = clock
        self._served = True  # whether a worker has the model, as far as is known
        self._breaker = rules.new_breaker()
        self._budget = rules.new_budget()
        self._offloads = Offloads(rules.outstanding, on_outcome=self._inform_breaker)
        self._bytes_up = 0
        self._bytes_down = 0
        # Guards the fields above. Never held while the link sends: the link's callback takes it.
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
        """``bytes_up``, ``bytes_down``, the :class:`OffloadCounts` and the breaker's counts."""
        with self._changed:
            counts = {"bytes_up": self._bytes_up, "bytes_down": self._bytes_down}
            counts |= asdict(self._offloads.counts)
            return counts if self._breaker is None else counts | asdict(self._breaker.counts)

    @property
    def gauges(self) -> dict[str, float]:
        """Current state: ``outstanding``, ``round_trip_ms`` and ``breaker_open``."""
        with self._changed:
            trip = self._offloads.round_trip.smoothed
            state = {
                "outstanding": float(len(self._offloads)),
                "round_trip_ms": 1000.0 * trip if trip is not None else 0.0,
            }
            if self._breaker is not None:
                state["breaker_open"] = float(self._breaker.state != "closed")
            return state

    @property
    def ready(self) -> bool:
        """Whether there is a link, and it is up."""
        return self._link is not None and self._link.ready

    @property
    def idle(self) -> bool:
        """Whether the cloud replies, no worker is busy, and no live request is in flight."""
        if not self.ready:
            return False
        with self._changed:
            replies = self._breaker is None or self._breaker.state == "closed"
            is_held = self._clock() < self._offloads.hold_until
            return replies and not is_held and len(self._offloads) == 0

    def admit(self, deadline: float) -> str | None:
        """Return None if an instance may be offloaded, else the reason that its answer states.

        A caller that was admitted calls :meth:`send` or :meth:`release`.
        """
        if self._link is None:
            return "no-link"
        if not self._link.ready:
            return "link-down"
        with self._changed:
            now = self._clock()
            if now < self._offloads.hold_until:
                return "cloud:busy"
            if len(self._offloads) >= self._offloads.limit:
                self._offloads.counts.full += 1
                return "full"
            if self._budget is not None and not self._budget.take(now):
                return "offload-limit"
            if self._breaker is not None and not self._breaker.admit(now, deadline):
                self._give_back()
                return "breaker-open"
        return None

    def release(self) -> None:
        """Undo an admission that was not followed by a request."""
        with self._changed:
            if self._breaker is not None:
                self._breaker.release(self._clock())
            self._give_back()

    def _give_back(self) -> None:
        if self._budget is not None:
            self._budget.give_back()

    def send(
        self,
        instances: NDArray[Any],
        model: str,
        version: str,
        *,
        deadline: float,
        mark: AuditMark | None = None,
        on_answer: Callable[[Response], None] | None = None,
    ) -> InFlight | str:
        """Send one request; return it, or the reason why none was sent, which the answers state.

        An audit has a `mark`, needs no admission and gets no retry; `on_answer` is called on the
        link's thread with an answer that comes by the deadline.
        """
        flight = self._enter(instances, model, version, deadline, mark=mark, on_answer=on_answer)
        if isinstance(flight, InFlight):
            self._transmit(flight, flight.payload)
        elif mark is None:
            self.release()
        return flight

    def send_late(self, request: Request, seconds: float) -> InFlight:
        """Send a request for which no instance waits; return it once it is settled.

        It is given up after `seconds`, or when the link is lost. Like an audit it needs no
        admission and gets no retry.
        """
        payload = encode_request(request)
        with self._changed:
            now = self._clock()
            flight = self._offloads.open(
                request.id,
                request.model,
                request.version,
                now=now,
                deadline=now + seconds,
                payload=payload,
                on_answer=_ignore,
            )
        assert flight is not None  # the bound on requests in flight is for live ones
        self._transmit(flight, payload)
        while not self.poll(flight):
            with self._changed:
                if not self.ready:
                    self._offloads.abandon(flight, self._clock())
                elif not flight.settled:
                    self._changed.wait(min(_LOOK, max(0.0, flight.wake_at - self._clock())))
        return flight

    def admit_audit(self) -> bool:
        """Decide whether to admit an audit: the cloud replies, and few audits are in flight."""
        if not self.ready:
            return False
        with self._changed:
            replies = self._breaker is None or self._breaker.state == "closed"
            return replies and self._offloads.admit_audit(self._clock())

    def poll(self, flight: InFlight) -> bool:
        """Retry a request or end it when that is due; return whether it is settled."""
        with self._changed:
            again = self._offloads.poll(flight, self._clock())
            payload = flight.payload
        if again:
            self._transmit(flight, payload)
        return flight.settled

    def wait(self, flight: InFlight) -> None:
        """Wait until something may have happened to a request."""
        with self._changed:
            if not flight.settled:  # a response may have come just now
                self._changed.wait(max(0.0, flight.wake_at - self._clock()))

    # -- sending and receiving -------------------------------------------------------------

    def _enter(
        self,
        instances: NDArray[Any],
        model: str,
        version: str,
        deadline: float,
        *,
        mark: AuditMark | None = None,
        on_answer: Callable[[Response], None] | None = None,
    ) -> InFlight | str:
        """Encode a request and register it as in flight."""
        now = self._clock()
        if deadline - now < _SHORTEST_TIME:
            return "deadline"
        if instances.nbytes > MAX_VALUE_BYTES:
            return "too-large"  # sensors returned values of a wider type than the bundle's
        ttl_ms = min(math.floor(1000.0 * (deadline - now)), MAX_TTL_MS)
        request = Request(
            id=new_id(),
            model=model,
            version=version,
            ttl_ms=ttl_ms,
            X=instances,
            audit=mark,
            private=self.private,
        )
        payload = encode_request(request)
        with self._changed:
            flight = self._offloads.open(
                request.id,
                model,
                version,
                now=now,
                deadline=deadline,
                n_rows=request.rows,
                payload=payload,
                on_answer=on_answer,
            )
        return flight or "full"

    def _transmit(self, flight: InFlight, payload: bytes) -> None:
        """Hand a request to the link; settle it if the link refuses it, unless it is a retry."""
        is_sent = self._link is not None and self._link.send(payload)
        with self._changed:
            if is_sent:
                self._bytes_up += len(payload)
            elif not flight.resent:
                self._offloads.abandon(flight, self._clock())

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
            flight = self._offloads.receive(response, self._clock())
            self._changed.notify_all()  # also if a retry is due now
        if flight is None:
            return
        self._log_no_model(response)
        if flight.on_answer is not None and flight.state == "answered":
            flight.on_answer(response)

    def _log_no_model(self, response: Response) -> None:
        """Log that no worker has the model: once, and again only after a worker has answered."""
        if response.error == NO_MODEL and self._served:
            _LOG.warning(
                "no worker serves %s %s: start one with `gatewise cloud BUNDLE`; until then the "
                "device answers alone",
                response.model,
                response.version,
            )
        if response.error in (None, NO_MODEL):
            self._served = response.error is None

    def _inform_breaker(self, flight: InFlight, now: float) -> None:
        """Report an outcome to the breaker; called with the lock held."""
        if self._breaker is not None and flight.on_answer is None:
            replied = flight.response is not None
            self._breaker.record(replied, sent=flight.sent_at, now=now)


def _ignore(response: Response) -> None:
    """Do nothing with the response to a late request: its sender reads it from the request."""
