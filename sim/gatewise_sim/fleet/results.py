"""Outcomes of rows, and answers of a fleet: the results of a run of either engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
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

#: Routes of an answer; an error took the place of an answer.
ROUTES: Final = ("edge", "cloud", "fallback", "error")
EDGE: Final = 0
CLOUD: Final = 1
FALLBACK: Final = 2
ERROR: Final = 3
#: Reasons of :class:`gatewise_edge.device.answer.Answer`; ``value``: missing or infinite value.
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
    # These come from real devices only.
    "cloud:no-model",
    "cloud:bad-request",
    "cloud:expired",
    "no-link",
)
REASON: Final = {reason: number for number, reason in enumerate(REASONS)}
#: Reasons of a device's own answers.
LOCAL_REASONS: Final = tuple(REASON[name] for name in ("stopped", "edge-only", "value"))
_ACQUIRED_REASONS: Final = tuple(REASON[name] for name in ("deadline", "unsent"))

NO_LABEL: Final = -1
#: Milliseconds that a stage is assumed to take where none answered an instance.
_ASSUMED_STAGE_MS: Final = 0.03


# -- outcomes of rows -------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, kw_only=True)
class RowTable:
    """Outcomes of the rows of a table on the device and in the cloud, arrays of shape (n,).

    A row's last stage, feature costs and cloud answer do not depend on the time: a real device and
    the real high-cost model compute them once, and only the waiting is left to simulate.

    Attributes
    ----------
    model, version : str
        The bundle.
    classes : tuple of str
    n_stages : int
        Stages on the device; as a stage number, it stands for the cloud.
    has_cloud : bool
    offload_price, request_price : float
        Cost of an answer by the cloud, and of a request without an answer, without features.
    n_values, dtype : int, dtype
        Values of a request.
    truth : (n,)
        Class index of the label; NO_LABEL without a label; larger if the bundle does not know it.
    exit : (n,)
        The last stage that ran on the device; -1 if none could run.
    offload : (n,)
        Whether the operating point offloads the row.
    local_route, local_label : (n,)
        The device's own answer: EDGE, FALLBACK or ERROR, and the class index.
    local_cost, request_cost : (n,)
        Cost of the features without a request, and with one.
    cloud_label : (n,)
        Class index; NO_LABEL where a value of the row prevents an offload.
    request_only_cost : float
        Cost of the features of a request that no stage precedes.
    confidence : (n,)
        Largest probability of the device's own answer; NaN without one.
    sets : (n_sets, n_features)
        Sets of features; the last one is the set of a request alone.
    local_set, request_set : (n,)
        Indices into `sets` of the features of `local_cost` and of `request_cost`.
    promised : float or None
        Largest share of answers that differ from the high-cost model's.
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
    exit: IntArray
    offload: BoolArray
    local_route: IntArray
    local_label: IntArray
    local_cost: FloatArray
    cloud_label: IntArray
    request_cost: FloatArray
    request_only_cost: float
    confidence: NDArray[np.float32]
    sets: BoolArray
    local_set: IntArray
    request_set: IntArray
    promised: float | None = None

    def __len__(self) -> int:
        return len(self.exit)

    @cached_property
    def key(self) -> tuple[str, str]:
        """Name and version of the model, as tickets have them."""
        return self.model, self.version

    @cached_property
    def can_offload(self) -> BoolArray:
        """Whether the cloud takes the row, shape (n,)."""
        return np.asarray(self.cloud_label != NO_LABEL, np.bool_)

    @cached_property
    def response(self) -> Response:
        """An answer of the cloud; one object for all, with the id of the latest request."""
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
    """Answers of a run: columns of shape (n,), in the order of arrival.

    Attributes
    ----------
    time, device, row
        Time of arrival (s), device, and row of the table.
    route, reason
        Indices of :data:`ROUTES`, -1 for a lost instance, and of :data:`REASONS`.
    stage
        Stage that answered; the number of stages for the cloud.
    label
        Class index of the answer.
    cost, feature_cost
        Cost of the answer, and the part for features.
    latency_ms, device_ms, cloud_ms
        Time to the answer, and the parts in the device's stages and in the worker with its queue.
    up, down, payload_up, payload_down
        Bytes of MQTT to the broker and to the device, with late responses, and the payloads among
        them.
    joules
        Energy of the radio.
    requested, audited
        Whether a request was made, and whether the device's own answer was audited.
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
    up: NDArray[np.int32]
    down: NDArray[np.int32]
    payload_up: NDArray[np.int32]
    payload_down: NDArray[np.int32]
    joules: NDArray[np.float32]
    requested: BoolArray
    audited: BoolArray

    def __len__(self) -> int:
        return len(self.time)

    @property
    def offloaded(self) -> BoolArray:
        """Whether the policy offloaded the instance, answered in time or not, shape (n,)."""
        return ~np.isin(self.reason, LOCAL_REASONS)

    @property
    def acquired(self) -> BoolArray:
        """Whether the features of a request were acquired for the answer, shape (n,)."""
        return np.asarray(self.requested | np.isin(self.reason, _ACQUIRED_REASONS), np.bool_)

    def subset(self, index: Any) -> Answers:
        """Select some of them, by indices or a mask."""
        return Answers(*(getattr(self, column.name)[index] for column in fields(self)))


@dataclass(frozen=True, eq=False, kw_only=True)
class FleetRun:
    """Result of a fleet's run under one policy, virtual or live.

    `answers` has one entry per instance at the `devices` of a run of `seconds`; `lost` instances
    have none. `counts` are sums of the devices' counters, such as ``sent``, ``retries``, ``late``;
    `workers` of the workers', such as ``answered``, ``batches``, ``busy_seconds``, and the means
    ``utilisation``, ``batch``, ``wait_ms``. Each device stands for `scale` of the fleet; `sampling`
    says so in words. With `request_first` stages run only where the cloud did not answer.
    `audit_cost` is the feature cost of audits, the answers' apart; `alarms` are the instances that
    each test of the workers had observed when it raised its alarm. `events` are the clock's.
    """

    answers: Answers
    seconds: float
    devices: int
    counts: Mapping[str, float]
    workers: Mapping[str, float]
    scale: float = 1.0
    sampling: str = ""
    request_first: bool = False
    audit_cost: float = 0.0
    alarms: Sequence[int] = ()
    lost: int = 0
    events: int = 0


def fill_costs(answers: Answers, table: RowTable, *, request_first: bool) -> None:
    """Fill in the costs of answers: they follow from row, route and reason, as on a device."""
    row = answers.row
    cloud = answers.route == CLOUD
    features = np.where(answers.acquired, table.request_cost[row], table.local_cost[row])
    if request_first:
        features = np.where(cloud, table.request_only_cost, features)
    request_price = np.where(answers.requested, table.request_price, 0.0)
    answers.feature_cost[:] = features
    answers.cost[:] = features + np.where(cloud, table.offload_price, request_price)


def fill_joules(answers: Answers, scenario: Scenario, *, request_first: bool) -> None:
    """Fill in the energy (J) that the messages of each answer cost its device's radio.

    An exchange ends with its answer; an audit's takes as long as the median of the others.
    """
    senders = np.flatnonzero(answers.payload_up > 0)
    if not len(senders):
        return
    stages = 0.0 if request_first else answers.device_ms[senders].astype(np.float64) / 1000.0
    begin = answers.time[senders] + stages
    end = np.maximum(begin, answers.time[senders] + answers.latency_ms[senders] / 1000.0)
    by_cloud = answers.route[senders] == CLOUD
    if by_cloud.any():
        median_seconds = float(np.median((end - begin)[by_cloud]))
        end = np.where(answers.audited[senders], begin + median_seconds, end)
    answers.joules[senders] = radio_joules(
        scenario.link_profile.radio,
        answers.device[senders].astype(np.int64),
        begin,
        end,
        up=answers.up[senders].astype(np.int64),
        down=answers.down[senders].astype(np.int64),
    )


def queue_means(counts: Mapping[str, float], scenario: Scenario) -> dict[str, float]:
    """Compute the means that follow from sums of the workers' counters."""
    answered = counts.get("answered", 0.0)
    available = scenario.seconds * scenario.workers * scenario.parallel
    return {
        "utilisation": min(1.0, counts.get("busy_seconds", 0.0) / available),
        "batch": answered / max(counts.get("batches", 0.0), 1.0),
        "wait_ms": 1000.0 * counts.get("queued_seconds", 0.0) / max(answered, 1.0),
    }


def stage_medians(stage: IntArray, milliseconds: FloatArray, n_stages: int) -> tuple[float, ...]:
    """Median ms until each stage has answered.

    `stage`, shape (n,), is the last stage of each local answer, which took its `milliseconds`. A
    stage without an answer lies between its neighbours; without any answer all are assumed.
    """
    measured = np.unique(stage)
    if not len(measured):
        return tuple(_ASSUMED_STAGE_MS * (number + 1) for number in range(n_stages))
    medians = [float(np.median(milliseconds[stage == number])) for number in measured]
    return tuple(np.interp(np.arange(n_stages), measured, medians).round(6).tolist())
