"""Late requests: store instances that could not be offloaded, and send them when the cloud replies.

A late request never changes the answer that the device gave. It states that answer in an audit
mark, for workers that store instances. The mark's probability is 1 for a fallback; it is multiplied
by the probability with which the store has the request. At most one late request is in flight, and
only while no live request is.
"""

from __future__ import annotations

import logging
import math
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gatewise_edge.device.answer import Answer
from gatewise_edge.device.pending import PendingInstance
from gatewise_edge.device.unsent_store import UnsentRequest, UnsentStore
from gatewise_edge.errors import SensorError, WireError
from gatewise_edge.link.encoding import decode_request, encode_request
from gatewise_edge.link.messages import MAX_LATE_S, AuditMark, Request, Response, new_id
from gatewise_edge.link.offload import Offload
from gatewise_edge.link.uplink import Uplink

if TYPE_CHECKING:
    from gatewise_export.bundle.manifest import Manifest

_LOG = logging.getLogger(__name__)

#: Reasons of fallbacks with an instance that perhaps no worker has received.
_UNSENT_REASONS: Final = frozenset({"link-down", "breaker-open", "unsent", "timeout"})
#: Largest number of answered instances that wait for the disk. Beyond it the oldest is dropped,
#: because a slow disk or sensor must not fill the memory.
_MAX_UNWRITTEN: Final = 256
#: Longest wait for the response to an audit or to a late request, in seconds. It may be much longer
#: than a deadline, because no instance waits for the response.
RESPONSE_TIMEOUT_S: Final = 10.0
#: Time between two checks of the link, in seconds. Checks are needed, because a link does not
#: report that it is ready.
_POLL_S: Final = 0.2
#: Pause after a failure, in seconds. It keeps late requests from loading a busy cloud.
_PAUSE_S: Final = 5.0

#: A function that is called with each late answer to a fallback.
CorrectionHandler = Callable[[dict[str, Any]], None]


@dataclass(slots=True, eq=False)
class _AnsweredInstance:
    """An answered instance that is not written yet.

    `request_id` is the id that its request will have; `answered_at` is the Unix time of its answer.
    """

    instance: PendingInstance
    mark: AuditMark
    is_fallback: bool
    request_id: bytes
    answered_at: float


