"""The outcomes of a bundle's rows, and the times of its models on this machine.

Every row goes through a real :class:`gatewise_edge.Device` without a link and through the real
:class:`gatewise_cloud.models.cloud_model.CloudModel`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gatewise.costs import FeatureCosts
from gatewise.errors import InputError
from gatewise.formats import plural
from gatewise_cloud.models.cloud_model import CloudModel
from gatewise_cloud.worker.fleet_audit import disagreement_bound
from gatewise_edge.device.answer import Answer
from gatewise_edge.device.device import Device
from gatewise_edge.device.installation import Installation
from gatewise_edge.errors import SensorError
from gatewise_edge.link.link import PayloadHandler
from gatewise_edge.link.offload_rules import OffloadRules
from gatewise_export.bundle.bundle import Bundle
from gatewise_sim.fleet.results import (
    EDGE,
    ERROR,
    FALLBACK,
    NO_LABEL,
    BoolArray,
    FloatArray,
    IntArray,
    RowTable,
    stage_medians,
)
from gatewise_sim.timings import Timings

#: Rows per run of the high-cost model, few enough to keep its intermediate results small.
_CHUNK_ROWS: Final = 1024
#: Batch sizes for which the high-cost model is timed, up to the largest of a worker by default.
_TIMED_BATCH_SIZES: Final = (1, 4, 16)
#: Time for timing all batch sizes.
_TIMING_SECONDS: Final = 0.3


class _CloudTimes(NamedTuple):
    """Microseconds of a run of the high-cost model, and of each instance in it."""

    run_us: float
    instance_us: float


#: Times of a small model, which are assumed if the high-cost model accepts no row.
_ASSUMED_CLOUD_TIMES: Final = _CloudTimes(run_us=115.0, instance_us=29.0)


def make_row_table(
    bundle: Bundle,
    X: ArrayLike,
    truth: ArrayLike | None = None,
    *,
    backend: str | None = None,
    timings: Timings | None = None,
) -> tuple[RowTable, Timings]:
    """Compute the outcomes of rows, and time the models.

    Parameters
    ----------
    bundle : Bundle
        Bundle at its operating point, with its high-cost model.
    X : array-like of shape (n, n_features)
        Rows with the manifest's columns.
    truth : array-like of shape (n,), optional
        Class index of each row.
    backend : str, optional
        Backend of the high-cost model, named as for ``gatewise cloud``.
    timings : Timings, optional
        Service times, if the models are not to be timed.

    Returns
    -------
    RowTable, Timings
        Outcomes, and service times. Times that cannot be measured are assumed.

    Raises
    ------
    InputError
        If the rows or `timings` do not fit the bundle.
    """
    manifest = bundle.manifest
    installation = Installation.load(bundle, runs_self_test=False, block_functions=None)
    n_stages = len(installation.stages)
    if timings is not None and len(timings.edge_ms) != n_stages:
        raise InputError(
            f"timings: edge_ms has {plural(len(timings.edge_ms), 'time')}; give one for each of "
            f"the {n_stages} stages"
        )
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
    outcomes = _run_device(bundle, installation, rows)
    request_features = np.zeros(n_features, np.bool_)
    cloud_label = np.full(len(rows), NO_LABEL, np.int64)
    cloud_times: _CloudTimes | None = None
    # the cloud's answer to each row with values that the cloud accepts
    if installation.has_cloud:
        request_features[installation.request_inputs] = True
        is_accepted = _is_accepted_by_cloud(installation, rows)
        # find the refused rows first, because they lose their mark in `is_offloaded`
        is_refused = outcomes.is_offloaded & ~is_accepted & (outcomes.label != NO_LABEL)
        outcomes.is_offloaded &= is_accepted
        outcomes.is_failed |= is_refused
        _mark_acquired_features(bundle, rows, np.flatnonzero(is_refused), outcomes.is_acquired)
        with closing(load_cloud_model(bundle, backend)) as cloud_model:
            request_rows = rows[is_accepted][:, installation.request_inputs]
            cloud_label[is_accepted] = _run_cloud(cloud_model, request_rows)
            if timings is None and is_accepted.any():
                cloud_times = _time_cloud(cloud_model, request_rows)
    # the route of an answer without the cloud
    local_route = np.where(outcomes.is_failed, FALLBACK, EDGE)
    table = RowTable(
        model=manifest.name,
        version=manifest.version,
        classes=tuple(map(str, manifest.classes)),
        n_stages=n_stages,
        has_cloud=installation.has_cloud,
        offload_price=installation.offload_price,
        request_price=installation.request_price,
        n_values=len(installation.request_inputs),
        dtype=installation.request_dtype,
        truth=labels,
        last_stage=outcomes.last_stage,
        is_offloaded=outcomes.is_offloaded,
        local_route=np.where(outcomes.label == NO_LABEL, ERROR, local_route),
        local_label=outcomes.label,
        cloud_label=cloud_label,
        confidence=outcomes.confidence,
        max_disagreement=disagreement_bound(manifest),
        **_make_feature_set_columns(
            outcomes.is_acquired, request_features, manifest.feature_costs()
        ),
    )
    return table, timings or _make_timings(outcomes, n_stages, cloud_times)


def _make_timings(
    outcomes: _DeviceOutcomes, n_stages: int, cloud_times: _CloudTimes | None
) -> Timings:
    """Collect the measured times; the field `assumed` names the others."""
    is_answered = outcomes.last_stage >= 0
    assumed_fields = [] if is_answered.any() else ["edge_ms"]
    if cloud_times is None:
        assumed_fields += _CloudTimes._fields
        cloud_times = _ASSUMED_CLOUD_TIMES
    return Timings(
        edge_ms=stage_medians(
            outcomes.last_stage[is_answered], outcomes.answer_ms[is_answered], n_stages
        ),
        run_us=cloud_times.run_us,
        instance_us=cloud_times.instance_us,
        # no message is sent here, so the times of messages, broker and network are not measured
        assumed=(*assumed_fields, "message_us", "broker_us", "hop_ms"),
    )


def load_cloud_model(bundle: Bundle, backend: str | None) -> CloudModel:
    """Load the bundle's high-cost model, or use the operator's `backend`."""
    if backend is None:
        return CloudModel.from_bundle(bundle)
    from gatewise_cloud.models.backend_choice import backend_factory

    return CloudModel.from_bundle(bundle, backend=backend_factory(backend)(bundle.manifest))


# -- the device ---------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _DeviceOutcomes:
    """Results of the device's stages for each row.

    `is_failed` marks rows with a value that a stage or the cloud refuses.
    """

    last_stage: IntArray
    label: IntArray
    is_failed: BoolArray
    is_offloaded: BoolArray
    is_acquired: BoolArray
    confidence: NDArray[np.float32]
    answer_ms: FloatArray


def _run_device(
    bundle: Bundle, installation: Installation, rows: NDArray[np.float32]
) -> _DeviceOutcomes:
    n_rows = len(rows)
    outcomes = _DeviceOutcomes(
        last_stage=np.full(n_rows, -1, np.int64),
        label=np.full(n_rows, NO_LABEL, np.int64),
        is_failed=np.zeros(n_rows, np.bool_),
        is_offloaded=np.zeros(n_rows, np.bool_),
        is_acquired=np.zeros(rows.shape, np.bool_),
        confidence=np.full(n_rows, np.nan, np.float32),
        answer_ms=np.full(n_rows, np.nan),
    )
    # an implausible value would replace the reason "edge-only"
    offload_rules = OffloadRules(implausible="ignore")
    with Device(bundle, policy="edge-only", offload_rules=offload_rules) as device:
        for index, row in enumerate(rows):
            try:
                answer = device.begin(row)
            except SensorError as error:
                outcomes.is_offloaded[index] = installation.has_cloud and error.cause != "infinite"
                continue
            assert isinstance(answer, Answer)  # without a link no answer is ever pending
            outcomes.last_stage[index] = answer.stage
            outcomes.label[index] = answer.class_index
            outcomes.is_acquired[index, list(answer.acquired)] = True
            outcomes.confidence[index] = answer.probabilities.max()
            outcomes.answer_ms[index] = answer.latency_ms
            # A device with a cloud offloads a row that its stages refuse, unless a value is
            # infinite, because a request must not contain it.
            is_fallback = answer.route == "fallback"
            is_refused = not installation.has_cloud or answer.reason.startswith("infinite")
            outcomes.is_failed[index] = is_fallback and is_refused
            outcomes.is_offloaded[index] = answer.reason == "edge-only" or (
                is_fallback and not is_refused
            )
    return outcomes


class _RefusingLink:
    """A connected link that accepts no request."""

    is_ready = True

    def open(self, receive: PayloadHandler) -> None:
        pass

    def send(self, payload: bytes) -> bool:
        return False

    def close(self) -> None:
        pass


def _mark_acquired_features(
    bundle: Bundle,
    rows: NDArray[np.float32],
    refused_rows: NDArray[np.intp],
    is_acquired: BoolArray,
) -> None:
    """Mark the features that a device acquires for a request before it refuses a value."""
    with Device(bundle, link=_RefusingLink()) as device:
        for index in refused_rows.tolist():
            answer = device.answer(rows[index])
            is_acquired[index, list(answer.acquired)] = True


def _make_feature_set_columns(
    is_acquired: BoolArray, is_request_feature: BoolArray, costs: FeatureCosts
) -> dict[str, Any]:
    """Make the columns of :class:`RowTable` about sets of features and their prices.

    `is_acquired`, shape (n, n_features), marks the features that the device's stages acquire, and
    `is_request_feature`, shape (n_features,), the features in a request.
    """
    local_and_request = np.concatenate([is_acquired, is_acquired | is_request_feature])
    feature_sets, set_index = np.unique(local_and_request, axis=0, return_inverse=True)
    local_set_index, request_set_index = set_index.reshape(2, len(is_acquired))
    prices = np.array([costs.price(features) for features in feature_sets], np.float64)
    return {
        "feature_sets": np.concatenate([feature_sets, is_request_feature[None]]),
        "local_set_index": local_set_index,
        "request_set_index": request_set_index,
        "local_cost": prices[local_set_index],
        "request_cost": prices[request_set_index],
        "request_only_cost": float(costs.price(is_request_feature)),
    }


# -- the cloud ----------------------------------------------------------------------------------


def _is_accepted_by_cloud(installation: Installation, rows: NDArray[np.float32]) -> BoolArray:
    """Mark the rows in which the cloud accepts all values, shape (n,)."""
    request_rows = rows[:, installation.request_inputs]
    is_refused = (
        np.isinf(request_rows) if installation.cloud_takes_nan else ~np.isfinite(request_rows)
    )
    return np.asarray(~is_refused.any(axis=1), np.bool_)


def _run_cloud(cloud_model: CloudModel, request_rows: NDArray[np.float32]) -> IntArray:
    """Compute the class indices of the high-cost model, shape (n,)."""
    labels = [
        cloud_model.run(np.ascontiguousarray(request_rows[begin : begin + _CHUNK_ROWS])).labels
        for begin in range(0, len(request_rows), _CHUNK_ROWS)
    ]
    return np.concatenate(labels) if labels else np.zeros(0, np.int64)


def _time_cloud(cloud_model: CloudModel, request_rows: NDArray[np.float32]) -> _CloudTimes:
    """Fit the times per run and per instance to the times of a few batch sizes."""
    run_seconds = [
        _measure_run_seconds(
            cloud_model.run, np.resize(request_rows, (batch_size, request_rows.shape[1]))
        )
        for batch_size in _TIMED_BATCH_SIZES
    ]
    batch_sizes = np.array(_TIMED_BATCH_SIZES, np.float64)
    median_seconds = np.array(run_seconds)
    # Least squares of the relative errors: sum(((run + n * instance) / time - 1)^2).
    design = np.column_stack([np.ones_like(batch_sizes), batch_sizes]) / median_seconds[:, None]
    (run_s, instance_s), *_ = np.linalg.lstsq(design, np.ones_like(median_seconds))
    # A negative coefficient becomes 0. With the column l of `design`, the least-squares value of
    # the other coefficient is then sum(l) / sum(l^2).
    if instance_s < 0:
        run_s = design[:, 0].sum() / np.square(design[:, 0]).sum()
    elif run_s < 0:
        instance_s = design[:, 1].sum() / np.square(design[:, 1]).sum()
    return _CloudTimes(
        run_us=round(1e6 * max(float(run_s), 0.0), 3),
        instance_us=round(1e6 * max(float(instance_s), 0.0), 3),
    )


def _measure_run_seconds(
    run_model: Callable[[NDArray[np.float32]], Any], X: NDArray[np.float32]
) -> float:
    """Return the median seconds of at least three runs that take a tenth of a second or more."""
    run_seconds: list[float] = []
    while len(run_seconds) < 3 or sum(run_seconds) < _TIMING_SECONDS / len(_TIMED_BATCH_SIZES):
        started_at = time.perf_counter()
        run_model(np.ascontiguousarray(X))
        run_seconds.append(time.perf_counter() - started_at)
    return float(np.median(run_seconds))
