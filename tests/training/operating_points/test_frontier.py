"""Test the points of a frontier, its hull and the choice of a point at the limits of goals."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from gatewise.errors import InputError, TooLargeError
from gatewise.operating_point import OperatingPoint
from gatewise_training.operating_points.class_figures import ClassBounds
from gatewise_training.operating_points.frontier import Frontier, LossError


def make_frontier(*costs_and_accuracies: tuple[float, float], error: float = 0.001) -> Frontier:
    points = [
        OperatingPoint(
            (cost,), cost=cost, accuracy=accuracy, offload_rate=0.0, accuracy_error=error
        )
        for cost, accuracy in costs_and_accuracies
    ]
    return Frontier.from_points(points, reference_accuracy=0.875)


#: Cost and accuracy of points; the second is just below a line between two others.
POINTS = (1.0, 0.8), (3.51, 0.8665), (3.54, 0.8692), (9.0, 0.875)


def test_a_bounded_loss_chooses_a_point_of_the_hull() -> None:
    frontier = make_frontier(*POINTS)
    assert [point.cost for point in frontier.hull().points] == [1.0, 3.54, 9.0]
    point, reason = frontier.choose(None, max_loss=0.01)
    assert point.cost == 3.54
    assert reason == "the cheapest point of the hull within a loss of 0.01"
    # a loss of 1 allows every point
    assert frontier.choose(None, max_loss=1.0).reason.startswith("the cheapest point of the hull")
    assert "loss of 1" not in frontier.choose(None, max_loss=1.0).reason
    # the only point within the loss is also the last of the hull
    assert make_frontier((1.0, 0.5), (2.0, 0.875)).choose(None, max_loss=0.25).point.cost == 2.0
    free_frontier = make_frontier((0.0, 0.75), (0.0, 0.5), (4.0, 0.875))
    assert free_frontier.choose(None, max_loss=0.125).point.cost == 0.0


def test_the_choice_of_a_point_states_its_reason() -> None:
    frontier = make_frontier(*POINTS)
    assert frontier.choose(None, budget=3.52) == (
        frontier.points[1], "the most accurate point that costs at most 3.52"
    )  # fmt: skip
    point, reason = frontier.choose(None, max_loss=0.0, slack=1.0)
    assert (point.cost, reason) == (
        9.0,
        "the most accurate point, as none keeps a loss of 0 for certain",
    )


def test_the_next_point_is_chosen_only_if_its_gain_is_worth_its_cost_and_no_chance() -> None:
    gain = 1 / 128  # exact in binary; two percent of the cost 50 are 1
    for cost, error, chosen_cost in (
        (51.0, gain, 51.0),
        (51.01, gain, 50.0),
        (51.0, 1.01 * gain, 50.0),
    ):
        frontier = make_frontier(
            (0.0, 0.0), (50.0, 0.5), (cost, 0.5 + gain), (1e3, 0.875), error=error
        )
        assert [point.cost for point in frontier.hull().points] == [0.0, 50.0, cost, 1e3]
        assert frontier.choose(None, max_loss=0.375).point.cost == chosen_cost


def test_slack_lowers_the_bound_of_a_loss_by_standard_errors() -> None:
    frontier = make_frontier((1.0, 0.75), (4.0, 0.875), error=0.0625)
    assert frontier.at(max_loss=0.125).cost == 1.0  # a loss equal to the bound
    assert frontier.at(max_loss=0.1249).cost == 4.0
    assert frontier.at(max_loss=0.125, slack=1.0).cost == 4.0
    # bound = loss 0.125 + one standard error 0.0625
    assert frontier.at(max_loss=0.1875, slack=1.0).cost == 1.0
    assert frontier.at(max_loss=0.25, slack=3.0).cost == 4.0


def test_a_point_off_the_hull_is_chosen_if_no_point_of_the_hull_keeps_the_loss() -> None:
    points = [
        OperatingPoint(
            (cost,), cost=cost, accuracy=accuracy, offload_rate=0.0, accuracy_error=error
        )
        for cost, accuracy, error in ((1.0, 0.5, 0.0), (5.0, 0.625, 0.0), (6.0, 0.875, 0.5))
    ]
    frontier = Frontier.from_points(points, reference_accuracy=0.875)
    assert [point.cost for point in frontier.hull().points] == [1.0, 6.0]
    point, reason = frontier.choose(None, max_loss=0.25, slack=1.0)
    assert (point.cost, reason) == (5.0, "the cheapest point within a loss of 0.25")


def test_safer_points_off_the_curve_are_chosen_only_if_rows_have_groups() -> None:
    for groups, expected_cost in ((None, 4.0), (5, 6.0)):
        unsafe_point = OperatingPoint(
            (1.0,), cost=4.0, accuracy=0.9, offload_rate=0.0, accuracy_error=0.5,
            validation_groups=groups,
        )  # fmt: skip
        safe_point, safer_point = (
            OperatingPoint((2.0,), cost=safe_cost, accuracy=0.875, offload_rate=1.0)
            for safe_cost in (6.0, 7.0)
        )
        frontier = Frontier((unsafe_point,), 0.875, off_curve_points=(safer_point, safe_point))
        assert frontier.choose(None, max_loss=0.01, slack=1.0).point.cost == expected_cost


def test_the_error_for_a_loss_out_of_reach_names_the_smallest_loss() -> None:
    frontier = make_frontier((1.0, 0.5), (4.0, 0.75))
    with pytest.raises(
        LossError, match=r"loses at most 0\.1; the smallest loss is 0\.125"
    ) as raised:
        frontier.at(max_loss=0.1)
    assert raised.value.smallest_loss == 0.125
    assert frontier.at(max_loss=0.125).cost == 4.0


def test_a_point_that_costs_exactly_the_budget_keeps_it() -> None:
    frontier = make_frontier((1.0, 0.5), (4.0, 0.75))
    assert frontier.at(budget=4.0).cost == 4.0
    assert frontier.at(budget=3.99).cost == 1.0
    assert frontier.at(budget=1.0).cost == 1.0
    with pytest.raises(InputError, match=r"costs at most 0\.99; the cheapest costs 1"):
        frontier.at(budget=0.99)
    with pytest.raises(InputError, match="costs at most 0;"):
        frontier.at(budget=0.0)


def test_offload_rates_choose_the_most_accurate_point_and_then_the_cheapest() -> None:
    def make_point(cost: float, accuracy: float, offload_rate: float) -> OperatingPoint:
        return OperatingPoint((cost,), cost=cost, accuracy=accuracy, offload_rate=offload_rate)

    curve = Frontier.from_points(
        [make_point(1.0, 0.5, 0.5), make_point(4.0, 0.9, 0.75)], reference_accuracy=1
    )
    frontier = curve.with_less_offload(
        [
            *curve.points,
            make_point(6.0, 0.75, 0.25),
            make_point(5.0, 0.75, 0.25),
            make_point(7.0, 0.25, 0.25),
        ]
    )
    assert [point.cost for point in frontier.off_curve_points] == [5.0]
    merged_frontier = Frontier(
        frontier.points,
        1.0,
        off_curve_points=(make_point(6.0, 0.75, 0.25), *frontier.off_curve_points),
    )
    assert merged_frontier.at(offload_rate=0.25).cost == 5.0
    assert merged_frontier.at(offload_rate=0.75).cost == 4.0
    assert merged_frontier.at(offload_rate=0.7499).cost == 5.0
    assert merged_frontier.at(offload_rate=1.0).cost == 4.0
    with pytest.raises(InputError, match=r"offloads at most 0\.2; the lowest rate is 0\.25"):
        merged_frontier.at(offload_rate=0.2)


@pytest.mark.parametrize(
    ("goal", "message"),
    [
        ({}, "exactly one of"),
        ({"budget": 1.0, "max_loss": 0.1}, "exactly one of"),
        ({"budget": -0.001}, "budget must be a number of at least 0"),
        ({"budget": float("inf")}, "budget must be"),
        ({"max_loss": 1.001}, "max_loss is a share, from 0 to 1, not 1.001"),
        ({"offload_rate": 5.0}, "offload_rate is a share"),
        ({"offload_rate": "0.1"}, "offload_rate must be a number"),
    ],
)
def test_invalid_goals_are_refused(goal: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_frontier(*POINTS).choose(None, **goal)


def test_goals_at_the_limits_of_their_ranges_are_accepted() -> None:
    frontier = make_frontier(*POINTS)
    assert frontier.at(max_loss=1).cost == 1.0
    assert frontier.at(max_loss=0.0).cost == 9.0
    assert frontier.at(offload_rate=0).cost == 9.0
    assert frontier.at(budget=2.5).cost == 1.0  # a budget may exceed 1


def test_the_hull_excludes_points_on_and_below_its_lines() -> None:
    frontier = make_frontier((1, 0.2), (2, 0.3), (3, 0.4), (4, 0.8))
    assert [point.cost for point in frontier.hull().points] == [1, 4]
    straight_frontier = make_frontier((1, 0.25), (2, 0.5), (3, 0.75))
    assert [point.cost for point in straight_frontier.hull().points] == [1, 3]
    concave_frontier = make_frontier((1, 0.2), (2, 0.5), (3, 0.7), (4, 0.8))
    assert concave_frontier.hull().points == concave_frontier.points


def test_a_frontier_needs_a_point() -> None:
    with pytest.raises(InputError, match="at least one operating point"):
        Frontier.from_points([], reference_accuracy=1.0)


# -- sizes ---------------------------------------------------------------------------------


def make_points_of_sizes(
    *costs_accuracies_and_sizes: tuple[float, float, int],
) -> list[OperatingPoint]:
    return [
        OperatingPoint((cost,), cost=cost, accuracy=accuracy, offload_rate=0.0, bytes=size)
        for cost, accuracy, size in costs_accuracies_and_sizes
    ]


def test_the_points_within_a_limit_of_bytes_form_a_frontier() -> None:
    points = make_points_of_sizes(
        (1.0, 0.5, 100), (2.0, 0.75, 400), (3.0, 0.625, 200), (4.0, 0.6, 200)
    )
    frontier = Frontier.from_points(points, reference_accuracy=1.0).with_small_points(points)
    assert [point.cost for point in frontier.points] == [1.0, 2.0]
    assert [point.cost for point in frontier.off_curve_points] == [3.0]
    small_frontier = frontier.within_bytes(200)
    assert [point.cost for point in small_frontier.points] == [1.0, 3.0]
    assert [point.cost for point in frontier.within_bytes(199).points] == [1.0]
    assert frontier.choose(None, 200, budget=9.0).point.cost == 3.0
    assert frontier.at(budget=9.0, max_bytes=399).cost == 3.0
    with pytest.raises(TooLargeError) as raised:
        frontier.within_bytes(99)
    assert raised.value.smallest_bytes == 100
    one_byte_frontier = Frontier.from_points(
        make_points_of_sizes((1.0, 0.5, 1)), reference_accuracy=1.0
    )
    assert one_byte_frontier.within_bytes(1).points == one_byte_frontier.points
    for max_bytes in (0, 1.5, "100"):
        with pytest.raises(InputError, match="whole number of at least 1"):
            frontier.within_bytes(max_bytes)  # type: ignore[arg-type]


def test_a_frontier_keeps_the_best_points_of_sizes_that_grow_by_half() -> None:
    # the sizes are 100, 150, 225 and 337; each keeps the best point that is not larger
    points = make_points_of_sizes(
        (9.0, 0.9, 400), (8.0, 0.2, 100), (7.5, 0.15, 150), (7.0, 0.1, 337)
    )
    largest_frontier = Frontier.from_points(points[:1], reference_accuracy=1.0)
    frontier = largest_frontier.with_small_points(points)
    # no point has 225 bytes
    assert [point.bytes for point in frontier.off_curve_points] == [100, 150, 337]
    assert largest_frontier.with_small_points(points[:1]).off_curve_points == ()
    assert largest_frontier.with_small_points([]).off_curve_points == ()
    tiny_points = make_points_of_sizes((1.0, 0.5, 1), (2.0, 0.75, 4))
    assert Frontier.from_points(tiny_points[1:], reference_accuracy=1.0).with_small_points(
        tiny_points
    ).off_curve_points == (tiny_points[0],)


def test_frontiers_within_a_cost_exclude_points_without_a_known_highest_cost() -> None:
    points = [
        OperatingPoint((cost,), cost=cost, accuracy=cost / 10, offload_rate=0.0, max_cost=max_cost)
        for cost, max_cost in ((1.0, 2.0), (4.0, 6.0), (5.0, None))
    ]
    frontier = Frontier.from_points(points, reference_accuracy=1.0)
    assert [point.cost for point in frontier.within_cost(6.0).points] == [1.0, 4.0]
    assert [point.cost for point in frontier.within_cost(5.9).points] == [1.0]
    with pytest.raises(InputError, match=r"the lowest cap possible is 2\.0"):
        frontier.within_cost(1.0)


# -- classes -------------------------------------------------------------------------------


def make_point_by_class(
    cost: float, accuracy: float, recall: tuple[float, float]
) -> OperatingPoint:
    return OperatingPoint(
        (cost,),
        cost=cost,
        accuracy=accuracy,
        offload_rate=0.0,
        recall=recall,
        precision=(0.9, 0.9),
        balanced_accuracy=sum(recall) / 2,
    )


POINTS_BY_CLASS = [
    make_point_by_class(1.0, 0.9, (0.95, 0.5)),
    make_point_by_class(2.0, 0.85, (0.8, 0.75)),
    make_point_by_class(3.0, 0.8, (0.7, 0.8)),
]


def make_frontier_by_class(**fields: Any) -> Frontier:
    return Frontier(
        points=tuple(POINTS_BY_CLASS[:1]),
        reference_accuracy=0.95,
        off_curve_points=tuple(POINTS_BY_CLASS[1:]),
        classes=("ok", "fault"),
        class_rows=(100, 100),
        **fields,
    )


def make_bounds(**bounds: dict[str, float]) -> ClassBounds:
    return ClassBounds.from_mappings(("ok", "fault"), **bounds)


def test_points_with_better_class_figures_are_kept_off_the_curve() -> None:
    curve = Frontier.from_points(
        POINTS_BY_CLASS, reference_accuracy=0.95, classes=("ok", "fault"), class_rows=(100, 100)
    )
    assert [point.cost for point in curve.points] == [1.0]
    # the point at a cost of 2 has the best balanced accuracy
    frontier = curve.with_class_points(POINTS_BY_CLASS, None)
    assert [point.cost for point in frontier.off_curve_points] == [2.0]
    frontier = curve.with_class_points(POINTS_BY_CLASS, make_bounds(min_recall={"fault": 0.7}))
    assert {point.cost for point in frontier.off_curve_points} == {2.0, 3.0}
    assert frontier.at(budget=9.0, min_recall={"fault": 0.75}).cost == 2.0
    assert frontier.at(budget=9.0, min_recall={"fault": 0.76}).cost == 3.0
    point, reason = frontier.choose(make_bounds(min_recall={"fault": 0.7}), budget=9.0)
    assert point.cost == 2.0
    assert reason.endswith(", of those that keep min_recall fault=0.7")


def test_a_point_of_undefined_precision_does_not_replace_one_that_keeps_the_bound() -> None:
    silent_point, precise_point = (
        msgspec.structs.replace(
            make_point_by_class(cost, accuracy, (1.0, 0.0)), precision=(0.9, precision)
        )
        for cost, accuracy, precision in ((1.0, 0.9, None), (2.0, 0.8, 0.6))
    )
    curve = Frontier.from_points(
        [silent_point, precise_point],
        reference_accuracy=0.95,
        classes=("ok", "fault"),
        class_rows=(100, 100),
    )
    frontier = curve.with_class_points(
        [silent_point, precise_point], make_bounds(min_precision={"fault": 0.5})
    )
    assert frontier.off_curve_points == (precise_point,)


def test_errors_name_the_bounds_by_class() -> None:
    frontier = make_frontier_by_class()
    bounds = make_bounds(min_recall={"fault": 0.78})
    with pytest.raises(InputError, match=r"at most 2;.*of those that keep min_recall fault=0.78"):
        frontier.choose(bounds, budget=2.0)
    with pytest.raises(LossError):
        frontier.choose(bounds, max_loss=0.01)
    with pytest.raises(InputError, match=r"recall of 'fault' reaches 0\.800 at most"):
        frontier.choose(make_bounds(min_recall={"fault": 0.9}), budget=9.0)


def test_bounds_by_class_get_a_margin_of_standard_errors_if_a_point_keeps_it() -> None:
    frontier = make_frontier_by_class()
    # the standard error of 0.7 on 100 rows is sqrt(0.7 * 0.3 / 100) = 0.046
    bounds = make_bounds(min_recall={"fault": 0.7})
    assert [point.cost for point in frontier.points_within(bounds)] == [2.0, 3.0]
    assert [point.cost for point in frontier.points_within(bounds, slack=1.0)] == [2.0, 3.0]
    assert [point.cost for point in frontier.points_within(bounds, slack=2.0)] == [3.0]
    # no point keeps a margin of five standard errors, so that the bound gets none
    assert [point.cost for point in frontier.points_within(bounds, slack=5.0)] == [2.0, 3.0]
    tight_bounds = make_bounds(min_recall={"fault": 0.74})  # 0.75 is a fifth of an error above
    assert [point.cost for point in frontier.points_within(tight_bounds, slack=5.0)] == [2.0, 3.0]
    high_bounds = make_bounds(min_recall={"fault": 0.81})  # a quarter of a standard error too high
    with pytest.raises(InputError, match=r"reaches 0\.800 at most"):
        frontier.points_within(high_bounds)


def test_losses_by_class_work_as_a_goal_and_as_a_bound_of_another_goal() -> None:
    frontier = make_frontier_by_class(reference_recall=(1.0, 0.875))
    losses = {"fault": 0.125}
    assert frontier.at(max_loss=losses).cost == 2.0
    assert frontier.at(max_loss=losses, budget=9.0).cost == 2.0
    assert frontier.at(max_loss=losses, offload_rate=1.0).cost == 2.0
    assert frontier.at(max_loss={"fault": 0.1}, budget=9.0).cost == 3.0
    with pytest.raises(InputError, match="costs at most 1;"):
        frontier.at(max_loss=losses, budget=1.0)


def test_weighted_points_are_compared_by_weighted_accuracy() -> None:
    points = [
        OperatingPoint(
            (cost,),
            cost=cost,
            accuracy=accuracy,
            offload_rate=0.0,
            weighted_accuracy=weighted_accuracy,
        )
        for cost, accuracy, weighted_accuracy in ((1.0, 0.9, 0.5), (2.0, 0.8, 0.75))
    ]
    frontier = Frontier.from_points(points, reference_accuracy=0.9, reference_weighted_accuracy=0.8)
    assert frontier.is_weighted
    assert len(frontier.points) == 2
    assert frontier.reference_effective_accuracy == 0.8
    assert "weighted accuracy 0.5000 to 0.7500; reference 0.8000" in repr(frontier)
    assert frontier.at(max_loss=0.06).cost == 2.0


# -- displays ------------------------------------------------------------------------------


def test_frames_mark_the_points_of_the_hull_and_the_curve() -> None:
    curve = make_frontier(*POINTS)
    frontier = Frontier(
        curve.points, 0.875, off_curve_points=(POINTS_BY_CLASS[1],), classes=("ok", "fault")
    )
    assert "4 points: cost 1 to 9, accuracy 0.8000 to 0.8750" in repr(frontier)
    assert repr(frontier).endswith("reference 0.8750, 1 other)")
    assert "other" not in repr(curve)
    frame = frontier.to_frame()
    assert frame["hull"].tolist() == [True, False, True, True, False]
    assert frame["on_curve"].tolist() == [True] * 4 + [False]
    assert frame["recall fault"].tolist()[-1] == 0.75
    assert np.isnan(frame["precision ok"].tolist()[0])
