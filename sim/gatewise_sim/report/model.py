"""The report of a run: one typed document behind page, tables and CSV.

A simulation and the demo (a simulation on the live engine, of a bundle that it has just trained)
write the same report. Its headline keys (``instances, offload_rate, accuracy, feature_cost,
cost_reduction, bytes, latency_ms, answers``) follow from the policies that were run: they are
properties here, and plain numbers in ``report.json``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from gatewise.errors import InputError
from gatewise_sim.fleet.money import Bill
from gatewise_sim.report.json_fields import from_document, to_document
from gatewise_sim.report.policy_result import AnswerCounts, PolicyResult, value

SCHEMA_VERSION: Final = 2
"""Of the reports written; those without one are of version 1."""

DEMO_KIND: Final = "gatewise-demo"
SIMULATION_KIND: Final = "gatewise-simulation"
KINDS: Final = (DEMO_KIND, SIMULATION_KIND)
"""The values of ``kind``."""

_THREE: Final = ("system", "edge_only", "cloud_only")


@dataclass(frozen=True, kw_only=True)
class Transport:
    """What carried the messages."""

    kind: str
    broker: str
    link: str


@dataclass(frozen=True, kw_only=True)
class TimelineBin:
    """A part of the run: numbers of instances, accuracy, latency of the offloaded ones."""

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


@dataclass(frozen=True, kw_only=True)
class FaultSpan:
    """Something that was down from `begin` to `end` (s)."""

    what: str
    begin: float
    end: float
    count: int = 1


@dataclass(frozen=True, kw_only=True)
class ClassResult:
    """The instances of one true class; shares are None where none came.

    `accuracy` is the recall of the class, `precision` the share of answers of this class that are
    right.
    """

    class_index: int
    label: str
    instances: float
    offload_rate: float | None
    accuracy: float | None
    edge_accuracy: float | None
    precision: float | None = None


@dataclass(frozen=True, kw_only=True)
class PointOnFrontier:
    """An operating point, as measured on validation rows; recall and precision by class."""

    cost: float
    accuracy: float
    offload_rate: float
    weighted_accuracy: float | None = None
    balanced_accuracy: float | None = None
    log_loss: float | None = None
    brier_score: float | None = None
    recall: tuple[float | None, ...] | None = None
    precision: tuple[float | None, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class OperatingPoints:
    """All of a bundle's operating points, their convex hull and the active one."""

    points: tuple[PointOnFrontier, ...]
    hull: tuple[PointOnFrontier, ...]
    active: PointOnFrontier
    reference_accuracy: float | None = None


@dataclass(frozen=True, kw_only=True)
class Breakdown:
    """Where the system's milliseconds, bytes and joules per instance go."""

    ms: dict[str, float]
    bytes: dict[str, float]
    joules: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class EnergyUse:
    """What the energy figures rest on, and what they come to for the system."""

    radio: str
    joules_per_device_day: float | None
    battery_wh: float | None
    battery_days: float | None


@dataclass(frozen=True, kw_only=True)
class RowCheck:
    """Answers of a live run compared row by row with what they must be."""

    compared: int  # answers by edge and cloud
    differing: dict[str, int]  # how many of these differ, in labels, routes and costs


@dataclass(frozen=True, kw_only=True)
class TwinFigures:
    """Figures of a live run, and of the same run in virtual time."""

    live: dict[str, float | None]
    virtual: dict[str, float | None]


@dataclass(frozen=True, kw_only=True)
class StageResult:
    """A stage, or the cloud: what it acquires anew, at which price, and what it answers."""

    name: str
    features: int
    acquires: tuple[str, ...] = field(metadata={"json": "buys"})
    price: float
    answers: int
    share: float | None


@dataclass(frozen=True, kw_only=True)
class ExampleInstance:
    """An instance to look at: what it is, who answered, and what that took."""

    row: int
    answered_by: str  # "stage 0", ..., "cloud"
    label: str
    truth: str | None
    cost: float
    acquired: tuple[int, ...]  # indices of the features
    values: tuple[float | None, ...]  # of all features


