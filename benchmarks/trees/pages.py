"""Page and plots of budgeted trees, from trees.json and the figures of the papers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.trees import adapt, cegb, further_pages, growth, maxflow, pruning
from benchmarks.trees.page_tables import compare, error_table
from benchmarks.trees.papers import ADAPT_CUTS, BUDGETRF, PRUNED

Section = Mapping[str, Any]

#: Remarks on the sample of MiniBooNE and on the rows of Forest, which several sections repeat.
SAMPLE = (
    "`mbne_tiny` is the authors' sample of 5,000 rows of MiniBooNE, whereas their table used "
    "45,523 training rows. Errors are higher on the sample and cannot be compared with the paper's."
)
FOREST = (
    "It is not known which 110,392 of Forest's 581,012 rows the papers used. Ours are drawn with a "
    "fixed seed, so errors differ. The paper of 2015 has 7 cover types and later papers have two "
    "classes; both are shown."
)


def markdown(document: Section) -> str:
    """Write the page from the content of trees.json."""
    sections = document["parts"]
    lines = [
        "# Budgeted trees",
        "",
        "`make bench-trees` writes this page; all figures and settings are in `trees.json`. "
        "Validation rows choose every operating point, and test rows are only reported. All "
        "measurements have one thread, and times are CPU seconds.",
    ]
    for name, write in PAGES.items():
        if name not in sections:
            lines += ["", f"The part `{name}` has not been run."]
            continue
        lines += ["", *write(sections[name], sections)]
        if sections[name]["quick"]:
            lines += ["", "This was a quick run on few rows."]
    versions = {
        f"{package} {version}"
        for section in sections.values()
        for package, version in section["versions"].items()
    }
    lines += ["", "Versions: " + ", ".join(sorted(versions)) + "."]
    return "\n".join(lines) + "\n"


# -- what pruning costs ------------------------------------------------------------------------


def _timing(section: Section, _parts: Section) -> list[str]:
    frontier, single, size = section["frontier"], section["single"], section["problem"]
    lines = [
        "## What exact pruning costs",
        "",
        f"Forest has {section['forest']['trees']} entropy trees of full depth on all features. "
        f"{size['instances']:,} validation instances make {size['uses']:,} first uses of features "
        f"in {size['purchases']:,} purchases; {size['reduced_uses']:,} uses are left after the "
        "reductions.",
        "",
        "| | | aim | |",
        "| --- " * 4 + "|",
        _row("the complete frontier, CPU s", f"{frontier['cpu']:.2f}", "20", frontier["cpu"] <= 20),
        _row("its peak memory, GB", f"{frontier['peak_gb']:.2f}", "1", frontier["peak_gb"] <= 1),
        f"| held before it (data, libraries, forest), GB | {frontier['before_gb']:.2f} | | |",
        f"| its breakpoints | {frontier['breakpoints']} | | |",
        f"| setting the problem up, CPU s | {size['build_cpu']:.2f} | | |",
        _row(
            f"{single['solves']} separate solves on a geometric grid, CPU s",
            f"{single['cpu']:.1f}, {single['ratio']:.1f} times the frontier",
            "10 times",
            single["ratio"] >= 10,
        ),
        "",
        f"Objectives of the single solves and of the frontier differ by at most "
        f"{single['largest_difference']:.1e}.",
        "",
        "Both solvers get the reduced problem of one price in turn:",
        "",
        "| share of the whole cost kept | ours | OR-tools' maximum flow | making its graph | |",
        "| --- " * 5 + "|",
    ]
    lines += [_cut_row(cut) for cut in section["cuts"]]
    lines += [
        "",
        "OR-tools computes with integers, and its cuts equal ours except for this rounding. The "
        "next table has times of all solvers for one price, which keeps half of the cost. The "
        "problems are as large as HiGHS can solve within 150 s.",
        "",
        "| trees | instances | first uses | min cut | HiGHS | Dantzig-Wolfe | primal-dual | gap |",
        "| --- " * 8 + "|",
    ]
    lines += [_solver_row(row) for row in section["solvers"]]
    solved = [row for row in section["solvers"] if row["highs"] and "ratio" in row["highs"]]
    if solved:
        largest = solved[-1]
        ratio = largest["highs"]["ratio"]
        verdict = "met" if ratio >= 100 else "missed"
        lines += [
            "",
            f"On the largest problem that HiGHS solved ({largest['trees']} trees, "
            f"{largest['instances']:,} instances), the cut is {ratio:.0f} times faster (aim: 100, "
            f"{verdict}).",
        ]
    return [
        *lines,
        "",
        "The paper (NIPS 2016) says that its network flow by CPLEX takes minutes and that LP "
        "solvers take hours. It has no figures to compare with.",
    ]


def _cut_row(cut: Section) -> str:
    """Write the table row of one price with the times of this project's cut and of OR-tools."""
    start = f"| {cut['share']:.0%} | {cut['cpu']:.3f} |"
    if "ortools_cpu" not in cut:
        return f"{start} {maxflow.MISSING} | | |"
    ratio = cut["ortools_cpu"] / max(cut["cpu"], 1e-9)
    return f"{start} {cut['ortools_cpu']:.3f} | {cut['ortools_build_cpu']:.3f} | {_times(ratio)} |"


