"""Markdown pages and plots of the comparison, written from the figures in adapt/."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.harness import table_lines

OURS = "staged"

#: Maps a bound of bytes to its rule in :mod:`.summary`.
BYTE_RULES = {
    "at most 1 MB": "within_1_1024_kb",
    "at most 64 KB": "within_1_64_kb",
    "at most 8 KB": "within_1_8_kb",
}


def markdown(problems: Mapping[str, Any]) -> str:
    """Write the page with an overview and one section per problem."""
    lines = [
        "# Accuracy against cost",
        "",
        "`make bench-adapt` writes this page from the figures in `adapt/`. Validation rows choose "
        "every point, and test rows are only reported. Figures are means over seeds ± standard "
        "error.",
        "",
        "- **Top accuracy** is the highest accuracy of any method on test rows. The method in "
        "parentheses is the most accurate one on validation rows among those without a bound of "
        "bytes.",
        "- **Cut** is the share of the price of all features that a method saves while its "
        "accuracy on validation rows is at most 1 % (absolute) below that method's. The highest "
        "cut is bold. A method that is less accurate at all its points gets a cut of 0.",
        "- **Loss** is the difference from the top accuracy on test rows in points. Above 1, it "
        "exceeds what the validation rows promised.",
        "- For each bound of bytes, `staged` is fitted again. The size is that of all models of a "
        "device as C99 tables.",
        "",
    ]
    names = list(
        dict.fromkeys(
            method
            for figures in problems.values()
            for method in figures["methods"]
            if method != "f0"
        )
    )
    rows = [_overview(name, figures, names) for name, figures in problems.items()]
    lines += table_lines(["problem", "seeds", "top accuracy", "target", *names], rows)
    lines += [
        "",
        "The full MiniBooNE, Yahoo, HEPMASS and Scene15 were not available.",
    ]
    for name, figures in problems.items():
        lines += ["", *_section(name, figures)]
    return "\n".join(lines) + "\n"


def bytes_markdown(problems: Mapping[str, Any]) -> str:
    """Write the table of savings within bounds of bytes, for this project and the best peer."""
    lines = [
        "# Accuracy against cost within few bytes",
        "",
        "`make bench-adapt` writes this page. A cell has the share of the full price that is saved "
        "on test rows, and the accuracy that is lost, in points. Validation rows choose the "
        "cheapest point within 1 % of the best method. `staged` is fitted for each size, and the "
        "size of a model is that of its C99 tables.",
        "",
    ]
    rule_names = ["within_1", *BYTE_RULES.values()]
    header = ["problem", "seeds", "any size", *BYTE_RULES]
    header += [f"best other, {bound}" for bound in list(BYTE_RULES)[1:]]
    rows = []
    for name, figures in problems.items():
        # the bound of 1 MB excludes the best peer of no problem, so its column is left out
        ours = figures["methods"].get(OURS, {})
        n_seeds = str(len(figures["top_accuracy_of_seeds"]))
        cells = [_cut_and_loss(ours[name]) if name in ours else "" for name in rule_names]
        best_peers = [_best_peer(figures, rule_name) for rule_name in rule_names[2:]]
        rows.append([name, n_seeds, *cells, *best_peers])
    return "\n".join([*lines, *table_lines(header, rows), ""])


def _best_peer(problem_figures: Mapping[str, Any], rule_name: str) -> str:
    """Cut and loss of the peer that saves most within a bound of bytes."""
    rule_figures = {
        method: method_figures[rule_name]
        for method, method_figures in problem_figures["methods"].items()
        if not method.startswith((OURS, "f0"))
        and rule_name in method_figures
        and method_figures[rule_name]["reached"]["mean"] > 0
    }
    if not rule_figures:
        return "none"
    best_method = max(rule_figures, key=lambda name: rule_figures[name]["cut"]["mean"])
    return f"{_cut_and_loss(rule_figures[best_method])} ({best_method})"


def _overview(name: str, problem_figures: Mapping[str, Any], names: list[str]) -> list[str]:
    methods = problem_figures["methods"]
    highest_cut = max(
        method_figures["within_1"]["cut"]["mean"] for method_figures in methods.values()
    )
    cells = []
    for method in names:
        if method not in methods:
            cells.append("")
            continue
        rule_figures = methods[method]["within_1"]
        cut = f"{100 * rule_figures['cut']['mean']:.0f}"
        if rule_figures["cut"]["mean"] >= highest_cut - 5e-3:  # half of the last digit shown
            cut = f"**{cut}**"
        cells.append(f"{cut} / {100 * rule_figures['loss']['mean']:.1f}")
    target = "" if problem_figures["target"] is None else f"{100 * problem_figures['target']:.0f}"
    unit = "" if _metric(problem_figures) == "accuracy" else f"{_metric(problem_figures)}, "
    n_seeds = max(len(method_figures["seeds"]) for method_figures in methods.values())
    top_accuracy = f"{100 * problem_figures['top_accuracy']:.2f}"
    top_cell = f"{top_accuracy} ({unit}validation: {problem_figures['top_method']})"
    return [f"[{name}](#{name})", str(n_seeds), top_cell, target, *cells]


def _section(name: str, problem_figures: Mapping[str, Any]) -> list[str]:
    metric = _metric(problem_figures)
    header = ["method", f"best {metric}", "cut / loss", "paper's accounting", "with 0.2 slack"]
    header += ["own choice", *BYTE_RULES, "offloaded", "model KB", "fit CPU s"]
    rows = []
    for method, method_figures in problem_figures["methods"].items():
        rule_figures = method_figures["within_1"]
        cut = _mean_and_error(rule_figures["cut"], 1)
        loss = _mean_and_error(rule_figures["loss"], 2)
        note = "" if rule_figures["reached"]["mean"] > 0 else " (not reached)"
        rows.append(
            [
                method,
                _mean_and_error(method_figures["best_accuracy"], 2),
                f"{cut} / {loss}{note}",
                _mean_and_error(rule_figures["cut_paper"], 1),
                _cut_and_loss(method_figures["within_1_slack"]),
                *(
                    _cut_and_loss(method_figures[rule_name]) if rule_name in method_figures else ""
                    for rule_name in ("own_choice", *BYTE_RULES.values())
                ),
                f"{100 * rule_figures['offload_rate']['mean']:.0f} %",
                f"{rule_figures['nbytes']['mean'] / 1024:.0f}",
                f"{method_figures['fit_seconds']['mean']:.0f}",
            ]
        )
    lines = [
        f"## {name}",
        "",
        f"{problem_figures['title']}: {problem_figures['note']}. "
        f"Full price {problem_figures['full_price']:g}.",
        "",
        f"![accuracy against cost](adapt/{name}.svg)",
        "",
        *table_lines(header, rows),
    ]
    if "against" in problem_figures:
        lines += ["", *_comparison_lines(problem_figures)]
    if all(_against_key(rule_name) in problem_figures for rule_name in BYTE_RULES.values()):
        lines += ["", *_comparison_lines_within_bytes(problem_figures)]
    return lines


def _comparison_lines(problem_figures: Mapping[str, Any]) -> list[str]:
    budgets = problem_figures["budgets"]
    rows = []
    for peer, comparison in problem_figures["against"].items():
        gaps = (f"{100 * gap:+.2f}" for gap in comparison["difference"])
        rows.append([peer, *gaps, *_wins_ties_losses(comparison)])
    header = ["against", *(f"{budget:.3g}" for budget in budgets), "significant", "plain"]
    return [
        f"The table compares `{OURS}` with each method at {len(budgets)} budgets by the difference "
        f"of test {_metric(problem_figures)} in points, which is negative if `{OURS}` is worse. "
        "Wins-ties-losses count differences that are significant after Holm's correction, and "
        "means that differ by more than 0.1 points.",
        "",
        *table_lines(header, rows),
    ]


def _comparison_lines_within_bytes(problem_figures: Mapping[str, Any]) -> list[str]:
    rows = []
    for peer in problem_figures["against"]:
        cells = []
        for rule_name in BYTE_RULES.values():
            comparison = problem_figures[_against_key(rule_name)][peer]
            worst_gap = f"{100 * min(comparison['difference']):+.2f}"
            cells.append(", ".join([*_wins_ties_losses(comparison), worst_gap]))
        rows.append([peer, *cells])
    return [
        "The next table compares at the same budgets within each bound of bytes. "
        f"`{OURS}` is fitted for the bound, and other methods take part with the models that fit. "
        "A cell has the significant and the plain wins-ties-losses, and the worst difference in "
        "points.",
        "",
        *table_lines(["against", *BYTE_RULES], rows),
    ]


def _wins_ties_losses(comparison: Mapping[str, Any]) -> list[str]:
    return [
        "{wins}-{ties}-{losses}".format(**comparison[kind]) for kind in ("significant", "plain")
    ]


def _against_key(rule_name: str) -> str:
    return rule_name.replace("within_1", "against")


def _metric(problem_figures: Mapping[str, Any]) -> str:
    """Name the metric; older figures do not name theirs, which is accuracy."""
    return str(problem_figures.get("metric", "accuracy"))


def _mean_and_error(mean_and_error: Mapping[str, float | None], digits: int) -> str:
    mean, error = mean_and_error["mean"], mean_and_error["error"]
    assert mean is not None
    mean_text = f"{100 * mean:.{digits}f}"
    return mean_text if error is None else f"{mean_text} ± {100 * error:.{digits}f}"


def _cut_and_loss(rule_figures: Mapping[str, Any]) -> str:
    cut, loss = rule_figures["cut"]["mean"], rule_figures["loss"]["mean"]
    return f"{100 * cut:.1f} / {100 * loss:.2f}"


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
            ylabel=f"{_metric(problem_figures)} on test rows",
            title=problem_figures["title"],
            ylim=(max(lowest_accuracy - 0.01, top_accuracy - 0.3), top_accuracy + 0.01),
        )
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g} %"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.grid(alpha=0.25)
        figure.legend(frameon=False, fontsize=7, loc="outside right upper")
        figure.savefig(path, metadata={"Date": None})