@dataclass(frozen=True, kw_only=True)
class DataCounts:
    """How large the demo's data is."""

    rows: int
    features: int
    classes: int
    train_rows: int
    test_rows: int


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a run found."""

    kind: str  # one of KINDS
    dataset: str
    method: str
    transport: Transport
    engine: str  # of the system: virtual or live
    policies: tuple[PolicyResult, ...] = field(metadata={"json": "legs"})  # the system first
    timeline: tuple[TimelineBin, ...]
    faults: tuple[FaultSpan, ...]
    classes: tuple[ClassResult, ...]
    frontier: OperatingPoints
    breakdown: Breakdown
    energy: EnergyUse
    workload: str
    sampling: str
    confidence_level: float  # of all intervals
    calibration: dict[str, Any]  # service times used
    settings: dict[str, Any]  # the scenario
    command: str  # what repeats the run
    versions: dict[str, str]
    notes: tuple[str, ...]  # what a reader must know
    troubles: tuple[str, ...]  # what went wrong in a live run
    stages: tuple[StageResult, ...] = ()
    examples: tuple[ExampleInstance, ...] = ()  # easy ones, then hard ones
    features: tuple[str, ...] = ()  # their names
    data: DataCounts | None = None  # this and the next two: of the demo
    high_cost_model: str | None = None  # its family
    seconds: dict[str, float] | None = None  # wall time by phase
    checked: RowCheck | None = None  # of a live run: beside those of the bundle's models
    twin: TwinFigures | None = None  # of a live run
    run: dict[str, Any] | None = None  # of a live run: when, where, how long

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"kind is {self.kind!r:.40}, not one of {', '.join(KINDS)}")
        if self.policy("system") is None:
            raise InputError("legs: no policy 'system' among them")

    # -- the policies, and the headline figures that follow from them ---------------------------

    def policy(self, key: str) -> PolicyResult | None:
        """A policy's result, if it was run."""
        return next((policy for policy in self.policies if policy.key == key), None)

    @property
    def system(self) -> PolicyResult:
        """The result of the system itself."""
        return next(policy for policy in self.policies if policy.key == "system")

    @property
    def labelled(self) -> bool:
        """Whether the rows have labels."""
        return any(policy.accuracy is not None for policy in self.policies)

    @property
    def instances(self) -> int:
        """Instances that came under the system."""
        return self.system.instances

    @property
    def offload_rate(self) -> float:
        """Share of them that was offloaded."""
        return value(self.system.offload_rate) or 0.0

    @property
    def accuracy(self) -> dict[str, float | None]:
        """Accuracy under each of system, edge-only and cloud-only that was run."""
        return self._three(lambda policy: value(policy.accuracy))

    @property
    def balanced_accuracy(self) -> float | None:
        """Mean accuracy of the true classes that came, under the system."""
        known = [c.accuracy for c in self.classes if c.accuracy is not None]
        return sum(known) / len(known) if known else None

    @property
    def feature_cost(self) -> dict[str, float]:
        """Feature cost per instance."""
        return self._three(lambda policy: value(policy.feature_cost) or 0.0)

    @property
    def cost_reduction(self) -> float | None:
        """Feature cost saved against cloud-only, as a share."""
        reference = self.feature_cost.get("cloud_only")
        return 1 - self.feature_cost["system"] / reference if reference else None

    @property
    def bytes(self) -> dict[str, int]:
        """Bytes of all instances; edge-only sends none."""
        totals = self._three(lambda policy: round(policy.instances * (policy.bytes.total or 0.0)))
        return {key: total for key, total in totals.items() if key != "edge_only"}

    @property
    def latency_ms(self) -> dict[str, dict[str, float]]:
        """``p50``, ``p95`` and ``p99`` of the time to the answer."""
        return self._three(
            lambda policy: {
                q: figure.value
                for q in ("p50", "p95", "p99")
                if (figure := policy.latency_ms.get(q)) is not None
            }
        )

    @property
    def answers(self) -> AnswerCounts:
        """The system's instances by what became of them."""
        return self.system.answers

    @property
    def money(self) -> Bill | None:
        """The system's bill, if there is a price list."""
        return self.system.money

    def _three(self, figure: Callable[[PolicyResult], Any]) -> dict[str, Any]:
        return {key: figure(policy) for key in _THREE if (policy := self.policy(key)) is not None}

    # -- JSON -----------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Lay the report out as in ``report.json``."""
        document = to_document(self)
        first = ("kind", "dataset", "method")
        return {
            "schema_version": SCHEMA_VERSION,
            **{name: document.pop(name) for name in first},
            **{name: to_document(getattr(self, name)) for name in HEADLINE},
            **document,
        }

    def to_json(self) -> str:
        """Write the report as JSON text."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n"

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Self:
        """Read a report from a JSON document of this schema version or an earlier one."""
        version = document.get("schema_version", 1)
        if document.get("kind") not in KINDS:
            raise InputError(
                f"not a report: kind is {document.get('kind')!r:.40}, not one of {', '.join(KINDS)}"
            )
        if not isinstance(version, int) or not 1 <= version <= SCHEMA_VERSION:
            raise InputError(f"schema_version is {version!r:.40}, this is gatewise for 1 to 2")
        # A simulation's has had the same fields since version 1; the demo's had its own.
        if version == 1 and document["kind"] == DEMO_KIND:
            raise InputError("a demo's report of schema version 1: run gatewise demo again")
        report: Self = from_document(cls, document)
        return report


HEADLINE: Final = (
    "instances", "offload_rate", "accuracy", "balanced_accuracy", "feature_cost",
    "cost_reduction", "bytes", "latency_ms", "answers", "money",
)  # fmt: skip
