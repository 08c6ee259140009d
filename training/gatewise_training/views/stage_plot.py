"""Plot of a system's stages: what share of the instances each answers, and at which cost."""

from __future__ import annotations

from typing import Any

from gatewise.errors import InputError
from gatewise.formats import percent, plural, threshold
from gatewise_training.views.summary import high_cost_name

COLOURS = {"device": "#3b6fb6", "gateway": "#4b9b7d", "cloud": "#c5703b"}
"""By tier."""


def draw_stages(system: Any, ax: Any) -> Any:
    """Draw a bar for each stage and the high-cost model, its share of the answers; get `ax`."""
    stages, point, f0 = system.stages_, system.operating_point_, system.high_cost_model_
    if not point.exit_shares:
        raise InputError(f"{type(system).__name__} does not say what its stages answer")
    names, colours = [], []
    for s, stage in enumerate(stages):
        limit = threshold(point.thresholds[s], 3)
        if f0 is None and s == len(stages) - 1:
            limit = "always"
        stop = f"{limit} stops" if limit in ("never", "always") else f"stops from {limit}"
        features = plural(len(stage.features), "feature")
        names.append(f"stage {s}: {features}\n{stage.model_name}, {stop}")
        colours.append(COLOURS[stage.tier])
    if f0 is not None:
        features = plural(len(f0.features), "feature")
        names.append(f"high-cost model: {features}\n{high_cost_name(f0)}")
        colours.append(COLOURS["cloud"])
    costs, count = system._exit_limits(stages), len(names)
    shown = [100 * share for share in point.exit_shares[:count]]
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
    return ax
