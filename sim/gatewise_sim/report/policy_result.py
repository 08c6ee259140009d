"""What a fleet did under one policy, as a report holds it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from gatewise_sim.fleet.answers import AlarmCount
from gatewise_sim.fleet.estimate.intervals import Measurement
from gatewise_sim.fleet.money import Bill

POLICY_NAMES: Final = {
    "system": "Gatewise",
    "edge_only": "All edge",
    "cloud_only": "All cloud",
    "confidence": "Confidence",
    "random": "Random",
    "oracle": "Oracle",
    "thresholds": "Thresholds",
}
"""Keys of the policies and their names for people, in the order of a report."""


def value(figure: Measurement | None) -> float | None:
    """A figure without its interval."""
    return None if figure is None else figure.value


@dataclass(frozen=True, kw_only=True)
class AnswerCounts:
    """Instances by what became of them; `late` responses and `retries` are of requests.

    Of the devices' own answers `audits` were compared with the high-cost model's.
    """

    edge: int
    cloud: int
    fallback: int
    error: int = 0
    late: int
    retries: int = 0
    audits: int = 0
    audits_disagreed: int = 0
    lost: int

    @property
    def answered(self) -> int:
        """Answers by edge, cloud and fallback."""
        return self.edge + self.cloud + self.fallback

    @property
    def cloud_too_late(self) -> bool:
        """Whether fewer than one in twenty offloads was answered by the cloud."""
        return self.fallback > 0 and 20 * self.cloud < self.cloud + self.fallback


@dataclass(frozen=True, kw_only=True)
class ByteUse:
    """Bytes per instance: both ways, and the same by payloads and what the protocol adds."""

    up: Measurement | None
    down: Measurement | None
    request: float = 0.0
    response: float = 0.0
    protocol: float = 0.0

    @property
    def total(self) -> float | None:
        """Both ways."""
        if self.up is None or self.down is None:
            return None
        return self.up.value + self.down.value


@dataclass(frozen=True, kw_only=True)
class JouleUse:
    """Joules of a device per instance."""

    radio: float
    features: float
    stages: float

    @property
    def total(self) -> float:
        """All three."""
        return self.radio + self.features + self.stages


@dataclass(frozen=True, kw_only=True)
class StepUse:
    """A step of blocks: the part of the instances for which it was computed, and what one takes.

    `price` in the unit of the feature costs; `ms` and `joules` where the bundle has them. Means per
    instance stand beside them in JSON.
    """

    json_properties: ClassVar[tuple[str, ...]] = ("mean_ms", "mean_joules")

    share: float
    price: float
    ms: float | None = None
    joules: float | None = None

    @property
    def mean_ms(self) -> float | None:
        """Milliseconds per instance."""
        return None if self.ms is None else self.share * self.ms

    @property
    def mean_joules(self) -> float | None:
        """Joules per instance."""
        return None if self.joules is None else self.share * self.joules


@dataclass(frozen=True, kw_only=True)
class AuditUse:
    """Audits of the devices' own answers: what they took, and what they found.

    `promised` is the least share of instances answered as the high-cost model would, by the bundle.
    """

    share: float  # of the devices' own answers that should be sent
    sent: int
    compared: int
    disagreed: int
    promised: float
    bytes: float  # per instance of the fleet, both ways
    feature_cost: float  # per instance, beside that of the answers
    change: float | None = None  # when the data begin to change, in s
    alarms: tuple[AlarmCount, ...] = ()  # none if only a part of the run was stepped


@dataclass(frozen=True, kw_only=True)
class LatencyHistogram:
    """Instances by latency: all, and those that were to be offloaded; one more edge than bins."""

    edges_ms: tuple[float, ...] = ()
    all: tuple[float, ...] = ()
    offloaded: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PolicyResult:
    """What the fleet did under one policy: the system, or what it is compared with."""

    key: str  # of POLICY_NAMES
    name: str
    engine: str  # virtual or live
    sampling: str = ""  # what was stepped, in words
    instances: int
    accuracy: Measurement | None  # None without labels
    offload_rate: Measurement | None  # sent or to be sent to the cloud, answered or not
    cost: Measurement | None  # per instance, in the unit of the feature costs
    feature_cost: Measurement | None
    latency_ms: dict[str, Measurement | None]  # p50, p95, p99, and offloaded_p50 and so on
    bytes: ByteUse
    joules: JouleUse
    joules_per_device_day: float | None  # idling included
    battery_days: float | None
    answers: AnswerCounts
    money: Bill | None
    utilisation: float | None  # share of the workers' time that was used
    workers: dict[str, Any]  # sums of their counters
    histogram: LatencyHistogram
    breakdown_ms: dict[str, float]  # mean per instance on device, network, cloud; waiting in vain
    reasons: dict[str, float]  # answers by their reason
    computation: dict[str, StepUse] = field(default_factory=dict)  # of bundles with blocks, by step
    audit: AuditUse | None = None
