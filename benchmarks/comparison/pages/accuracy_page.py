"""Page of accuracy against cost: an overview of all problems, and a section for each."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from benchmarks.comparison.pages.cell_texts import (
    BYTE_RULES,
    OURS,
    cut_and_loss_text,
    mean_and_error_text,
    metric_name,
)
from benchmarks.harness import Column, column_table, table_lines


def markdown(problems: Mapping[str, Any]) -> str:
    """Write the page."""
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
    method_names = list(
        dict.fromkeys(
            method
            for figures in problems.values()
            for method in figures["methods"]
            if method != "f0"
        )
    )
    rows = [_write_overview_row(name, figures, method_names) for name, figures in problems.items()]
    lines += table_lines(["problem", "seeds", "top accuracy", "target", *method_names], rows)
    lines += [
        "",
        "The full MiniBooNE, Yahoo, HEPMASS and Scene15 were not available.",
    ]
    for name, figures in problems.items():
        lines += ["", *_write_section(name, figures)]
    return "\n".join(lines) + "\n"


def _write_overview_row(
    name: str, problem_figures: Mapping[str, Any], method_names: list[str]
) -> list[str]:
    methods = problem_figures["methods"]
    highest_cut = max(
        method_figures["within_1"]["cut"]["mean"] for method_figures in methods.values()
    )
    cells = []
    for method in method_names:
        if method not in methods:
            cells.append("")
            continue
        rule_figures = methods[method]["within_1"]
        cut = f"{100 * rule_figures['cut']['mean']:.0f}"
        if rule_figures["cut"]["mean"] >= highest_cut - 5e-3:  # half of the last digit shown
            cut = f"**{cut}**"
        cells.append(f"{cut} / {100 * rule_figures['loss']['mean']:.1f}")
    target = "" if problem_figures["target"] is None else f"{100 * problem_figures['target']:.0f}"
    unit = "" if metric_name(problem_figures) == "accuracy" else f"{metric_name(problem_figures)}, "
    n_seeds = max(len(method_figures["seeds"]) for method_figures in methods.values())
    top_accuracy = f"{100 * problem_figures['top_accuracy']:.2f}"
    top_cell = f"{top_accuracy} ({unit}validation: {problem_figures['top_method']})"
    return [f"[{name}](#{name})", str(n_seeds), top_cell, target, *cells]


def _write_section(name: str, problem_figures: Mapping[str, Any]) -> list[str]:
    """Write the section of a problem: its plot, its methods, and comparisons with each method."""
    rows = [
        {"method": method, **method_figures}
        for method, method_figures in problem_figures["methods"].items()
    ]
    lines = [
        f"## {name}",
        "",
        f"{problem_figures['title']}: {problem_figures['note']}. "
        f"Full price {problem_figures['full_price']:g}.",
        "",
        f"![accuracy against cost](adapt/{name}.svg)",
        "",
        *column_table(_list_method_columns(metric_name(problem_figures)), rows),
    ]
    if "against" in problem_figures:
        lines += ["", *_compare_at_budgets(problem_figures)]
    if all(_against_key(rule_name) in problem_figures for rule_name in BYTE_RULES.values()):
        lines += ["", *_compare_within_bytes(problem_figures)]
    return lines


def _list_method_columns(metric: str) -> list[Column]:
    """List the columns of the table of methods; a row has the figures of one."""
    columns = [
        Column("method", lambda row: row["method"]),
        Column(f"best {metric}", lambda row: mean_and_error_text(row["best_accuracy"], 2)),
        Column("cut / loss", lambda row: _write_cut_and_loss(row["within_1"])),
        Column("with 0.2 slack", lambda row: cut_and_loss_text(row["within_1_slack"])),
    ]
    for title, rule_name in {"own choice": "own_choice", **BYTE_RULES}.items():
        columns.append(Column(title, partial(_write_rule_cell, rule_name)))
    return [
        *columns,
        Column("offloaded", lambda row: f"{100 * row['within_1']['offload_rate']['mean']:.0f} %"),
        Column("model KB", lambda row: f"{row['within_1']['nbytes']['mean'] / 1024:.0f}"),
        Column("fit CPU s", lambda row: f"{row['fit_seconds']['mean']:.0f}"),
    ]


def _write_cut_and_loss(rule_figures: Mapping[str, Any]) -> str:
    """Write cut and loss with their errors, and whether the accuracy was not reached."""
    cut = mean_and_error_text(rule_figures["cut"], 1)
    loss = mean_and_error_text(rule_figures["loss"], 2)
    note = "" if rule_figures["reached"]["mean"] > 0 else " (not reached)"
    return f"{cut} / {loss}{note}"


def _write_rule_cell(rule_name: str, method_figures: Mapping[str, Any]) -> str:
    """Write cut and loss by a rule, or nothing if the method has no figures of it."""
    return cut_and_loss_text(method_figures[rule_name]) if rule_name in method_figures else ""


def _compare_at_budgets(problem_figures: Mapping[str, Any]) -> list[str]:
    """Write the table of differences of accuracy from each method at each budget."""
    budgets = problem_figures["budgets"]
    rows = []
    for peer, comparison in problem_figures["against"].items():
        gaps = (f"{100 * gap:+.2f}" for gap in comparison["difference"])
        rows.append([peer, *gaps, *_list_wins_ties_losses(comparison)])
    header = ["against", *(f"{budget:.3g}" for budget in budgets), "significant", "plain"]
    return [
        f"The table compares `{OURS}` with each method at {len(budgets)} budgets by the difference "
        f"of test {metric_name(problem_figures)} in points, which is negative if `{OURS}` is "
        "worse. Wins-ties-losses count differences that are significant after Holm's correction, "
        "and means that differ by more than 0.1 points.",
        "",
        *table_lines(header, rows),
    ]


def _compare_within_bytes(problem_figures: Mapping[str, Any]) -> list[str]:
    """Write the table of differences from each method within each bound of bytes."""
    rows = []
    for peer in problem_figures["against"]:
        cells = []
        for rule_name in BYTE_RULES.values():
            comparison = problem_figures[_against_key(rule_name)][peer]
            worst_gap = f"{100 * min(comparison['difference']):+.2f}"
            cells.append(", ".join([*_list_wins_ties_losses(comparison), worst_gap]))
        rows.append([peer, *cells])
    return [
        "The next table compares at the same budgets within each bound of bytes. "
        f"`{OURS}` is fitted for the bound, and other methods take part with the models that fit. "
        "A cell has the significant and the plain wins-ties-losses, and the worst difference in "
        "points.",
        "",
        *table_lines(["against", *BYTE_RULES], rows),
    ]


def _list_wins_ties_losses(comparison: Mapping[str, Any]) -> list[str]:
    """List wins, ties and losses, of significant differences and of plain ones."""
    return [
        "{wins}-{ties}-{losses}".format(**comparison[kind]) for kind in ("significant", "plain")
    ]


def _against_key(rule_name: str) -> str:
    """Name the key of the comparison within the bytes of a rule."""
    return rule_name.replace("within_1", "against")
