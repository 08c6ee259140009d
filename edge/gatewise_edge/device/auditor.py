"""Audits, in which a device also sends a random share of its answers to the high-cost model.

The device chooses the answers and sends their instances. The worker compares the answers of both
models and tests how often they agree.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial

import numpy as np

from gatewise_edge.device.answer import Answer
from gatewise_edge.device.audit_sampler import AuditSampler
from gatewise_edge.device.late_requests import RESPONSE_TIMEOUT_S, LateRequests
from gatewise_edge.device.pending import PendingInstance
from gatewise_edge.errors import SensorError
from gatewise_edge.link.messages import AuditMark, Response
from gatewise_edge.link.uplink import Uplink
from gatewise_edge.sensors.blocking_reader import BlockingReader

_LOG = logging.getLogger(__name__)


class Auditor:
    """The audits of a device. Thread-safe.

    `sampler` chooses the answers to audit. `late_requests` stores audits while the link is down.
    """

    def __init__(
        self,
        sampler: AuditSampler,
        uplink: Uplink,
        clock: Callable[[], float],
        late_requests: LateRequests | None,
    ) -> None:
        self._sampler = sampler
        self._uplink = uplink
        self._clock = clock
        self._late_requests = late_requests
        self._reader = BlockingReader()
        self._lock = threading.Lock()
        self._counts = {"audits": 0, "audits_disagreed": 0}
        self._sums = {"audit_instances": 0.0, "audit_weighted": 0.0, "audit_cost": 0.0}

    def close(self) -> None:
        """End the thread that acquires features for audits."""
        self._reader.close()

    @property
    def counters(self) -> dict[str, int]:
        """Numbers of answered ``audits`` and of disagreements (``audits_disagreed``)."""
        with self._lock:
            return dict(self._counts)

    @property
    def gauges(self) -> dict[str, float]:
        """Sums over the answered audits, and their cost.

        ``audit_instances`` is the number of offloads and of answers that the audits represent.
        ``audit_weighted`` estimates how many of these the high-cost model would answer differently.
        ``audit_cost`` is the cost of the features that were acquired only for audits.
        """
        with self._lock:
            return dict(self._sums)

    def audit(self, instance: PendingInstance, answer: Answer) -> None:
        """Send an answered instance to the high-cost model if the sampler chooses it.

        Another thread reads the features that the instance lacks, so that no instance waits for
        them. While that thread is busy, no instance is audited or counted: offloads alone would
        dilute the share of disagreements.
        """
        installation = instance.installation
        reading = instance.reading
        classes = installation.manifest.classes
        if not installation.has_cloud or not classes:
            return
        sends_later = not self._uplink.is_ready and self._late_requests is not None
        if not sends_later and not self._uplink.admit_audit():
            return
        if not sends_later and self._reader.is_busy:
            return
        confidence = float(answer.probabilities.max().astype(np.float32))
        with self._lock:
            mark = self._sampler.choose(answer.route, answer.class_index, confidence)
            if answer.route == "cloud" and not sends_later:
                self._sums["audit_instances"] += 1
        if mark is None:
            return
        if sends_later and self._late_requests is not None:
            self._late_requests.store_instance(instance, mark)
            return
        send = partial(self._send_audit, instance, mark, answer.feature_cost)
        if reading.has(installation.request_inputs):
            send()
        else:
            reading.lift_deadline()
            self._reader.start(lambda _: send())

    def _send_audit(self, instance: PendingInstance, mark: AuditMark, feature_cost: float) -> None:
        """Acquire the features of a request, send it as an audit, and add its cost."""
        manifest = instance.installation.manifest
        try:
            self._uplink.send(
                instance.acquire_request_values()[np.newaxis],
                manifest.name,
                manifest.version,
                deadline=self._clock() + RESPONSE_TIMEOUT_S,
                mark=mark,
                on_answer=partial(self._count_response, mark),
            )
        except SensorError:
            return  # this causes no bias, because a sensor fails for right and wrong answers alike
        except Exception:
            _LOG.exception("an answer could not be audited")
        finally:
            with self._lock:
                self._sums["audit_cost"] += instance.reading.cost - feature_cost

    def _count_response(self, mark: AuditMark, response: Response) -> None:
        """Count an answered audit, weighted with ``1 / p`` for its probability p."""
        disagrees = int(response.labels[0]) != mark.class_index
        with self._lock:
            self._counts["audits"] += 1
            self._counts["audits_disagreed"] += disagrees
            self._sums["audit_instances"] += 1 / mark.probability
            self._sums["audit_weighted"] += disagrees / mark.probability
