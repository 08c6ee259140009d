"""The course of one instance: stages, then perhaps the cloud, and one answer in every case.

Event-driven and without a thread: :meth:`Course.start` runs the stages and sends what must be sent,
:meth:`Course.proceed` looks after the request until its outcome is there.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import numpy as np
from numpy.typing import NDArray

from gatewise_edge.device.answer import Answer, Case, Pending, Policy, Route
from gatewise_edge.errors import SensorError
from gatewise_edge.link.offload import Outcome
from gatewise_edge.link.uplink import Uplink
from gatewise_edge.link.wire import Response

__all__ = ["Course"]


class Course:
    """What becomes of instances.

    Parameters
    ----------
    uplink : Uplink
    policy : {"system", "edge-only", "cloud-only"}
    clock : callable
        Seconds, steady.
    """

    def __init__(self, uplink: Uplink, *, policy: Policy, clock: Callable[[], float]) -> None:
        self._uplink = uplink
        self._policy = policy
        self._clock = clock

    def start(self, case: Case) -> Answer | Pending:
        """Run the stages; send the instance to the cloud if none stops.

        Raises
        ------
        SensorError
            If there is neither a stage's answer nor a way to the cloud.
        """
        plan = case.installed.plan
        if self._policy == "cloud-only":
            return self._offload(case, "cloud-only")
        stopped = self._run_stages(case)
        gate = case.installed.gate
        if gate is not None and case.error is None:
            gate.saw(case.goes_on)
        if stopped:
            return self._local(case, "edge", "stopped")
        if case.error is not None:
            trouble = _trouble(case.error)
            may_offload = plan.has_cloud and self._policy != "edge-only"
            if case.error.why == "infinite" or not may_offload:
                return self._fall_back(case, trouble)
            # The cloud may do without the feature; what it cannot do without is refused there.
            return self._offload(case, "missing" if case.error.why == "missing" else trouble)
        if not plan.has_cloud:
            return self._local(case, "edge", "last-stage")
        if self._policy == "edge-only":
            return self._local(case, "edge", "edge-only")
        return self._offload(case, "offloaded")

    def proceed(self, pending: Pending) -> Answer | Pending:
        """Look after a request that is out: retry it, end it, or leave it.

        Returns
        -------
        Answer or Pending
            `pending` itself while the outcome is open.

        Raises
        ------
        SensorError
            As :meth:`start`.
        """
        share = pending.item
        self._uplink.poll(share)
        if share.outcome is None:
            return pending
        pending.case.asked = share.outcome.kind in ("answered", "refused", "timeout")
        return self._conclude(pending.case, share.outcome, share.row)

    # -- the stages ------------------------------------------------------------------------

    def _run_stages(self, case: Case) -> bool:
        """Run the stages until one stops, all are done, or a feature cannot be had."""
        runner, plan = case.installed.runner, case.installed.plan

        def remaining() -> float:
            return case.deadline - self._clock()

        for s, threshold in enumerate(runner.thresholds[: plan.n_here]):
            try:
                case.finished = runner.visit(
                    s, case.reading, allow_missing=plan.stages_take_nan, remaining=remaining
                )
            except SensorError as error:
                case.error = error
                return False
            case.stage = s
            if s == plan.n_here - 1 and case.installed.gate is not None:
                stopped, as_packed, case.paced = case.installed.gate.decide(case.finished)
                case.goes_on = not as_packed
                case.score = float(case.finished.score[0])
                return stopped
            if case.finished.stops(threshold)[0]:
                return True
        return False

    def _local(self, case: Case, route: Route, reason: str, extra_cost: float = 0.0) -> Answer:
        finished = case.finished
        assert finished is not None
        classes, said = case.installed.plan.classes, finished.labels[0].item()
        return self._give(
            case,
            label=classes[said] if classes else said,  # without classes answers are values
            index=said if classes else -1,
            probabilities=finished.probabilities[0],
            route=route,
            stage=case.stage,
            extra_cost=extra_cost,
            reason=reason,
        )

    # -- the cloud -------------------------------------------------------------------------

    def _offload(self, case: Case, reason: str) -> Answer | Pending:
        case.reason = reason
        plan = case.installed.plan
        # Known at once to be in vain? Then the cloud model's features are not bought.
        refused = self._uplink.admit(case.deadline)
        if refused is not None:
            return self._fall_back(case, refused if case.error is None else _trouble(case.error))
        try:
            x = case.reading.acquire(
                plan.request_inputs,
                allow_missing=plan.cloud_takes_nan,
                timeout=case.deadline - self._clock(),
                spare=plan.cloud_takes_nan,
            )
        except SensorError as error:
            self._uplink.release()
            case.error = case.error or error
            return self._fall_back(case, _trouble(case.error))
        if reason == "offloaded" and case.reading.failure is not None:
            case.reason = _trouble(case.reading.failure)
        share = self._uplink.request(x, case.deadline, plan, hold=case.hold)
        if isinstance(share, str):
            return self._fall_back(case, share if case.error is None else _trouble(case.error))
        case.asked = True
        return Pending(case, share)

    def _conclude(self, case: Case, outcome: Outcome, row: int) -> Answer:
        response = outcome.response
        plan = case.installed.plan
        if outcome.kind == "answered" and response is not None:
            return self._remote(case, response, row)
        if outcome.kind in ("unsent", "full", "deadline"):
            return self._fall_back(case, outcome.kind)
        reason = "timeout" if response is None else f"cloud:{response.error}"
        return self._fall_back(case, reason, plan.request_price)

    def _remote(self, case: Case, response: Response, row: int) -> Answer:
        plan = case.installed.plan
        stage = plan.n_stages if response.exits is None else int(response.exits[row])
        if response.probabilities.shape[1] != len(plan.classes):
            return self._fall_back(case, "cloud:classes", plan.offload_price)
        if not plan.n_here <= stage <= plan.n_stages:
            return self._fall_back(case, "cloud:stage", plan.offload_price)
        reason = case.reason
        if stage < plan.n_stages and reason == "offloaded" and plan.tiers[stage] == "gateway":
            reason = "gateway"
        return self._give(
            case,
            label=plan.classes[int(response.labels[row])],
            index=int(response.labels[row]),
            probabilities=response.probabilities[row].astype(np.float64),
            route="cloud",
            stage=stage,
            extra_cost=plan.offload_price if stage == plan.n_stages else plan.gateway_price,
            reason=reason,
        )

    def _fall_back(self, case: Case, reason: str, extra_cost: float = 0.0) -> Answer:
        """Answer with the last finished stage; run the stages first if none has run."""
        if case.finished is None and self._policy == "cloud-only":
            self._run_stages(case)
        if case.finished is None:
            assert case.error is not None
            raise case.error
        return self._local(case, "fallback", reason, extra_cost)

    def _give(
        self,
        case: Case,
        *,
        label: Hashable,
        index: int,
        probabilities: NDArray[np.float64],
        route: Route,
        stage: int,
        extra_cost: float,
        reason: str,
    ) -> Answer:
        acquired, feature_cost = case.reading.acquired, case.reading.meter
        return Answer(
            label=label,
            class_index=index,
            probabilities=probabilities,
            route=route,
            stage=stage,
            cost=feature_cost + extra_cost,
            feature_cost=feature_cost,
            latency_ms=1000.0 * (self._clock() - case.started),
            reason=reason,
            acquired=tuple(np.flatnonzero(acquired).tolist()),
            paced=case.paced,
        )


def _trouble(error: SensorError) -> str:
    return f"{error.why}:{error.sensor}"
