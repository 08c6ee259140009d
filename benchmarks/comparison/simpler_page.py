"""Page of the cells in which a simpler system is significantly better than this project's.

The page is written from the figures in adapt/ like all pages of the comparison.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from benchmarks.comparison.pages import OURS
from benchmarks.comparison.record import BYTE_BOUNDS
from benchmarks.comparison.summary import MIN_DIFFERENCE, paired_accuracies
from benchmarks.harness import table_lines

#: Systems with at most one stage before the high-cost model, or without a high-cost model.
SIMPLER = (
    *("confidence", "static", "two-stage", "sedna-cross-entropy", "sedna-threshold"),
    *("cegb-coupled", "cegb-lazy", "catboost", "entropy-forest"),
)

#: Minimum difference, in standard errors, that counts as significant, at a level of about 5 %.
MIN_STANDARD_ERRORS = 2.0


class Lead(NamedTuple):
    """Cell in which another method is better than this project's."""

    problem: str
    method: str
    cell: str

    our_figure: str
    their_figure: str
    difference: float
    error: float


def markdown(problems: Mapping[str, Any]) -> str:
    """Write the cells of simpler systems and of this project's fits within bounds of bytes."""
    simpler_leads = [
        lead for name, figures in problems.items() for lead in leads(name, figures, SIMPLER)
    ]
    bounded_names = tuple(f"{OURS}-{bound}" for bound in BYTE_BOUNDS)
    bounded_leads = [
        lead for name, figures in problems.items() for lead in leads(name, figures, bounded_names)
    ]
    lines = [
        "# Where a simpler system is ahead",
        "",
        "`make bench-adapt` writes this page from the figures in `adapt/`. It lists every cell in "
        f"which a simpler system is ahead of `{OURS}` by more than {MIN_STANDARD_ERRORS:g} "
        f"standard errors of the difference over seeds and by more than {100 * MIN_DIFFERENCE:g} "
        "points. *Saving* is the share of the full price that is saved within 1 % of the best "
        "method on validation rows, with the loss of accuracy on test rows. *Budget* is the test "
        "accuracy within a mean cost. Validation rows choose every point.",
        "",
        *_table(simpler_leads, problems, SIMPLER),
        "",
        "## Fits within few bytes",
        "",
        f"In these cells, `{OURS}` is better if it is fitted within a bound of bytes than without. "
        "The bounded fit chooses among fewer shapes on the same validation rows.",
        "",
        *_table(bounded_leads, problems, bounded_names),
        "",
    ]
    return "\n".join(lines)


def leads(name: str, figures: Mapping[str, Any], methods: tuple[str, ...]) -> Iterator[Lead]:
    """Find the cells of a problem in which one of `methods` is significantly better."""
    our_figures = figures["methods"].get(OURS)
    for method in methods:
        their_figures = figures["methods"].get(method)
        if our_figures is None or their_figures is None:
            continue
        our_rule, their_rule = our_figures["within_1"], their_figures["within_1"]
        gap = their_rule["cut"]["mean"] - our_rule["cut"]["mean"]
        # the errors of two independent means add in squares
        error = math.hypot(our_rule["cut"]["error"] or 0.0, their_rule["cut"]["error"] or 0.0)
        if gap > max(MIN_STANDARD_ERRORS * error, MIN_DIFFERENCE):
            texts = _saving(our_rule), _saving(their_rule)
            yield Lead(name, method, "saving", *texts, difference=gap, error=error)
        # at budgets, differences are paired by seed
        accuracy_pairs = paired_accuracies(our_figures, their_figures)
        for budget, (ours, theirs) in zip(figures["budgets"], accuracy_pairs, strict=True):
            if len(ours) < 2:
                continue
            gap = float((theirs - ours).mean())
            error = float((theirs - ours).std(ddof=1)) / len(ours) ** 0.5
            if gap > max(MIN_STANDARD_ERRORS * error, MIN_DIFFERENCE):
                accuracies = f"{100 * ours.mean():.2f}", f"{100 * theirs.mean():.2f}"
                cell = f"budget {budget:.3g}"
                yield Lead(name, method, cell, *accuracies, difference=gap, error=error)


def _saving(rule: Mapping[str, Any]) -> str:
    return f"{100 * rule['cut']['mean']:.1f} % / {100 * rule['loss']['mean']:.2f}"


def _table(
    listed_leads: list[Lead], problems: Mapping[str, Any], methods: tuple[str, ...]
) -> list[str]:
    n_cells = sum(
        (1 + len(figures["budgets"])) * sum(method in figures["methods"] for method in methods)
        for figures in problems.values()
    )
    rows = [
        [
            lead.problem,
            lead.method,
            lead.cell,
            lead.our_figure,
            lead.their_figure,
            f"{100 * lead.difference:+.2f} ± {100 * lead.error:.2f}",
        ]
        for lead in listed_leads
    ]
    missing_methods = [
        method
        for method in methods
        if all(method not in figures["methods"] for figures in problems.values())
    ]
    missing_text = (
        f" Not among the figures: {', '.join(missing_methods)}." if missing_methods else ""
    )
    count_text = f"{len(listed_leads)} of {n_cells} cells.{missing_text}"
    header = ["problem", "method", "cell", f"`{OURS}`", "the other", "difference in points"]
    return [count_text, "", *(table_lines(header, rows) if rows else [])]
