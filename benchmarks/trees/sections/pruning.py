"""Section on table 1 of the 2016 paper and figure 2 of the BudgetPrune paper."""

from __future__ import annotations

from benchmarks.harness import Column, column_table
from benchmarks.trees.papers import PRUNED
from benchmarks.trees.pruning import METHODS
from benchmarks.trees.sections.tables import SAMPLE, Figures, compare_curves, error_table


def write_section(part: Figures, _parts: Figures) -> list[str]:
    """Write the section of the part `pruning`."""
    lines = [
        '## Table 1 of "Optimally pruning decision tree ensembles with feature cost" (2016)',
        "",
        "The table has the mean cost and error on test rows, ± standard deviation over seeds, of "
        "BudgetRF's trees (alpha 0, exact thresholds), unpruned and pruned. Low and high are the "
        "cheapest prunings that lose no more on validation rows than the paper's prunings lose on "
        "its test rows. The paper matches test errors instead, so costs at its own error levels "
        "may differ.",
    ]
    for problem_name, table in part["tables"].items():
        lines += ["", f"### {problem_name}, {table['trees']} trees", ""]
        lines += column_table(POINT_COLUMNS, _compare_with_paper(problem_name, table["points"]))
    lines += [
        "",
        f"{SAMPLE} It is not known which rows of Forest the paper used. Heart and Sonar have "
        "10-fold cross-validation, and a fifth of each fold's training rows chooses the prunings. "
        "These are about 49 and 38 rows, whose errors have steps of 0.02 and 0.03, so the levels "
        "are coarse. *On test* means that the test rows of each run (27 and 21) choose the "
        "cheapest pruning that loses no more there. Only then do Sonar's costs equal the paper's "
        "at the low level and come near them at the high level. A device cannot choose in this "
        "way.",
        "",
        "## BudgetPrune's figure 2 (NIPS 2016)",
        "",
        "The tables have errors on test rows at budgets. A budget is a mean number of features on "
        "validation rows, and the prunings minimise costs on these rows, as in the paper. The "
        "paper has only plots and says that 18 features are as good as 40 on MiniBooNE. The exact "
        "frontier contains the optima for all prices, with gaps between them. A budget in a gap "
        "gets the pruning below it, and a baseline can be better on test rows. `BudgetPrune` fills "
        "gaps with the baselines' prunings.",
    ]
    for problem_name, figure in part["figures"].items():
        lines += _write_figure(problem_name, figure)
    return lines


def _compare_with_paper(problem_name: str, points: Figures) -> list[Figures]:
    """Join each point with the paper's cost and error, and with shares of the unpruned cost."""
    paper = PRUNED[problem_name]
    rows: list[Figures] = []
    for title, point in points.items():
        paper_point = paper[title.removesuffix(" on test")]
        rows.append(
            {
                **point,
                "title": title,
                "cost_share": point["cost"] / points["unpruned"]["cost"],
                "paper_cost": paper_point.cost,
                "paper_cost_share": paper_point.cost / paper["unpruned"].cost,
                "paper_error": paper_point.error,
            }
        )
    return rows


#: Table 1 of 2016; a row is a point with the paper's figures.
POINT_COLUMNS = (
    Column("", lambda row: row["title"]),
    Column("cost", lambda row: f"{row['cost']:.2f} ± {row['cost_sd']:.2f}"),
    Column("of unpruned", lambda row: f"{100 * row['cost_share']:.0f} %"),
    Column("error", lambda row: f"{row['error']:.4f} ± {row['error_sd']:.4f}"),
    Column("the paper's cost", lambda row: f"{row['paper_cost']:.2f}"),
    Column("of unpruned", lambda row: f"{100 * row['paper_cost_share']:.0f} %"),
    Column("error", lambda row: f"{row['paper_error']:.4f}"),
)


def _write_figure(problem_name: str, figure: Figures) -> list[str]:
    """Write figure 2 of one problem: its plot, its table and a comparison of its curves."""
    unpruned = figure["unpruned"]
    curves = figure["curves"]
    aware_sentence = compare_curves(
        curves["aware"], curves["ensemble"], "cost-aware growth plus pruning", "plain pruning"
    )
    ensemble_sentence = compare_curves(
        curves["ensemble"], curves["per-tree"], "ensemble pruning", "per-tree pruning"
    )
    objective = figure["objective"]
    return [
        "",
        f"### {problem_name}",
        "",
        f"![error against cost](trees-{problem_name}.svg)",
        "",
        *error_table(
            figure["budgets"], {METHODS[method]: curve for method, curve in curves.items()}
        ),
        "",
        f"Unpruned: cost {unpruned['cost']:.2f}, error {unpruned['error']:.4f}. "
        f"{aware_sentence} {ensemble_sentence} "
        f"At {objective['prices']} prices, the objective of per-tree pruning minus that of "
        f"ensemble pruning is at least {objective['least_advantage']:.1e}; a negative number would "
        "be a defect.",
    ]
