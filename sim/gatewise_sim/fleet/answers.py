"""What a simulated fleet answered: one column a fact, one entry an instance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

__all__ = ["REASON", "REASONS", "Answers"]

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
    # These come from real devices only.
    "cloud:no-model",
    "cloud:bad-request",
    "cloud:expired",
    "cloud:failed",
    "unsent",
    "no-link",
)
"""As in :class:`gatewise_edge.device.answer.Answer`; ``value``: one is missing or infinite."""
REASON: Final = {reason: i for i, reason in enumerate(REASONS)}

_TYPES: Final[dict[str, type[Any]]] = {
    "time": np.float64,
    "device": np.int32,
    "row": np.int32,
    "route": np.int8,
    "stage": np.int8,
    "label": np.int32,
    "cost": np.float64,
    "feature_cost": np.float64,
    "latency_ms": np.float64,
    "device_ms": np.float32,
    "cloud_ms": np.float32,
    "up": np.int32,
    "down": np.int32,
    "payload_up": np.int32,
    "payload_down": np.int32,
    "reason": np.int8,
    "paced": np.bool_,
}


@dataclass(slots=True, eq=False)
class Answers:
    """Columns of shape (n,), in the order in which the instances came.

    Attributes
    ----------
    time : ndarray of float64
        When the instance came, in seconds since the beginning.
    device, row : ndarray of int32
    route : ndarray of int8
        Index into :data:`gatewise_sim.fleet.routes.ROUTES`; -1: not answered (yet).
    stage : ndarray of int8
        Whose answer it is; the number of stages for the high-cost model's.
    label : ndarray of int32
        Class index; -1 for an error.
    cost, feature_cost : ndarray of float64
        As :class:`gatewise_edge.device.answer.Answer`.
    latency_ms : ndarray of float64
        NaN while there is no answer.
    device_ms : ndarray of float32
        Of it, the time of the device's own stages; all of it if nothing was sent.
    cloud_ms : ndarray of float32
        Of it, the worker's own time with its queue, as its response says; 0 unless the cloud's
        answer was used. The rest of that is the network's; of a fallback, waiting in vain.
    up, down : ndarray of int32
        Bytes, by :data:`gatewise_sim.live.outcome.BYTES_FORMULA`; late responses are counted, too.
    payload_up, payload_down : ndarray of int32
        The payloads' share of them.
    reason : ndarray of int8
        Index into :data:`REASONS`.
    paced : ndarray of bool
        Whether a pacer decided.
    """

    time: NDArray[np.float64]
    device: NDArray[np.int32]
    row: NDArray[np.int32]
    route: NDArray[np.int8]
    stage: NDArray[np.int8]
    label: NDArray[np.int32]
    cost: NDArray[np.float64]
    feature_cost: NDArray[np.float64]
    latency_ms: NDArray[np.float64]
    device_ms: NDArray[np.float32]
    cloud_ms: NDArray[np.float32]
    up: NDArray[np.int32]
    down: NDArray[np.int32]
    payload_up: NDArray[np.int32]
    payload_down: NDArray[np.int32]
    reason: NDArray[np.int8]
    paced: NDArray[np.bool_]

    @classmethod
    def empty(cls, time: NDArray[np.float64], device: NDArray[Any], row: NDArray[Any]) -> Self:
        """Make room for the answers to instances, shape (n,)."""
        given = {"time": time, "device": device, "row": row}
        columns = {
            name: np.array(given[name], dtype) if name in given else np.zeros(len(time), dtype)
            for name, dtype in _TYPES.items()
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

    def take(self, which: NDArray[Any]) -> Answers:
        """Some of them, by indices or a mask."""
        return Answers(*(getattr(self, f.name)[which] for f in fields(self)))

    def __len__(self) -> int:
        return len(self.time)
