"""The report of a run: the typed document behind ``report.json``, pages, tables and comparisons.

Virtual and live runs, simulations and the demo write the same document. :class:`PolicyResult` is
the record of one policy's run; the headline keys of :class:`Report` repeat figures of the policies
under names that stay stable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, Self

import msgspec

from gatewise_sim.fleet.energy import Bill
from gatewise_sim.timings import Timings

SCHEMA_VERSION: Final = 3
DEMO_KIND: Final = "gatewise-demo"
CONFIDENCE_LEVEL: Final = 0.95

EngineName = Literal["virtual", "live"]


class ReportRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of the document's records: immutable, read strictly."""


# -- one policy's run -------------------------------------------------------------------------


class Figure(ReportRecord, frozen=True, kw_only=True):
    """A figure with its 95 % confidence interval, where it has one."""

    value: float
    low: float | None = None
    high: float | None = None


def value(figure: Figure | None) -> float | None:
    """Get the value of a figure without its interval."""
    return None if figure is None else figure.value


class AnswerCounts(ReportRecord, frozen=True, kw_only=True):
    """Numbers of instances by outcome, and of their requests and audits.

    `late` responses came after their deadline, `retries` are requests sent a second time, and
    `lost` instances have no answer at all. `audits` counts the devices' own answers that a worker
    compared with the high-cost model's, `audits_disagreed` the ones that differed.
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
    def answered(self) -> int:
        """Answers by edge, cloud and fallback."""
        return self.edge + self.cloud + self.fallback

    @property
    def cloud_too_late(self) -> bool:
        """Whether the cloud answered fewer than one offload in twenty."""
        return self.fallback > 0 and 20 * self.cloud < self.cloud + self.fallback


class ByteUse(ReportRecord, frozen=True, kw_only=True):
    """Bytes per instance, both ways, and the same by payload and protocol overhead."""

    up: Figure
    down: Figure
    request: float = 0.0
    response: float = 0.0
    protocol: float = 0.0

    @property
    def total(self) -> float:
        """Bytes both ways."""
        return self.up.value + self.down.value


class JouleUse(ReportRecord, frozen=True, kw_only=True):
    """Joules of a device per instance."""

    radio: float
    features: float
    stages: float

    @property
    def total(self) -> float:
        """Joules of radio, features and stages."""
        return self.radio + self.features + self.stages


class AuditUse(ReportRecord, frozen=True, kw_only=True):
    """Audits of the devices' own answers.

    A `share` of the answers is chosen; workers `compared` some with the high-cost model's, and some
    `disagreed`. `agreement` estimates the share of instances answered as the high-cost model would;
    `promised` is that share in the bundle. `bytes`, both ways, and `feature_cost` are per instance
    of the fleet. Tests of workers raised `alarms`, the first after `alarm_instances`.
    """

    share: float
    compared: int
    disagreed: int
    agreement: float | None
    promised: float
    bytes: float
    feature_cost: float
    alarms: int = 0
    alarm_instances: float | None = None


class LatencyHistogram(ReportRecord, frozen=True, kw_only=True):
    """Instances by latency: all, and the offloaded ones. There is one more edge than bins."""

    edges_ms: tuple[float, ...] = ()
    all: tuple[float, ...] = ()
    offloaded: tuple[float, ...] = ()


class TimelineBin(ReportRecord, frozen=True, kw_only=True):
    """Figures of a span of the run; latencies are of its offloaded instances."""

    begin: float
    end: float
    instances: float
    edge: float
    cloud: float
    fallback: float
    error: float
    accuracy: float | None
    edge_accuracy: float | None
    p50_ms: float | None
    p95_ms: float | None


class ClassResult(ReportRecord, frozen=True, kw_only=True):
    """Instances of one true class; shares are None without instances.

    `accuracy` is the recall of the class, `precision` the share of right answers among the answers
    of this class.
    """

    label: str
    instances: float
    offload_rate: float | None
    accuracy: float | None
    edge_accuracy: float | None
    precision: float | None


class PolicyResult(ReportRecord, frozen=True, kw_only=True):
    """Figures of the fleet under one policy: the system, or a policy to compare with.

    They are of the whole fleet, also where only a part of it was stepped (`scaled`); `sampling`
    names the part in words. Accuracies are None without labels; an offload counts whether or not it
    was answered. `cost` and `feature_cost` are means per instance, in the unit of the feature
    costs. `latency_ms` has ``p50``, ``p95``, ``p99`` of all instances, and of the offloaded ones as
    ``offloaded_p50`` and so on. `joules_per_device_day` includes idling; `battery_days` is None for
    a plug. `utilisation` is the share of the workers' time spent in runs; `workers` holds sums of
    their counters and the means ``wait_ms`` and ``batch``. `breakdown_ms` has mean ms per instance
    on ``device``, ``network``, ``cloud``, and ``waiting`` for responses that did not come;
    `reasons` count answers by reason.
    """

    key: str
    name: str
    engine: EngineName
    sampling: str
    scaled: bool
    instances: int
    accuracy: Figure | None
    edge_accuracy: Figure | None
    offload_rate: Figure
    cost: Figure
    feature_cost: Figure
    latency_ms: dict[str, Figure]
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


# -- the report -------------------------------------------------------------------------------


class Transport(ReportRecord, frozen=True, kw_only=True):
    """Transport of the messages."""

    kind: str
    broker: str
    link: str


class FaultSpan(ReportRecord, frozen=True, kw_only=True):
    """Outage of a part from `begin` to `end` (s); `count` is the number of workers."""

    what: str
    begin: float
    end: float
    count: int = 1


class FrontierPoint(ReportRecord, frozen=True, kw_only=True):
    """Operating point as measured on validation rows; recall and precision by class label."""

    cost: float
    accuracy: float
    offload_rate: float
    recall: dict[str, float | None] | None = None
    precision: dict[str, float | None] | None = None


class FrontierPoints(ReportRecord, frozen=True, kw_only=True):
    """Operating points of the bundle, their convex hull and the active one."""

    points: tuple[FrontierPoint, ...]
    hull: tuple[FrontierPoint, ...]
    active: FrontierPoint
    reference_accuracy: float | None = None


class StageResult(ReportRecord, frozen=True, kw_only=True):
    """Use of a stage, or of the cloud.

    `columns` counts the features, or the raw columns that features are made from; `acquires` names
    the ones that no stage before it acquires, and `price` is their price.
    """

    name: str
    columns: int
    acquires: tuple[str, ...]
    price: float
    answers: int
    share: float


class EnergyUse(ReportRecord, frozen=True, kw_only=True):
    """Basis of the figures of energy."""

    radio: str
    battery_wh: float | None


class RowCheck(ReportRecord, frozen=True, kw_only=True):
    """Answers of a live run compared row by row with the bundle's own.

    `compared` counts answers by edge and cloud, `differing` those whose label, route or cost
    differs.
    """

    compared: int
    differing: dict[str, int]


class TwinFigures(ReportRecord, frozen=True, kw_only=True):
    """Figures of a live run, and of the same run in virtual time."""

    live: dict[str, float | None]
    virtual: dict[str, float | None]


class Report(ReportRecord, frozen=True, kw_only=True):
    """Result of a run: the document ``report.json``.

    The keys from `dataset` to `transport` are stable. :meth:`from_policies` fills in the keys that
    repeat figures of the policies; the system is the first policy. Dictionaries by policy have the
    keys ``system``, ``edge_only`` and ``cloud_only``.

    Attributes
    ----------
    schema_version, kind
        Version of the document, and whether a simulation or the demo wrote it.
    dataset, method
        File or data set of the rows; the model and its version, or the demo's method.
    instances, offload_rate, answers
        The system's number of instances, share of requests, and counts of answers.
    accuracy, feature_cost, bytes, latency_ms
        By policy. Bytes are of the run, both ways; latencies have ``p50``, ``p95`` and ``p99``.
    balanced_accuracy, cost_reduction
        The system's mean recall, and the share of all-cloud's feature cost that it saves.
    money, energy
        The bill of a month, if there are prices, and the basis of the figures of energy.
    transport, engine, timings
        Transport of the messages, engine, and service times of the run.
    policies
        The record of each policy's run.
    features, stages, frontier
        Names of the bundle's features, use of its stages, and the operating points to choose from.
    faults, troubles, notes, promise
        Outages of the run; faults that were not on schedule; remarks on the figures; and a sentence
        if the rows break a promise of the bundle.
    confidence_level, settings, command, versions
        Level of the intervals, settings of the run, the command line that repeats it, and versions
        of software.
    data, high_cost_model, seconds
        The demo's size of data, name of the high-cost model, and duration of its steps.
    checked, twin, run
        A live run's answers compared with the bundle's, its figures with virtual time's, and
        counters of devices and workers.
    """

    schema_version: Literal[3] = SCHEMA_VERSION
    kind: Literal["gatewise-simulation", "gatewise-demo"] = "gatewise-simulation"
    dataset: str
    method: str
    instances: int
    offload_rate: float
    accuracy: dict[str, float | None]
    balanced_accuracy: float | None
    feature_cost: dict[str, float]
    cost_reduction: float | None
    bytes: dict[str, int]
    latency_ms: dict[str, dict[str, float]]
    answers: AnswerCounts
    money: Bill | None
    transport: Transport
    engine: EngineName
    policies: tuple[PolicyResult, ...]
    features: tuple[str, ...]
    stages: tuple[StageResult, ...]
    frontier: FrontierPoints
    faults: tuple[FaultSpan, ...]
    energy: EnergyUse
    timings: Timings
    confidence_level: float = CONFIDENCE_LEVEL
    settings: dict[str, Any]
    command: str
    versions: dict[str, str]
    promise: str | None = None
    notes: tuple[str, ...]
    troubles: tuple[str, ...] = ()
    data: dict[str, int] | None = None
    high_cost_model: str | None = None
    seconds: dict[str, float] | None = None
    checked: RowCheck | None = None
    twin: TwinFigures | None = None
    run: dict[str, Any] | None = None

    @classmethod
    def from_policies(cls, policies: Sequence[PolicyResult], **fields: Any) -> Self:
        """Make a report of the results of `policies`, the system first, and its other `fields`."""
        system = policies[0]
        main_policies = {
            policy.key: policy
            for policy in policies
            if policy.key in ("system", "edge_only", "cloud_only")
        }
        feature_cost = _each(main_policies, lambda policy: policy.feature_cost.value)
        reference = feature_cost.get("cloud_only")
        recalls = [each.accuracy for each in system.classes if each.accuracy is not None]
        return cls(
            policies=tuple(policies),
            engine=system.engine,
            instances=system.instances,
            offload_rate=system.offload_rate.value,
            accuracy=_each(main_policies, lambda policy: value(policy.accuracy)),
            balanced_accuracy=sum(recalls) / len(recalls) if recalls else None,
            feature_cost=feature_cost,
            cost_reduction=1.0 - feature_cost["system"] / reference if reference else None,
            bytes={
                key: round(policy.instances * policy.bytes.total)
                for key, policy in main_policies.items()
                if key != "edge_only"
            },
            latency_ms=_each(
                main_policies,
                lambda policy: {
                    name: figure.value
                    for name, figure in policy.latency_ms.items()
                    if name in ("p50", "p95", "p99")
                },
            ),
            answers=system.answers,
            money=system.money,
            **fields,
        )

    @property
    def system(self) -> PolicyResult:
        """Result of the system."""
        return self.policies[0]

    @property
    def labelled(self) -> bool:
        """Whether the rows have labels."""
        return self.system.accuracy is not None

    def policy(self, key: str) -> PolicyResult | None:
        """Result of the policy of this `key`, if it was run."""
        return next((policy for policy in self.policies if policy.key == key), None)

    def to_json(self) -> str:
        """Text of ``report.json``."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2).decode() + "\n"


def _each(
    policies: Mapping[str, PolicyResult], figure: Callable[[PolicyResult], Any]
) -> dict[str, Any]:
    return {key: figure(policy) for key, policy in policies.items()}
