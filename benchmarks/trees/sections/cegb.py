"""Section on figures 2 and 3b of the paper on cost-efficient gradient boosting (CEGB)."""

from __future__ import annotations

from benchmarks.trees import cegb, pruning
from benchmarks.trees.sections.tables import SAMPLE, Figures, compare_curves, error_table


def write_section(part: Figures, parts: Figures) -> list[str]:
    """Write the section of the part `cegb`; curves of the part `pruning` are also compared."""
    lines = [
        "## CEGB's figures 2 and 3b (NIPS 2017)",
        "",
        "The tables have errors on test rows at budgets, with the mean cost in brackets. Trees "
        "cost nothing. The paper has only plots: CEGB lies below GreedyMiser and BudgetPrune "
        "everywhere, and best-first growth lies below breadth-first growth (figure 3b, on Yahoo, "
        "which is not available).",
    ]
    pruning_figures = parts.get("pruning", {}).get("figures", {})
    for problem_name, figure in part["figures"].items():
        pruning_figure = pruning_figures.get(problem_name)
        # the part `pruning` may have been run with other budgets
        if pruning_figure is not None and pruning_figure["budgets"] != figure["budgets"]:
            pruning_figure = None
        lines += ["", f"### {problem_name}", "", *_write_figure(figure, pruning_figure)]
    return [
        *lines,
        "",
        f"{SAMPLE} Figure 3b of the paper is on Yahoo, with other trees, which may be why "
        "breadth-first growth is sometimes better here. A sweep of penalties does not reach every "
        "budget exactly; a method then uses its next cheaper model.",
    ]


def _write_figure(figure: Figures, pruning_figure: Figures | None) -> list[str]:
    """Write the table of one problem and a comparison of its curves."""
    curves = figure["curves"]
    curves_by_title = {cegb.METHODS[method]: curve for method, curve in curves.items()}
    sentences = [
        compare_curves(curves["lazy"], curves["miser"], "CEGB with lazy prices", "GreedyMiser"),
        compare_curves(
            curves["lazy-16-best"],
            curves["lazy-16-breadth"],
            "best-first growth",
            "breadth-first growth of the same leaves and rounds",
        ),
    ]
    if pruning_figure is not None:
        ensemble_curve = pruning_figure["curves"]["ensemble"]
        curves_by_title["BudgetPrune: " + pruning.METHODS["ensemble"]] = ensemble_curve
        sentences.append(compare_curves(curves["lazy"], ensemble_curve, "lazy CEGB", "BudgetPrune"))
    return [*error_table(figure["budgets"], curves_by_title), "", " ".join(sentences)]
