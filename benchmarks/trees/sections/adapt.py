"""Section on figures 4 and 5 of the Adapt paper."""

from __future__ import annotations

from benchmarks.trees.adapt import METHODS, find_lowest_cost
from benchmarks.trees.papers import ADAPT_CUTS
from benchmarks.trees.sections.tables import SAMPLE, Figures, compare_curves, error_table


def write_section(part: Figures, _parts: Figures) -> list[str]:
    """Write the section of the part `adapt`."""
    lines = [
        "## Adapt's figures 4 and 5 (NIPS 2017)",
        "",
        "The tables have errors on test rows at budgets, with the mean cost in brackets. A forest "
        "of 40 entropy trees is the high-cost model f0 of Adapt, and BudgetPrune prunes the same "
        "forest. An offloaded instance pays for the features on its own paths through f0, or for "
        "all features if f0 is a support vector machine. Adapt-GBRT has first-order trees of "
        "depth 4 and the paper's gate. The paper has only plots: Adapt-GBRT keeps the forest's "
        "accuracy longer than BudgetPrune and is more accurate than GreedyMiser. On Letters, "
        "Adapt-GBRT before the support vector machine is best and Adapt-GBRT before the forest is "
        "second, and Adapt-LIN is more accurate than the L1 baseline.",
    ]
    for problem_name, figure in part["figures"].items():
        lines += ["", f"### {problem_name}", "", *_write_figure(problem_name, figure)]
    return [*lines, "", SAMPLE]


def _write_figure(problem_name: str, figure: Figures) -> list[str]:
    """Write the table of one problem, a comparison of its curves and the saving of Adapt-GBRT."""
    curves = figure["curves"]
    gbrt_curve = curves["adapt-gbrt"]
    curves_by_title = {METHODS[method]: curve for method, curve in curves.items()}
    errors = ", ".join(f"{title} {error:.4f}" for title, error in figure["f0_error"].items())
    sentences = [
        f"Error of f0: {errors}.",
        compare_curves(
            gbrt_curve, curves["budget-prune"], "Adapt-GBRT before the forest", "BudgetPrune"
        ),
        compare_curves(gbrt_curve, curves["greedy-miser"], "Adapt-GBRT", "GreedyMiser"),
    ]
    lines = [*error_table(figure["budgets"], curves_by_title), "", " ".join(sentences)]
    cost = find_lowest_cost(gbrt_curve, figure["f0_error"]["forest"] + 0.01)
    if cost is not None:
        saving = 100 * (1 - cost / figure["f0_cost"])
        lines.append(
            f"Within 1 % of the forest's accuracy, Adapt-GBRT saves {saving:.0f} % of the "
            f"{figure['f0_cost']:.1f} features that the forest acquires (in the paper: "
            f"{100 * ADAPT_CUTS[problem_name]:.0f} %)."
        )
    return lines
