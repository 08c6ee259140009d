"""The decisions about one instance: run the stages, offload it if no stage stops, and answer it.

The decisions are event-driven: :meth:`RowFlow.start` runs the stages and sends a request if
necessary, and :meth:`RowFlow.proceed` retries the request or ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

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
        offloads_implausible: bool,
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
        installation = instance.installation
        if self._policy == "cloud-only":
            return self._offload(instance, "cloud-only")
        has_stopped = self._run_stages(instance)
        may_offload = installation.has_cloud and self._policy != "edge-only"
        if has_stopped:
            is_doubtful = self._offloads_implausible and bool(instance.reading.implausible)
            if is_doubtful and may_offload:
                return self._offload(instance, "implausible")
            return self._local_answer(instance, "edge", "stopped")
        if instance.error is not None:
            failure = _failure_reason(instance.error)
            if instance.error.cause == "infinite" or not may_offload:
                return self._fall_back(instance, failure)
            # `_offload` falls back if the cloud also needs the feature.
            reason = "missing" if instance.error.cause == "missing" else failure
            return self._offload(instance, reason)
        if not installation.has_cloud:
            return self._local_answer(instance, "edge", "last-stage")
        if self._policy == "edge-only":
            return self._local_answer(instance, "edge", "edge-only")
        return self._offload(instance, "offloaded")

    def send_group(self, group: Sequence[PendingInstance]) -> None:
        """Send the instances of a group in one request, with their earliest deadline.

        If the request cannot be sent, :meth:`proceed` answers them.
        """
        manifest = group[0].installation.manifest
        offload_or_reason = self._uplink.send(
            np.stack([instance.values for instance in group]),  # type: ignore[misc]
            manifest.name,
            manifest.version,
            deadline=min(instance.deadline for instance in group),
        )
        for row, instance in enumerate(group):
            instance.row = row
            if not isinstance(offload_or_reason, str):
                instance.offload = offload_or_reason
                continue
            instance.reason = offload_or_reason
            if row:  # each instance was admitted, and `send` has released one admission
                self._uplink.release()

    def proceed(self, instance: PendingInstance) -> Answer | PendingInstance:
        """Retry an instance's request or end it; return `instance` while it has no answer.

        Raises SensorError as :meth:`start` does.
        """
        offload = instance.offload
        if offload is None:  # its request was not sent
            return self._fall_back(instance, _failure_reason(instance.error, instance.reason))
        if not self._uplink.poll(offload):
            return instance
        response = offload.response
        if offload.state == "answered" and response is not None:
            return self._cloud_answer(instance, response)
        if offload.state == "unsent":
            return self._fall_back(instance, "unsent")
        reason = "timeout" if response is None else f"cloud:{response.error}"
        return self._fall_back(instance, reason, instance.installation.request_price)

    # -- the stages ------------------------------------------------------------------------

    def _run_stages(self, instance: PendingInstance) -> bool:
        """Run the stages in order until a feature cannot be acquired; return whether one stops."""
        reading = instance.reading
        stages = instance.installation.stages
        allow_missing = instance.installation.stages_take_nan
        try:
            if self._custom_policy is None:
                return run_stages(stages, reading, instance.outputs, allow_missing=allow_missing)
            for stage in stages:
                output = stage.run_instance(reading, allow_missing=allow_missing)
                instance.outputs.append(output)
                decision = self._decision_point(instance, output).decide(self._custom_policy)
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
            is_last_stage=stage.index == len(instance.installation.stages) - 1,
            score=output.score,
            threshold=stage.threshold,
            probabilities=probabilities,
            cost=instance.reading.cost,
            time_left_ms=1000.0 * (instance.deadline - self._clock()),
            is_connected=self._uplink.is_ready,
            round_trip_ms=link_gauges["round_trip_ms"],
            n_in_flight=int(link_gauges["outstanding"]),
        )

    # -- the cloud -------------------------------------------------------------------------

    def _offload(self, instance: PendingInstance, reason: str) -> Answer | PendingInstance:
        """Send an instance, or add it to its group; fall back if it may not be sent."""
        # Ask first, because acquiring features for a request that may not be sent is a waste.
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
        self.send_group([instance])
        return self.proceed(instance) if instance.offload is None else instance

    def _cloud_answer(self, instance: PendingInstance, response: Response) -> Answer:
        """Make the answer from a response, unless it is for other classes than the bundle's."""
        installation = instance.installation
        row = instance.row
        classes = installation.manifest.classes
        if response.probabilities.shape[1] != len(classes):
            return self._fall_back(instance, "cloud:classes", installation.offload_price)
        return self._answer(
            instance,
            "cloud",
            int(response.labels[row]),
            response.probabilities[row].astype(np.float64),
            stage=installation.n_stages,
            reason=instance.reason,
            price=installation.offload_price,
            request=f"{response.id.hex()}-{row}" if row else response.id.hex(),
        )

    # -- local answers ---------------------------------------------------------------------

    def _fall_back(self, instance: PendingInstance, reason: str, price: float = 0.0) -> Answer:
        """Answer with the last finished stage; run the stages first if no stage has run."""
        if not instance.outputs and instance.error is None:
            self._run_stages(instance)
        if not instance.outputs:
            assert instance.error is not None
            raise instance.error
        return self._local_answer(instance, "fallback", reason, price)

    def _local_answer(
        self, instance: PendingInstance, route: Route, reason: str, price: float = 0.0
    ) -> Answer:
        output = instance.outputs[-1]
        stage = output.stage
        label, probabilities = stage.rule.row_outcome(output.outputs, stage.spec.link)
        return self._answer(
            instance, route, label, probabilities, stage=stage.index, reason=reason, price=price
        )

    # -- all answers -----------------------------------------------------------------------

    def _answer(
        self,
        instance: PendingInstance,
        route: Route,
        label: float,
        probabilities: NDArray[np.float64],
        *,
        stage: int,
        reason: str,
        price: float,
        request: str = "",
    ) -> Answer:
        """Make an answer; `label` is a class index, or a value if the bundle has no classes.

        `price` is the price of the request, or 0 without one.
        """
        classes = instance.installation.manifest.classes
        implausible_name = instance.reading.implausible
        if implausible_name and route != "fallback":
            reason = f"implausible:{implausible_name}"
        feature_cost, acquired = instance.installation.meter.charge(
            instance.reading.acquired.tobytes()
        )
        return Answer(
            label=classes[int(label)] if classes else label,
            class_index=int(label) if classes else -1,
            probabilities=probabilities,
            route=route,
            stage=stage,
            cost=feature_cost + price,
            feature_cost=feature_cost,
            latency_ms=1000.0 * (self._clock() - instance.started_at),
            reason=reason,
            acquired=acquired,
            request=request,
        )


def _failure_reason(error: SensorError | None, default: str = "") -> str:
    """Reason of an answer: the failure of a sensor, or `default` without a failure."""
    return default if error is None else f"{error.cause}:{error.sensor}"
