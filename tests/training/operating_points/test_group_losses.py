"""Test the bounds of losses on new groups and the points that keep them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from gatewise.decision import ALWAYS_STOP
from gatewise_training.data.row_splitter import RowSplitter
from gatewise_training.operating_points.cascade_record import CascadeRecord
from gatewise_training.operating_points.frontier import Frontier
from gatewise_training.operating_points.group_losses import (
    GroupLosses,
    loss_bounds,
    with_group_errors,
)
from gatewise_training.operating_points.thresholds import frontier_points


def test_gains_of_some_groups_do_not_offset_losses_of_others():
    losses_by_group, row_counts = np.array([[1.0, -5.0, 0.0, 2.0]]), np.full(4, 10.0)
    # a loss per row of each group, with gains as 0, and its mean plus t times its standard error
    group_losses = np.array([0.1, 0.0, 0.0, 0.2])
    expected_bound = group_losses.mean() + stats.t.ppf(0.8, 3) * group_losses.std(ddof=1) / 2
    assert loss_bounds(losses_by_group, row_counts, 0.0) == pytest.approx([expected_bound])
    assert loss_bounds(losses_by_group, row_counts, 0.0) == loss_bounds(
        losses_by_group * [1, 0, 1, 1], row_counts, 0.0
    )
    assert loss_bounds(losses_by_group[:, :1], row_counts[:1], 0.0) == 1  # one group bounds nothing


def test_large_gains_of_nearly_all_groups_offset_small_losses_of_others():
    rng = np.random.default_rng(0)
    group_losses = -rng.uniform(0.02, 0.08, 14)
    group_losses[:2] = 0.03  # two of 14 groups lose 3 points; the others gain 5 on average
    bound = loss_bounds(group_losses[np.newaxis] * 20, np.full(14, 20.0), 0.0)
    assert bound < 0
    # one group with a large gain offsets nothing
    group_losses = np.full(14, 0.02)
    group_losses[3] = -0.9
    # the loss of nearly all groups is 0.02
    assert loss_bounds(group_losses[np.newaxis] * 20, np.full(14, 20.0), 0.0) > 0.015


def test_random_gains_offset_random_losses():
    """Groups of one row have the bound of rows without groups."""
    rng = np.random.default_rng(0)
    losses_by_group = rng.choice([-1.0, 0.0, 1.0], 400, p=[0.05, 0.9, 0.05])
    losses_without_gains = losses_by_group.clip(min=0.0)
    expected_bound = (
        max(losses_by_group.mean(), 0.0)
        + stats.t.ppf(0.8, 399) * losses_without_gains.std(ddof=1) / 20
    )
    assert loss_bounds(losses_by_group, np.ones(400), losses_by_group.var()) == pytest.approx(
        expected_bound, rel=1e-6
    )
    assert expected_bound < 0.5 * loss_bounds(
        losses_without_gains, np.ones(400), losses_without_gains.var()
    )


@pytest.mark.parametrize("mean_loss", [0.1, 0.3])
def test_the_bound_covers_uniform_losses_at_its_confidence(mean_loss):
    rng = np.random.default_rng(0)
    losses_by_group = rng.uniform(0, 2 * mean_loss, (2000, 20))
    is_covered = loss_bounds(losses_by_group, np.ones(20), 0.0) >= mean_loss
    # three standard deviations of a share of 2,000 draws
    assert is_covered.mean() == pytest.approx(0.8, abs=0.03)


def test_slightly_cheaper_points_must_also_keep_the_bound():
    costs = np.array([1.0, 5.0, 9.2, 9.9, 20.0])
    losses = GroupLosses(costs, np.zeros((5, 4)), np.ones(4), np.zeros(5), np.zeros(5))
    bounds = np.array([0.5, 0.1, 0.0, 0.02, 0.0])
    # a share of 0.5 compares each point with those that cost at least half as much
    assert losses.largest_nearby_bounds(bounds, 1.0).tolist() == bounds.tolist()
    assert losses.largest_nearby_bounds(bounds, 0.9).tolist() == [0.5, 0.1, 0.0, 0.02, 0.0]
    assert losses.largest_nearby_bounds(bounds, 0.5).tolist() == [0.5, 0.1, 0.1, 0.1, 0.0]


@pytest.mark.parametrize(("group_loss", "cost_share"), [(0.02, 1.0), (0.5, 0.9)])
def test_margins_grow_if_halves_of_the_groups_disagree(group_loss, cost_share):
    """Few groups lose at cheap points, so half of the groups may contain none of them."""
    rng = np.random.default_rng(1)
    costs = np.linspace(8, 10, 30)
    is_losing = rng.permutation(30)[:, None] > 24  # each loses below a random cost
    losses_by_group = group_loss * is_losing.T * (costs[:, None] < rng.uniform(8.5, 9.9, 30))
    losses = GroupLosses(costs, losses_by_group, np.ones(30), np.zeros(30), np.zeros(30))
    assert losses.choose_cost_share(0.02) == cost_share


def draw_record_of_groups(n_groups, n_losing):
    """Draw a record of a stage that is wrong in the first `n_losing` groups only."""
    groups = np.repeat(np.arange(n_groups), 20)
    is_right = (groups >= n_losing).astype(float)
    scores = np.random.default_rng(0).normal(size=(1, len(groups))).astype(np.float32)
    return CascadeRecord(
        scores, np.stack([is_right, np.ones(len(groups))]), np.array([1.0, 5.0]),
        np.ones(len(groups)), has_cloud=True,
        splitter=RowSplitter(len(groups), groups=groups),
    )  # fmt: skip


def test_points_that_cannot_lose_remain_if_groups_are_too_few():
    record = draw_record_of_groups(6, 1)
    points = frontier_points(record)
    curve = Frontier.from_points(points, reference_accuracy=1.0)
    frontier = with_group_errors(curve, points, [record], 0.01)
    assert [point.cost for point in frontier.points] == [point.cost for point in curve.points]
    chosen_point = frontier.at(max_loss=0.01, slack=1.0)
    assert (chosen_point.thresholds, chosen_point.accuracy_error) == ((None,), 0.0)
    frontier_without_losses = with_group_errors(curve, points, [draw_record_of_groups(6, 0)], 0.01)
    assert frontier_without_losses.at(max_loss=0.3, slack=1.0).cost == 1.0


def test_a_point_without_observed_losses_does_not_replace_the_cloud():
    """Both are right on all validation groups, but only the cloud cannot lose on new groups."""
    record = draw_record_of_groups(8, 0)
    points = frontier_points(record)
    curve = Frontier.from_points(points, reference_accuracy=1.0)
    assert len(curve.points) == 1
    frontier = with_group_errors(curve, points, [record], 0.01)
    assert [point.thresholds for point in frontier.off_curve_points] == [(None,)]
    assert frontier.points[0].thresholds == (ALWAYS_STOP,)


def test_safer_points_are_added_to_the_frontier():
    """In one group the stage is right only at high scores."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(12), 40)
    scores = rng.uniform(size=(1, len(groups))).astype(np.float32)
    is_stage_right = (groups > 0) | (scores[0] > 0.5)
    is_reference_right = (groups == 0) | (rng.random(len(groups)) < 0.97)
    record = CascadeRecord(
        scores, np.stack([is_stage_right, is_reference_right]).astype(float), np.array([1.0, 5.0]),
        np.ones(len(groups)), has_cloud=True, splitter=RowSplitter(len(groups), groups=groups),
    )  # fmt: skip
    points = frontier_points(record)
    curve = Frontier.from_points(points, reference_accuracy=record.reference_effective_accuracy())
    frontier = with_group_errors(curve, points, [record], 0.01)
    chosen_point = frontier.at(max_loss=0.01, slack=1.0)
    assert chosen_point in frontier.off_curve_points
    assert chosen_point.cost > max(point.cost for point in frontier.points)
    is_stopped = record.exits(chosen_point.thresholds) == 0
    assert is_stage_right[is_stopped].all()
    assert 0.3 < is_stopped.mean() < 0.6  # about the scores above 0.5


def test_rows_without_groups_keep_their_standard_errors():
    record = replace(draw_record_of_groups(6, 1), splitter=RowSplitter(6 * 20))
    points = frontier_points(record)
    curve = Frontier.from_points(points, reference_accuracy=1.0)
    assert with_group_errors(curve, points, [record], 0.01) is curve
