"""The decisions about one instance: run the stages, offload it if no stage stops, and answer it.

Event-driven: :meth:`RowFlow.start` runs the stages and sends a request if necessary, and
:meth:`RowFlow.proceed` retries the request or ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gatewise_edge.device.answer import Answer, CustomPolicy, DecisionPoint, Policy, Route
from gatewise_edge.device.pending import PendingInstance
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
        policy: Policy | CustomPolicy,
        offloads_implausible: bool = False,
        clock: Callable[[], float],
    ) -> None:
        self._uplink = uplink
        self._offloads_implausible = offloads_implausible
        self._policy = policy
        self._custom_policy = policy if callable(policy) else None
        self._clock = clock

    def start(self, instance: PendingInstance) -> Answer | PendingInstance:
        """Run the stages, and send the instance to the cloud if no stage stops.

        Raises SensorError if no stage has answered and the instance cannot be offloaded.
        """
        bundle = instance.bundle
        if self._policy == "cloud-only":
            return self._offload(instance, "cloud-only")
        has_stopped = self._run_stages(instance)
        may_offload = bundle.has_cloud and self._policy != "edge-only"
        is_doubtful = self._offloads_implausible and bool(instance.reading.implausible)
        if has_stopped and is_doubtful and may_offload:
            return self._offload(instance, "implausible")
        if has_stopped:
            return self._local_answer(instance, "edge", "stopped")
        if instance.error is not None:
            failure = _failure_reason(instance.error)
            if instance.error.cause == "infinite" or not may_offload:
                return self._fall_back(instance, failure)
            # The cloud may not need the feature; otherwise `_offload` falls back.
            return self._offload(
                instance, "missing" if instance.error.cause == "missing" else failure
            )
        if not bundle.has_cloud:
            return self._local_answer(instance, "edge", "last-stage")
        if self._policy == "edge-only":
            return self._local_answer(instance, "edge", "edge-only")
        return self._offload(instance, "offloaded")

    def send_group(self, group: Sequence[PendingInstance]) -> None:
        """Send the instances of a group in one request, with their earliest deadline."""
        bundle = group[0].bundle
        offload_or_reason = self._uplink.send(
            np.stack([instance.values for instance in group]),  # type: ignore[misc]
            bundle.manifest.name,
            bundle.manifest.version,
            deadline=min(instance.deadline for instance in group),
        )
        if isinstance(offload_or_reason, str):
            for _ in group[1:]:  # each instance was admitted, and `send` released one
                self._uplink.release()
        for row, instance in enumerate(group):
            instance.row = row
            if isinstance(offload_or_reason, str):
                instance.reason = offload_or_reason
            else:
                instance.offload = offload_or_reason

    def proceed(self, instance: PendingInstance) -> Answer | PendingInstance:
        """Retry an instance's request or end it; return `instance` while it has no answer.

        Raises SensorError as :meth:`start` does.
        """
        offload = instance.offload
        if offload is None:  # the request of its group was not sent
            return self._fall_back(instance, _failure_reason(instance.error, instance.reason))
        if not self._uplink.poll(offload):
            return instance
        response = offload.response
        if offload.state == "answered" and response is not None:
            return self._cloud_answer(instance, response)
        if offload.state == "unsent":
            return self._fall_back(instance, "unsent")
        reason = "timeout" if response is None else f"cloud:{response.error}"
        return self._fall_back(instance, reason, instance.bundle.request_price)

    # -- the stages ------------------------------------------------------------------------

    def _run_stages(self, instance: PendingInstance) -> bool:
        """Run the stages in order until a feature cannot be acquired; return whether one stops."""
        bundle = instance.bundle
        outputs = instance.outputs
        takes_nan = bundle.stages_take_nan
        try:
            if self._custom_policy is None:
                return run_stages(bundle.stages, instance.reading, outputs, allow_missing=takes_nan)
            for stage in bundle.stages:
                outputs.append(stage.run_instance(instance.reading, allow_missing=takes_nan))
                decision_point = self._decision_point(instance, outputs[-1])
                decision = decision_point.decide(self._custom_policy)
                if decision != "continue":
                    return decision == "stop"
        except SensorError as error:
            instance.error = error
        return False

    def _decision_point(self, instance: PendingInstance, output: StageOutput) -> DecisionPoint:
        """State of device and instance after a stage has run."""
        link_gauges = self._uplink.gauges
        stage = output.stage
        _, probabilities = stage.rule.row_outcome(output.outputs, stage.spec.link)
        return DecisionPoint(
            stage=stage.index,
            is_last_stage=stage.index == len(instance.bundle.stages) - 1,
            score=output.score,
            threshold=stage.threshold,
            probabilities=probabilities,
            cost=instance.reading.cost,
            time_left_ms=1000.0 * (instance.deadline - self._clock()),
            is_connected=self._uplink.ready,
            round_trip_ms=link_gauges["round_trip_ms"],
            n_in_flight=int(link_gauges["outstanding"]),
        )

    # -- the cloud -------------------------------------------------------------------------

    def _offload(self, instance: PendingInstance, reason: str) -> Answer | PendingInstance:
        # If no request may be sent, its features are not acquired either.
        refusal = self._uplink.admit(instance.deadline)
        if refusal is not None:
            return self._fall_back(instance, _failure_reason(instance.error, refusal))
        try:
            instance.values = instance.acquire_request_values()
        except SensorError as error:
            self._uplink.release()
            return self._fall_back(instance, _failure_reason(instance.error or error))
        if reason == "offloaded":
            reason = _failure_reason(instance.reading.first_failure, reason)
        instance.reason = reason
        if instance.group is not None:
            instance.group.append(instance)
            return instance
        manifest = instance.bundle.manifest
        offload_or_reason = self._uplink.send(
            instance.values[np.newaxis], manifest.name, manifest.version, deadline=instance.deadline
        )
        if isinstance(offload_or_reason, str):
            return self._fall_back(instance, _failure_reason(instance.error, offload_or_reason))
        instance.offload = offload_or_reason
        return instance

    def _cloud_answer(self, instance: PendingInstance, response: Response) -> Answer:
        bundle = instance.bundle
        row = instance.row
        classes = bundle.manifest.classes
        if response.probabilities.shape[1] != len(classes):
            return self._fall_back(instance, "cloud:classes", bundle.offload_price)
        class_index = int(response.labels[row])
        feature_cost, acquired = _feature_cost(instance)
        return Answer(
            label=classes[class_index],
            class_index=class_index,
            probabilities=response.probabilities[row].astype(np.float64),
            route="cloud",
            stage=bundle.n_stages,
            cost=feature_cost + bundle.offload_price,
            feature_cost=feature_cost,
            latency_ms=1000.0 * (self._clock() - instance.started_at),
            reason=_implausible_reason(instance, instance.reason),
            acquired=acquired,
            request=f"{response.id.hex()}-{row}" if row else response.id.hex(),
        )

    # -- local answers ---------------------------------------------------------------------

    def _fall_back(
        self, instance: PendingInstance, reason: str, request_cost: float = 0.0
    ) -> Answer:
        """Answer with the last finished stage; run the stages first if no stage has run."""
        if not instance.outputs and instance.error is None:
            self._run_stages(instance)
        if not instance.outputs:
            assert instance.error is not None
            raise instance.error
        return self._local_answer(instance, "fallback", reason, request_cost)

    def _local_answer(
        self, instance: PendingInstance, route: Route, reason: str, request_cost: float = 0.0
    ) -> Answer:
        output = instance.outputs[-1]
        stage = output.stage
        classes = instance.bundle.manifest.classes
        label, probabilities = stage.rule.row_outcome(output.outputs, stage.spec.link)
        feature_cost, acquired = _feature_cost(instance)
        return Answer(
            label=classes[int(label)] if classes else label,  # without classes it is a value
            class_index=int(label) if classes else -1,
            probabilities=probabilities,
            route=route,
            stage=stage.index,
            cost=feature_cost + request_cost,
            feature_cost=feature_cost,
            latency_ms=1000.0 * (self._clock() - instance.started_at),
            reason=reason if route == "fallback" else _implausible_reason(instance, reason),
            acquired=acquired,
        )


def _feature_cost(instance: PendingInstance) -> tuple[float, tuple[int, ...]]:
    """Compute the cost of the acquired features, and list their indices."""
    return instance.bundle.meter.charge(instance.reading.acquired.tobytes())


def _implausible_reason(instance: PendingInstance, default: str) -> str:
    """Reason of an answer: an implausible value, or `default` if every value is plausible."""
    name = instance.reading.implausible
    return f"implausible:{name}" if name else default


def _failure_reason(error: SensorError | None, default: str = "") -> str:
    """Reason of an answer: the failure of a sensor, or `default` without a failure."""
    return default if error is None else f"{error.cause}:{error.sensor}"
