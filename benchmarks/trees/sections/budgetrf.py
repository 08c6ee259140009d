"""Section on table 1 of the BudgetRF paper, and on fit times."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.harness import table_lines
from benchmarks.trees.growth import FOREST_KINDS
from benchmarks.trees.papers import BUDGETRF
from benchmarks.trees.sections.tables import SAMPLE, Figures, verdict

#: Remark on the rows of Forest.
FOREST_ROWS = (
    "It is not known which 110,392 of Forest's 581,012 rows the papers used. Ours are drawn with a "
    "fixed seed, so errors differ. The paper of 2015 has 7 cover types and later papers have two "
    "classes; both are shown."
)
#: Aim: percentage of the features that BudgetForest with exact thresholds acquires on Forest.
MAX_FOREST_PERCENTAGE = 27


def write_section(part: Figures, _parts: Figures) -> list[str]:
    """Write the section of the part `budgetrf`."""
    lines = [
        "## BudgetRF's table 1 (ICML 2015)",
        "",
        "Cells have the share of all features that an instance acquires, in percent, and in "
        "brackets the error of the majority vote. Both are means over seeds on test rows. The "
        "paper's figures are means of 10 runs.",
    ]
    for problem_name, table in part["tables"].items():
        lines += ["", f"### {problem_name}", "", *_forest_table(problem_name, table)]
    forest = part["tables"].get("forest-bin")
    if forest is not None:
        percentage = 100 * forest["kinds"]["exact"][-1]["cost_share"]
        lines += [
            "",
            f"Exact thresholds on Forest, 40 trees: {percentage:.1f} % of the features (aim: at "
            f"most {MAX_FOREST_PERCENTAGE} %, {verdict(percentage <= MAX_FOREST_PERCENTAGE)}).",
        ]
    return [
        *lines,
        "",
        f"{FOREST_ROWS} {SAMPLE} The paper grows its forests with Matlab, and we use scikit-learn.",
        "",
        _fit_times(part["seconds"]),
    ]


def _forest_table(problem_name: str, table: Figures) -> list[str]:
    """Write the table of one problem: kinds of forests, each above the paper's figures for it."""
    paper = BUDGETRF["forest" if problem_name.startswith("forest") else problem_name]
    rows = []
    for kind, figures in table["kinds"].items():
        percentages = [100 * row["cost_share"] for row in figures]
        errors = [row["vote_error"] for row in figures]
        last_mean_error = f"{figures[-1]['mean_error']:.4f}"
        rows.append([FOREST_KINDS[kind], *_write_cells(percentages, errors), last_mean_error])
        paper_figures = paper.get(kind, ())
        if len(paper_figures) == len(figures):
            percentages, errors = map(list, zip(*paper_figures, strict=True))
            rows.append(["*the paper's*", *_write_cells(percentages, errors), ""])
    tree_counts = [row["trees"] for row in next(iter(table["kinds"].values()))]
    header = ["", *(f"{n_trees} trees" for n_trees in tree_counts), "averaged, last"]
    return table_lines(header, rows)


def _write_cells(percentages: Sequence[float], errors: Sequence[float]) -> list[str]:
    """Write percentages of the features, with errors in brackets."""
    return [
        f"{percentage:.2f} ({error:.4f})"
        for percentage, error in zip(percentages, errors, strict=True)
    ]


def _fit_times(times: Figures) -> str:
    seconds = {grower: figures["median"] for grower, figures in times["cpu"].items()}
    return (
        f"To fit {times['trees']} trees on {times['rows']:,} rows, "
        f"BudgetForest with exact thresholds takes {seconds['exact']:.2f} CPU s, which includes "
        "the figures of all operating points. RandomForestClassifier on all features takes "
        f"{seconds['rf-all']:.2f} (entropy) and {seconds['rf-all-gini']:.2f} (Gini). The aim is "
        f"to be faster ({verdict(seconds['exact'] < seconds['rf-all'])})."
    )
