"""The decisions about one instance: run the stages, offload it if no stage stops, and answer it.

Event-driven: :meth:`RowFlow.start` runs the stages and sends a request if necessary, and
:meth:`RowFlow.proceed` retries the request or ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gatewise_edge.device.answer import Answer, DecisionPoint, OwnPolicy, Policy, Route
from gatewise_edge.device.pending import Pending
from gatewise_edge.device.stages import StageOutput, run_stages
from gatewise_edge.errors import SensorError
from gatewise_edge.link.messages import Response
from gatewise_edge.link.uplink import Uplink


class RowFlow:
    """The decisions of a device about its instances, from the first stage to the answer."""

    def __init__(
        self,
        uplink: Uplink,
        *,
        policy: Policy | OwnPolicy,
        offload_implausible: bool = False,
        clock: Callable[[], float],
    ) -> None:
        self._uplink = uplink
        self._offload_implausible = offload_implausible
        self._policy = policy
        self._own_policy = policy if callable(policy) else None
        self._clock = clock

    def start(self, pending: Pending) -> Answer | Pending:
        """Run the stages, and send the instance to the cloud if no stage stops.

        Raises SensorError if no stage has answered and the instance cannot be offloaded.
        """
        installed = pending.installed
        if self._policy == "cloud-only":
            return self._offload(pending, "cloud-only")
        has_stopped = self._run_stages(pending)
        may_offload = installed.has_cloud and self._policy != "edge-only"
        is_doubtful = self._offload_implausible and bool(pending.reading.implausible)
        if has_stopped and is_doubtful and may_offload:
            return self._offload(pending, "implausible")
        if has_stopped:
            return self._local(pending, "edge", "stopped")
        if pending.error is not None:
            failure = _reason(pending.error)
            if pending.error.why == "infinite" or not may_offload:
                return self._fall_back(pending, failure)
            # The cloud may not need the feature; otherwise `_offload` falls back.
            return self._offload(pending, "missing" if pending.error.why == "missing" else failure)
        if not installed.has_cloud:
            return self._local(pending, "edge", "last-stage")
        if self._policy == "edge-only":
            return self._local(pending, "edge", "edge-only")
        return self._offload(pending, "offloaded")

    def send_group(self, group: Sequence[Pending]) -> None:
        """Send the instances of a group in one request, with their earliest deadline."""
        installed = group[0].installed
        request = self._uplink.send(
            np.stack([pending.values for pending in group]),  # type: ignore[misc]
            installed.manifest.name,
            installed.manifest.version,
            deadline=min(pending.deadline for pending in group),
        )
        if isinstance(request, str):
            for _ in group[1:]:  # each instance was admitted, and `send` released one
                self._uplink.release()
        for row, pending in enumerate(group):
            pending.row = row
            if isinstance(request, str):
                pending.reason = request
            else:
                pending.request = request

    def proceed(self, pending: Pending) -> Answer | Pending:
        """Retry an instance's request or end it; return `pending` while it has no answer.

        Raises SensorError as :meth:`start` does.
        """
        request = pending.request
        if request is None:  # the request of its group was not sent
            return self._fall_back(pending, _reason(pending.error, pending.reason))
        if not self._uplink.poll(request):
            return pending
        response = request.response
        if request.state == "answered" and response is not None:
            return self._remote(pending, response)
        if request.state == "unsent":
            return self._fall_back(pending, "unsent")
        reason = "timeout" if response is None else f"cloud:{response.error}"
        return self._fall_back(pending, reason, pending.installed.request_price)

    # -- the stages ------------------------------------------------------------------------

    def _run_stages(self, pending: Pending) -> bool:
        """Run the stages in order until a feature cannot be acquired; return whether one stops."""
        installed = pending.installed
        outputs = pending.outputs
        takes_nan = installed.stages_take_nan
        try:
            if self._own_policy is None:
                return run_stages(
                    installed.stages, pending.reading, outputs, allow_missing=takes_nan
                )
            for stage in installed.stages:
                outputs.append(stage.visit(pending.reading, allow_missing=takes_nan))
                point = self._point(pending, outputs[-1])
                decision = point.decide(self._own_policy)
                if decision != "continue":
                    return decision == "stop"
        except SensorError as error:
            pending.error = error
        return False

    def _point(self, pending: Pending, output: StageOutput) -> DecisionPoint:
        """State of device and instance after a stage has run."""
        link = self._uplink.gauges
        stage = output.stage
        _, probabilities = stage.rule.row_outcome(output.outputs, stage.spec.link)
        return DecisionPoint(
            stage=stage.index,
            last=stage.index == len(pending.installed.stages) - 1,
            score=output.score,
            threshold=stage.threshold,
            probabilities=probabilities,
            cost=pending.reading.cost,
            left_ms=1000.0 * (pending.deadline - self._clock()),
            connected=self._uplink.ready,
            round_trip_ms=link["round_trip_ms"],
            outstanding=int(link["outstanding"]),
        )

    # -- the cloud -------------------------------------------------------------------------

    def _offload(self, pending: Pending, reason: str) -> Answer | Pending:
        installed = pending.installed
        reading = pending.reading
        # If no request may be sent, its features are not acquired either.
        refusal = self._uplink.admit(pending.deadline)
        if refusal is not None:
            return self._fall_back(pending, _reason(pending.error, refusal))
        takes_nan = installed.cloud_takes_nan
        try:
            x = reading.acquire(
                installed.request_inputs, allow_missing=takes_nan, allow_failure=takes_nan
            )
        except SensorError as error:
            self._uplink.release()
            return self._fall_back(pending, _reason(pending.error or error))
        pending.values = installed.typed(x)
        pending.reason = _reason(reading.first_failure, reason) if reason == "offloaded" else reason
        if pending.group is not None:
            pending.group.append(pending)
            return pending
        request = self._uplink.send(
            pending.values[np.newaxis],
            installed.manifest.name,
            installed.manifest.version,
            deadline=pending.deadline,
        )
        if isinstance(request, str):
            return self._fall_back(pending, _reason(pending.error, request))
        pending.request = request
        return pending

    def _remote(self, pending: Pending, response: Response) -> Answer:
        installed = pending.installed
        row = pending.row
        classes = installed.manifest.classes
        if response.probabilities.shape[1] != len(classes):
            return self._fall_back(pending, "cloud:classes", installed.offload_price)
        index = int(response.labels[row])
        feature_cost, acquired = _charge(pending)
        return Answer(
            label=classes[index],
            class_index=index,
            probabilities=response.probabilities[row].astype(np.float64),
            route="cloud",
            stage=installed.n_stages,
            cost=feature_cost + installed.offload_price,
            feature_cost=feature_cost,
            latency_ms=1000.0 * (self._clock() - pending.started),
            reason=_implausible(pending, pending.reason),
            acquired=acquired,
            request=f"{response.id.hex()}-{row}" if row else response.id.hex(),
        )

    # -- local answers ---------------------------------------------------------------------

    def _fall_back(self, pending: Pending, reason: str, extra_cost: float = 0.0) -> Answer:
        """Answer with the last finished stage; run the stages first if no stage has run."""
        if not pending.outputs and pending.error is None:
            self._run_stages(pending)
        if not pending.outputs:
            assert pending.error is not None
            raise pending.error
        return self._local(pending, "fallback", reason, extra_cost)

    def _local(
        self, pending: Pending, route: Route, reason: str, extra_cost: float = 0.0
    ) -> Answer:
        output = pending.outputs[-1]
        stage = output.stage
        classes = pending.installed.manifest.classes
        label, probabilities = stage.rule.row_outcome(output.outputs, stage.spec.link)
        feature_cost, acquired = _charge(pending)
        return Answer(
            label=classes[int(label)] if classes else label,  # without classes it is a value
            class_index=int(label) if classes else -1,
            probabilities=probabilities,
            route=route,
            stage=stage.index,
            cost=feature_cost + extra_cost,
            feature_cost=feature_cost,
            latency_ms=1000.0 * (self._clock() - pending.started),
            reason=reason if route == "fallback" else _implausible(pending, reason),
            acquired=acquired,
        )


def _charge(pending: Pending) -> tuple[float, tuple[int, ...]]:
    """Compute the cost of the acquired features, and list their indices."""
    return pending.installed.meter.charge(pending.reading.acquired.tobytes())


def _implausible(pending: Pending, default: str) -> str:
    """Reason of an answer: an implausible value, or `default` if every value is plausible."""
    name = pending.reading.implausible
    return f"implausible:{name}" if name else default


def _reason(error: SensorError | None, default: str = "") -> str:
    """Reason of an answer: the failure of a sensor, or `default` without a failure."""
    return default if error is None else f"{error.why}:{error.sensor}"
