"""Answers of a fleet, one column a fact, and what follows from how an instance ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, Final, Self, get_args, get_type_hints

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise_sim.fleet.energy.radio import Radio, radio_joules
from gatewise_sim.fleet.routes import ROUTES, Routes

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
_EDGE, _CLOUD = ROUTES.index("edge"), ROUTES.index("cloud")
_LOCAL: Final = np.isin(REASONS, ("stopped", "edge-only", "value"))
_REQUESTED: Final = np.array([r == "timeout" or r.startswith("cloud:") for r in REASONS])
FEATURES_ACQUIRED: Final = _REQUESTED | np.isin(
    REASONS, ("offloaded", "cloud-only", "deadline", "unsent")
)
"""By reason: whether the features of a request were acquired."""


@dataclass(slots=True, eq=False)
class Answers:
    """Columns of shape (n,), in the order in which the instances came."""

    time: NDArray[np.float64]
    """When the instance came, in seconds since the beginning."""
    device: NDArray[np.int32]
    row: NDArray[np.int32]
    route: NDArray[np.int8]
    """Index into :data:`gatewise_sim.fleet.routes.ROUTES`; -1: not answered (yet)."""
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
    paced: NDArray[np.bool_]
    """Whether a pacer decided."""

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
        return np.asarray((self.route == _EDGE) & (self.payload_up > 0), np.bool_)

    def observed_before(self, change: float | None, devices: int) -> NDArray[np.int64]:
        """Instances of each device that audits could test before a time (s), shape (devices,).

        Fallbacks are no evidence. None: zeros.
        """
        seen = np.isin(self.route, (_EDGE, _CLOUD)) & (self.time < (change or 0.0))
        return np.bincount(self.device[seen], minlength=devices)

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


class AnswerRules:
    """Stage, label, costs and device time of an answer, from its row, route and reason.

    `edge_ms` is the time until a stage has answered, by stage or one number for all; `edge_seconds`
    how long each row occupies its device. `cloud_only`: stages run only where the cloud did not
    answer.
    """

    def __init__(
        self, routes: Routes, edge_ms: float | Sequence[float], *, cloud_only: bool
    ) -> None:
        n_here = routes.plan.n_here
        by_stage = np.broadcast_to(np.asarray(edge_ms, np.float64), (n_here,)) / 1000.0
        if not (np.isfinite(by_stage) & (by_stage >= 0)).all():
            raise InputError(f"edge_ms {edge_ms}: give milliseconds")
        self.edge_seconds: NDArray[np.float64] = by_stage[np.maximum(routes.exit, 0)]
        self.routes = routes
        self.cloud_only = cloud_only
        self._cloud_price = routes.cloud_price

    def seconds_before_request(self, row: NDArray[Any]) -> NDArray[np.float64]:
        """Seconds from the arrival of such rows until a request is made, same shape."""
        return np.zeros(len(row)) if self.cloud_only else self.edge_seconds[row]

    def local_answers(self) -> Answers:
        """Answer to each row by its device alone, shape (n_rows,)."""
        n = len(self.routes)
        answers = Answers.empty(np.zeros(n), np.zeros(n), np.arange(n))
        self.answer_locally(answers, np.arange(n))
        return answers

    def answer_locally(self, answers: Answers, which: Any) -> None:
        """Fill in answers that the devices' own stages give; `which`: indices."""
        routes, rows = self.routes, answers.row[which]
        answers.route[which] = route = routes.local_route[rows]
        answers.stage[which] = routes.exit[rows]
        answers.label[which] = routes.local_label[rows]
        answers.cost[which] = answers.feature_cost[which] = routes.local_cost[rows]
        answers.latency_ms[which] = answers.device_ms[which] = 1000.0 * self.edge_seconds[rows]
        local = np.where(routes.offload[rows], REASON["edge-only"], REASON["stopped"])
        answers.reason[which] = np.where(route > 0, REASON["value"], local)

    def complete(self, answers: Answers) -> None:
        """Fill in the rest of the answers to instances that were to be offloaded.

        All of it follows from row, route and reason, as on a device; so it is done for many
        answers at once.
        """
        which = np.flatnonzero((answers.route >= 0) & ~_LOCAL[answers.reason])
        routes, row = self.routes, answers.row[which]
        cloud, reason = answers.route[which] == _CLOUD, answers.reason[which]
        features = np.where(
            FEATURES_ACQUIRED[reason], routes.request_cost[row], routes.local_cost[row]
        )
        ran = np.ones(len(which), bool)
        if self.cloud_only:
            features = np.where(cloud, routes.alone_cost, features)
            ran = ~cloud
        requests = np.where(_REQUESTED[reason], routes.plan.request_price, 0.0)
        answers.stage[which] = np.where(cloud, routes.cloud_stage[row], routes.exit[row])
        answers.label[which] = np.where(cloud, routes.cloud_label[row], routes.local_label[row])
        answers.feature_cost[which] = features
        answers.cost[which] = features + np.where(cloud, self._cloud_price[row], requests)
        answers.device_ms[which] = 1000.0 * np.where(ran, self.edge_seconds[row], 0.0)


def rows_by_stage(answers: Answers, routes: Routes) -> Answers:
    """Answers of a live run, with rows as of :mod:`gatewise_sim.fleet.devices.decisions`.

    A cloud's answer does not say after which stage it was asked; the features paid for do, and of
    two stages that paid alike the later one is taken.
    """
    assert routes.by_stage is not None
    n = routes.by_stage.rows
    stage = np.minimum(answers.stage, routes.plan.n_here - 1).astype(np.int64).clip(0)
    by_cloud = answers.route == _CLOUD
    for s in range(routes.plan.n_here):
        paid = routes.request_cost[s * n + answers.row] == answers.feature_cost
        stage[by_cloud & paid] = s
    return replace(answers, row=(stage * n + answers.row).astype(np.int32))


def exchange_joules(
    answers: Answers, before: NDArray[np.float64], radio: Radio
) -> NDArray[np.float64]:
    """Energy (J) that each instance's messages cost its device's radio, shape (n,).

    The answers are at least all that were sent, in any order; `before` are the seconds from an
    instance's arrival until its request enters the link. An exchange ends with its answer, and that
    of an audit after as long as half of the others take.
    """
    sent = np.flatnonzero(answers.payload_up > 0)
    begin = answers.time[sent] + before[sent]
    order = np.lexsort((begin, answers.device[sent]))
    sent, begin = sent[order], begin[order]
    end = np.maximum(begin, answers.time[sent] + answers.latency_ms[sent] / 1000.0)
    by_cloud = answers.route[sent] == _CLOUD
    if by_cloud.any():
        usual = float(np.median((end - begin)[by_cloud]))
        end = np.where(answers.audited[sent], begin + usual, end)
    device, up, down = (
        getattr(answers, name)[sent].astype(np.int64) for name in ("device", "up", "down")
    )
    joules = np.zeros(len(answers))
    joules[sent] = radio_joules(radio, device, begin, end, up, down)
    return joules
