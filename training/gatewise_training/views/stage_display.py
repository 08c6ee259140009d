"""Plot of a system's stages: what share of the instances each answers, and at which cost."""

from __future__ import annotations

from typing import Any

from gatewise.errors import InputError
from gatewise.formats import percent, plural, threshold
from gatewise_training.views.summary import exit_cost_limits, high_cost_name

COLOURS = {"device": "#3b6fb6", "gateway": "#4b9b7d", "cloud": "#c5703b"}
"""By tier."""


class StageDisplay:
    """Plot of the active operating point's stages.

    ``StageDisplay.from_estimator(system).figure_.savefig("stages.png")``
    """

    def __init__(self, system: Any) -> None:
        self.system = system

    @classmethod
    def from_estimator(cls, system: Any, *, ax: Any = None) -> StageDisplay:
        """Plot the stages of a fitted system; get the display, with `ax_` and `figure_`."""
        return cls(system).plot(ax=ax)

    def plot(self, *, ax: Any = None) -> StageDisplay:
        """Draw a bar for each stage and the high-cost model: its share of the answers."""
        system = self.system
        stages, point = system.stages_, system.operating_point_
        shares = point.exit_shares
        if not shares:
            raise InputError(f"{type(system).__name__} does not say what its stages answer")
        has_cloud = getattr(system, "high_cost_model_", None) is not None
        costs, count = exit_cost_limits(system), len(stages) + has_cloud
        if ax is None:
            from matplotlib.figure import Figure

            size = (7.2, 1.3 + 0.55 * count)
            ax = Figure(figsize=size, layout="constrained").subplots()
        names, colours = [], []
        for s, stage in enumerate(stages):
            limit = threshold(point.thresholds[s], 3)
            if not has_cloud and s == len(stages) - 1:
                limit = "always"
            stop = f"{limit} stops" if limit in ("never", "always") else f"stops from {limit}"
            features = plural(len(stage.features), "feature")
            names.append(f"stage {s}: {features}\n{stage.model_name}, {stop}")
            colours.append(COLOURS[stage.tier])
        if has_cloud:
            f0 = system.high_cost_model_
            features = plural(len(f0.features), "feature")
            names.append(f"high-cost model: {features}\n{high_cost_name(f0)}")
            colours.append(COLOURS["cloud"])
        shown = [100 * share for share in shares[:count]]
        ax.barh(range(count), shown, color=colours, height=0.6)
        for place, width in enumerate(shown):
            text = f"{percent(width / 100)}, cost {costs[place]:.3g}"
            ax.text(width + 1, place, text, va="center", fontsize=9)
        ax.set_yticks(range(count), names)
        ax.invert_yaxis()
        ax.set_xlim(0, 128)  # room for the text beside a full bar
        ax.set_xticks(range(0, 101, 20))
        ax.set_xlabel("instances answered, % of validation rows")
        ax.spines[["top", "right"]].set_visible(False)
        self.ax_, self.figure_ = ax, ax.figure
        return self
