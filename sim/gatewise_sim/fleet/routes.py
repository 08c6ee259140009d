"""Which way each row of a table takes: computed once, by the stages and the model themselves.

Nothing about a row depends on the time: where it stops, what its features cost, what the cloud
says to it. So a fleet that answers a row a million times has it run once.
:meth:`Routes.of` asks a real :class:`gatewise_edge.device.device.Device` and a real
:class:`gatewise_cloud.models.model.CloudModel`; what is left to simulate is who waits for whom.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gatewise.errors import InputError
from gatewise_cloud.models.model import CloudModel
from gatewise_edge.device.answer import Answer
from gatewise_edge.device.device import Device
from gatewise_edge.errors import SensorError
from gatewise_edge.link.link import Receive
from gatewise_edge.stages.plan import StagePlan
from gatewise_edge.stages.stages import StageRunner
from gatewise_export.bundle.bundle import Bundle
from gatewise_sim.fleet.sizes import Sizes

__all__ = ["NO_LABEL", "ROUTES", "Routes"]

NO_LABEL: Final = -1
ROUTES: Final = ("edge", "cloud", "fallback", "error")
"""What an answer's route is an index of; an error took the place of an answer."""
_CHUNK: Final = 1024


@dataclass(frozen=True, slots=True, eq=False)
class Routes:
    """The rows of a table and what becomes of each.

    Attributes
    ----------
    plan : StagePlan
        Of the bundle: its name, prices and stages.
    sizes : Sizes
    truth : ndarray of int64, shape (n,)
        Class indices; :data:`NO_LABEL` where they are not known.
    exit : ndarray of int64, shape (n,)
        The last stage that ran on the device; -1 if none could.
    offload : ndarray of bool, shape (n,)
        Whether the row is sent to the cloud.
    local_route : ndarray of int64, shape (n,)
        The route of a row that is not sent: fallback or error where a value is no good.
    local_label : ndarray of int64, shape (n,)
        What the device itself says; :data:`NO_LABEL` if it cannot say anything.
    local_cost : ndarray of float64, shape (n,)
        Features that its stages bought.
    cloud_label, cloud_stage : ndarray of int64, shape (n,)
        What the cloud says, and which stage said it (the number of stages: the high-cost model);
        :data:`NO_LABEL` where a value keeps the row from being asked about.
    asked_cost : ndarray of float64, shape (n,)
        Features bought once a request was made.
    alone_cost : float
        Features that a request carries, when no stage ran before.
    score : ndarray of float32, shape (n,)
        At the gate; NaN for a row that does not get there.
    sets : ndarray of bool, shape (n_sets, n_features)
        Sets of features.
    local_set, asked_set : ndarray of int64, shape (n,)
        Which of them each row's stages bought, and all that was bought once it was asked about.
    threshold : float or None
        The gate's, as packed.
    confidence : ndarray of float32, shape (n,)
        The largest probability in the device's own answer; NaN where it cannot say anything.
    chance : float, default 0
        Share that is sent of the instances whose row is not: drawn anew from those that come.
    """

    plan: StagePlan
    sizes: Sizes
    truth: NDArray[np.int64]
    exit: NDArray[np.int64]
    offload: NDArray[np.bool_]
    local_route: NDArray[np.int64]
    local_label: NDArray[np.int64]
    local_cost: NDArray[np.float64]
    cloud_label: NDArray[np.int64]
    cloud_stage: NDArray[np.int64]
    asked_cost: NDArray[np.float64]
    alone_cost: float
    score: NDArray[np.float32]
    sets: NDArray[np.bool_]
    local_set: NDArray[np.int64]
    asked_set: NDArray[np.int64]
    threshold: float | None
    confidence: NDArray[np.float32]
    chance: float = 0.0

    def __len__(self) -> int:
        return len(self.exit)

    @classmethod
    def of(cls, bundle: Bundle, X: ArrayLike, truth: ArrayLike | None = None) -> Self:
        """Send every row through a device without a link, and ask the cloud model about it.

        Parameters
        ----------
        bundle : Bundle
        X : array-like of shape (n, n_features)
            In the manifest's order.
        truth : array-like of int, shape (n,), optional
            Class indices.

        Raises
        ------
        InputError
            If the bundle answers with values, places stages on a gateway (which is not
            simulated), or the rows do not fit it.
        BundleError, ModelError, SelfTestError
            If the bundle cannot be run.
        """
        manifest = bundle.manifest
        plan = StagePlan.from_manifest(manifest)
        if not plan.classes:
            raise InputError("a bundle that answers with values asks no cloud: nothing to simulate")
        if "gateway" in plan.tiers:
            raise InputError("stages on a gateway are not simulated: place them on the device")
        rows = np.ascontiguousarray(X, np.float32)
        if rows.ndim != 2 or not len(rows) or rows.shape[1] != len(plan.names):
            raise InputError(
                f"rows of shape {rows.shape}; the bundle has {len(plan.names)} columns"
            )
        known = np.full(len(rows), NO_LABEL) if truth is None else np.asarray(truth, np.int64)
        if known.shape != (len(rows),):
            raise InputError(f"{len(rows)} rows and labels of shape {known.shape}")

        exits, labels, in_trouble, goes_on, local, confidence = _on_device(bundle, rows)
        carried = np.zeros(len(plan.names), bool)
        said = np.full((2, len(rows)), NO_LABEL, np.int64)
        names_stage = False
        if plan.has_cloud:
            carried[plan.request_inputs] = True
            can_be_asked = _can_be_asked(plan, rows)
            stuck = goes_on & ~can_be_asked & (labels != NO_LABEL)
            goes_on &= can_be_asked
            in_trouble |= stuck
            _buy_in_vain(bundle, rows, np.flatnonzero(stuck), local)
            said, names_stage = _in_cloud(bundle, plan, rows, can_be_asked)
        sets, which = np.unique(
            np.concatenate([local, local | carried]), axis=0, return_inverse=True
        )
        which = which.reshape(2, len(rows))
        costs = manifest.feature_costs()
        prices = np.array([costs.price(s) for s in sets], np.float64)
        threshold = manifest.active_point.thresholds[plan.n_here - 1]
        return cls(
            plan=plan,
            sizes=Sizes.of(plan, exits=names_stage),
            truth=known,
            exit=exits,
            offload=goes_on,
            local_route=np.where(labels == NO_LABEL, 3, np.where(in_trouble, 2, 0)),
            local_label=labels,
            local_cost=prices[which[0]],
            cloud_label=said[0],
            cloud_stage=said[1],
            asked_cost=prices[which[1]],
            alone_cost=float(costs.price(carried)),
            score=_gate_scores(bundle, plan, rows, exits),
            sets=sets,
            local_set=which[0],
            asked_set=which[1],
            threshold=threshold,
            confidence=confidence,
        )

    @property
    def cloud_price(self) -> NDArray[np.float64]:
        """What the cloud's answer to each row costs beside its features, shape (n,)."""
        full = self.cloud_stage == self.plan.n_stages
        return np.where(full, self.plan.offload_price, self.plan.gateway_price)

    @property
    def cost(self) -> NDArray[np.float64]:
        """Cost of each row with a cloud that always answers, shape (n,): ``system.cost(X)``."""
        return np.where(self.offload, self.asked_cost + self.cloud_price, self.local_cost)

    @property
    def label(self) -> NDArray[np.int64]:
        """Answer to each row with a cloud that always answers, shape (n,)."""
        return np.where(self.offload, self.cloud_label, self.local_label)

    def choose(self, offload: ArrayLike) -> Self:
        """Give the same rows with another choice of those that are sent to the cloud.

        Parameters
        ----------
        offload : array-like of bool, shape (n,)
            Rows that cannot be asked about stay on the device.
        """
        chosen = np.asarray(offload, bool)
        if chosen.shape != self.offload.shape:
            raise InputError(f"offload of shape {chosen.shape} for {len(self)} rows")
        return replace(self, offload=chosen & (self.cloud_label != NO_LABEL), chance=0.0)

    def by_chance(self, chance: float) -> Self:
        """Give the same rows, a share of whose instances is sent, whichever they are.

        Rows that cannot be asked about stay on the device.
        """
        if not 0 <= chance <= 1:
            raise InputError(f"chance is {chance}; it must lie between 0 and 1")
        return replace(self, offload=np.zeros(len(self), bool), chance=float(chance))

    @property
    def share(self) -> float:
        """Share of the instances that are sent, if all rows come equally often."""
        askable = (self.cloud_label != NO_LABEL) & ~self.offload
        return float(self.offload.mean() + self.chance * askable.mean())


