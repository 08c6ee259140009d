from __future__ import annotations

from gatewise.operating_point import OperatingPoint
from gatewise_training.operating_points.frontier import Frontier
from gatewise_training.views.frontier_display import FrontierDisplay


def test_smaller_devices_have_curves_of_their_own_in_the_plot() -> None:
    small = OperatingPoint((0.5,), cost=2.0, accuracy=0.8, offload_rate=0.1, bytes=1000)
    large = OperatingPoint((0.5,), cost=2.0, accuracy=0.9, offload_rate=0.1, bytes=60_000)
    frontier = Frontier.from_points([large], reference_accuracy=1.0).with_small([small, large])
    axes = FrontierDisplay(frontier, name="s").plot(active=large).ax_
    labels = ["s", "s in 8.2 kB", "s in 1.0 kB", "s, active point"]
    assert axes.get_legend_handles_labels()[1] == labels
