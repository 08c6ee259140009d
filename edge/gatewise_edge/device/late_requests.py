"""Store instances that the cloud could not be asked about, and send them once it replies again.

A late request never changes an answer that was given. It carries that answer in an audit mark, with
the probability 1 for a fallback, so that a worker that keeps instances knows what the system had
answered. One late request at a time is in flight, and none while a live request is.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gatewise_edge.device.answer import Answer
from gatewise_edge.device.pending import Pending
from gatewise_edge.device.unsent_store import UnsentRequest, UnsentStore
from gatewise_edge.errors import SensorError, WireError
from gatewise_edge.link.encoding import decode_request, encode_request
from gatewise_edge.link.messages import MAX_LATE_S, AuditMark, Request, Response, new_id
from gatewise_edge.link.offload import InFlight
from gatewise_edge.link.uplink import Uplink

if TYPE_CHECKING:
    from gatewise_export.bundle.manifest import Manifest

_LOG = logging.getLogger(__name__)

#: Reasons of fallbacks for which no worker may have seen the instance.
_REASONS: Final = frozenset({"link-down", "breaker-open", "unsent", "timeout"})
#: Answered instances that wait to be written; more are dropped.
_MOST_WAITING: Final = 256
#: Seconds to wait for a response, between two looks at the link, and after a failure.
_PATIENCE: Final = 10.0
_POLL: Final = 0.2
_PAUSE: Final = 5.0

Correct = Callable[[dict[str, Any]], None]


@dataclass(slots=True, eq=False)
class _Instance:
    """An answered instance that is not written yet; `request` is its future request's id."""

    pending: Pending
    mark: AuditMark
    request: bytes
    at: float


