"""Choices of stages for a device with little memory, or for a cap on an instance's cost.

For a bound on bytes, stages are dropped one by one until the others fit. Each step drops the stage
whose removal lowers ``accuracy - price * cost`` least per byte that it frees. There is one choice
for each of several prices, because a high price needs other stages than a low one.

For a cap on cost, the cost of an instance is bounded by the costliest exit that it can reach. An
exit costs the features of all stages up to it; an offload costs the features of all stages, the
high-cost model, and the price of the request. If an offload would exceed the cap, there are two
choices. One has stages that never offload. The other has fewer stages, and an offload after them is
within the cap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gatewise_training.operating_points.cascade_record import CascadeRecord
from gatewise_training.operating_points.thresholds import tune_thresholds, with_smoothed_answers

#: Largest cost of an instance at each exit of the cascade of the stages with these numbers.
ExitLimits = Callable[[Sequence[int]], NDArray[np.float64]]

#: Prices to try, as the accuracy that is worth the largest cost of an instance.
ACCURACY_PRICES = np.geomspace(1.0, 1e-2, 4)
#: Largest number of rows for the choice; thresholds are tuned on all rows later.
MAX_ROWS = 4000


def stages_within_bytes(record: CascadeRecord, max_bytes: int) -> list[tuple[int, ...]]:
    """List choices of stages that together take at most `max_bytes`, each as rising numbers.

    If not all stages fit, there is one choice per price, and one for each stage that alone takes
    more than half of `max_bytes`.
    """
    assert record.packed_sizes is not None
    stage_bytes = record.packed_sizes.by_stage
    small_stages = [stage for stage, size in enumerate(stage_bytes) if size <= max_bytes]
    if record.packed_sizes.total(range(record.n_stages)) <= max_bytes:
        return [tuple(small_stages)]
    if not small_stages:
        return []
    single_stages = [(stage,) for stage in small_stages if 2 * stage_bytes[stage] > max_bytes]
    # choose on some of the rows, by smoothed answers
    if len(record.weights) > MAX_ROWS:
        rows = np.linspace(0, len(record.weights) - 1, MAX_ROWS).astype(np.intp)
        record = record.take(rows)
    record = with_smoothed_answers(record)
    largest_cost = max(float(record.exit_costs.max()), 1e-12)
    tuned_choices = [
        tuple(_drop_stages(record, small_stages, max_bytes, price / largest_cost))
        for price in ACCURACY_PRICES
    ]
    return list(dict.fromkeys([*tuned_choices, *single_stages]))


def _drop_stages(
    record: CascadeRecord, stages: list[int], max_bytes: int, price: float
) -> list[int]:
    """Drop the stage with the smallest loss per byte until the others fit."""
    stages_left = list(stages)
    packed_sizes = record.packed_sizes
    assert packed_sizes is not None
    while (n_bytes := packed_sizes.total(stages_left)) > max_bytes:
        accuracy_before = _compute_net_accuracy(record, stages_left, price)
        # loss of net accuracy per byte that dropping each stage frees
        loss_per_byte_of_stage = {}
        for stage in stages_left:
            stages_after = [other_stage for other_stage in stages_left if other_stage != stage]
            n_bytes_freed = n_bytes - packed_sizes.total(stages_after)
            loss_per_byte_of_stage[stage] = (
                accuracy_before - _compute_net_accuracy(record, stages_after, price)
            ) / n_bytes_freed
        stages_left.remove(min(loss_per_byte_of_stage, key=loss_per_byte_of_stage.__getitem__))
    return stages_left


def _compute_net_accuracy(record: CascadeRecord, stages: list[int], price: float) -> float:
    """Compute ``accuracy - price * cost`` of some stages with their best thresholds."""
    exits = [*stages, record.n_stages]
    exit_costs = record.exit_costs[exits]
    cost_limits = record.cost_limits
    part_record = replace(
        record,
        scores=record.scores[stages],
        correctness=record.correctness[exits],
        exit_costs=exit_costs,
        cost_limits=None if cost_limits is None else cost_limits[exits],
    )
    (setting,) = tune_thresholds(part_record, np.array([price]))
    exits_taken = part_record.exits(setting)
    correctness = part_record.correctness[exits_taken, np.arange(len(exits_taken))]
    return float(
        np.average(
            correctness * part_record.scaled_class_weights - price * part_record.costs(exits_taken),
            weights=part_record.weights,
        )
    )


def stages_within_cost(
    exit_limits: ExitLimits, n_stages: int, max_cost: float
) -> list[tuple[int, ...]]:
    """List choices of stages that an instance can run within a cap, each as rising numbers.

    If the whole cascade is within the cap, it is the only choice. Otherwise the choices are the
    stages that are within the cap without an offload, the stages that are within it with an
    offload, and each stage alone.

    Stages that cost 1, 3 and 5, and a high-cost model that costs 4 more:

    >>> costs = np.array([1.0, 3.0, 5.0])
    >>> def limits(numbers):
    ...     paid = np.cumsum(costs[list(numbers)])
    ...     return np.append(paid, paid[-1] + 4.0)
    >>> stages_within_cost(limits, 3, 13.0)
    [(0, 1, 2)]
    >>> stages_within_cost(limits, 3, 5.0)
    [(0, 1), (0,), (1,), (2,)]
    """
    if exit_limits(range(n_stages))[-1] <= max_cost:
        return [tuple(range(n_stages))]
    choices: list[tuple[int, ...]] = []
    last_stage_exit = -2
    offload_exit = -1
    # first the stages within the cap without an offload, then with one
    for last_exit in (last_stage_exit, offload_exit):
        stages: list[int] = []
        for stage in range(n_stages):
            if exit_limits([*stages, stage])[last_exit] <= max_cost:
                stages.append(stage)
        if stages:
            choices.append(tuple(stages))
    single_stages = [(stage,) for stage in range(n_stages) if exit_limits([stage])[0] <= max_cost]
    return list(dict.fromkeys([*choices, *single_stages]))
