"""The choice of a point: on the hull, and a little further where that pays."""

from __future__ import annotations

import pytest

from gatewise.operating_point import OperatingPoint
from gatewise_training.operating_points.frontier import Frontier


def frontier(*figures: tuple[float, float], error: float = 0.001) -> Frontier:
    points = [
        OperatingPoint(
            (cost,), cost=cost, accuracy=accuracy, offload_rate=0.0, accuracy_error=error
        )
        for cost, accuracy in figures
    ]
    return Frontier.from_points(points, reference_accuracy=0.875)


ADULT = (1.0, 0.8), (3.51, 0.8665), (3.54, 0.8692), (9.0, 0.875)


def test_a_point_off_the_hull_gives_way_to_the_hull() -> None:
    curve = frontier(*ADULT)
    assert [p.cost for p in curve.hull().points] == [1.0, 3.54, 9.0]
    point, reason = curve.choose(None, max_loss=0.01)
    assert point.cost == 3.54
    assert reason == "the cheapest point of the hull within a loss of 0.01"


@pytest.mark.parametrize(
    ("cost", "accuracy", "error", "is_taken"),
    [
        (2.03, 0.870, 0.001, True),
        (2.05, 0.870, 0.001, False),  # costs more than 2 % more
        (2.03, 0.870, 0.005, False),  # gains less than a standard error
    ],
)
def test_a_little_more_is_spent_where_it_gains(
    cost: float, accuracy: float, error: float, is_taken: bool
) -> None:
    curve = frontier((1.0, 0.80), (2.0, 0.868), (cost, accuracy), (9.0, 0.875), error=error)
    point, reason = curve.choose(None, max_loss=0.01)
    assert point.cost == (cost if is_taken else 2.0)
    assert ("it costs 1.5% more and gains 0.0020" in reason) == is_taken


def test_other_goals_choose_as_they_did_and_say_so() -> None:
    curve = frontier(*ADULT)
    assert curve.choose(None, budget=3.52) == (
        curve.points[1], "the most accurate point that costs at most 3.52"
    )  # fmt: skip
    point, reason = curve.choose(None, max_loss=0.0, slack=1.0)
    assert (point.cost, reason) == (
        9.0,
        "the most accurate point, as none keeps a loss of 0 for certain",
    )
