"""The device's end of its link: requests go out, responses settle them, bytes are counted.

Thread-safe: the link delivers on a thread of its own, and several threads may ask for answers.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import asdict

import numpy as np
from numpy.typing import NDArray

from gatewise_edge.device.installed import Plan
from gatewise_edge.errors import WireError
from gatewise_edge.link.breaker import Breaker
from gatewise_edge.link.coalesce import Coalescer, Message, Share, as_matrix, most_rows
from gatewise_edge.link.link import Link
from gatewise_edge.link.offload import RESEND, Offloads, Outstanding
from gatewise_edge.link.wire import Request, decode_response, encode_request, new_id

__all__ = ["Uplink"]


class Uplink:
    """Requests over a link, or over none.

    Parameters
    ----------
    link : Link or None
    limit : int
        Requests out at a time, at most.
    breaker : Breaker or None
        Keeps from asking a cloud that does not reply.
    coalesce : float
        Seconds that a request waits for more rows; 0: it never does.
    float16 : bool
        Send halves where every value is within their range.
    clock : callable
        Seconds, steady.
    """

    def __init__(
        self,
        link: Link | None,
        *,
        limit: int,
        breaker: Breaker | None,
        coalesce: float,
        float16: bool,
        clock: Callable[[], float],
    ) -> None:
        self._link = link
        self._clock = clock
        self._float16 = float16
        self._breaker = breaker
        self._coalescer = Coalescer(coalesce)
        self._offloads = Offloads(limit=limit, on_outcome=self._settled)
        self._bytes_up = 0
        self._bytes_down = 0
        # Guards the three above. Never held while the link sends: the link's callback takes it.
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
        """What is so now: ``outstanding``, ``round_trip_ms`` and whether ``breaker_open``."""
        with self._changed:
            trip = self._offloads.round_trip.smoothed
            now = {
                "outstanding": float(len(self._offloads)),
                "round_trip_ms": 1000.0 * trip if trip is not None else 0.0,
            }
            if self._breaker is not None:
                now["breaker_open"] = float(self._breaker.state != "closed")
            return now

    def admit(self, until: float) -> str | None:
        """Ask whether to make a request: None, or why it would be in vain, as an answer's reason.

        Parameters
        ----------
        until : float
            Its deadline. Whoever was admitted calls :meth:`request` or :meth:`release`.
        """
        if self._link is None:
            return "no-link"
        if not self._link.ready:
            return "link-down"
        with self._changed:
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
        self, x: NDArray[np.float32], deadline: float, plan: Plan, *, hold: bool = False
    ) -> Share | str:
        """Send one instance, alone or with others.

        Parameters
        ----------
        x : ndarray of float32, shape (k,)
            What a request carries.
        deadline : float
            On the clock.
        plan : Plan
            Of the bundle that asks.
        hold : bool, default False
            Wait for more rows; the caller ends the wait with :meth:`flush`.

        Returns
        -------
        Share or str
            The row's part in a request, perhaps unsent, or why there is none, as an answer's
            reason.
        """
        now = self._clock()
        if deadline - now < 0.001:
            self.release()
            return "deadline"
        with self._changed:
            share, due = self._coalescer.join(
                x,
                model=plan.model,
                version=plan.version,
                most=most_rows(len(x), len(plan.classes)),
                now=now,
                deadline=deadline,
                hold=hold,
            )
        self._send_all(due)
        with self._changed:
            share.settle(now)
        return share

    def flush(self) -> None:
        """Send what waits for more rows."""
        with self._changed:
            due = self._coalescer.take()
        self._send_all(due)

    def poll(self, share: Share) -> None:
        """Look after a row: send its request, or send it once more, or end it at its deadline."""
        now = self._clock()
        message, step = share.message, None
        with self._changed:
            due = self._coalescer.take(message) if now >= message.flush_at else []
            if message.item is not None:
                step = self._offloads.poll(message.item, now)
        self._send_all(due)
        if step == RESEND and message.item is not None:
            self._transmit(message.item)
        with self._changed:
            share.settle(self._clock())

    def wait(self, share: Share) -> None:
        """Wait until something may have happened to a row's request."""
        with self._changed:
            item = share.message.item
            if share.outcome is None and (item is None or item.outcome is None):
                self._changed.wait(max(0.0, share.wake_at - self._clock()))

    # -- sending and receiving -------------------------------------------------------------

    def _send_all(self, messages: list[Message]) -> None:
        for message in messages:
            item = self._start(message)
            if item is not None and not self._transmit(item):
                with self._changed:
                    self._offloads.abandon(item, self._clock())
            if len(message.rows) > 1:
                with self._changed:
                    self._changed.notify_all()

    def _start(self, message: Message) -> Outstanding | None:
        """Make a request of a message's rows; None, with the reason entered, if none can be."""
        now = self._clock()
        ttl_ms = math.floor(1000.0 * (message.first - now))
        if ttl_ms <= 0:
            message.refused = "deadline"
            self.release()
            return None
        request = Request(
            id=new_id(),
            model=message.model,
            version=message.version,
            ttl_ms=ttl_ms,
            X=as_matrix(message.rows, float16=self._float16),
        )
        payload = encode_request(request)
        with self._changed:
            message.item = self._offloads.open(request, payload, now, message.last)
            if message.item is None:
                message.refused = "full"
        if message.item is None:
            self.release()
        return message.item

    def _transmit(self, item: Outstanding) -> bool:
        sent = self._link is not None and self._link.send(item.payload)
        if sent:
            with self._changed:
                self._bytes_up += len(item.payload)
        return sent

    def _receive(self, payload: bytes) -> None:
        """Take in a response; on the link's thread."""
        try:
            response = decode_response(payload)
        except WireError:
            response = None
        with self._changed:
            self._bytes_down += len(payload)
            if response is None:
                self._offloads.counts.invalid += 1
                return
            item = self._offloads.receive(response, self._clock())
            if item is not None:
                item.received = len(payload)
                self._changed.notify_all()

    def _settled(self, item: Outstanding, now: float) -> None:
        """Tell the breaker; called with the lock held."""
        if self._breaker is not None and item.outcome is not None:
            replied = item.outcome.response is not None
            self._breaker.record(replied, asked=item.opened, now=now)
