"""Columns of answers, from the output of the devices of a live run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gatewise_sim.fleet.link import PUBACK_BYTES, REQUEST_TOPIC, RESPONSE_TOPIC, publish_bytes
from gatewise_sim.fleet.results import (
    CLOUD,
    EDGE,
    ERROR,
    REASON,
    ROUTES,
    Answers,
    RowTable,
    fill_joules,
    stage_medians,
)
from gatewise_sim.fleet.workload import Arrivals
from gatewise_sim.scenario import Scenario

#: Largest difference of a cost that is rounded to nine digits in the output.
_ROUNDING: Final = 2e-9

Line = Mapping[str, Any]


def answer_columns(
    scenario: Scenario,
    table: RowTable,
    arrivals: Arrivals,
    lines: Mapping[int, Line],
    counters: Sequence[Line],
    workers: Mapping[str, float],
) -> Answers:
    """Make the columns of the instances that were answered.

    Parameters
    ----------
    scenario, table : Scenario, RowTable
        Scenario of the run, and outcomes of its rows.
    arrivals : Arrivals
        Instances of the run.
    lines : mapping of int to dict
        Output line of each answered instance, by its index in `arrivals`.
    counters : sequence of dict
        Counters of each device; empty if it did not end normally.
    workers : mapping of str to float
        Sums of the workers' counters.

    Returns
    -------
    Answers
        Columns in order of arrival.
    """
    numbers = np.array(sorted(lines), np.int64)
    ordered_lines = [lines[number] for number in numbers.tolist()]
    class_index = {label: index for index, label in enumerate(table.classes)}
    route = np.array([ROUTES.index(line.get("route", "error")) for line in ordered_lines], np.int8)
    reason = np.array([_reason(line) for line in ordered_lines], np.int8)
    stage = np.array([line.get("stage", -1) for line in ordered_lines], np.int8)
    answers = Answers(
        time=arrivals.time[numbers],
        device=arrivals.device[numbers],
        row=arrivals.row[numbers],
        route=route,
        reason=reason,
        stage=stage,
        label=np.array(
            [class_index.get(str(line.get("label")), -1) for line in ordered_lines], np.int32
        ),
        cost=np.array([line.get("cost", 0.0) for line in ordered_lines], np.float64),
        feature_cost=np.zeros(len(ordered_lines)),
        latency_ms=np.array([line.get("latency_ms", 0.0) for line in ordered_lines], np.float64),
        device_ms=np.zeros(len(ordered_lines), np.float32),
        cloud_ms=np.zeros(len(ordered_lines), np.float32),
        up=np.zeros(len(ordered_lines), np.int32),
        down=np.zeros(len(ordered_lines), np.int32),
        payload_up=np.zeros(len(ordered_lines), np.int32),
        payload_down=np.zeros(len(ordered_lines), np.int32),
        joules=np.zeros(len(ordered_lines), np.float32),
        requested=(route == CLOUD) | (reason == REASON["timeout"]) | _is_refusal(reason),
        audited=np.zeros(len(ordered_lines), np.bool_),
    )
    _fill_costs(answers, table)
    _fill_times(answers, table, workers)
    _fill_bytes(answers, counters)
    fill_joules(answers, scenario, request_first=scenario.policy == "cloud-only")
    return answers


def _reason(line: Line) -> int:
    """Index of a line's reason in REASONS; other reasons of devices map to similar ones."""
    reason = line.get("reason", "value")
    if reason in REASON:
        return REASON[reason]
    if reason == "last-stage":
        return REASON["stopped"]
    if reason == "cloud-only":
        return REASON["offloaded"]
    return REASON["cloud:busy" if reason.startswith("cloud:") else "value"]


def _is_refusal(reason: NDArray[np.int8]) -> NDArray[np.bool_]:
    refusals = [number for name, number in REASON.items() if name.startswith("cloud:")]
    return np.isin(reason, refusals)


def _fill_costs(answers: Answers, table: RowTable) -> None:
    """Replace the rounded costs of the output by exact ones, and compute the feature costs."""
    row = answers.row
    is_cloud = answers.route == CLOUD
    offload_cost = np.where(is_cloud, table.offload_price, answers.requested * table.request_price)
    features = np.where(answers.acquired, table.request_cost[row], table.local_cost[row])
    exact_cost = features + offload_cost
    is_close = np.abs(exact_cost - answers.cost) <= _ROUNDING
    answers.cost[is_close] = exact_cost[is_close]
    answers.feature_cost[:] = answers.cost - offload_cost


def local_medians(answers: Answers, n_stages: int) -> tuple[float, ...]:
    """Median time in ms until the answer of each stage, by :func:`.stage_medians`."""
    is_local = answers.route == EDGE
    return stage_medians(
        answers.stage[is_local].astype(np.int64), answers.latency_ms[is_local], n_stages
    )


def _fill_times(answers: Answers, table: RowTable, workers: Mapping[str, float]) -> None:
    """Estimate the times on the device by stage medians, and in the cloud by the workers' means."""
    medians = np.array(local_medians(answers, table.n_stages))
    is_local = np.isin(answers.route, (EDGE, ERROR))
    stage_ms = medians[np.maximum(table.exit[answers.row], 0)]
    answers.device_ms[:] = np.where(
        is_local, answers.latency_ms, np.minimum(stage_ms, answers.latency_ms)
    )
    answered = workers.get("answered", 0.0)
    if answered:
        worker_ms = (workers["queue_us"] / answered + workers["model_us"] / answered) / 1000.0
        offload_ms = np.maximum(answers.latency_ms - answers.device_ms, 0.0)
        by_cloud = answers.route == CLOUD
        answers.cloud_ms[:] = np.where(by_cloud, np.minimum(worker_ms, offload_ms), 0.0)


def _fill_bytes(answers: Answers, counters: Sequence[Line]) -> None:
    """Divide the bytes that each device has counted equally among its requests."""
    for device, counts in enumerate(counters):
        senders = np.flatnonzero((answers.device == device) & answers.requested)
        if not counts or not len(senders):
            continue
        n_requests = counts["sent"] + counts["retries"] - counts["unsent"]
        n_responses = counts["answered"] + counts["refused"] + counts["late"]
        request_size = counts["bytes_up"] / max(n_requests, 1)
        response_size = counts["bytes_down"] / max(n_responses, 1)
        request_bytes = n_requests * publish_bytes(REQUEST_TOPIC, round(request_size))
        response_bytes = n_responses * publish_bytes(RESPONSE_TOPIC, round(response_size))
        totals = {
            "payload_up": counts["bytes_up"],
            "payload_down": counts["bytes_down"],
            "up": request_bytes + n_responses * PUBACK_BYTES,
            "down": response_bytes + n_requests * PUBACK_BYTES,
        }
        for name, total in totals.items():
            # Differences of rounded partial sums are integers with the exact total.
            partial_sums = np.round(np.linspace(0, total, len(senders) + 1)).astype(np.int64)
            getattr(answers, name)[senders] = np.diff(partial_sums)
