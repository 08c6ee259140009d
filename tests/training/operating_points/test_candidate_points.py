"""Test the candidate points that guarantees are tested on, and their order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gatewise.decision import ALWAYS_STOP
from gatewise.errors import InputError
from gatewise.operating_point import OperatingPoint
from gatewise_training.data.row_splitter import RowSplitter
from gatewise_training.operating_points.candidate_points import SettingsPath, list_candidates
from gatewise_training.operating_points.cascade_record import CascadeRecord
from gatewise_training.operating_points.guarantee import Promise
from gatewise_training.operating_points.thresholds import frontier_points

pytestmark = pytest.mark.slow  # tests thousands of rows, for up to a second

make_promise = Promise.from_bounds


def draw_record(seed, n_rows=400, n_stages=3, has_ties=False, has_nan=False, has_cloud=True):
    """Draw a record of stages that err more often at low scores; later stages err less often."""
    rng = np.random.default_rng(seed)
    scores = rng.gamma(2.0, size=(n_stages, n_rows)).astype(np.float32)
    if has_ties:
        scores = np.round(scores, 1)
    is_right = rng.random((n_stages, n_rows)) < 1 - 0.5 * np.exp(
        -scores * np.arange(1, n_stages + 1)[:, None]
    )
    if has_nan:
        scores[rng.random(scores.shape) < 0.1] = np.nan
    is_reference_right = rng.random(n_rows) < 0.97 if has_cloud else is_right[-1]
    costs = np.cumsum(np.arange(1.0, n_stages + 2))
    if not has_cloud:
        costs[-1] = costs[-2]
    correctness = np.vstack([is_right, is_reference_right]).astype(float)
    return CascadeRecord(
        scores, correctness, costs, np.ones(n_rows), RowSplitter(n_rows), has_cloud
    )


@given(st.integers(0, 10**6), st.booleans(), st.booleans(), st.booleans())
@settings(max_examples=20, deadline=None)
def test_no_row_of_other_data_stops_later_along_a_path(seed, has_ties, has_nan, has_cloud):
    tuning_record = draw_record(seed, has_ties=has_ties, has_nan=has_nan, has_cloud=has_cloud)
    other_record = draw_record(seed + 1, has_nan=has_nan, has_cloud=has_cloud)
    points = frontier_points(tuning_record, n_prices=10, n_thresholds=5)
    path = SettingsPath.through(tuning_record, points[seed % len(points)])
    previous_exits = None
    for log_power in np.linspace(-5, 5, 30):
        point = path.point(log_power)
        exits = other_record.exits(point.thresholds)
        if previous_exits is not None:
            assert (exits <= previous_exits).all()
        previous_exits = exits


@pytest.mark.parametrize("has_cloud", [True, False])
def test_a_path_contains_its_base_point(has_cloud):
    tuning_record = draw_record(1, has_ties=True, has_cloud=has_cloud)
    for base_point in frontier_points(tuning_record):
        path = SettingsPath.through(tuning_record, base_point)
        base_of_path = path.point(0.0)
        assert base_of_path.thresholds[:-1] == base_point.thresholds[:-1]
        # without a cloud the last stage always stops
        last_threshold = base_point.thresholds[-1] if has_cloud else ALWAYS_STOP
        assert base_of_path.thresholds[-1] == last_threshold
        assert path.point(-20).offload_rate == has_cloud  # no row stops before the last exit
        used_stages = [
            stage for stage, threshold in enumerate(base_point.thresholds) if threshold is not None
        ]
        if used_stages:
            # all rows stop at the first stage
            assert path.point(20).cost == tuning_record.exit_costs[used_stages[0]]


@pytest.mark.parametrize(
    ("bound", "risk_name"), [({"offload_rate": 0.2}, "offload_rate"), ({"budget": 5.0}, "cost")]
)
def test_candidates_are_dense_near_the_bound(bound, risk_name):
    tuning_record = draw_record(3, n_rows=4000)
    candidates = list_candidates(
        tuning_record, frontier_points(tuning_record), make_promise(**bound), n_rows=4000
    )
    first_candidate, *later_candidates = candidates
    later_candidates = [
        candidate
        for candidate in later_candidates
        if candidate.thresholds != first_candidate.thresholds
    ]
    risks = np.array([getattr(candidate, risk_name) for candidate in later_candidates])
    limit = next(iter(bound.values()))
    assert (np.diff(risks) >= 0).all()
    assert risks[-1] > limit
    is_near_limit = (risks > 0.9 * limit) & (risks < limit)
    # a coarser path would often stay far below the bound
    assert np.diff(risks[is_near_limit]).max() < 0.01 * limit


def test_candidates_for_a_loss_start_with_cloud_only_and_get_cheaper():
    tuning_record = draw_record(3, n_rows=4000)
    candidates = list_candidates(
        tuning_record, frontier_points(tuning_record), make_promise(max_loss=0.01), n_rows=4000
    )
    assert candidates[0].thresholds == (None, None, None)
    costs = [candidate.cost for candidate in candidates]
    assert costs == sorted(costs, reverse=True)
    assert len(candidates) > 100  # so many that neighbours differ little


def test_the_first_candidate_keeps_the_bound_on_any_rows():
    tuning_record = draw_record(4)
    points = frontier_points(tuning_record)
    first_candidate, *_ = list_candidates(
        tuning_record, points, make_promise(offload_rate=0.05), n_rows=100
    )
    assert draw_record(99).measure(first_candidate.thresholds).offload_rate == 0
    first_candidate, *_ = list_candidates(
        tuning_record, points, make_promise(budget=3.0), n_rows=100
    )
    other_record = draw_record(99)
    exits = other_record.exits(first_candidate.thresholds)
    assert other_record.exit_costs[exits].max() <= 3.0
    # no candidate is certain to cost less than the cheapest stage
    first_candidate, *_ = list_candidates(
        tuning_record, points, make_promise(budget=0.5), n_rows=100
    )
    assert first_candidate.cost >= 0.5  # the cheapest stage costs 1


def test_candidates_for_an_offload_rate_may_cost_more_than_points_of_the_frontier():
    tuning_record = draw_record(8, n_rows=4000)
    points = [
        point
        for point in frontier_points(tuning_record)
        if point.thresholds[2] in (None, ALWAYS_STOP)
    ]
    cheap_points = [point for point in points if point.cost < 3]
    candidates = list_candidates(
        tuning_record, cheap_points, make_promise(offload_rate=0.1), n_rows=4000
    )
    best_accuracy = max(
        candidate.accuracy for candidate in candidates if candidate.offload_rate <= 0.1
    )
    assert best_accuracy > max(point.accuracy for point in cheap_points) + 0.01


def test_the_last_stage_is_the_reference_without_a_cloud():
    tuning_record = draw_record(6, has_cloud=False)
    candidates = list_candidates(
        tuning_record, frontier_points(tuning_record), make_promise(max_loss=0.05), n_rows=400
    )
    assert candidates[0].thresholds == (None, None, ALWAYS_STOP)
    assert all(candidate.thresholds[-1] == ALWAYS_STOP for candidate in candidates)


def test_candidates_need_points_and_rows():
    tuning_record = draw_record(7)
    for points, n_rows in (([], 10), ([OperatingPoint((None,) * 3, 1, 1, 1)], 0)):
        with pytest.raises(InputError, match="at least one"):
            list_candidates(tuning_record, points, make_promise(budget=3), n_rows=n_rows)


def test_single_models_are_candidates_in_order_of_their_risk():
    records = [draw_record(seed, n_stages=1, has_cloud=False) for seed in range(3)]
    for record, cost in zip(records, (5.0, 4.0, 9.0), strict=True):
        record.exit_costs[:] = cost
    points = [record.measure((ALWAYS_STOP,), number) for number, record in enumerate(records)]
    candidates_for_budget = list_candidates(records, points, make_promise(budget=6.0), n_rows=300)
    assert [candidate.chain for candidate in candidates_for_budget] == [1, 0, 2]
    candidates_for_loss = list_candidates(
        records, points[:2], make_promise(max_loss=0.1), n_rows=300
    )
    # the reference is first although it is on no frontier
    assert [candidate.chain for candidate in candidates_for_loss] == [2, 0, 1]
