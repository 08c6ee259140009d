"""Page and plots of budgeted trees, from trees.json and the figures of the papers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import table_lines
from benchmarks.trees import adapt, cegb, growth, pruning
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


def page(document: Section) -> list[str]:
    """Write the page from the content of trees.json."""
    sections = document["parts"]
    lines = [
        "# Budgeted trees",
        "",
        "`make bench-trees` writes this page; all figures and settings are in `trees.json`. "
        "Validation rows choose every operating point, and test rows are only reported. All "
        "measurements have one thread, and times are CPU seconds. [Smaller tables and "
        "figures](trees_further.md) were measured once.",
    ]
    for name, write in SECTIONS.items():
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
    return [*lines, "", "Versions: " + ", ".join(sorted(versions)) + "."]


def error_table(
    budgets: Sequence[float], curves: Mapping[str, Sequence[Section | None]]
) -> list[str]:
    """Write a table of errors, with test costs in brackets; the lowest error per budget is bold."""
    lowest_errors = [
        min((point["error"] for point in column if point is not None), default=None)
        for column in zip(*curves.values(), strict=True)
    ]
    rows = []
    for title, points in curves.items():
        cells = []
        for point, lowest_error in zip(points, lowest_errors, strict=True):
            if point is None:
                cells.append("")
                continue
            mark = "**" if point["error"] == lowest_error else ""
            cells.append(f"{mark}{point['error']:.4f}{mark} ({point['cost']:.1f})")
        rows.append([title, *cells])
    return table_lines(["budget", *(f"{budget:g}" for budget in budgets)], rows)


def compare(
    first: Sequence[Section | None],
    second: Sequence[Section | None],
    first_name: str,
    second_name: str,
) -> str:
    """Write at how many budgets the `first` curve has a lower test error than the `second`."""
    gaps = [
        first_point["error"] - second_point["error"]
        for first_point, second_point in zip(first, second, strict=True)
        if first_point is not None and second_point is not None
    ]
    n_lower, n_higher = sum(gap < -1e-9 for gap in gaps), sum(gap > 1e-9 for gap in gaps)
    largest_gap_text = f", by at most {100 * max(gaps):.3f} points" if n_higher else ""
    return (
        f"On test rows {first_name} has a lower error than {second_name} at {n_lower} of "
        f"{len(gaps)} budgets, a higher one at {n_higher}{largest_gap_text}."
    )


# -- what pruning costs ------------------------------------------------------------------------


def _timing(section: Section, _parts: Section) -> list[str]:
    frontier, single, size = section["frontier"], section["single"], section["problem"]
    rows = [
        (
            "the complete frontier, CPU s",
            f"{frontier['cpu']:.2f}",
            "20",
            _verdict(frontier["cpu"] <= 20),
        ),
        (
            "its peak memory, GB",
            f"{frontier['peak_gb']:.2f}",
            "1",
            _verdict(frontier["peak_gb"] <= 1),
        ),
        ("held before it (data, libraries, forest), GB", f"{frontier['before_gb']:.2f}", "", ""),
        ("its breakpoints", f"{frontier['breakpoints']}", "", ""),
        ("setting the problem up, CPU s", f"{size['build_cpu']:.2f}", "", ""),
        (
            f"{single['solves']} separate solves on a geometric grid, CPU s",
            f"{single['cpu']:.1f}, {single['ratio']:.1f} times the frontier",
            "10 times",
            _verdict(single["ratio"] >= 10),
        ),
    ]
    solver_header = ("trees", "instances", "first uses", "min cut", "HiGHS", "Dantzig-Wolfe")
    lines = [
        "## What exact pruning costs",
        "",
        f"Forest has {section['forest']['trees']} entropy trees of full depth on all features. "
        f"{size['instances']:,} validation instances make {size['uses']:,} first uses of features "
        f"in {size['purchases']:,} purchases; {size['reduced_uses']:,} uses are left after the "
        "reductions.",
        "",
        *table_lines(("", "", "aim", ""), rows),
        "",
        f"Objectives of the single solves and of the frontier differ by at most "
        f"{single['largest_difference']:.1e}.",
        "",
        "The next table has times of all solvers for one price, which keeps half of the cost. The "
        "problems are as large as HiGHS can solve within 150 s.",
        "",
        *table_lines((*solver_header, "primal-dual", "gap"), map(_solver_row, section["solvers"])),
    ]
    solved = [row for row in section["solvers"] if row["highs"] and "ratio" in row["highs"]]
    if solved:
        ratio = solved[-1]["highs"]["ratio"]
        lines += [
            "",
            f"On the largest problem that HiGHS solved ({solved[-1]['trees']} trees, "
            f"{solved[-1]['instances']:,} instances), the cut is {ratio:.0f} times faster (aim: "
            f"100, {_verdict(ratio >= 100)}).",
        ]
    return [
        *lines,
        "",
        "The paper (NIPS 2016) says that its network flow by CPLEX takes minutes and that LP "
        "solvers take hours. It has no figures to compare with.",
    ]


def _solver_row(row: Section) -> list[str]:
    """Make the table row of one price with the times of all solvers."""
    cells = [
        str(row["trees"]),
        f"{row['instances']:,}",
        f"{row['uses']:,}",
        f"{row['cut_cpu']:.4f}",
    ]
    for name in ("highs", "dantzig_wolfe", "primal_dual"):
        solution = row[name]
        if solution is None:
            cells.append("not tried")
        elif "stopped" in solution:
            cells.append("stopped at the limit")
        else:
            cells.append(f"{solution['cpu']:.2f} ({solution['ratio']:.0f}x)")
    dual = row["primal_dual"]
    return [*cells, f"{dual['gap']:.1e}" if dual else ""]


def _verdict(is_met: bool) -> str:
    return "met" if is_met else "missed"


# -- BudgetRF ----------------------------------------------------------------------------------


def _budgetrf(section: Section, _parts: Section) -> list[str]:
    seconds = {grower: figure["median"] for grower, figure in section["seconds"]["cpu"].items()}
    lines = [
        "## BudgetRF's table 1 (ICML 2015)",
        "",
        "Cells have the share of all features that an instance acquires, in percent, and in "
        "brackets the error of the majority vote. Both are means over seeds on test rows. The "
        "paper's figures are means of 10 runs.",
    ]
    for name, table in section["tables"].items():
        tree_counts = [row["trees"] for row in next(iter(table["kinds"].values()))]
        paper = BUDGETRF["forest" if name.startswith("forest") else name]
        rows = []
        for kind, figures in table["kinds"].items():
            cells = [f"{100 * row['cost_share']:.2f} ({row['vote_error']:.4f})" for row in figures]
            rows.append([growth.FOREST_KINDS[kind], *cells, f"{figures[-1]['mean_error']:.4f}"])
            if len(paper.get(kind, ())) == len(figures):
                cells = [f"{cost:.2f} ({error:.4f})" for cost, error in paper[kind]]
                rows.append(["*the paper's*", *cells, ""])
        header = ["", *(f"{n_trees} trees" for n_trees in tree_counts), "averaged, last"]
        lines += ["", f"### {name}", "", *table_lines(header, rows)]
    forest = section["tables"].get("forest-bin")
    if forest is not None:
        share = 100 * forest["kinds"]["exact"][-1]["cost_share"]
        lines += [
            "",
            f"Exact thresholds on Forest, 40 trees: {share:.1f} % of the features (aim: at most "
            f"27 %, {_verdict(share <= 27)}).",
        ]
    return [
        *lines,
        "",
        f"{FOREST} {SAMPLE} The paper grows its forests with Matlab, and we use scikit-learn.",
        "",
        f"To fit {section['seconds']['trees']} trees on {section['seconds']['rows']:,} rows, "
        f"BudgetForest with exact thresholds takes {seconds['exact']:.2f} CPU s, which includes "
        "the figures of all operating points. RandomForestClassifier on all features takes "
        f"{seconds['rf-all']:.2f} (entropy) and {seconds['rf-all-gini']:.2f} (Gini). The aim is "
        f"to be faster ({_verdict(seconds['exact'] < seconds['rf-all'])}).",
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
        unpruned_cost, paper = table["points"]["unpruned"]["cost"], PRUNED[name]
        rows = []
        for key, point in table["points"].items():
            cost, error = paper[key.removesuffix(" on test")]
            rows.append(
                (
                    key,
                    f"{point['cost']:.2f} ± {point['cost_sd']:.2f}",
                    f"{100 * point['cost'] / unpruned_cost:.0f} %",
                    f"{point['error']:.4f} ± {point['error_sd']:.4f}",
                    f"{cost:.2f}",
                    f"{100 * cost / paper['unpruned'][0]:.0f} %",
                    f"{error:.4f}",
                )
            )
        columns = ("cost", "of unpruned", "error")
        header = ("", *columns, "the paper's cost", *columns[1:])
        lines += ["", f"### {name}, {table['trees']} trees", "", *table_lines(header, rows)]
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
        "## CEGB's figures 2 and 3b (NIPS 2017)",
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
        # the part `pruning` may have been run with other budgets
        is_comparable = name in pruned and pruned[name]["budgets"] == figure["budgets"]
        sentences = [
            compare(curves["lazy"], curves["miser"], "CEGB with lazy prices", "GreedyMiser"),
            compare(
                curves["lazy-16-best"],
                curves["lazy-16-breadth"],
                "best-first growth",
                "breadth-first growth of the same leaves and rounds",
            ),
        ]
        if is_comparable:
            ensemble = pruned[name]["curves"]["ensemble"]
            named_curves["BudgetPrune: " + pruning.METHODS["ensemble"]] = ensemble
            sentences.append(compare(curves["lazy"], ensemble, "lazy CEGB", "BudgetPrune"))
        lines += ["", f"### {name}", "", *error_table(figure["budgets"], named_curves), ""]
        lines.append(" ".join(sentences))
    return [
        *lines,
        "",
        f"{SAMPLE} Figure 3b of the paper is on Yahoo, with other trees, which may be why "
        "breadth-first growth is sometimes better here. A sweep of penalties does not reach every "
        "budget exactly; a method then uses its next cheaper model.",
    ]


# -- Adapt -------------------------------------------------------------------------------------


def _adapt(section: Section, _parts: Section) -> list[str]:
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
    return [*lines, "", SAMPLE]


SECTIONS = {
    "timing": _timing,
    "budgetrf": _budgetrf,
    "pruning": _pruning,
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
            axes.plot(
                [point["cost"] for point in paid_points],
                [point["error"] for point in paid_points],
                marker=".",
                ms=4,
                lw=2.0 if method == "aware" else 1.0,
                label=pruning.METHODS[method],
            )
        axes.axhline(figure["unpruned"]["error"], color="grey", lw=0.8, ls=":", label="unpruned")
        axes.set(xlabel="mean number of features per instance", ylabel="error on test rows")
        axes.set(title=name)
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, fontsize=7)
        drawing.savefig(path, metadata={"Date": None})