class LateRequests:
    """The late requests of a device, on a thread of their own. Thread-safe.

    Parameters
    ----------
    store : UnsentStore
        Closed with the device.
    correct : callable, optional
        Gets each late answer to a fallback, as a mapping: ``request`` as in the fallback's line,
        ``label``, ``probabilities``, the ``answered`` label, ``model``, ``version`` and ``late_s``.
    """

    def __init__(self, store: UnsentStore, correct: Correct | None = None) -> None:
        self.correct = correct
        self._store = store
        self._instances: deque[_Instance] = deque()
        self._changed = threading.Condition()
        self._counts = dict.fromkeys(("late_sent", "late_refused", "late_lost"), 0)
        self._is_closed = False
        self._thread: threading.Thread | None = None
        #: Labels of each version that this process has answered with, for corrections.
        self._classes: dict[tuple[str, str], tuple[Any, ...]] = {}

    @property
    def counters(self) -> dict[str, int]:
        """Requests kept, sent, refused by a worker, dropped, expired, and lost by the disk."""
        return self._store.counts | self._counts

    @property
    def gauges(self) -> dict[str, float]:
        """Requests and bytes in the store now."""
        return {
            "unsent": float(len(self._store)),
            "unsent_bytes": float(self._store.n_bytes),
        }

    def start(self, uplink: Uplink, manifest: Manifest) -> None:
        """Begin to store instances and to send them over `uplink`; `manifest` is the active one."""
        self._classes[manifest.name, manifest.version] = manifest.classes
        self._thread = threading.Thread(
            target=self._run, args=(uplink,), name="gatewise-late", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Write what waits, end the thread and close the store."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread is not None:
            # A request in flight ends as a timeout; it stays in the store.
            self._thread.join(_PATIENCE + 1.0)
        self._store.close()

    def keep_fallback(self, pending: Pending, answer: Answer) -> None:
        """Keep the instance of a fallback that no worker has seen; name its request in `answer`."""
        classes = pending.installed.manifest.classes
        if answer.route != "fallback" or answer.reason not in _REASONS or not classes:
            return
        confidence = float(answer.probabilities.max().astype(np.float32))
        mark = AuditMark(answer.class_index, 1.0, 0, confidence)
        answer.request = self.keep(pending, mark)

    def keep(self, pending: Pending, mark: AuditMark) -> str:
        """Keep an answered instance; its features are acquired on this object's thread.

        Returns the id of its request, in hexadecimal digits.
        """
        instance = _Instance(pending, mark, new_id(), time.time())
        with self._changed:
            if len(self._instances) >= _MOST_WAITING:
                self._instances.popleft()
                self._counts["late_lost"] += 1
            self._instances.append(instance)
            self._changed.notify_all()
        return instance.request.hex()

    # -- the thread ------------------------------------------------------------------------

    def _run(self, uplink: Uplink) -> None:
        sent = 0  # number of the latest request that was sent
        while True:
            with self._changed:
                if not self._instances and not self._is_closed:
                    self._changed.wait(_POLL if len(self._store) else None)
                instance = self._instances.popleft() if self._instances else None
                if instance is None and self._is_closed:
                    return
            try:
                if instance is not None:
                    self._write(instance, uplink.private)
                elif uplink.idle:
                    sent = self._send_next(uplink, sent)
            except Exception:  # no failure here may cost a later answer
                _LOG.exception("late requests failed; they go on in %g s", _PAUSE)
                self._wait(_PAUSE)

    def _wait(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or bool(self._instances), seconds)

    def _write(self, instance: _Instance, private: bool) -> None:
        pending = instance.pending
        installed = pending.installed
        manifest = installed.manifest
        takes_nan = installed.cloud_takes_nan
        pending.reading.lift_deadline()
        try:
            x = pending.reading.acquire(
                installed.request_inputs, allow_missing=takes_nan, spare=takes_nan
            )
            request = Request(
                id=instance.request,
                model=manifest.name,
                version=manifest.version,
                ttl_ms=int(1000 * _PATIENCE),
                X=installed.typed(x)[np.newaxis],
                audit=instance.mark,
                private=private,
            )
            self._store.add(encode_request(request), instance.at)
        except (SensorError, WireError, sqlite3.Error) as error:
            _LOG.warning("an instance cannot be kept for later: %s", error)
            self._counts["late_lost"] += 1
            return
        self._classes[manifest.name, manifest.version] = manifest.classes

    def _send_next(self, uplink: Uplink, sent: int) -> int:
        """Send the request after number `sent` and wait for its outcome; return its number."""
        unsent = self._store.next(sent)
        if unsent is None:  # begin with the oldest again
            return 0
        try:
            request = decode_request(unsent.payload, allow_missing=True)
        except WireError as error:
            _LOG.warning("a kept request cannot be read: %s", error)
            self._store.remove(unsent)
            self._counts["late_refused"] += 1
            return unsent.number
        # A request on the wire is late by at least a second: 0 is a live one.
        request.late_s = min(max(1, round(time.time() - unsent.at)), MAX_LATE_S)
        flight = uplink.send_late(request, _PATIENCE)
        self._settle(unsent, request, flight)
        if flight.state != "answered":
            self._wait(_PAUSE)
        return unsent.number

    def _settle(self, unsent: UnsentRequest, request: Request, flight: InFlight) -> None:
        """Remove a request that has its answer, or that workers will never answer."""
        response = flight.response
        if flight.state == "answered" and response is not None:
            self._store.remove(unsent)
            self._counts["late_sent"] += 1
            self._publish(request, response)
        elif flight.state == "refused" and response is not None and not response.retryable:
            self._store.remove(unsent)
            self._counts["late_refused"] += 1

    def _publish(self, request: Request, response: Response) -> None:
        mark = request.audit
        classes = self._classes.get((request.model, request.version))
        if self.correct is None or mark is None or mark.probability < 1:
            return
        # After a restart the labels of a version that was replaced are not known.
        if classes is None or len(classes) != response.probabilities.shape[1]:
            return
        self.correct(
            {
                "request": request.id.hex(),
                "label": classes[int(response.labels[0])],
                "probabilities": [round(p, 6) for p in response.probabilities[0].tolist()],
                "answered": classes[mark.class_index],
                "model": request.model,
                "version": request.version,
                "late_s": request.late_s,
            }
        )
