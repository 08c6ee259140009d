"""Answers of a fleet, one column a fact, and the result of its run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Final, Self, get_args, get_type_hints

import numpy as np
from numpy.typing import NDArray

ROUTES: Final = ("edge", "cloud", "fallback", "error")
"""What an answer's route is an index of; an error took the place of an answer."""
REASONS: Final = (
    "stopped",
    "edge-only",
    "offloaded",
    "cloud-only",
    "value",
    "link-down",
    "full",
    "breaker-open",
    "deadline",
    "timeout",
    "cloud:busy",
    "cloud:failed",
    "unsent",
    # These come from real devices only.
    "cloud:no-model",
    "cloud:bad-request",
    "cloud:expired",
    "no-link",
)
"""As in :class:`gatewise_edge.device.answer.Answer`; ``value``: one is missing or infinite."""
REASON: Final = {reason: i for i, reason in enumerate(REASONS)}
EDGE, CLOUD = ROUTES.index("edge"), ROUTES.index("cloud")
LOCAL: Final = np.isin(REASONS, ("stopped", "edge-only", "value"))
_REQUESTED: Final = np.array([r == "timeout" or r.startswith("cloud:") for r in REASONS])
_ACQUIRED: Final = _REQUESTED | np.isin(REASONS, ("deadline", "unsent"))


@dataclass(slots=True, eq=False)
class Answers:
    """Columns of shape (n,), in the order in which the instances came."""

    time: NDArray[np.float64]
    """When the instance came, in seconds since the beginning."""
    device: NDArray[np.int32]
    row: NDArray[np.int32]
    route: NDArray[np.int8]
    """Index into :data:`ROUTES`; -1: not answered (yet)."""
    stage: NDArray[np.int8]
    """The stage that answered; the number of stages for the high-cost model."""
    label: NDArray[np.int32]
    """Class index; -1 for an error."""
    cost: NDArray[np.float64]
    feature_cost: NDArray[np.float64]
    """Both as in :class:`gatewise_edge.device.answer.Answer`."""
    latency_ms: NDArray[np.float64]
    """NaN while there is no answer."""
    device_ms: NDArray[np.float32]
    """Of the latency, the time of the device's own stages; all of it if nothing was sent."""
    cloud_ms: NDArray[np.float32]
    """Of the latency, the worker's own time with its queue, as its response says; 0 unless the
    cloud's answer was used. The rest is the network's; of a fallback, waiting in vain.
    """
    up: NDArray[np.int32]
    down: NDArray[np.int32]
    """Bytes, by :data:`.BYTES_FORMULA`; late responses are counted, too."""
    payload_up: NDArray[np.int32]
    payload_down: NDArray[np.int32]
    """The payloads' share of `up` and `down`."""
    reason: NDArray[np.int8]
    """Index into :data:`REASONS`."""
    held: NDArray[np.bool_]
    """Whether a ``cloud:busy`` of before kept the device from asking."""

    @classmethod
    def empty(cls, time: NDArray[np.float64], device: NDArray[Any], row: NDArray[Any]) -> Self:
        """Columns for the answers to instances, shape (n,), none of them answered."""
        given = {"time": time, "device": device, "row": row}
        columns = {
            name: np.array(given[name], dtype) if name in given else np.zeros(len(time), dtype)
            for name, dtype in _column_types()
        }
        columns["route"].fill(-1)
        columns["latency_ms"].fill(np.nan)
        return cls(**columns)

    @classmethod
    def join(cls, parts: Sequence[Answers]) -> Self:
        """Put parts one after another."""
        if not parts:
            none = np.empty(0)
            return cls.empty(none, none, none)
        return cls(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(cls)))

    @property
    def audited(self) -> NDArray[np.bool_]:
        """Whether the device's own answer was sent to the high-cost model, too, shape (n,)."""
        return np.asarray((self.route == EDGE) & (self.payload_up > 0), np.bool_)

    @property
    def requested(self) -> NDArray[np.bool_]:
        """Whether a request was made, perhaps with those of other rows, shape (n,)."""
        asked: NDArray[np.bool_] = (self.route == CLOUD) | _REQUESTED[self.reason] & ~self.held
        return asked

    @property
    def acquired(self) -> NDArray[np.bool_]:
        """Whether the features of a request were acquired, shape (n,)."""
        paid: NDArray[np.bool_] = (self.route == CLOUD) | _ACQUIRED[self.reason] & ~self.held
        return paid

    def take(self, which: NDArray[Any]) -> Answers:
        """Some of them, by indices or a mask."""
        return Answers(*(getattr(self, f.name)[which] for f in fields(self)))

    def __len__(self) -> int:
        return len(self.time)


@cache
def _column_types() -> list[tuple[str, type[Any]]]:
    """Columns of Answers and their dtypes, as annotated: ``NDArray[np.int8]`` and so on."""
    hints = get_type_hints(Answers)
    return [(f.name, get_args(get_args(hints[f.name])[1])[0]) for f in fields(Answers)]


@dataclass(frozen=True, kw_only=True)
class AlarmCount:
    """Alarms of the workers' tests of audits.

    `tests` is how many there are and `raised` how many of them raised an alarm, `early` ones before
    the data changed. `instances` is the median of all devices' instances until an alarm; since the
    change where there is one.
    """

    tests: int
    raised: int
    early: int = 0
    instances: float | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class FleetRun:
    """Result of a fleet's run, in virtual time or live."""

    answers: Answers
    """One entry an instance, by time of arrival (of rows in turn: device after device)."""
    joules: NDArray[np.float64]
    """What each instance's messages cost its device's radio, shape (n,); see
    :func:`gatewise_sim.fleet.energy.radio_joules`. An exchange ends with its answer.
    """
    devices: dict[str, float]
    """Sums over the devices of :class:`gatewise_edge.link.offload.OffloadCounts`,
    :class:`gatewise_edge.link.breaker.BreakerCounts` and what their auditors count.
    """
    workers: list[dict[str, float]]
    """Each worker's :class:`gatewise_sim.fleet.worker.WorkerCounts`."""
    seconds: float
    """When the last answer was given, in s since the begin."""
    alarms: Sequence[int] | None
    """Instances that a worker's test of audits had observed when it raised its alarm, of those that
    raised one; None without audits.
    """
    events: int = 0
    """Events stepped."""
