"""Test the plot of a frontier."""

from __future__ import annotations

from types import SimpleNamespace

from gatewise.operating_point import OperatingPoint
from gatewise_training.operating_points.frontier import Frontier
from gatewise_training.views.frontier_display import FrontierDisplay


def test_the_legend_names_the_active_point_and_the_reference() -> None:
    point = OperatingPoint((0.5,), cost=2.0, accuracy=0.9, offload_rate=0.1)
    frontier = Frontier.from_points([point], reference_accuracy=1.0)
    axes = FrontierDisplay(frontier, name="s").plot(active=point).ax_
    labels = ["s", "s, active point", "s, high-cost model"]
    assert axes.get_legend_handles_labels()[1] == labels
    assert axes.get_ylabel() == "accuracy on validation data"


def test_the_axis_of_a_pair_without_labels_is_its_agreement() -> None:
    point = OperatingPoint((0.5,), cost=2.0, accuracy=0.9, offload_rate=0.1, measured="agreement")
    axes = FrontierDisplay(Frontier.from_points([point], reference_accuracy=1.0)).plot().ax_
    assert axes.get_ylabel() == "agreement on validation data"


def test_the_axis_of_a_regressor_is_its_score() -> None:
    point = OperatingPoint((None,), cost=2.0, accuracy=0.4, offload_rate=0.0)
    frontier = Frontier.from_points([point], reference_accuracy=0.4)
    regressor = SimpleNamespace(frontier_=frontier, operating_point_=point)
    axes = FrontierDisplay.from_estimator(regressor).ax_
    assert axes.get_ylabel() == "score on validation data"


def test_the_cost_axis_starts_at_0_and_references_of_several_systems_differ() -> None:
    points = [
        OperatingPoint((0.5,), cost=cost, accuracy=0.5 + cost / 100, offload_rate=0.1)
        for cost in (0.01, 9.0)
    ]
    axes = FrontierDisplay(Frontier.from_points(points[:1], reference_accuracy=0.95)).plot().ax_
    FrontierDisplay(Frontier.from_points(points, reference_accuracy=0.95)).plot(ax=axes)
    axis_start, axis_end = axes.get_xlim()
    assert axis_start == 0.0
    assert axis_end > 9.0  # the cost of the last point
    assert axes.lines[-1].get_ydata() == [0.95, 0.95]
    reference_lines = [
        line for line in axes.lines if str(line.get_label()).endswith("high-cost model")
    ]
    assert reference_lines[0]._dash_pattern != reference_lines[1]._dash_pattern
