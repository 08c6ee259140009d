"""Decide one instance: run the stages, offload it if none stops, answer in every case.

Event-driven: :meth:`OffloadFlow.start` runs the stages and sends what must be sent,
:meth:`OffloadFlow.proceed` retries the request or ends it. Only audits, of answered instances,
acquire features on a thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from gatewise_edge.checks import MAX_PAYLOAD
from gatewise_edge.device.answer import Answer, DecisionPoint, OwnPolicy, Policy, Route
from gatewise_edge.device.auditor import AUDIT_PATIENCE, Auditor
from gatewise_edge.device.pending import Pending
from gatewise_edge.device.stage_output import RowOutput
from gatewise_edge.errors import SensorError
from gatewise_edge.link.messages import MAX_FILE, AuditMark, Response
from gatewise_edge.link.offload import OffloadOutcome
from gatewise_edge.link.uplink import Uplink
from gatewise_edge.sensors.blocking_reader import BlockingReader

_LOG = logging.getLogger(__name__)


class OffloadFlow:
    """The decisions about instances, from the first stage to the answer."""

    def __init__(
        self, uplink: Uplink, *, policy: Policy | OwnPolicy, clock: Callable[[], float]
    ) -> None:
        self._uplink = uplink
        self._policy = policy
        self._own_policy = policy if callable(policy) else None
        self._clock = clock
        self._auditing = BlockingReader()

    def close(self) -> None:
        """End the thread that acquires what audits need."""
        self._auditing.close()

    def start(self, pending: Pending) -> Answer | Pending:
        """Run the stages; send the instance to the cloud if none stops.

        Raises SensorError if there is neither a stage's answer nor a way to the cloud.
        """
        plan = pending.installed.plan
        gate, auditor = pending.installed.gate, pending.installed.auditor
        if auditor is not None and auditor.offload_all:
            return self._offload(pending, "audit")
        if self._policy == "cloud-only":
            return self._offload(pending, "cloud-only")
        stopped = self._run_stages(pending)
        if gate is not None and pending.error is None and self._own_policy is None:
            gate.watch_drift(pending.offloads_as_packed)
        if stopped:
            return self._local(pending, "edge", "stopped")
        if pending.error is not None:
            failure = _reason(pending.error)
            may_offload = plan.has_cloud and self._policy != "edge-only"
            if pending.error.why == "infinite" or not may_offload:
                return self._fall_back(pending, failure)
            # The cloud may do without the feature; what it cannot do without is refused there.
            return self._offload(pending, "missing" if pending.error.why == "missing" else failure)
        if not plan.has_cloud:
            return self._local(pending, "edge", "last-stage")
        if self._policy == "edge-only":
            return self._local(pending, "edge", "edge-only")
        return self._offload(pending, "offloaded")

    def proceed(self, pending: Pending) -> Answer | Pending:
        """Retry an instance's request or end it; return `pending` itself while the outcome is open.

        Raises SensorError as :meth:`start`.
        """
        assert pending.request is not None
        outcome = self._uplink.poll(pending.request, pending.deadline)
        if outcome is None:
            return pending
        pending.offloaded = outcome.kind in ("answered", "refused", "timeout")
        return self._conclude(pending, outcome)

    def audit(self, pending: Pending, answer: Answer) -> None:
        """Send an answered instance to the high-cost model if its bundle's auditor chooses it.

        What is not at hand is acquired on a thread: the answer does not wait for it, and no later
        instance either. While that thread is busy nothing is audited.
        """
        auditor, reading = pending.installed.auditor, pending.reading
        if auditor is None or not self._uplink.admit_audit():
            return
        at_hand = reading.has(pending.installed.plan.request_inputs)
        if not at_hand and self._auditing.busy:
            return
        confidence = float(answer.probabilities.max().astype(np.float32))
        mark = auditor.choose(answer.route, answer.class_index, confidence)
        if mark is None:
            return
        send = partial(self._send_audit, pending, auditor, mark, answer.feature_cost)
        if at_hand:
            send()
        else:
            reading.lift_deadline()
            self._auditing.begin(send)

    def _send_audit(
        self, pending: Pending, auditor: Auditor, mark: AuditMark, feature_cost: float
    ) -> None:
        plan, reading = pending.installed.plan, pending.reading
        try:
            x = reading.acquire(
                plan.request_inputs,
                allow_missing=plan.cloud_takes_nan,
                spare=plan.cloud_takes_nan,
            )
            until = self._clock() + AUDIT_PATIENCE
            self._uplink.audit(x, plan, mark, until, partial(auditor.compare, mark))
        except SensorError:
            return  # no evidence: what fails is taken to fail for right and wrong answers alike
        except Exception:
            _LOG.exception("an answer could not be audited")
        finally:
            auditor.charge(reading.cost - feature_cost)

    # -- the stages ------------------------------------------------------------------------

    def _run_stages(self, pending: Pending) -> bool:
        """Run the stages until one stops, all are done, or a feature cannot be acquired."""
        installed = pending.installed
        runner, plan, gate = installed.runner, installed.plan, installed.gate

        for s, threshold in enumerate(runner.thresholds[: plan.n_here]):
            try:
                finished = runner.visit(s, pending.reading, allow_missing=plan.stages_take_nan)
            except SensorError as error:
                pending.error = error
                return False
            pending.finished, pending.stage = finished, s
            if self._own_policy is not None:
                decision = self._point(pending, finished, threshold).decide(self._own_policy)
                if decision != "continue":
                    return decision == "stop"
                continue
            if s == plan.n_here - 1 and gate is not None:
                stopped, as_packed, pending.paced = gate.decide(finished)
                pending.offloads_as_packed = not as_packed
                pending.score = finished.score
                return stopped
            if finished.stops(threshold):
                return True
        return False

    def _point(
        self, pending: Pending, finished: RowOutput, threshold: float | None
    ) -> DecisionPoint:
        """What is known now that a stage with this threshold has answered."""
        plan, gate = pending.installed.plan, pending.installed.gate
        last, debt = pending.stage == plan.n_here - 1, None
        if gate is not None and gate.pace is not None:
            debt = gate.pace.gauges["pacer_debt"]
            if last:
                pending.score = finished.score
        link = self._uplink.gauges
        return DecisionPoint(
            stage=pending.stage,
            last=last,
            score=finished.score,
            threshold=gate.threshold if last and gate is not None else threshold,
            probabilities=finished.probabilities,
            cost=pending.reading.charge[0],
            left_ms=1000.0 * (pending.deadline - self._clock()),
            connected=self._uplink.ready,
            round_trip_ms=link["round_trip_ms"],
            outstanding=int(link["outstanding"]),
            pacer_debt=debt,
        )

    # -- the cloud -------------------------------------------------------------------------

    def _offload(self, pending: Pending, reason: str) -> Answer | Pending:
        plan, reading = pending.installed.plan, pending.reading
        # A request that would be in vain is not made, nor are its features acquired.
        refused = self._uplink.admit(pending.deadline)
        if refused is not None:
            return self._fall_back(pending, _reason(pending.error, refused))
        x: NDArray[np.float32] | bytes | None
        # What fits one message whole or as values goes so: older workers take no parts.
        most = MAX_FILE if plan.request_bytes <= MAX_PAYLOAD else self._uplink.most_bytes
        x = reading.acquire_file(plan.request_inputs, most)
        try:
            if x is None:
                x = reading.acquire(
                    plan.request_inputs,
                    allow_missing=plan.cloud_takes_nan,
                    spare=plan.cloud_takes_nan,
                )
        except SensorError as error:
            self._uplink.release()
            return self._fall_back(pending, _reason(pending.error or error))
        pending.reason = _reason(reading.failure, reason) if reason == "offloaded" else reason
        made = self._uplink.request(x, pending.deadline, plan, hold=pending.hold)
        if isinstance(made, str):
            return self._fall_back(pending, _reason(pending.error, made))
        pending.request, pending.row = made
        pending.offloaded = True
        return pending

    def _conclude(self, pending: Pending, outcome: OffloadOutcome) -> Answer:
        response = outcome.response
        if outcome.kind == "answered" and response is not None:
            return self._remote(pending, response)
        if outcome.kind in ("unsent", "full", "deadline"):
            return self._fall_back(pending, outcome.kind)
        reason = "timeout" if response is None else f"cloud:{response.error}"
        return self._fall_back(pending, reason, pending.installed.plan.request_price)

    def _remote(self, pending: Pending, response: Response) -> Answer:
        plan, row = pending.installed.plan, pending.row
        stage = plan.n_stages if response.exits is None else int(response.exits[row])
        if response.probabilities.shape[1] != len(plan.classes):
            return self._fall_back(pending, "cloud:classes", plan.offload_price)
        if not plan.n_here <= stage <= plan.last_exit:
            return self._fall_back(pending, "cloud:stage", plan.offload_price)
        reason = pending.reason
        if stage < plan.n_stages and reason == "offloaded" and plan.tiers[stage] == "gateway":
            reason = "gateway"
        index = int(response.labels[row])
        return self._answer(
            pending,
            plan.classes[index],
            index,
            response.probabilities[row].astype(np.float64),
            "cloud",
            stage,
            plan.offload_price if stage == plan.n_stages else plan.gateway_price,
            reason,
        )

    # -- answers ---------------------------------------------------------------------------

    def _fall_back(self, pending: Pending, reason: str, extra_cost: float = 0.0) -> Answer:
        """Answer with the last finished stage; run the stages first if none has run."""
        if pending.finished is None and pending.error is None:
            self._run_stages(pending)
        if pending.finished is None:
            assert pending.error is not None
            raise pending.error
        return self._local(pending, "fallback", reason, extra_cost)

    def _local(
        self, pending: Pending, route: Route, reason: str, extra_cost: float = 0.0
    ) -> Answer:
        finished = pending.finished
        assert finished is not None
        classes, output = pending.installed.plan.classes, finished.label
        index = int(output) if classes else -1
        label = classes[index] if classes else output  # a value where there are none
        found = finished.probabilities
        return self._answer(pending, label, index, found, route, pending.stage, extra_cost, reason)

    def _answer(
        self,
        pending: Pending,
        label: Hashable,
        index: int,
        probabilities: NDArray[np.float64],
        route: Route,
        stage: int,
        extra_cost: float,
        reason: str,
    ) -> Answer:
        feature_cost, acquired = pending.reading.charge
        return Answer(
            label,
            index,
            probabilities,
            route,
            stage,
            feature_cost + extra_cost,
            feature_cost,
            1000.0 * (self._clock() - pending.started),
            reason,
            acquired,
            pending.paced,
        )


def _reason(error: SensorError | None, otherwise: str = "") -> str:
    """An answer's reason for a sensor's failure, or the other one where there is none."""
    return otherwise if error is None else f"{error.why}:{error.sensor}"
