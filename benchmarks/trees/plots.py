"""Plots of error against cost, for figure 2 of the BudgetPrune paper."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.trees.pruning import METHODS


def plot(problem_name: str, figure: Mapping[str, Any], path: Path) -> None:
    """Draw error against cost on test rows as an SVG with one line per method."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.hashsalt": problem_name, "svg.fonttype": "none", "font.size": 8}):
        drawing = Figure(figsize=(5.6, 3.6), layout="constrained")
        axes = drawing.subplots()
        for method, points in figure["curves"].items():
            paid_points = [point for point in points if point is not None and point["cost"] > 0]
            axes.plot(
                [point["cost"] for point in paid_points],
                [point["error"] for point in paid_points],
                marker=".",
                ms=4,
                lw=2.0 if method == "aware" else 1.0,
                label=METHODS[method],
            )
        axes.axhline(figure["unpruned"]["error"], color="grey", lw=0.8, ls=":", label="unpruned")
        axes.set(xlabel="mean number of features per instance", ylabel="error on test rows")
        axes.set(title=problem_name)
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, fontsize=7)
        drawing.savefig(path, metadata={"Date": None})