def _solver_row(row: Section) -> str:
    """Write the table row of one price with the times of all solvers."""
    solvers = [_solver_cell(row[name]) for name in ("highs", "dantzig_wolfe", "primal_dual")]
    dual = row["primal_dual"]
    cells = [
        str(row["trees"]),
        f"{row['instances']:,}",
        f"{row['uses']:,}",
        f"{row['cut_cpu']:.4f}",
        *solvers,
        f"{dual['gap']:.1e}" if dual else "",
    ]
    return f"| {' | '.join(cells)} |"


def _row(title: str, figure: str, aim: str, is_met: bool) -> str:
    return f"| {title} | {figure} | {aim} | {'met' if is_met else 'missed'} |"


def _times(ratio: float) -> str:
    return f"ours {ratio:.1f} times faster" if ratio >= 1 else f"ours {1 / ratio:.1f} times slower"


def _solver_cell(solution: Section | None) -> str:
    if solution is None:
        return "not tried"
    if "stopped" in solution:
        return "stopped at the limit"
    return f"{solution['cpu']:.2f} ({solution['ratio']:.0f}x)"


# -- BudgetRF ----------------------------------------------------------------------------------


def _budgetrf(section: Section, _parts: Section) -> list[str]:
    seconds = {grower: figure["median"] for grower, figure in section["seconds"]["cpu"].items()}
    lines = [
        "## BudgetRF's table 1 and figure 3 (ICML 2015)",
        "",
        "Cells have the share of all features that an instance acquires, in percent, and in "
        "brackets the error of the majority vote. Both are means over seeds on test rows. The "
        "paper's figures are means of 10 runs.",
    ]
    for name, table in section["tables"].items():
        rows = next(iter(table["kinds"].values()))
        lines += [
            "",
            f"### {name}",
            "",
            "| | " + " | ".join(f"{row['trees']} trees" for row in rows) + " | averaged, last |",
            "| --- " * (len(rows) + 2) + "|",
        ]
        paper = BUDGETRF["forest" if name.startswith("forest") else name]
        for kind, rows in table["kinds"].items():
            cells = [f"{100 * row['cost_share']:.2f} ({row['vote_error']:.4f})" for row in rows]
            title = growth.FOREST_KINDS[kind]
            lines.append(f"| {title} | {' | '.join(cells)} | {rows[-1]['mean_error']:.4f} |")
            if kind in paper and len(rows) == len(paper[kind]):
                paper_cells = [f"{cost:.2f} ({error:.4f})" for cost, error in paper[kind]]
                lines.append(f"| *the paper's* | {' | '.join(paper_cells)} | |")
    forest = section["tables"].get("forest-bin")
    if forest is not None:
        share = 100 * forest["kinds"]["exact"][-1]["cost_share"]
        verdict = "met" if share <= 27 else "missed"
        lines += [
            "",
            f"Exact thresholds on Forest, 40 trees: {share:.1f} % of the features (aim: at most "
            f"27 %, {verdict}).",
        ]
    faster_verdict = "met" if seconds["exact"] < seconds["rf-all"] else "missed"
    return [
        *lines,
        "",
        f"{FOREST} {SAMPLE} The paper grows its forests with Matlab, and we use scikit-learn.",
        "",
        f"To fit {section['seconds']['trees']} trees on {section['seconds']['rows']:,} rows, "
        f"BudgetForest with exact thresholds takes {seconds['exact']:.2f} CPU s, which includes "
        "the figures of all operating points. RandomForestClassifier on all features takes "
        f"{seconds['rf-all']:.2f} (entropy) and {seconds['rf-all-gini']:.2f} (Gini). The aim is "
        f"to be faster ({faster_verdict}).",
        *further_pages.budget_rf(section),
    ]