def _on_device(
    bundle: Bundle, rows: NDArray[np.float32]
) -> tuple[
    NDArray[np.int64],
    NDArray[np.int64],
    NDArray[np.bool_],
    NDArray[np.bool_],
    NDArray[np.bool_],
    NDArray[np.float32],
]:
    """Last stage, label, value in the way, goes on, features bought, largest probability."""
    n = len(rows)
    exits, labels = np.full(n, -1, np.int64), np.full(n, NO_LABEL, np.int64)
    in_trouble, goes_on = np.zeros(n, bool), np.zeros(n, bool)
    bought, confidence = np.zeros(rows.shape, bool), np.full(n, np.nan, np.float32)
    has_cloud = bundle.manifest.cloud is not None
    # Its policy only spares it the gate's drift alarm: the same stages run and buy.
    with Device(bundle, policy="edge-only", check=False) as device:
        for i, row in enumerate(rows):
            try:
                answer = device.begin(row)
            except SensorError as error:
                goes_on[i] = has_cloud and error.why != "infinite"
                continue
            # Without a link nothing is ever pending.
            assert isinstance(answer, Answer)
            exits[i], labels[i] = answer.stage, answer.class_index
            bought[i, list(answer.acquired)] = True
            confidence[i] = answer.probabilities.max()
            fell_back = answer.route == "fallback"
            in_trouble[i] = fell_back and (not has_cloud or answer.reason.startswith("infinite"))
            goes_on[i] = answer.reason == "edge-only" or (fell_back and not in_trouble[i])
    return exits, labels, in_trouble, goes_on, bought, confidence


