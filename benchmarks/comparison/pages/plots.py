"""Plots of accuracy against cost, one for each problem."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.comparison.pages.cell_texts import OURS, metric_name


def plot(name: str, problem_figures: Mapping[str, Any], path: Path) -> None:
    """Draw accuracy against cost on test rows as an SVG with one line per method."""
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    with mpl.rc_context({"svg.hashsalt": name, "svg.fonttype": "none", "font.size": 8}):
        figure = Figure(figsize=(6.8, 3.6), layout="constrained")
        axes = figure.subplots()
        colours = [mpl.colormaps["tab20"](colour_number) for colour_number in range(20)]
        axes.set_prop_cycle(color=colours[::2] + colours[1::2])  # dark colours first
        lowest_accuracy = 1.0
        for method, method_figures in problem_figures["methods"].items():
            # a logarithmic axis cannot show a cost of 0
            points = [point for point in method_figures["at_budgets"] if point["cost"]["mean"] > 0]
            cost_shares = [
                point["cost"]["mean"] / problem_figures["full_price"] for point in points
            ]
            accuracies = [point["accuracy"]["mean"] for point in points]
            errors = [point["accuracy"]["error"] or 0.0 for point in points]
            if method == "f0":
                axes.axhline(
                    accuracies[-1], color="grey", lw=0.8, ls=":", label="f0, at the full price"
                )
                continue
            lowest_accuracy = min([lowest_accuracy, *accuracies])
            axes.errorbar(
                cost_shares,
                accuracies,
                errors,
                marker=".",
                ms=4,
                lw=2.0 if method == OURS else 1.0,
                # dashed lines for peers, because there are more methods than dark colours
                ls="-" if method.startswith((OURS, "adapt")) else "--",
                capsize=2,
                label=method,
            )
        top_accuracy = problem_figures["top_accuracy"]
        axes.axhspan(top_accuracy - 0.01, top_accuracy, color="green", alpha=0.08, lw=0)
        axes.set(
            xscale="log",
            xlabel="mean cost per instance, share of the full price",
            ylabel=f"{metric_name(problem_figures)} on test rows",
            title=problem_figures["title"],
            ylim=(max(lowest_accuracy - 0.01, top_accuracy - 0.3), top_accuracy + 0.01),
        )
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g} %"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.grid(alpha=0.25)
        figure.legend(frameon=False, fontsize=7, loc="outside right upper")
        figure.savefig(path, metadata={"Date": None})