# -- pruning -----------------------------------------------------------------------------------


def _pruning(section: Section, _parts: Section) -> list[str]:
    lines = [
        '## Table 1 of "Optimally pruning decision tree ensembles with feature cost" (2016)',
        "",
        "The table has the mean cost and error on test rows, ± standard deviation over seeds, of "
        "BudgetRF's trees (alpha 0, exact thresholds), unpruned and pruned. Low and high are the "
        "cheapest prunings that lose no more on validation rows than the paper's prunings lose on "
        "its test rows. The paper matches test errors instead, so costs at its own error levels "
        "may differ.",
    ]
    for name, table in section["tables"].items():
        lines += [
            "",
            f"### {name}, {table['trees']} trees",
            "",
            "| | cost | of unpruned | error | the paper's cost | of unpruned | error |",
            "| --- " * 7 + "|",
        ]
        unpruned_cost, paper = table["points"]["unpruned"]["cost"], PRUNED[name]
        for key, point in table["points"].items():
            cost, error = paper[key.removesuffix(" on test")]
            lines.append(
                f"| {key} | {point['cost']:.2f} ± {point['cost_sd']:.2f} "
                f"| {100 * point['cost'] / unpruned_cost:.0f} % | {point['error']:.4f} ± "
                f"{point['error_sd']:.4f} | {cost:.2f} | "
                f"{100 * cost / paper['unpruned'][0]:.0f} % | {error:.4f} |"
            )
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
    for name, figure in section["figures"].items():
        lines += _pruning_figure(name, figure)
    return lines


def _pruning_figure(name: str, figure: Section) -> list[str]:
    """Write the section of one data set with its plot, table and comparison of curves."""
    unpruned = figure["unpruned"]
    curves = figure["curves"]
    aware_sentence = compare(
        curves["aware"], curves["ensemble"], "cost-aware growth plus pruning", "plain pruning"
    )
    ensemble_sentence = compare(
        curves["ensemble"], curves["per-tree"], "ensemble pruning", "per-tree pruning"
    )
    objective = figure["objective"]
    return [
        "",
        f"### {name}",
        "",
        f"![error against cost](trees-{name}.svg)",
        "",
        *error_table(
            figure["budgets"], {pruning.METHODS[method]: curve for method, curve in curves.items()}
        ),
        "",
        f"Unpruned: cost {unpruned['cost']:.2f}, error {unpruned['error']:.4f}. "
        f"{aware_sentence} {ensemble_sentence} "
        f"At {objective['prices']} prices, the objective of per-tree pruning minus that of "
        f"ensemble pruning is at least {objective['least_advantage']:.1e}; a negative number would "
        "be a defect.",
    ]


# -- CEGB --------------------------------------------------------------------------------------


