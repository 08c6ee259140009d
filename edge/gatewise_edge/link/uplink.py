"""The device's requests: admit, send, retry and settle them, and count their bytes.

The uplink is thread-safe, because the link delivers responses on its own thread and several threads
may wait for answers.
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
from gatewise_edge.link.breaker import Breaker
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
from gatewise_edge.link.offload import Offload, OffloadTable
from gatewise_edge.link.offload_rules import OffloadRules

_LOG = logging.getLogger(__name__)

#: Shortest time before the deadline at which a request is still sent, in seconds. It is the unit of
#: the request's field `ttl`.
_MIN_SECONDS_LEFT: Final = 0.001
#: Longest time between two checks of the link while a late request is in flight, in seconds. Checks
#: are needed, because a link does not report that it was lost.
_LINK_CHECK_SECONDS: Final = 0.5
#: Shortest time between two warnings that a worker lacks the model, in seconds.
_WARNING_SECONDS: Final = 60.0


class Uplink:
    """The requests of a device. Without a link it admits no request.

    Parameters
    ----------
    link : Link or None
        Link to the cloud; None for a device without one.
    rules : OffloadRules
        Rules that say when requests may be sent.
    clock : callable
        Returns monotonic seconds.

    Attributes
    ----------
    is_private : bool
        Whether requests ask workers not to store their instances.
    """

    def __init__(self, link: Link | None, rules: OffloadRules, clock: Callable[[], float]) -> None:
        self._link = link
        self.is_private = rules.private
        self._clock = clock
        self._has_worker = True  # False once a worker said that it does not have the model
        self._next_warning_at = -math.inf
        self._has_logged_silence = False  # whether the cloud is silent according to the log
        self._breaker = Breaker()
        self._token_bucket = rules.new_token_bucket()
        self._offloads = OffloadTable(rules.max_in_flight, on_outcome=self._inform_breaker)
        self._bytes_up = 0
        self._bytes_down = 0
        # Guards the fields above. It is not held while the link sends, because the link may call
        # `_receive` within its `send`.
        self._condition = threading.Condition()

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
        with self._condition:
            counts = {"bytes_up": self._bytes_up, "bytes_down": self._bytes_down}
            return counts | asdict(self._offloads.counts) | asdict(self._breaker.counts)

    @property
    def gauges(self) -> dict[str, float]:
        """Current state: ``outstanding``, ``round_trip_ms`` and ``breaker_open``."""
        with self._condition:
            smoothed_s = self._offloads.round_trip.smoothed_s
            return {
                "outstanding": float(len(self._offloads)),
                "round_trip_ms": 1000.0 * smoothed_s if smoothed_s is not None else 0.0,
                "breaker_open": float(not self._cloud_replies),
            }

    @property
    def is_ready(self) -> bool:
        """Whether there is a link that can send now."""
        return self._link is not None and self._link.is_ready

    @property
    def is_idle(self) -> bool:
        """Whether the cloud replies, no worker is busy, and no live request is in flight."""
        if not self.is_ready:
            return False
        with self._condition:
            is_paused = self._clock() < self._offloads.pause_until
            return self._cloud_replies and not is_paused and len(self._offloads) == 0

    @property
    def _cloud_replies(self) -> bool:
        return self._breaker.state == "closed"

    def admit(self, deadline: float) -> str | None:
        """Admit an instance to be offloaded, or return the reason why it must not be.

        After an admission, that is None, the caller must call :meth:`send` or :meth:`release`.
        """
        if self._link is None:
            return "no-link"
        if not self._link.is_ready:
            return "link-down"
        with self._condition:
            now = self._clock()
            if now < self._offloads.pause_until:
                return "cloud:busy"
            if len(self._offloads) >= self._offloads.max_in_flight:
                self._offloads.counts.full += 1
                return "full"
            if self._token_bucket is not None and not self._token_bucket.take_token(now):
                return "offload-limit"
            if not self._breaker.admit(now, deadline):
                self._return_token()
                return "breaker-open"
        return None

    def release(self) -> None:
        """Undo an admission for which no request was sent."""
        with self._condition:
            self._breaker.release(self._clock())
            self._return_token()

    def _return_token(self) -> None:
        if self._token_bucket is not None:
            self._token_bucket.return_token()

    def send(
        self,
        instances: NDArray[Any],
        model: str,
        version: str,
        *,
        deadline: float,
        mark: AuditMark | None = None,
        on_answer: Callable[[Response], None] | None = None,
    ) -> Offload | str:
        """Send one request; return it, or the reason for the answers if it was not sent.

        An audit has a `mark`, needs no admission and gets no retry. If its answer arrives by the
        deadline, the link's thread calls `on_answer` with it.
        """
        now = self._clock()
        offload: Offload | str | None
        if deadline - now < _MIN_SECONDS_LEFT:
            offload = "deadline"
        elif instances.nbytes > MAX_VALUE_BYTES:
            offload = "too-large"  # sensors returned values of a wider type than the bundle expects
        else:
            request = Request(
                id=new_id(),
                model=model,
                version=version,
                ttl_ms=min(math.floor(1000.0 * (deadline - now)), MAX_TTL_MS),
                X=instances,
                audit=mark,
                is_private=self.is_private,
            )
            offload = self._open_offload(request, now, deadline, on_answer) or "full"
        if isinstance(offload, str) and mark is None:
            self.release()
        return offload

    def send_late(self, request: Request, timeout_s: float) -> Offload:
        """Send a request for which no instance waits, and wait until it is settled.

        It ends after `timeout_s` or when the link is lost. Like an audit it needs no admission and
        gets no retry.
        """
        now = self._clock()
        offload = self._open_offload(request, now, now + timeout_s, lambda response: None)
        assert offload is not None  # only live requests count against the bound
        while not self.poll(offload):
            with self._condition:
                if not self.is_ready:
                    self._offloads.abandon(offload, self._clock())
                elif not offload.is_settled:
                    self._condition.wait(
                        min(_LINK_CHECK_SECONDS, max(0.0, offload.wake_at - self._clock()))
                    )
        return offload

    def admit_audit(self) -> bool:
        """Return whether an audit may be sent: the cloud replies, and few audits are in flight."""
        if not self.is_ready:
            return False
        with self._condition:
            return self._cloud_replies and self._offloads.admit_audit(self._clock())

    def poll(self, offload: Offload) -> bool:
        """Retry or end a request if that is due; return whether it is settled."""
        with self._condition:
            is_retry_due = self._offloads.poll(offload, self._clock())
            payload = offload.payload
        if is_retry_due:
            self._transmit(offload, payload)
        self._log_silence()
        return offload.is_settled

    def wait(self, offload: Offload) -> None:
        """Wait until a response may have arrived or a request must be polled."""
        with self._condition:
            if not offload.is_settled:  # a response may have settled it before the lock was held
                self._condition.wait(max(0.0, offload.wake_at - self._clock()))

    # -- sending and receiving -------------------------------------------------------------

    def _open_offload(
        self,
        request: Request,
        now: float,
        deadline: float,
        on_answer: Callable[[Response], None] | None,
    ) -> Offload | None:
        """Register a request as in flight and send it; None if too many are in flight."""
        payload = encode_request(request)
        with self._condition:
            offload = self._offloads.open(
                request.id,
                request.model,
                request.version,
                now=now,
                deadline=deadline,
                n_rows=request.n_rows,
                payload=payload,
                on_answer=on_answer,
            )
        if offload is not None:
            self._transmit(offload, payload)
        return offload

    def _transmit(self, offload: Offload, payload: bytes) -> None:
        """Pass a request to the link; if the link refuses it, settle it or withdraw the retry."""
        is_sent = self._link is not None and self._link.send(payload)
        with self._condition:
            if is_sent:
                self._bytes_up += len(payload)
            elif offload.is_resent:
                self._offloads.withdraw_retry(offload, self._clock())
            else:
                self._offloads.abandon(offload, self._clock())

    def _receive(self, payload: bytes) -> None:
        """Handle a response on the link's thread."""
        try:
            response = decode_response(payload)
        except WireError:
            response = None
        with self._condition:
            self._bytes_down += len(payload)
            if response is None:
                self._offloads.counts.invalid += 1
                return
            offload = self._offloads.receive(response, self._clock())
            self._condition.notify_all()  # also without an outcome, because a retry may be due now
        if offload is None:
            return
        self._log_silence()
        self._log_no_model(response)
        if offload.on_answer is not None and offload.state == "answered":
            offload.on_answer(response)

    def _log_silence(self) -> None:
        """Log that the cloud no longer replies, or that it replies again."""
        if self._has_logged_silence != self._cloud_replies:  # read without the lock, to be fast
            return
        with self._condition:
            is_silent = not self._cloud_replies
            has_changed = self._has_logged_silence != is_silent
            self._has_logged_silence = is_silent
        if has_changed and is_silent:
            _LOG.warning(
                "the cloud does not reply to this device's requests: `gatewise doctor` finds the "
                "cause; until it replies the device answers without it"
            )
        elif has_changed:
            _LOG.info("the cloud replies again")

    def _log_no_model(self, response: Response) -> None:
        """Log that a worker lacks the model; log it again only after a worker has answered.

        If only some workers of the pool have the model, log it at most once per minute.
        """
        now = self._clock()
        if response.error == NO_MODEL and self._has_worker and now >= self._next_warning_at:
            self._next_warning_at = now + _WARNING_SECONDS
            _LOG.warning(
                "the worker that responded does not serve %s %s: start all workers with this "
                "bundle (gatewise cloud BUNDLE); until then its requests become fallbacks",
                response.model,
                response.version,
            )
        if response.error in (None, NO_MODEL):
            self._has_worker = response.error is None

    def _inform_breaker(self, offload: Offload, now: float) -> None:
        """Report an outcome to the breaker; called with the lock held."""
        if offload.on_answer is None:
            has_reply = offload.response is not None
            self._breaker.record(has_reply, sent_at=offload.sent_at, now=now)