class LateRequests:
    """The late requests of a device; its own thread stores and sends them. Thread-safe.

    Parameters
    ----------
    store : UnsentStore
        Store of the requests; closed with the device.
    on_correction : callable, optional
        Called with a mapping for each late answer to a fallback. The mapping has the keys
        ``request`` (as in :attr:`.Answer.request`), ``label``, ``probabilities``, ``answered`` (the
        label of the fallback), ``model``, ``version`` and ``late_s``.
    """

    def __init__(self, store: UnsentStore, on_correction: CorrectionHandler | None = None) -> None:
        self._on_correction = on_correction
        self._store = store
        self._unwritten_instances: deque[_AnsweredInstance] = deque()
        self._condition = threading.Condition()
        self._counts = dict.fromkeys(("late_sent", "late_refused", "late_lost"), 0)
        self._write_problem = ""  # problem of the latest write, which has been logged
        self._is_closed = False
        self._thread: threading.Thread | None = None
        #: Labels of each version that this process has answered with, for corrections.
        self._classes_by_version: dict[tuple[str, str], tuple[Any, ...]] = {}

    @property
    def counters(self) -> dict[str, int]:
        """Numbers of requests that were stored, sent, refused, dropped, expired and lost."""
        return self._store.counts | self._counts

    @property
    def trouble(self) -> str | None:
        """Reason why the file cannot be written now; None if it can."""
        return self._store.trouble or self._write_problem or None

    @property
    def gauges(self) -> dict[str, float]:
        """Numbers of requests and bytes in the store."""
        return {
            "unsent": float(len(self._store)),
            "unsent_bytes": float(self._store.n_bytes),
        }

    def start(self, uplink: Uplink, manifest: Manifest) -> None:
        """Start the thread that sends over `uplink`; `manifest` is that of the active bundle."""
        self._classes_by_version[manifest.name, manifest.version] = manifest.classes
        self._thread = threading.Thread(
            target=self._store_and_send, args=(uplink,), name="gatewise-late", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Write the waiting instances, end the thread and close the store."""
        with self._condition:
            self._is_closed = True
            self._condition.notify_all()
        if self._thread is not None:
            # A request in flight ends as a timeout and stays in the store.
            self._thread.join(RESPONSE_TIMEOUT_S + 1.0)
        self._store.close()

    def store_fallback(self, instance: PendingInstance, answer: Answer) -> None:
        """Store the instance of a fallback unless a worker has replied; set ``answer.request``."""
        classes = instance.installation.manifest.classes
        if answer.route != "fallback" or answer.reason not in _UNSENT_REASONS or not classes:
            return
        confidence = float(answer.probabilities.max().astype(np.float32))
        # Of missing values a stage may compute NaN, which no mark can state.
        mark = AuditMark(answer.class_index, 1.0, None if math.isnan(confidence) else confidence)
        answer.request = self.store_instance(instance, mark, is_fallback=True)

    def store_instance(
        self, instance: PendingInstance, mark: AuditMark, *, is_fallback: bool = False
    ) -> str:
        """Store an answered instance; return the id of its request in hexadecimal digits.

        The thread of the late requests acquires the features that the instance lacks.
        """
        answered_instance = _AnsweredInstance(instance, mark, is_fallback, new_id(), time.time())
        with self._condition:
            if len(self._unwritten_instances) >= _MAX_UNWRITTEN:
                self._unwritten_instances.popleft()
                self._counts["late_lost"] += 1
            self._unwritten_instances.append(answered_instance)
            self._condition.notify_all()
        return answered_instance.request_id.hex()

    # -- the thread ------------------------------------------------------------------------

    def _store_and_send(self, uplink: Uplink) -> None:
        """Store answered instances as they come, and send requests while the link is idle."""
        last_number = 0  # number of the latest request that was sent
        while True:
            with self._condition:
                if not self._unwritten_instances and not self._is_closed:
                    self._condition.wait(_POLL_S if len(self._store) else None)
                answered_instance = (
                    self._unwritten_instances.popleft() if self._unwritten_instances else None
                )
                if answered_instance is None and self._is_closed:
                    return
            try:
                if answered_instance is not None:
                    self._write_request(answered_instance, uplink.is_private)
                elif uplink.is_idle:
                    last_number = self._send_next(uplink, last_number)
            except Exception:  # the thread must continue to send the later requests
                _LOG.exception("late requests failed; the next try is in %g s", _PAUSE_S)
                self._pause()

    def _pause(self) -> None:
        with self._condition:
            self._condition.wait_for(
                lambda: self._is_closed or bool(self._unwritten_instances), _PAUSE_S
            )

    def _write_request(self, answered_instance: _AnsweredInstance, is_private: bool) -> None:
        """Store the request of an answered instance, or log why that is not possible."""
        instance = answered_instance.instance
        manifest = instance.installation.manifest
        instance.reading.lift_deadline()
        try:
            request = Request(
                id=answered_instance.request_id,
                model=manifest.name,
                version=manifest.version,
                ttl_ms=int(1000 * RESPONSE_TIMEOUT_S),
                X=instance.acquire_request_values()[np.newaxis],
                audit=answered_instance.mark,
                is_private=is_private,
            )
            self._store.add(
                encode_request(request),
                answered_instance.answered_at,
                is_fallback=answered_instance.is_fallback,
            )
        except (SensorError, WireError, sqlite3.Error) as error:
            self._counts["late_lost"] += 1
            problem = str(error)
            if problem != self._write_problem:  # a full disk may refuse each instance
                _LOG.warning("an instance cannot be stored for a late request: %s", problem)
            self._write_problem = problem
            return
        self._write_problem = ""
        self._classes_by_version[manifest.name, manifest.version] = manifest.classes

    def _send_next(self, uplink: Uplink, last_number: int) -> int:
        """Send the request after `last_number` and wait for its outcome; return its number."""
        unsent_request = self._store.next_request(last_number)
        if unsent_request is None:  # start again with the oldest request
            return 0
        try:
            request = decode_request(unsent_request.payload)
        except WireError as error:
            _LOG.warning("a stored request cannot be read: %s", error)
            self._store.remove(unsent_request)
            self._counts["late_refused"] += 1
            return unsent_request.number
        # 0 would mark a live request.
        request.late_s = min(max(1, round(time.time() - unsent_request.answered_at)), MAX_LATE_S)
        mark = request.audit
        if mark is not None:
            request.audit = replace(
                mark, probability=mark.probability * unsent_request.stored_probability
            )
        offload = uplink.send_late(request, RESPONSE_TIMEOUT_S)
        self._settle(unsent_request, request, offload)
        if offload.state != "answered":
            self._pause()
        return unsent_request.number

    def _settle(self, unsent_request: UnsentRequest, request: Request, offload: Offload) -> None:
        """Remove a request from the store if it was answered or refused for good."""
        response = offload.response
        if offload.state == "answered" and response is not None:
            self._store.remove(unsent_request)
            self._counts["late_sent"] += 1
            if unsent_request.is_fallback:
                self._report_answer(request, response)
        elif offload.state == "refused" and response is not None and not response.is_retryable:
            self._store.remove(unsent_request)
            self._counts["late_refused"] += 1

    def _report_answer(self, request: Request, response: Response) -> None:
        """Call `on_correction` with the late answer to a fallback."""
        mark = request.audit
        classes = self._classes_by_version.get((request.model, request.version))
        if self._on_correction is None or mark is None:
            return
        # After a restart the labels of a replaced version are unknown.
        if classes is None or len(classes) != response.probabilities.shape[1]:
            return
        # Probabilities are rounded as in the lines of answers.
        self._on_correction(
            {
                "request": request.id.hex(),
                "label": classes[int(response.labels[0])],
                "probabilities": [
                    round(probability, 6) for probability in response.probabilities[0].tolist()
                ],
                "answered": classes[mark.class_index],
                "model": request.model,
                "version": request.version,
                "late_s": request.late_s,
            }
        )