def _cegb(section: Section, parts: Section) -> list[str]:
    lines = [
        "## CEGB's figures 2, 3 and 4 (NIPS 2017)",
        "",
        "The tables have errors on test rows at budgets, with the mean cost in brackets. Trees "
        "cost nothing. The paper has only plots: CEGB lies below GreedyMiser and BudgetPrune "
        "everywhere, and best-first growth lies below breadth-first growth (figure 3b, on Yahoo, "
        "which is not available).",
    ]
    pruned = parts.get("pruning", {}).get("figures", {})
    for name, figure in section["figures"].items():
        curves = figure["curves"]
        named_curves = {cegb.METHODS[method]: curve for method, curve in curves.items()}
        pruned_curves = pruned.get(name, {"quick": True, "budgets": None})
        if pruned_curves["budgets"] == figure["budgets"]:
            named_curves["BudgetPrune: " + pruning.METHODS["ensemble"]] = pruned_curves["curves"][
                "ensemble"
            ]
        lines += ["", f"### {name}", "", *error_table(figure["budgets"], named_curves), ""]
        sentences = [
            compare(curves["lazy"], curves["miser"], "CEGB with lazy prices", "GreedyMiser"),
            compare(
                curves["lazy-16-best"],
                curves["lazy-16-breadth"],
                "best-first growth",
                "breadth-first growth of the same leaves and rounds",
            ),
        ]
        if pruned_curves["budgets"] == figure["budgets"]:
            ensemble = pruned_curves["curves"]["ensemble"]
            sentences.append(compare(curves["lazy"], ensemble, "lazy CEGB", "BudgetPrune"))
        lines.append(" ".join(sentences))
    return [
        *lines,
        "",
        f"{SAMPLE} Figure 3b of the paper is on Yahoo, with other trees, which may be why "
        "breadth-first growth is sometimes better here. A sweep of penalties does not reach every "
        "budget exactly; a method then uses its next cheaper model.",
        *further_pages.cegb(section),
    ]


# -- Adapt -------------------------------------------------------------------------------------


def _adapt(section: Section, _parts: Section) -> list[str]:
    lines = [
        "## Adapt's figures 2, 4 and 5 (NIPS 2017)",
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
    for name, figure in section["figures"].items():
        curves = figure["curves"]
        titles = {adapt.METHODS[method]: curve for method, curve in curves.items()}
        lines += ["", f"### {name}", "", *error_table(figure["budgets"], titles), ""]
        errors = ", ".join(f"{title} {error:.4f}" for title, error in figure["f0_error"].items())
        ours, pruned = curves["adapt-gbrt"], curves["budget-prune"]
        cost = adapt.find_lowest_cost(ours, figure["f0_error"]["forest"] + 0.01)
        lines.append(
            f"Error of f0: {errors}. "
            + compare(ours, pruned, "Adapt-GBRT before the forest", "BudgetPrune")
            + " "
            + compare(ours, curves["greedy-miser"], "Adapt-GBRT", "GreedyMiser")
        )
        if cost is not None:
            share = 100 * (1 - cost / figure["f0_cost"])
            lines.append(
                f"Within 1 % of the forest's accuracy, Adapt-GBRT saves {share:.0f} % of the "
                f"{figure['f0_cost']:.1f} features that the forest acquires (in the paper: "
                f"{100 * ADAPT_CUTS[name]:.0f} %)."
            )
    return [*lines, "", SAMPLE, *further_pages.adapt(section["synthetic"])]


PAGES = {
    "timing": _timing,
    "budgetrf": _budgetrf,
    "pruning": _pruning,
    "budgetprune": further_pages.budget_prune,
    "cegb": _cegb,
    "adapt": _adapt,
}


def plot(name: str, figure: Section, path: Path) -> None:
    """Draw error against cost on test rows as an SVG with one line per method."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.hashsalt": name, "svg.fonttype": "none", "font.size": 8}):
        drawing = Figure(figsize=(5.6, 3.6), layout="constrained")
        axes = drawing.subplots()
        for method, points in figure["curves"].items():
            paid_points = [point for point in points if point is not None and point["cost"] > 0]
            costs, errors = (
                [point["cost"] for point in paid_points],
                [point["error"] for point in paid_points],
            )
            line_width = 2.0 if method == "aware" else 1.0
            title = pruning.METHODS[method]
            axes.plot(costs, errors, marker=".", ms=4, lw=line_width, label=title)
        axes.axhline(figure["unpruned"]["error"], color="grey", lw=0.8, ls=":", label="unpruned")
        axes.set(xlabel="mean number of features per instance", ylabel="error on test rows")
        axes.set(title=name)
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, fontsize=7)
        drawing.savefig(path, metadata={"Date": None})