class _Refusing:
    """A link that is up and takes nothing."""

    ready = True

    def open(self, receive: Receive) -> None:
        pass

    def send(self, payload: bytes) -> bool:
        return False

    def close(self) -> None:
        pass


def _buy_in_vain(
    bundle: Bundle, rows: NDArray[np.float32], which: NDArray[np.intp], bought: NDArray[np.bool_]
) -> None:
    """Enter what is bought for a request that cannot be made, since a value is no good for it."""
    with Device(bundle, link=_Refusing(), check=False) as device:
        for i in which.tolist():
            answer = device.answer(rows[i])
            bought[i, list(answer.acquired)] = True


def _can_be_asked(plan: StagePlan, rows: NDArray[np.float32]) -> NDArray[np.bool_]:
    asked = rows[:, plan.request_inputs]
    refused = np.isinf(asked) if plan.cloud_takes_nan else ~np.isfinite(asked)
    return np.asarray(~refused.any(axis=1), np.bool_)


def _in_cloud(
    bundle: Bundle, plan: StagePlan, rows: NDArray[np.float32], ask: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], bool]:
    """Label and stage of the rows to `ask` about; whether responses name the stage."""
    said = np.full((2, len(rows)), NO_LABEL, np.int64)
    model = CloudModel.from_bundle(bundle)
    names_stage = False
    try:
        chosen = np.flatnonzero(ask)
        for start in range(0, len(chosen), _CHUNK):
            part = chosen[start : start + _CHUNK]
            answer = model.run(np.ascontiguousarray(rows[np.ix_(part, plan.request_inputs)]))
            said[0, part] = answer.labels
            said[1, part] = plan.n_stages if answer.exits is None else answer.exits
            names_stage |= answer.exits is not None
    finally:
        model.close()
    return said, names_stage


def _gate_scores(
    bundle: Bundle, plan: StagePlan, rows: NDArray[np.float32], exits: NDArray[np.int64]
) -> NDArray[np.float32]:
    scores = np.full(len(rows), np.nan, np.float32)
    there = np.flatnonzero(exits == plan.n_here - 1)
    if plan.has_cloud and len(there):
        runner, gate = StageRunner(bundle), plan.n_here - 1
        columns = runner.inputs[gate]
        scores[there] = runner.run(gate, np.ascontiguousarray(rows[np.ix_(there, columns)])).score
    return scores
