"""The records of ``report.json``, the result of a run, which its HTML page and its tables show.

Simulations, live runs and the demo write the same document. :class:`PolicyResult` is the record of
one policy's run. Some keys of :class:`Report` repeat figures of the policies under stable names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, Self

import msgspec

from gatewise_sim.fleet.energy import Bill
from gatewise_sim.fleet.outages import FaultSpan
from gatewise_sim.report.policy_result import (
    AnswerCounts,
    EngineName,
    PolicyResult,
    ReportRecord,
    value_of,
)
from gatewise_sim.timings import Timings

#: Version of the document's keys. If you change the meaning of a key, raise the version here and in
#: the type of `Report.schema_version`; older readers then refuse the document.
SCHEMA_VERSION: Final = 3
DEMO_KIND: Final = "gatewise-demo"
#: Level of the intervals of :mod:`gatewise_sim.intervals`.
CONFIDENCE_LEVEL: Final = 0.95


class Transport(ReportRecord, frozen=True, kw_only=True):
    """Transport between devices and workers: its `kind`, the `broker` and the `link` profile."""

    kind: str
    broker: str
    link: str


class FrontierPoint(ReportRecord, frozen=True, kw_only=True):
    """Operating point on validation rows, with recall and precision by class label."""

    cost: float
    accuracy: float
    offload_rate: float
    recall: dict[str, float | None] | None = None
    precision: dict[str, float | None] | None = None


class FrontierPoints(ReportRecord, frozen=True, kw_only=True):
    """Operating points of the bundle, their convex hull and the active one.

    If `measured` is "agreement", as in a pair that was fitted without labels, their accuracies are
    the agreement with the high-cost model.
    """

    points: tuple[FrontierPoint, ...]
    hull: tuple[FrontierPoint, ...]
    active: FrontierPoint
    reference_accuracy: float | None = None
    measured: Literal["accuracy", "agreement"] = "accuracy"


class StageResult(ReportRecord, frozen=True, kw_only=True):
    """Use of a stage or of the cloud.

    `columns` is the number of raw columns that the stage reads, or the number of features if the
    bundle has no encoder. `acquires` names the columns that no earlier stage acquires, and `price`
    is their price. `answers` is the number of its answers, and `share` their share of all
    instances.
    """

    name: str
    columns: int
    acquires: tuple[str, ...]
    price: float
    answers: int
    share: float


class EnergyUse(ReportRecord, frozen=True, kw_only=True):
    """Radio and battery of the devices."""

    radio: str
    battery_wh: float | None


class RowCheck(ReportRecord, frozen=True, kw_only=True):
    """Comparison of a live run's answers with the outcomes of their rows in the bundle.

    `compared` is the number of answers by edge and cloud, and `differing` counts the answers with
    another label, route or cost.
    """

    compared: int
    differing: dict[str, int]


class EngineFigures(ReportRecord, frozen=True, kw_only=True):
    """Figures of a live run, and of the same run in virtual time."""

    live: dict[str, float | None]
    virtual: dict[str, float | None]


class Report(ReportRecord, frozen=True, kw_only=True):
    """Result of a run: the document ``report.json``.

    The keys from `dataset` to `transport` are stable. :meth:`from_policies` computes the keys that
    repeat figures of the policies. The first policy is the system. Dictionaries by policy have the
    keys ``system``, ``edge_only`` and ``cloud_only``, without policies that were not run.

    Attributes
    ----------
    schema_version : int
        Version of the document.
    kind : {"gatewise-simulation", "gatewise-demo"}
    dataset : str
        File or data set of the rows.
    method : str
        Name and version of the model, or the demo's method.
    instances, offload_rate, answers
        Number of instances, offload rate, and counts of answers of the system.
    accuracy, feature_cost
        By policy.
    bytes : dict
        Bytes of the run in both directions, by policy except ``edge_only``, which sends nothing.
    latency_ms : dict
        By policy; each has ``p50``, ``p95`` and ``p99``.
    balanced_accuracy : float or None
        The system's mean recall.
    cost_reduction : float or None
        1 - (feature cost of the system) / (feature cost of cloud-only).
    money : Bill or None
        Bill of a month, if there are prices.
    energy : EnergyUse
    transport : Transport
    engine : {"virtual", "live"}
    timings : Timings
        Service times.
    policies : tuple of PolicyResult
        Record of each policy's run.
    features : tuple of str
        Names of the bundle's features.
    stages : tuple of StageResult
    frontier : FrontierPoints
    faults : tuple of FaultSpan
        Outages that the settings scheduled.
    troubles : tuple of str
        Failures that were not scheduled.
    notes : tuple of str
        Remarks.
    promise : str or None
        Sentence about a promise of the bundle that the rows break.
    confidence_level : float
        Level of the intervals.
    settings : dict
    command : str
        Command line that repeats the run.
    versions : dict
        Versions of the software.
    data : dict or None
        Sizes of the demo's data.
    high_cost_model : str or None
        Name of the demo's high-cost model.
    seconds : dict or None
        Durations of the demo's steps.
    checked : RowCheck or None
        Comparison of a live run with the bundle.
    twin : EngineFigures or None
        Comparison of a live run with virtual time.
    run : dict or None
        Counters of a live run's devices and workers.
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
    twin: EngineFigures | None = None
    run: dict[str, Any] | None = None

    @classmethod
    def from_policies(cls, policies: Sequence[PolicyResult], **fields: Any) -> Self:
        """Make a report from its other fields and the results of `policies`, the system first."""
        system = policies[0]
        assert system.key == "system"
        main_policies = {
            policy.key: policy
            for policy in policies
            if policy.key in ("system", "edge_only", "cloud_only")
        }
        feature_cost = _collect_by_policy(main_policies, lambda policy: policy.feature_cost.value)
        cloud_cost = feature_cost.get("cloud_only")
        # the accuracy on the instances of a class is its recall
        recalls = [
            class_result.accuracy
            for class_result in system.classes
            if class_result.accuracy is not None
        ]
        return cls(
            policies=tuple(policies),
            engine=system.engine,
            instances=system.instances,
            offload_rate=system.offload_rate.value,
            accuracy=_collect_by_policy(main_policies, lambda policy: value_of(policy.accuracy)),
            balanced_accuracy=sum(recalls) / len(recalls) if recalls else None,
            feature_cost=feature_cost,
            cost_reduction=1.0 - feature_cost["system"] / cloud_cost if cloud_cost else None,
            bytes={
                key: round(policy.instances * policy.bytes.total)
                for key, policy in main_policies.items()
                if key != "edge_only"
            },
            latency_ms=_collect_by_policy(
                main_policies,
                lambda policy: {
                    name: estimate.value
                    for name, estimate in policy.latency_ms.items()
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
    def has_labels(self) -> bool:
        """Whether the rows have labels."""
        return self.system.accuracy is not None

    def find_policy(self, key: str) -> PolicyResult | None:
        """Find the result of the policy with this `key`; None if it was not run."""
        return next((policy for policy in self.policies if policy.key == key), None)

    def to_json(self) -> str:
        """Write the report as the text of ``report.json``."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2).decode() + "\n"


def _collect_by_policy(
    policies: Mapping[str, PolicyResult], figure_of: Callable[[PolicyResult], Any]
) -> dict[str, Any]:
    return {key: figure_of(policy) for key, policy in policies.items()}
