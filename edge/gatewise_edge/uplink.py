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

from gatewise_edge.errors import WireError
from gatewise_edge.link import Link
from gatewise_edge.offload import RESEND, Offloads, Outstanding
from gatewise_edge.wire import Request, decode_response, encode_request, new_id

__all__ = ["Uplink"]


class Uplink:
    """Requests over a link, or over none.

    Parameters
    ----------
    link : Link or None
    model, version : str
        Of the bundle.
    limit : int
        Requests out at a time, at most.
    clock : callable
        Seconds, steady.
    """

    def __init__(
        self,
        link: Link | None,
        *,
        model: str,
        version: str,
        limit: int,
        clock: Callable[[], float],
    ) -> None:
        self._link = link
        self._model = model
        self._version = version
        self._clock = clock
        self._offloads = Offloads(limit=limit)
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
        """``bytes_up``, ``bytes_down`` and those of :class:`OffloadCounts`."""
        with self._changed:
            own = {"bytes_up": self._bytes_up, "bytes_down": self._bytes_down}
            return own | asdict(self._offloads.counts)

    def trouble(self) -> str | None:
        """Why a request would be in vain, as an answer's reason; None if it would not."""
        if self._link is None:
            return "no-link"
        if not self._link.ready:
            return "link-down"
        with self._changed:
            if len(self._offloads) >= self._offloads.limit:
                self._offloads.counts.full += 1
                return "full"
        return None

    def request(self, x: NDArray[np.float32], deadline: float) -> Outstanding | str:
        """Send one instance.

        Parameters
        ----------
        x : ndarray of float32, shape (k,)
            The cloud model's inputs.
        deadline : float
            On the clock.

        Returns
        -------
        Outstanding or str
            The request, perhaps unsent, or why there is none, as an answer's reason.
        """
        now = self._clock()
        ttl_ms = math.floor(1000.0 * (deadline - now))
        if ttl_ms <= 0:
            return "deadline"
        request = Request(
            id=new_id(),
            model=self._model,
            version=self._version,
            ttl_ms=ttl_ms,
            X=x[np.newaxis],
        )
        payload = encode_request(request)
        with self._changed:
            item = self._offloads.open(request, payload, now, deadline)
        if item is None:
            return "full"
        if not self._send(item):
            with self._changed:
                self._offloads.abandon(item, self._clock())
        return item

    def poll(self, item: Outstanding) -> None:
        """Look after a request that is out: send it once more, or end it at its deadline."""
        with self._changed:
            step = self._offloads.poll(item, self._clock())
        if step == RESEND:
            self._send(item)

    def wait(self, item: Outstanding) -> None:
        """Wait until something may have happened to a request."""
        with self._changed:
            if item.outcome is None:
                self._changed.wait(max(0.0, item.wake_at - self._clock()))

    def _send(self, item: Outstanding) -> bool:
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
            elif self._offloads.receive(response, self._clock()) is not None:
                self._changed.notify_all()
