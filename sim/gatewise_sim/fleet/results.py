"""Outcomes of rows, and results of a fleet's run with either engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gatewise_edge.link.messages import Response
from gatewise_sim.fleet.energy import radio_joules
from gatewise_sim.scenario import Scenario

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

#: Routes of an answer; an error counts as an answer.
ROUTES: Final = ("edge", "cloud", "fallback", "error")
EDGE: Final = 0
CLOUD: Final = 1
FALLBACK: Final = 2
ERROR: Final = 3
#: Reasons of :class:`gatewise_edge.device.answer.Answer`; ``value`` is a missing or infinite value.
REASONS: Final = (
    "stopped",
    "edge-only",
    "value",
    "offloaded",
    "link-down",
    "full",
    "breaker-open",
    "offload-limit",
    "deadline",
    "unsent",
    "timeout",
    "cloud:busy",
    "cloud:failed",
    # Only real devices give these reasons.
    "cloud:no-model",
    "cloud:bad-request",
    "cloud:expired",
    "no-link",
)
REASON: Final = {reason: number for number, reason in enumerate(REASONS)}
#: Reasons of answers that do not depend on the cloud.
LOCAL_REASONS: Final = tuple(REASON[name] for name in ("stopped", "edge-only", "value"))
#: Reasons of fallbacks after a device has acquired the features of a request.
_ACQUIRED_REASONS: Final = tuple(REASON[name] for name in ("deadline", "unsent"))

#: Class index of an instance without a label or an answer.
NO_LABEL: Final = -1
#: Milliseconds of a stage if no stage answers an instance, as on a desktop.
_ASSUMED_STAGE_MS: Final = 0.03


# -- outcomes of rows -------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, kw_only=True)
class RowTable:
    """Outcomes of the rows of a table on the device and in the cloud.

    The last stage, the feature costs and the cloud's answer of a row do not depend on time. A real
    device and the real high-cost model therefore compute them once, and a run only simulates how
    long each instance waits.

    Attributes
    ----------
    model, version : str
        Name and version of the bundle.
    classes : tuple of str
        Class labels.
    n_stages : int
        Number of stages on the device, which is also the stage number of the cloud.
    has_cloud : bool
        Whether the bundle has a high-cost model.
    offload_price, request_price : float
        Price of an answer by the cloud and of an unanswered request, without features.
    n_values, dtype : int, dtype
        Number and type of the values in a request.
    truth : (n,)
        Class index of the label; NO_LABEL without one, UNKNOWN_CLASS if the bundle lacks it.
    last_stage : (n,)
        The last stage that ran on the device; -1 if none could run.
    is_offloaded : (n,)
        Whether the operating point offloads the row.
    local_route, local_label : (n,)
        The device's own answer: EDGE, FALLBACK or ERROR, and the class index.
    local_cost, request_cost : (n,)
        Cost of the features without and with a request.
    cloud_label : (n,)
        Class index of the cloud's answer; NO_LABEL if the row cannot be offloaded.
    request_only_cost : float
        Cost of the features of a request before any stage has run.
    confidence : (n,)
        Largest probability of the device's own answer; NaN without one.
    feature_sets : (n_sets, n_features)
        Sets of features; the last one contains only those of a request.
    local_set_index, request_set_index : (n,)
        Indices into `feature_sets` of the features of `local_cost` and of `request_cost`.
    max_disagreement : float or None
        Promised bound on the share of answers that differ from the high-cost model's.
    """

    model: str
    version: str
    classes: tuple[str, ...]
    n_stages: int
    has_cloud: bool
    offload_price: float
    request_price: float
    n_values: int
    dtype: np.dtype[Any]
    truth: IntArray
    last_stage: IntArray
    is_offloaded: BoolArray
    local_route: IntArray
    local_label: IntArray
    local_cost: FloatArray
    cloud_label: IntArray
    request_cost: FloatArray
    request_only_cost: float
    confidence: NDArray[np.float32]
    feature_sets: BoolArray
    local_set_index: IntArray
    request_set_index: IntArray
    max_disagreement: float | None = None

    def __len__(self) -> int:
        return len(self.last_stage)

    @cached_property
    def model_key(self) -> tuple[str, str]:
        """Name and version of the model, as in tickets."""
        return self.model, self.version

    @cached_property
    def can_offload(self) -> BoolArray:
        """Whether the cloud accepts the row, shape (n,)."""
        return np.asarray(self.cloud_label != NO_LABEL, np.bool_)

    @cached_property
    def label(self) -> IntArray:
        """Class index of the answer at the operating point, if the cloud answers in time."""
        return np.where(self.is_offloaded, self.cloud_label, self.local_label)

    @cached_property
    def cost(self) -> FloatArray:
        """Cost of the answer at the operating point, if the cloud answers in time."""
        cloud_cost = self.request_cost + self.offload_price
        return np.where(self.is_offloaded, cloud_cost, self.local_cost)

    @cached_property
    def response(self) -> Response:
        """Response with an answer. The object is reused, with the id of the latest request."""
        return Response(
            id=bytes(16),
            model=self.model,
            version=self.version,
            labels=np.zeros(1, np.int64),
            probabilities=np.zeros((1, max(len(self.classes), 2)), np.float32),
        )


# -- answers ----------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Answers:
    """Answers of a run as columns of shape (n,), in order of arrival of the instances.

    Attributes
    ----------
    time, device, row
        Time of arrival (s), index of the device, and row of the table.
    route, reason
        Indices of :data:`ROUTES`, -1 for a lost instance, and of :data:`REASONS`.
    stage
        Stage that answered; the number of stages for the cloud.
    label
        Class index of the answer.
    cost, feature_cost
        Cost of the answer, and its part for features.
    latency_ms, device_ms, cloud_ms
        Time to the answer, and its parts in the device's stages and in the worker with its queue.
    bytes_up, bytes_down, payload_bytes_up, payload_bytes_down
        MQTT bytes to the broker and to the device, including late responses, and their payload
        bytes.
    radio_joules
        Energy of the radio.
    is_requested, is_audited
        Whether a request was sent, and whether the device's answer was audited.
    """

    time: FloatArray
    device: NDArray[np.int32]
    row: NDArray[np.int32]
    route: NDArray[np.int8]
    reason: NDArray[np.int8]
    stage: NDArray[np.int8]
    label: NDArray[np.int32]
    cost: FloatArray
    feature_cost: FloatArray
    latency_ms: FloatArray
    device_ms: NDArray[np.float32]
    cloud_ms: NDArray[np.float32]
    bytes_up: NDArray[np.int32]
    bytes_down: NDArray[np.int32]
    payload_bytes_up: NDArray[np.int32]
    payload_bytes_down: NDArray[np.int32]
    radio_joules: NDArray[np.float32]
    is_requested: BoolArray
    is_audited: BoolArray

    def __len__(self) -> int:
        return len(self.time)

    @property
    def is_offloaded(self) -> BoolArray:
        """Whether the policy chose to offload the instance, shape (n,)."""
        return ~np.isin(self.reason, LOCAL_REASONS)

    @property
    def has_request_features(self) -> BoolArray:
        """Whether the device acquired the features of a request, shape (n,)."""
        return np.asarray(self.is_requested | np.isin(self.reason, _ACQUIRED_REASONS), np.bool_)


@dataclass(frozen=True, eq=False, kw_only=True)
class FleetRun:
    """Result of a virtual or live run of a fleet with one policy.

    Attributes
    ----------
    answers : Answers
        Answers of the instances that are not lost.
    seconds : float
        Length of the run.
    n_devices : int
        Number of devices in the run.
    device_counts : mapping of str to float
        Sums of the devices' counters, such as ``sent``, ``retries`` and ``late``.
    worker_counts : mapping of str to float
        Sums of the workers' counters, such as ``answered``, ``batches`` and ``busy_seconds``, and
        the means ``utilisation``, ``batch`` and ``wait_ms``.
    scale : float
        Number of devices in the fleet per device in the run.
    sampling : str
        Description of the devices in the run.
    is_cloud_first : bool
        Whether stages run only if the cloud does not answer.
    audit_cost : float
        Additional feature cost of audits.
    instances_at_alarms : sequence of int
        Number of instances that each worker's test had observed when it raised an alarm.
    n_lost : int
        Number of instances without an answer.
    """

    answers: Answers
    seconds: float
    n_devices: int
    device_counts: Mapping[str, float]
    worker_counts: Mapping[str, float]
    scale: float = 1.0
    sampling: str = ""
    is_cloud_first: bool = False
    audit_cost: float = 0.0
    instances_at_alarms: Sequence[int] = ()
    n_lost: int = 0


def fill_costs(answers: Answers, table: RowTable, *, is_cloud_first: bool) -> None:
    """Set the costs of answers, which depend on row, route and reason, as on a device."""
    row = answers.row
    is_cloud = answers.route == CLOUD
    feature_cost = np.where(
        answers.has_request_features, table.request_cost[row], table.local_cost[row]
    )
    if is_cloud_first:
        feature_cost = np.where(is_cloud, table.request_only_cost, feature_cost)
    request_price = np.where(answers.is_requested, table.request_price, 0.0)
    answers.feature_cost[:] = feature_cost
    answers.cost[:] = feature_cost + np.where(is_cloud, table.offload_price, request_price)


def fill_joules(answers: Answers, scenario: Scenario, *, is_cloud_first: bool) -> None:
    """Set the energy (J) that the messages of each answer cost the device's radio.

    An exchange ends with the answer. An audit is assumed to take the median time of an offload.
    """
    senders = np.flatnonzero(answers.payload_bytes_up > 0)
    if not len(senders):
        return
    stage_seconds = (
        0.0 if is_cloud_first else answers.device_ms[senders].astype(np.float64) / 1000.0
    )
    begin = answers.time[senders] + stage_seconds
    end = np.maximum(begin, answers.time[senders] + answers.latency_ms[senders] / 1000.0)
    is_cloud = answers.route[senders] == CLOUD
    if is_cloud.any():
        median_seconds = float(np.median((end - begin)[is_cloud]))
        end = np.where(answers.is_audited[senders], begin + median_seconds, end)
    answers.radio_joules[senders] = radio_joules(
        scenario.link_profile.radio,
        answers.device[senders].astype(np.int64),
        begin,
        end,
        bytes_up=answers.bytes_up[senders].astype(np.int64),
        bytes_down=answers.bytes_down[senders].astype(np.int64),
    )


def queue_means(worker_counts: Mapping[str, float], scenario: Scenario) -> dict[str, float]:
    """Compute utilisation, mean batch and mean wait from sums of the workers' counters."""
    n_answered = worker_counts.get("answered", 0.0)
    available_seconds = scenario.seconds * scenario.workers * scenario.parallel
    return {
        "utilisation": min(1.0, worker_counts.get("busy_seconds", 0.0) / available_seconds),
        "batch": n_answered / max(worker_counts.get("batches", 0.0), 1.0),
        "wait_ms": 1000.0 * worker_counts.get("queued_seconds", 0.0) / max(n_answered, 1.0),
    }


def stage_medians(stages: IntArray, answer_ms: FloatArray, n_stages: int) -> tuple[float, ...]:
    """Compute the median time in ms until the answer of each stage.

    `stages`, shape (n,), is the last stage of each local answer, and `answer_ms` the time to the
    answer. The time of a stage without answers is interpolated. Without any answer, every time is
    an assumption.
    """
    measured_stages = np.unique(stages)
    if not len(measured_stages):
        return tuple(_ASSUMED_STAGE_MS * (stage + 1) for stage in range(n_stages))
    medians = [float(np.median(answer_ms[stages == stage])) for stage in measured_stages]
    return tuple(np.interp(np.arange(n_stages), measured_stages, medians).round(6).tolist())
