"""The outcomes of a bundle's rows, and the times of its models on this machine.

Every row goes through a real :class:`gatewise_edge.Device` without a link and through the real
:class:`gatewise_cloud.models.cloud_model.CloudModel`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gatewise.costs import FeatureCosts
from gatewise.errors import InputError
from gatewise_cloud.models.cloud_model import CloudModel
from gatewise_cloud.worker.fleet_audit import disagreement_bound
from gatewise_edge.device.answer import Answer
from gatewise_edge.device.device import Device
from gatewise_edge.device.installed import InstalledBundle
from gatewise_edge.errors import SensorError
from gatewise_edge.link.link import PayloadHandler
from gatewise_export.bundle.bundle import Bundle
from gatewise_sim.fleet.results import (
    EDGE,
    ERROR,
    FALLBACK,
    NO_LABEL,
    BoolArray,
    IntArray,
    RowTable,
    stage_medians,
)
from gatewise_sim.timings import Timings

_CHUNK: Final = 1024
#: Batch sizes, and total time, with which the high-cost model is timed.
_TIMED_ROWS: Final = (1, 4, 16)
_TIMING_SECONDS: Final = 0.3
#: Microseconds of a run and of each of its instances, if the high-cost model accepts no row.
_ASSUMED_RUN_US: Final = (115.0, 29.0)

FloatArray = NDArray[np.float64]


def make_row_table(
    bundle: Bundle, X: ArrayLike, truth: ArrayLike | None = None, *, backend: str | None = None
) -> tuple[RowTable, Timings]:
    """Compute the outcomes of rows, and time the models.

    Parameters
    ----------
    bundle : Bundle
        Bundle at its operating point, with its cloud model.
    X : array-like of shape (n, n_features)
        Rows with the manifest's columns.
    truth : array-like of shape (n,), optional
        Class index of each row.
    backend : str, optional
        Backend of the high-cost model, named as for ``gatewise cloud``.

    Returns
    -------
    RowTable, Timings
        Outcomes, and service times. Times that cannot be measured are assumed.

    Raises
    ------
    InputError
        If the bundle is for regression, or the rows do not fit it.
    """
    manifest = bundle.manifest
    plan = InstalledBundle.load(bundle, runs_self_test=False, block_functions=None)
    if not manifest.classes:
        raise InputError("a bundle for regression uses no cloud, so it cannot be simulated")
    rows = np.ascontiguousarray(X, np.float32)
    n_features = len(manifest.features)
    if rows.ndim != 2 or not len(rows) or rows.shape[1] != n_features:
        raise InputError(f"rows of shape {rows.shape}; the bundle has {n_features} columns")
    labels = np.full(len(rows), NO_LABEL) if truth is None else np.asarray(truth, np.int64)
    if labels.shape != (len(rows),):
        raise InputError(
            f"labels of shape {labels.shape} for {len(rows)} rows; give one label per row"
        )

    # the device's answer to each row without a cloud
    outcomes = _run_device(bundle, plan, rows)
    request_features = np.zeros(n_features, np.bool_)
    cloud_label = np.full(len(rows), NO_LABEL, np.int64)
    cloud_us: tuple[float, float] | None = None
    # the cloud's answer to each row with values that the cloud accepts
    if plan.has_cloud:
        request_features[plan.request_inputs] = True
        is_accepted = _accepted_by_cloud(plan, rows)
        is_refused = outcomes.offload & ~is_accepted & (outcomes.label != NO_LABEL)
        outcomes.offload &= is_accepted
        outcomes.failed |= is_refused
        _add_refused_features(bundle, rows, np.flatnonzero(is_refused), outcomes.acquired)
        with closing(cloud_model(bundle, backend)) as model:
            inputs = rows[is_accepted][:, plan.request_inputs]
            cloud_label[is_accepted] = _run_cloud(model, inputs)
            if is_accepted.any():
                cloud_us = _time_cloud(model, inputs)
    # the route of an answer without the cloud
    local_route = np.where(outcomes.failed, FALLBACK, EDGE)
    table = RowTable(
        model=manifest.name,
        version=manifest.version,
        classes=tuple(map(str, manifest.classes)),
        n_stages=len(plan.stages),
        has_cloud=plan.has_cloud,
        offload_price=plan.offload_price,
        request_price=plan.request_price,
        n_values=len(plan.request_inputs),
        dtype=plan.dtype,
        truth=labels,
        exit=outcomes.exit,
        offload=outcomes.offload,
        local_route=np.where(outcomes.label == NO_LABEL, ERROR, local_route),
        local_label=outcomes.label,
        cloud_label=cloud_label,
        confidence=outcomes.confidence,
        promised=disagreement_bound(manifest),
        **_acquired_columns(outcomes.acquired, request_features, manifest.feature_costs()),
    )
    return table, _timings(outcomes, len(plan.stages), cloud_us)


def _timings(
    outcomes: _DeviceOutcomes, n_stages: int, cloud_us: tuple[float, float] | None
) -> Timings:
    """Collect the measured times; fields of `assumed` times have no measurement."""
    answered = outcomes.exit >= 0
    assumed = [] if answered.any() else ["edge_ms"]
    if cloud_us is None:
        assumed += ["run_us", "instance_us"]
    run_us, instance_us = cloud_us or _ASSUMED_RUN_US
    return Timings(
        edge_ms=stage_medians(outcomes.exit[answered], outcomes.milliseconds[answered], n_stages),
        run_us=run_us,
        instance_us=instance_us,
        assumed=(*assumed, "message_us", "broker_us", "hop_ms"),
    )


def cloud_model(bundle: Bundle, backend: str | None) -> CloudModel:
    """Load the bundle's high-cost model, or use the operator's `backend`."""
    if backend is None:
        return CloudModel.from_bundle(bundle)
    from gatewise_cloud.models.backend_choice import backend_factory

    return CloudModel.from_bundle(bundle, backend=backend_factory(backend)(bundle.manifest))


# -- the device ---------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _DeviceOutcomes:
    """Results of the device's stages for each row.

    `failed` marks rows with a value that a stage or the cloud refuses.
    """

    exit: IntArray
    label: IntArray
    failed: BoolArray
    offload: BoolArray
    acquired: BoolArray
    confidence: NDArray[np.float32]
    milliseconds: FloatArray


def _run_device(
    bundle: Bundle, plan: InstalledBundle, rows: NDArray[np.float32]
) -> _DeviceOutcomes:
    n = len(rows)
    outcomes = _DeviceOutcomes(
        exit=np.full(n, -1, np.int64),
        label=np.full(n, NO_LABEL, np.int64),
        failed=np.zeros(n, np.bool_),
        offload=np.zeros(n, np.bool_),
        acquired=np.zeros(rows.shape, np.bool_),
        confidence=np.full(n, np.nan, np.float32),
        milliseconds=np.full(n, np.nan),
    )
    with Device(bundle, policy="edge-only") as device:
        for i, row in enumerate(rows):
            try:
                answer = device.begin(row)
            except SensorError as error:
                outcomes.offload[i] = plan.has_cloud and error.cause != "infinite"
                continue
            assert isinstance(answer, Answer)  # without a link no answer is ever pending
            outcomes.exit[i] = answer.stage
            outcomes.label[i] = answer.class_index
            outcomes.acquired[i, list(answer.acquired)] = True
            outcomes.confidence[i] = answer.probabilities.max()
            outcomes.milliseconds[i] = answer.latency_ms
            fell_back = answer.route == "fallback"
            refused = not plan.has_cloud or answer.reason.startswith("infinite")
            outcomes.failed[i] = fell_back and refused
            outcomes.offload[i] = answer.reason == "edge-only" or (fell_back and not refused)
    return outcomes


class _RefusingLink:
    """A connected link that accepts no request."""

    ready = True

    def open(self, receive: PayloadHandler) -> None:
        pass

    def send(self, payload: bytes) -> bool:
        return False

    def close(self) -> None:
        pass


def _add_refused_features(
    bundle: Bundle, rows: NDArray[np.float32], refused: NDArray[np.intp], acquired: BoolArray
) -> None:
    """Mark the features that a device acquires for a request that a refused value prevents."""
    with Device(bundle, link=_RefusingLink()) as device:
        for i in refused.tolist():
            answer = device.answer(rows[i])
            acquired[i, list(answer.acquired)] = True


def _acquired_columns(
    local: BoolArray, request_features: BoolArray, costs: FeatureCosts
) -> dict[str, Any]:
    """Make the columns of :class:`RowTable` about sets of features and their prices.

    `local`, shape (n, n_features), marks the features that the device's stages acquire, and
    `request_features`, shape (n_features,), those in a request.
    """
    local_and_request = np.concatenate([local, local | request_features])
    sets, set_index = np.unique(local_and_request, axis=0, return_inverse=True)
    local_set, request_set = set_index.reshape(2, len(local))
    prices = np.array([costs.price(features) for features in sets], np.float64)
    return {
        "sets": np.concatenate([sets, request_features[None]]),
        "local_set": local_set,
        "request_set": request_set,
        "local_cost": prices[local_set],
        "request_cost": prices[request_set],
        "request_only_cost": float(costs.price(request_features)),
    }


# -- the cloud ----------------------------------------------------------------------------------


def _accepted_by_cloud(plan: InstalledBundle, rows: NDArray[np.float32]) -> BoolArray:
    """Whether the cloud accepts all values of each row, shape (n,)."""
    inputs = rows[:, plan.request_inputs]
    refused = np.isinf(inputs) if plan.cloud_takes_nan else ~np.isfinite(inputs)
    return np.asarray(~refused.any(axis=1), np.bool_)


def _run_cloud(model: CloudModel, inputs: NDArray[np.float32]) -> IntArray:
    """Class indices of the high-cost model, shape (n,)."""
    labels = [
        model.run(np.ascontiguousarray(inputs[begin : begin + _CHUNK])).labels
        for begin in range(0, len(inputs), _CHUNK)
    ]
    return np.concatenate(labels) if labels else np.zeros(0, np.int64)


def _time_cloud(model: CloudModel, inputs: NDArray[np.float32]) -> tuple[float, float]:
    """Fit microseconds per run and per instance to the times of a few batch sizes."""
    seconds = [_median_run(model.run, np.resize(inputs, (n, inputs.shape[1]))) for n in _TIMED_ROWS]
    sizes = np.array(_TIMED_ROWS, np.float64)
    times = np.array(seconds)
    # Least squares of the relative errors: sum(((run + n * instance) / time - 1)^2).
    lines = np.column_stack([np.ones_like(sizes), sizes]) / times[:, None]
    (run, instance), *_ = np.linalg.lstsq(lines, np.ones_like(times))
    # If one coefficient is negative, it becomes 0 and the other one sum(l) / sum(l^2).
    if instance < 0:
        run = lines[:, 0].sum() / np.square(lines[:, 0]).sum()
    elif run < 0:
        instance = lines[:, 1].sum() / np.square(lines[:, 1]).sum()
    return round(1e6 * max(float(run), 0.0), 3), round(1e6 * max(float(instance), 0.0), 3)


def _median_run(run: Callable[[NDArray[np.float32]], Any], X: NDArray[np.float32]) -> float:
    """Median seconds of a run on `X`, of at least three runs that take a tenth of a second."""
    seconds: list[float] = []
    while len(seconds) < 3 or sum(seconds) < _TIMING_SECONDS / len(_TIMED_ROWS):
        start = time.perf_counter()
        run(np.ascontiguousarray(X))
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds))
