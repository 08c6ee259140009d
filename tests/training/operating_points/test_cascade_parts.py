"""Test the choice of stages and points within a limit of bytes or offloads."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gatewise.errors import TooLargeError
from gatewise.operating_point import OperatingPoint
from gatewise_training.data.row_splitter import RowSplitter
from gatewise_training.operating_points.cascade_parts import stages_within_bytes
from gatewise_training.operating_points.cascade_record import CascadeRecord
from gatewise_training.operating_points.frontier import Frontier
from gatewise_training.operating_points.packed_size import PackedSizes

SIZES = st.lists(st.integers(1, 3000), min_size=1, max_size=4)


def draw_record(sizes, seed=0, n_rows=60):
    """Draw a record of stages with these bytes; later stages are right more often."""
    rng = np.random.default_rng(seed)
    n_stages = len(sizes)
    accuracies = np.sort(rng.random(n_stages) * 0.3 + 0.6)
    is_right = rng.random((n_stages, n_rows)) < accuracies[:, None]
    scores = (is_right + rng.normal(size=(n_stages, n_rows)) * 0.5).astype(np.float32)
    correctness = np.vstack([is_right, np.ones(n_rows)]).astype(float)
    costs = np.cumsum(rng.uniform(0.5, 3, n_stages + 1))
    packed_sizes = PackedSizes.without_shared_thresholds(sizes)
    return CascadeRecord(
        scores, correctness, costs, np.ones(n_rows), RowSplitter(n_rows), packed_sizes=packed_sizes
    )


@settings(max_examples=60, deadline=None)
@given(sizes=SIZES, limit=st.integers(1, 8000), seed=st.integers(0, 99))
def test_choices_of_stages_fit_and_exist_if_any_stage_fits(sizes, limit, seed) -> None:
    choices = stages_within_bytes(draw_record(sizes, seed), limit)
    assert bool(choices) == (min(sizes) <= limit)
    for stages in choices:
        assert stages
        assert list(stages) == sorted(set(stages))
        assert sum(sizes[stage] for stage in stages) <= limit
    if sum(sizes) <= limit:
        assert choices == [tuple(range(len(sizes)))]
    # a stage that leaves no space for another is tried alone
    for stage, size in enumerate(sizes):
        if size <= limit < 2 * size and sum(sizes) > limit:
            assert (stage,) in choices


def test_stages_that_are_wrong_at_high_scores_are_dropped_first() -> None:
    record = draw_record([500, 500, 500], n_rows=400)
    scores, correctness = record.scores.copy(), record.correctness.copy()
    correctness[0], scores[0] = 0.0, 5.0
    correctness[1], scores[1] = 1.0, 5.0
    choices = stages_within_bytes(replace(record, scores=scores, correctness=correctness), 1000)
    assert choices
    assert not any(0 in stages for stages in choices)


def test_device_needs_the_smallest_stage_if_no_stage_stops_an_instance() -> None:
    sizes = PackedSizes.without_shared_thresholds((1000, 900, 950))
    assert (sizes.stages_on_device((0, 2)), sizes.bytes_on_device((0, 2))) == ([0, 2], 1950)
    assert (sizes.stages_on_device(()), sizes.bytes_on_device(())) == ([1], 900)
    no_stages = PackedSizes.without_shared_thresholds(())
    assert (no_stages.stages_on_device(()), no_stages.bytes_on_device(())) == ([], 0)


#: Cost, accuracy in 50ths and bytes of each point. Small ranges make equal figures likely.
POINT_FIGURES = st.lists(
    st.tuples(st.integers(1, 30), st.integers(1, 50), st.integers(1, 6000)), min_size=1, max_size=40
)


def make_points(figures):
    return [
        OperatingPoint(
            (0.5,),
            cost=float(cost),
            accuracy=accuracy / 50,
            offload_rate=0.1,
            bytes=size,
            chain=chain,
        )
        for chain, (cost, accuracy, size) in enumerate(figures)
    ]


@settings(max_examples=150, deadline=None)
@given(figures=POINT_FIGURES, limit=st.integers(1, 9000), budget=st.integers(1, 30))
def test_the_point_within_bytes_and_budget_is_as_good_as_points_of_two_thirds_the_bytes(
    figures, limit, budget
) -> None:
    points = make_points(figures)
    frontier = Frontier.from_points(points, reference_accuracy=1.0).with_small_points(points)
    smallest_bytes = min(point.bytes for point in points)
    if limit < smallest_bytes:
        with pytest.raises(TooLargeError) as raised:
            frontier.at(max_bytes=limit, budget=budget)
        unpickled_error = pickle.loads(pickle.dumps(raised.value))
        for error in (raised.value, unpickled_error):
            assert (error.smallest_bytes, error.max_bytes) == (smallest_bytes, limit)
            assert str(smallest_bytes) in str(error)
        return
    # kept sizes grow by half, so each point of two thirds of the limit has a kept one as good as it
    small_points = [point for point in points if (3 * point.bytes + 2) // 2 <= limit]
    comparable_points = [point for point in small_points if point.cost <= budget]
    if not comparable_points:
        return
    chosen_point = frontier.at(max_bytes=limit, budget=budget)
    assert chosen_point.bytes <= limit
    assert chosen_point.cost <= budget
    assert chosen_point.accuracy >= max(point.accuracy for point in comparable_points)
    cheapest_point = frontier.at(max_bytes=limit, max_loss=1.0)
    assert cheapest_point.bytes <= limit
    assert cheapest_point.cost <= min(point.cost for point in small_points)
