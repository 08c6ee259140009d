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
    fill_costs,
    fill_joules,
    stage_medians,
)
from gatewise_sim.fleet.workload import Arrivals
from gatewise_sim.scenario import Scenario

#: Largest difference of a cost that is rounded to nine digits in the output.
_ROUNDING: Final = 2e-9

OutputLine = Mapping[str, Any]


def answer_columns(
    scenario: Scenario,
    table: RowTable,
    arrivals: Arrivals,
    lines: Mapping[int, OutputLine],
    device_counters: Sequence[OutputLine],
    worker_counts: Mapping[str, float],
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
    device_counters : sequence of dict
        Counters of each device; empty if it did not end normally.
    worker_counts : mapping of str to float
        Sums of the workers' counters.

    Returns
    -------
    Answers
        Columns in order of arrival.
    """
    instances = np.array(sorted(lines), np.int64)
    ordered_lines = [lines[instance] for instance in instances.tolist()]
    class_index = {label: index for index, label in enumerate(table.classes)}
    route = np.array([ROUTES.index(line.get("route", "error")) for line in ordered_lines], np.int8)
    reason = np.array([_find_reason_index(line) for line in ordered_lines], np.int8)
    stage = np.array([line.get("stage", -1) for line in ordered_lines], np.int8)
    answers = Answers(
        time=arrivals.time[instances],
        device=arrivals.device[instances],
        row=arrivals.row[instances],
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
        bytes_up=np.zeros(len(ordered_lines), np.int32),
        bytes_down=np.zeros(len(ordered_lines), np.int32),
        payload_bytes_up=np.zeros(len(ordered_lines), np.int32),
        payload_bytes_down=np.zeros(len(ordered_lines), np.int32),
        radio_joules=np.zeros(len(ordered_lines), np.float32),
        is_requested=(route == CLOUD) | (reason == REASON["timeout"]) | _is_refusal(reason),
        is_audited=np.zeros(len(ordered_lines), np.bool_),
    )
    _unmark_unsent(answers, table)
    _fill_costs(answers, table, is_cloud_first=scenario.policy == "cloud-only")
    _fill_times(answers, table, worker_counts)
    _fill_bytes(answers, device_counters)
    fill_joules(answers, scenario, is_cloud_first=scenario.policy == "cloud-only")
    return answers


def _find_reason_index(line: OutputLine) -> int:
    """Find the index of a line's reason, or of a similar reason in REASONS."""
    if line.get("route") == "cloud":
        return REASON["offloaded"]
    reason = line.get("reason", "value")
    if reason in REASON:
        return REASON[reason]
    if reason == "last-stage" or reason.startswith("implausible:"):
        return REASON["stopped"]
    return REASON["cloud:busy" if reason.startswith("cloud:") else "value"]


def _is_refusal(reason: NDArray[np.int8]) -> NDArray[np.bool_]:
    refusal_indices = [index for name, index in REASON.items() if name.startswith("cloud:")]
    return np.isin(reason, refusal_indices)


def _unmark_unsent(answers: Answers, table: RowTable) -> None:
    """Unmark the requests that were not sent, because a busy worker made the device wait.

    Only the cost tells them from the requests that a busy worker refused.
    """
    local_cost = table.local_cost[answers.row]
    has_local_cost = np.abs(local_cost - answers.cost) <= _ROUNDING
    differs = table.request_cost[answers.row] + table.request_price - local_cost > _ROUNDING
    is_busy = answers.reason == REASON["cloud:busy"]
    answers.is_requested[is_busy & has_local_cost & differs] = False


def _fill_costs(answers: Answers, table: RowTable, *, is_cloud_first: bool) -> None:
    """Replace the rounded costs of the output by exact ones, and compute the feature costs."""
    line_cost = answers.cost.copy()
    fill_costs(answers, table, is_cloud_first=is_cloud_first)
    # Costs that differ otherwise, as those of rows with a failed sensor, remain.
    rest = np.where(np.abs(line_cost - answers.cost) > _ROUNDING, line_cost - answers.cost, 0.0)
    answers.cost[:] += rest
    answers.feature_cost[:] += rest


def local_medians(answers: Answers, n_stages: int) -> tuple[float, ...]:
    """Compute the median time in ms until the answer of each stage; see :func:`.stage_medians`."""
    is_local = answers.route == EDGE
    return stage_medians(
        answers.stage[is_local].astype(np.int64), answers.latency_ms[is_local], n_stages
    )


def _fill_times(answers: Answers, table: RowTable, worker_counts: Mapping[str, float]) -> None:
    """Estimate the times on the device by stage medians, and in the cloud by the workers' means."""
    medians = np.array(local_medians(answers, table.n_stages))
    is_local = np.isin(answers.route, (EDGE, ERROR))
    stage_ms = medians[np.maximum(table.last_stage[answers.row], 0)]
    answers.device_ms[:] = np.where(
        is_local, answers.latency_ms, np.minimum(stage_ms, answers.latency_ms)
    )
    n_answered = worker_counts.get("answered", 0.0)
    if n_answered:
        worker_ms = (
            worker_counts["queue_us"] / n_answered + worker_counts["model_us"] / n_answered
        ) / 1000.0
        offload_ms = np.maximum(answers.latency_ms - answers.device_ms, 0.0)
        is_cloud = answers.route == CLOUD
        answers.cloud_ms[:] = np.where(is_cloud, np.minimum(worker_ms, offload_ms), 0.0)


def _fill_bytes(answers: Answers, device_counters: Sequence[OutputLine]) -> None:
    """Divide the bytes that each device has counted equally among its requests."""
    for device, counters in enumerate(device_counters):
        senders = np.flatnonzero((answers.device == device) & answers.is_requested)
        if not counters or not len(senders):
            continue
        n_requests = counters["sent"] + counters["retries"] - counters["unsent"]
        n_responses = counters["answered"] + counters["refused"] + counters["late"]
        request_size = counters["bytes_up"] / max(n_requests, 1)
        response_size = counters["bytes_down"] / max(n_responses, 1)
        request_bytes = n_requests * publish_bytes(REQUEST_TOPIC, round(request_size))
        response_bytes = n_responses * publish_bytes(RESPONSE_TOPIC, round(response_size))
        total_by_column = {
            "payload_bytes_up": counters["bytes_up"],
            "payload_bytes_down": counters["bytes_down"],
            "bytes_up": request_bytes + n_responses * PUBACK_BYTES,
            "bytes_down": response_bytes + n_requests * PUBACK_BYTES,
        }
        for column, total_bytes in total_by_column.items():
            # differences of rounded partial sums are whole numbers with the exact total
            partial_sums = np.round(np.linspace(0, total_bytes, len(senders) + 1)).astype(np.int64)
            getattr(answers, column)[senders] = np.diff(partial_sums)
