"""Page of the savings within bounds of bytes, of this project and of the best peer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.comparison.pages.cell_texts import BYTE_RULES, OURS, cut_and_loss_text
from benchmarks.harness import table_lines


def markdown(problems: Mapping[str, Any]) -> str:
    """Write the page."""
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
        cells = [cut_and_loss_text(ours[name]) if name in ours else "" for name in rule_names]
        best_peers = [_write_best_peer(figures, rule_name) for rule_name in rule_names[2:]]
        rows.append([name, n_seeds, *cells, *best_peers])
    return "\n".join([*lines, *table_lines(header, rows), ""])


def _write_best_peer(problem_figures: Mapping[str, Any], rule_name: str) -> str:
    """Write cut and loss of the peer that saves most within a bound of bytes."""
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
    return f"{cut_and_loss_text(rule_figures[best_method])} ({best_method})"
