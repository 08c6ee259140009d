"""The record of one policy's run in a report, with the records of its parts."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from gatewise_sim.fleet.energy import Bill

EngineName = Literal["virtual", "live"]

#: Reasons of fallbacks of a cloud that does not answer in time, besides those of its refusals.
_LATE_REASONS: Final = ("timeout", "breaker-open", "deadline")


class ReportRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base class of the document's records, which are immutable and read strictly."""


class Estimate(ReportRecord, frozen=True, kw_only=True):
    """A figure, with its 95 % confidence interval if there is one."""

    value: float
    low: float | None = None
    high: float | None = None


def value_of(estimate: Estimate | None) -> float | None:
    """Get the value of a figure; None without a figure."""
    return None if estimate is None else estimate.value


class AnswerCounts(ReportRecord, frozen=True, kw_only=True):
    """Numbers of instances by outcome, and of requests and audits.

    `late` responses came after their deadline. `retries` are requests that were sent a second time.
    `lost` instances have no answer. `error` instances lacked values that the stages need. `audits`
    counts the answers of devices that a worker compared with the high-cost model's, and
    `audits_disagreed` the answers that differed.
    """

    edge: int
    cloud: int
    fallback: int
    late: int
    lost: int
    error: int = 0
    retries: int = 0
    audits: int = 0
    audits_disagreed: int = 0

    @property
    def n_answered(self) -> int:
        """Number of answers by edge, cloud and fallback."""
        return self.edge + self.cloud + self.fallback


class ByteUse(ReportRecord, frozen=True, kw_only=True):
    """Bytes per instance by direction, and by payload and protocol overhead."""

    up: Estimate
    down: Estimate
    request: float = 0.0
    response: float = 0.0
    protocol: float = 0.0

    @property
    def total(self) -> float:
        """Bytes in both directions."""
        return self.up.value + self.down.value


class JouleUse(ReportRecord, frozen=True, kw_only=True):
    """Energy of a device per instance, in J."""

    radio: float
    features: float
    stages: float

    @property
    def total(self) -> float:
        """Energy of radio, features and stages, in J."""
        return self.radio + self.features + self.stages


class AuditUse(ReportRecord, frozen=True, kw_only=True):
    """Audits of the devices' answers.

    Attributes
    ----------
    compared : int
        Number of answers that workers compared with the high-cost model's.
    agreement : float or None
        Estimated share of all instances on which the system and the high-cost model agree.
    promised : float
        Share of agreement that the bundle promises.
    bytes : float
        Bytes of audits in both directions, per instance of the fleet.
    alarms : int
        Number of alarms of the workers' tests.
    alarm_instances : float or None
        Number of instances that a test had observed at the first alarm.
    """

    compared: int
    agreement: float | None
    promised: float
    bytes: float
    alarms: int = 0
    alarm_instances: float | None = None


class LatencyHistogram(ReportRecord, frozen=True, kw_only=True):
    """Numbers of instances by latency, all and offloaded ones, in n bins with n + 1 edges."""

    edges_ms: tuple[float, ...] = ()
    all: tuple[float, ...] = ()
    offloaded: tuple[float, ...] = ()


class TimelineBin(ReportRecord, frozen=True, kw_only=True):
    """Figures of a part of the run, from `begin` to `end` in s.

    `edge`, `cloud`, `fallback` and `error` are numbers of `instances`. The latency is for
    offloaded instances.
    """

    begin: float
    end: float
    instances: float
    edge: float
    cloud: float
    fallback: float
    error: float
    accuracy: float | None
    edge_accuracy: float | None
    p95_ms: float | None


class ClassResult(ReportRecord, frozen=True, kw_only=True):
    """Figures of the instances of one true class; shares are None without instances.

    `accuracy` is the recall of the class. `precision` is the share of correct answers among the
    answers with this class.
    """

    label: str
    instances: float
    offload_rate: float | None
    accuracy: float | None
    edge_accuracy: float | None
    precision: float | None


class PolicyResult(ReportRecord, frozen=True, kw_only=True):
    """Figures of the fleet with one policy.

    Attributes
    ----------
    key, name, engine
        Name of the policy in keys and in text, and the engine of its run.
    sampling, scale
        Description of the simulated devices, and number of devices of the fleet for each of them.
        The other figures are for the whole fleet.
    instances
        Number of instances.
    accuracy, edge_accuracy
        Accuracy of the answers and of the devices alone; None without labels.
    offload_rate
        Share of instances with a request, answered or not.
    cost, feature_cost
        Means per instance, in the unit of the feature costs.
    latency_ms
        ``p50``, ``p95`` and ``p99`` of all instances, and ``offloaded_p50``, ``offloaded_p95`` and
        ``offloaded_p99`` of the offloaded ones.
    bytes, joules, joules_per_device_day, battery_days
        Bytes and energy per instance; energy per device and day, including idle power; lifetime of
        the battery, None for mains power.
    answers, reasons
        Counts of answers by outcome, and by reason.
    money
        Bill of a month, if there are prices.
    utilisation
        Share of the time in which workers run models.
    workers
        Sums of the workers' counters, and the means ``wait_ms`` and ``batch``.
    histogram, breakdown_ms
        Latencies, and mean ms per instance on ``device``, ``network`` and ``cloud``, and
        ``waiting`` for responses that did not come.
    timeline, classes, audit
        Figures over time, by class, and of audits.
    """

    key: str
    name: str
    engine: EngineName
    sampling: str
    scale: float
    instances: int
    accuracy: Estimate | None
    edge_accuracy: Estimate | None
    offload_rate: Estimate
    cost: Estimate
    feature_cost: Estimate
    latency_ms: dict[str, Estimate]
    bytes: ByteUse
    joules: JouleUse
    joules_per_device_day: float
    battery_days: float | None
    answers: AnswerCounts
    money: Bill | None
    utilisation: float | None
    workers: dict[str, float]
    histogram: LatencyHistogram
    breakdown_ms: dict[str, float]
    reasons: dict[str, float]
    timeline: tuple[TimelineBin, ...]
    classes: tuple[ClassResult, ...]
    audit: AuditUse | None = None

    @property
    def is_cloud_too_late(self) -> bool:
        """Whether the cloud answered less than 5 % of the instances in time that waited for it."""
        n_late = sum(
            n_answers
            for reason, n_answers in self.reasons.items()
            if reason in _LATE_REASONS or reason.startswith("cloud:")
        )
        n_cloud = self.answers.cloud
        # The integers avoid a division by zero: cloud / (cloud + late) < 1 / 20.
        return n_late > 0 and 20 * n_cloud < n_cloud + n_late
