"""Route of each row of a table: computed once, by the device's stages and the cloud's model.

A row's last stage, feature costs and cloud answer do not depend on the time. So a fleet that
answers a row a million times has it run once, by a real
:class:`gatewise_edge.device.device.Device` and a real
:class:`gatewise_cloud.models.cloud_model.CloudModel`; only the waiting is left to simulate.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gatewise.costs import FeatureCosts
from gatewise.decision import split
from gatewise.errors import InputError
from gatewise_cloud.models.cloud_model import CloudModel
from gatewise_cloud.worker.fleet_audit import disagreement_bound
from gatewise_edge.device.answer import Answer, DecisionPoint
from gatewise_edge.device.device import Device
from gatewise_edge.device.installed import InstalledBundle
from gatewise_edge.errors import SensorError
from gatewise_edge.link.link import Receive
from gatewise_edge.link.offload import Offloads
from gatewise_export.bundle.bundle import Bundle
from gatewise_sim.fleet.messages import Sizes

NO_LABEL: Final = -1
_CHUNK: Final = 1024


@dataclass(frozen=True, slots=True, eq=False)
class StageScores:
    """What a policy of one's own decides by, rows as of :func:`.routes_by_stage`.

    `rows` are those of the table, `probabilities` of shape (n, n_classes), `costs` those of the
    features acquired so far, `thresholds` the operating point's by stage.
    """

    rows: int
    scores: Sequence[float]
    probabilities: NDArray[np.float64]
    costs: Sequence[float]
    thresholds: Sequence[float | None]

    def point(self, row: int, offloads: Offloads, *, left: float, connected: bool) -> DecisionPoint:
        """What is known when a row's stage has answered, `left` seconds before the deadline."""
        stage = row // self.rows
        trip = offloads.round_trip.smoothed
        return DecisionPoint(
            stage=stage,
            last=stage == len(self.thresholds) - 1,
            score=self.scores[row],
            threshold=self.thresholds[stage],
            probabilities=self.probabilities[row],
            cost=self.costs[row],
            left_ms=1000.0 * left,
            connected=connected,
            round_trip_ms=0.0 if trip is None else 1000.0 * trip,
            outstanding=len(offloads),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Routes:
    """Routes, answers and costs of the rows of a table, arrays of shape (n,) but for `sets`."""

    plan: InstalledBundle
    """The bundle's name, prices and stages."""
    sizes: Sizes
    """Those of its messages."""
    truth: NDArray[np.int64]
    """Class indices; :data:`NO_LABEL` where they are not known."""
    exit: NDArray[np.int64]
    """The last stage that ran on the device; -1 if none could."""
    offload: NDArray[np.bool_]
    """Whether the row is sent to the cloud."""
    local_route: NDArray[np.int64]
    """The route of a row that is not sent: fallback or error where a value is no good."""
    local_label: NDArray[np.int64]
    """The device's own answer; :data:`NO_LABEL` if it has none."""
    local_cost: NDArray[np.float64]
    """Price of the features that its stages acquired."""
    cloud_label: NDArray[np.int64]
    """The cloud's answer; :data:`NO_LABEL` where a value keeps the row from being offloaded."""
    request_cost: NDArray[np.float64]
    """Price of the features acquired once a request was made."""
    alone_cost: float
    """Price of the features that a request carries, when no stage ran before."""
    score: NDArray[np.float32]
    """Stop score at the gate; NaN for a row that does not get there."""
    sets: NDArray[np.bool_]
    """Sets of features, shape (n_sets, n_features)."""
    local_set: NDArray[np.int64]
    """The set that each row's stages acquired."""
    request_set: NDArray[np.int64]
    """The one acquired once a request was made."""
    threshold: float | None
    """The gate's threshold, as packed."""
    confidence: NDArray[np.float32]
    """The largest probability in the device's own answer; NaN where it has none."""
    disagreement_bound: float | None = None
    """See :func:`gatewise_cloud.worker.fleet_audit.disagreement_bound`."""
    chance: float = 0.0
    """Share that is sent of the instances whose row is not: drawn anew from those that come."""
    by_stage: StageScores | None = None
    """For a policy of one's own: rows are those of :mod:`gatewise_sim.fleet.devices.decisions`."""

    @property
    def rows(self) -> int:
        """Rows of the table that instances come from."""
        return len(self) if self.by_stage is None else self.by_stage.rows

    def __len__(self) -> int:
        return len(self.exit)

    @classmethod
    def from_bundle(
        cls,
        bundle: Bundle,
        X: ArrayLike,
        truth: ArrayLike | None = None,
        *,
        backend: str | None = None,
    ) -> Self:
        """Send every row through a device of `bundle` without a link, and through its cloud model.

        `X` has shape (n, n_features) in the manifest's order, `truth` class indices of shape (n,);
        `backend` runs the high-cost model (:func:`.chosen_backend`). InputError if the bundle
        answers with values, or the rows do not fit it.
        """
        manifest = bundle.manifest
        plan = InstalledBundle.load(bundle, check=False, functions=None)
        if not plan.classes:
            raise InputError("a bundle that answers with values uses no cloud: nothing to simulate")
        rows = np.ascontiguousarray(X, np.float32)
        if rows.ndim != 2 or not len(rows) or rows.shape[1] != len(plan.names):
            raise InputError(
                f"rows of shape {rows.shape}; the bundle has {len(plan.names)} columns"
            )
        known = np.full(len(rows), NO_LABEL) if truth is None else np.asarray(truth, np.int64)
        if known.shape != (len(rows),):
            raise InputError(f"{len(rows)} rows and labels of shape {known.shape}")

        device = _on_device(bundle, plan, rows)
        goes_on, in_trouble = device.goes_on, device.in_trouble
        carried = np.zeros(len(plan.names), bool)
        cloud_label = np.full(len(rows), NO_LABEL, np.int64)
        if plan.has_cloud:
            carried[plan.request_inputs] = True
            can_offload = _can_offload(plan, rows)
            stuck = goes_on & ~can_offload & (device.labels != NO_LABEL)
            goes_on &= can_offload
            in_trouble |= stuck
            _acquire_in_vain(bundle, rows, np.flatnonzero(stuck), device.acquired)
            with closing(cloud_model(bundle, backend)) as model:
                cloud_label = _run(model, plan, rows, can_offload)
        costs = manifest.feature_costs()
        return cls(
            # Processes get copies of it: without what runs stages, which no copy can be made of.
            plan=replace(plan, stages=(), meter=None, bundle=None),  # type: ignore[arg-type]
            sizes=Sizes.from_plan(plan),
            truth=known,
            exit=device.exits,
            offload=goes_on,
            local_route=np.where(device.labels == NO_LABEL, 3, np.where(in_trouble, 2, 0)),
            local_label=device.labels,
            cloud_label=cloud_label,
            alone_cost=float(costs.price(carried)),
            score=_gate_scores(bundle, plan, rows, device.exits),
            disagreement_bound=disagreement_bound(manifest),
            threshold=manifest.active_point.thresholds[plan.n_stages - 1],
            confidence=device.confidence,
            **acquired_columns(device.acquired, carried, costs),
        )

    @property
    def cost(self) -> NDArray[np.float64]:
        """Cost of each row with a cloud that always answers, shape (n,): ``system.cost(X)``."""
        return np.where(self.offload, self.request_cost + self.plan.offload_price, self.local_cost)

    @property
    def label(self) -> NDArray[np.int64]:
        """Answer to each row with a cloud that always answers, shape (n,)."""
        return np.where(self.offload, self.cloud_label, self.local_label)

    def choose(self, offload: ArrayLike) -> Self:
        """Same rows with another choice of those that are sent: `offload`, bool (n,).

        Rows with values that the cloud refuses stay on the device.
        """
        chosen = np.asarray(offload, bool)
        if chosen.shape != self.offload.shape:
            raise InputError(f"offload of shape {chosen.shape} for {len(self)} rows")
        return replace(self, offload=chosen & (self.cloud_label != NO_LABEL), chance=0.0)

    def by_chance(self, chance: float) -> Self:
        """Same rows, of which a share of the instances, `chance`, is sent at random.

        Rows with values that the cloud refuses stay on the device.
        """
        if not 0 <= chance <= 1:
            raise InputError(f"chance is {chance}; it must lie between 0 and 1")
        return replace(self, offload=np.zeros(len(self), bool), chance=float(chance))

    @property
    def acquired_sets(self) -> NDArray[np.bool_]:
        """`sets`, and last that of a request alone, shape (n_sets + 1, n_features)."""
        carried = np.zeros((1, self.sets.shape[1]), np.bool_)
        carried[0, self.plan.request_inputs] = self.plan.has_cloud
        return np.concatenate([self.sets, carried])

    @property
    def share(self) -> float:
        """Share of the instances that are sent, if all rows come equally often."""
        possible = (self.cloud_label != NO_LABEL) & ~self.offload
        return float(self.offload.mean() + self.chance * possible.mean())


@dataclass(slots=True, eq=False)
class _DeviceResults:
    """Results of the device's own stages, by row; `in_trouble`: a value stopped them."""

    exits: NDArray[np.int64]
    labels: NDArray[np.int64]
    in_trouble: NDArray[np.bool_]
    goes_on: NDArray[np.bool_]
    acquired: NDArray[np.bool_]
    confidence: NDArray[np.float32]


def _on_device(bundle: Bundle, plan: InstalledBundle, rows: NDArray[np.float32]) -> _DeviceResults:
    n, has_cloud = len(rows), plan.has_cloud
    found = _DeviceResults(
        exits=np.full(n, -1, np.int64),
        labels=np.full(n, NO_LABEL, np.int64),
        in_trouble=np.zeros(n, bool),
        goes_on=np.zeros(n, bool),
        acquired=np.zeros(rows.shape, bool),
        confidence=np.full(n, np.nan, np.float32),
    )
    # Its policy only spares it the gate's drift alarm: the same stages run and acquire.
    with Device(bundle, policy="edge-only", check=False) as device:
        for i, row in enumerate(rows):
            try:
                answer = device.begin(row)
            except SensorError as error:
                found.goes_on[i] = has_cloud and error.why != "infinite"
                continue
            assert isinstance(answer, Answer)  # without a link nothing is ever pending
            found.exits[i], found.labels[i] = answer.stage, answer.class_index
            found.acquired[i, list(answer.acquired)] = True
            found.confidence[i] = answer.probabilities.max()
            fell_back = answer.route == "fallback"
            refused = not has_cloud or answer.reason.startswith("infinite")
            found.in_trouble[i] = fell_back and refused
            found.goes_on[i] = answer.reason == "edge-only" or (fell_back and not refused)
    return found


class _RefusingLink:
    """A link that is up and takes nothing."""

    ready = True

    def open(self, receive: Receive) -> None:
        pass

    def send(self, payload: bytes) -> bool:
        return False

    def close(self) -> None:
        pass


def _acquire_in_vain(
    bundle: Bundle, rows: NDArray[np.float32], which: NDArray[np.intp], acquired: NDArray[np.bool_]
) -> None:
    """Enter the features acquired for a request that cannot be made, as a value is no good."""
    with Device(bundle, link=_RefusingLink(), check=False) as device:
        for i in which.tolist():
            answer = device.answer(rows[i])
            acquired[i, list(answer.acquired)] = True


def acquired_columns(
    local: NDArray[np.bool_], carried: NDArray[np.bool_], costs: FeatureCosts
) -> dict[str, Any]:
    """Columns of :class:`Routes`: sets of features and their prices, without and with a request.

    Shapes: `local` (n, n_features), acquired by the device's stages, `carried` (n_features,).
    """
    both = np.concatenate([local, local | carried])
    sets, which = np.unique(both, axis=0, return_inverse=True)
    local_set, request_set = which.reshape(2, len(local))
    prices = np.array([costs.price(s) for s in sets], np.float64)
    return {
        "sets": sets,
        "local_set": local_set,
        "request_set": request_set,
        "local_cost": prices[local_set],
        "request_cost": prices[request_set],
    }


def _can_offload(plan: InstalledBundle, rows: NDArray[np.float32]) -> NDArray[np.bool_]:
    inputs = rows[:, plan.request_inputs]
    refused = np.isinf(inputs) if plan.cloud_takes_nan else ~np.isfinite(inputs)
    return np.asarray(~refused.any(axis=1), np.bool_)


def cloud_model(bundle: Bundle, backend: str | None) -> CloudModel:
    """Load a bundle's high-cost model, or what an operator names in its place."""
    if backend is None:
        return CloudModel.from_bundle(bundle)
    from gatewise_cloud.models.backend_choice import chosen_backend

    return CloudModel.from_bundle(bundle, backend=chosen_backend(backend)(bundle.manifest))


def _run(
    model: CloudModel, plan: InstalledBundle, rows: NDArray[np.float32], send: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Labels of the rows to `send`, shape (n,)."""
    labels = np.full(len(rows), NO_LABEL, np.int64)
    chosen = np.flatnonzero(send)
    for start in range(0, len(chosen), _CHUNK):
        part = chosen[start : start + _CHUNK]
        labels[part] = model.run(
            np.ascontiguousarray(rows[np.ix_(part, plan.request_inputs)])
        ).labels
    return labels


def _gate_scores(
    bundle: Bundle, plan: InstalledBundle, rows: NDArray[np.float32], exits: NDArray[np.int64]
) -> NDArray[np.float32]:
    scores = np.full(len(rows), np.nan, np.float32)
    gate = plan.n_stages - 1
    there = np.flatnonzero(exits == gate)
    if plan.has_cloud and len(there):
        stage = plan.stages[gate]
        inputs = np.ascontiguousarray(rows[np.ix_(there, stage.inputs)])
        scores[there] = split(stage.run(inputs), stage.spec.score)[1]
    return scores
