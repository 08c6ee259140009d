"""Page of the cells in which a simpler system is significantly better than this project's.

The page is written from the figures in adapt/ like all pages of the comparison.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.comparison.pages.cell_texts import OURS
from benchmarks.comparison.record import BYTE_BOUNDS
from benchmarks.comparison.summary import MIN_DIFFERENCE, paired_accuracies
from benchmarks.harness import table_lines

#: Systems with at most one stage before the high-cost model, or without a high-cost model.
SIMPLER = (
    *("confidence", "static", "two-stage", "sedna-cross-entropy", "sedna-threshold"),
    *("cegb-coupled", "cegb-lazy", "catboost", "entropy-forest"),
)

#: Minimum difference, in standard errors, that counts as significant. Of two equal methods, each
#: exceeds it by chance in 6 % of the cells with five seeds, and in 9 % with three: P(t > 2) of
#: Student's t with 4 and 2 degrees of freedom.
MIN_STANDARD_ERRORS = 2.0


class Comparison(NamedTuple):
    """Cell of another method and this project's, both with several seeds."""

    problem: str
    method: str
    cell: str

    our_figure: str
    their_figure: str
    difference: float  # positive if the other method is better
    standard_error: float  # of the difference

    @property
    def is_lead(self) -> bool:
        """Whether the other method is significantly better."""
        return self.difference > self._largest_noise

    @property
    def is_our_lead(self) -> bool:
        """Whether this project's method is significantly better."""
        return -self.difference > self._largest_noise

    @property
    def _largest_noise(self) -> float:
        return max(MIN_STANDARD_ERRORS * self.standard_error, MIN_DIFFERENCE)


def markdown(problems: Mapping[str, Any]) -> str:
    """Write the page: cells in which a simpler system leads, then those of byte-bounded fits."""
    bounded_names = tuple(f"{OURS}-{bound}" for bound in BYTE_BOUNDS)
    lines = [
        "# Where a simpler system is ahead",
        "",
        "`make bench-adapt` writes this page from the figures in `adapt/`. It lists every cell in "
        f"which a simpler system is ahead of `{OURS}` by more than {MIN_STANDARD_ERRORS:g} "
        f"standard errors of the difference over seeds and by more than {100 * MIN_DIFFERENCE:g} "
        "points. *Saving* is the share of the full price that is saved within 1 % of the best "
        "method on validation rows, with the loss of accuracy on test rows. *Budget* is the test "
        "accuracy within a mean cost. Validation rows choose every point. The first table counts "
        "the leads of both sides: of two equally good methods, each is ahead in 6 to 9 % of the "
        "cells by chance.",
        "",
        *_table(problems, SIMPLER),
        "",
        "## Fits within few bytes",
        "",
        f"In these cells, `{OURS}` is better if it is fitted within a bound of bytes than without. "
        "The bounded fit chooses among fewer shapes on the same validation rows.",
        "",
        *_table(problems, bounded_names),
        "",
    ]
    return "\n".join(lines)


def compare_cells(
    name: str, figures: Mapping[str, Any], methods: tuple[str, ...]
) -> Iterator[Comparison]:
    """Compare `methods` with this project's in each cell of a problem with several seeds."""
    our_figures = figures["methods"].get(OURS)
    for method in methods:
        their_figures = figures["methods"].get(method)
        if our_figures is None or their_figures is None:
            continue
        our_saving, their_saving = our_figures["within_1"], their_figures["within_1"]
        errors = our_saving["cut"]["error"], their_saving["cut"]["error"]
        if None not in errors:
            gap = their_saving["cut"]["mean"] - our_saving["cut"]["mean"]
            standard_error = math.hypot(*errors)  # of the difference of two independent means
            savings = _saving_text(our_saving), _saving_text(their_saving)
            yield Comparison(name, method, "saving", *savings, gap, standard_error)
        # at budgets, differences are paired by seed
        accuracy_pairs = paired_accuracies(our_figures, their_figures)
        for budget, (ours, theirs) in zip(figures["budgets"], accuracy_pairs, strict=True):
            if len(ours) < 2:
                continue
            gap = float((theirs - ours).mean())
            standard_error = float((theirs - ours).std(ddof=1)) / len(ours) ** 0.5
            accuracies = f"{100 * ours.mean():.2f}", f"{100 * theirs.mean():.2f}"
            cell = f"budget {budget:.3g}"
            yield Comparison(name, method, cell, *accuracies, gap, standard_error)


def _saving_text(saving: Mapping[str, Any]) -> str:
    return f"{100 * saving['cut']['mean']:.1f} % / {100 * saving['loss']['mean']:.2f}"


def _table(problems: Mapping[str, Any], methods: tuple[str, ...]) -> list[str]:
    """Count the leads of both sides by method, and list each lead of another method."""
    comparisons = [
        comparison
        for name, figures in problems.items()
        for comparison in compare_cells(name, figures, methods)
    ]
    leads = [comparison for comparison in comparisons if comparison.is_lead]
    missing_methods = [
        method
        for method in methods
        if all(method not in figures["methods"] for figures in problems.values())
    ]
    missing_text = (
        f" Not among the figures: {', '.join(missing_methods)}." if missing_methods else ""
    )
    seeds_text = "" if comparisons else " A cell needs several seeds."
    lines = [f"{len(leads)} of {len(comparisons)} cells.{seeds_text}{missing_text}", ""]
    if comparisons:
        lines += [*_count_leads(comparisons, methods), ""]
    if leads:
        header = ["problem", "method", "cell", f"`{OURS}`", "the other", "difference in points"]
        lines += table_lines(header, [_lead_row(lead) for lead in leads])
    return lines


def _count_leads(comparisons: Sequence[Comparison], methods: tuple[str, ...]) -> list[str]:
    """Tabulate for each method how many cells it leads, and how many this project's leads."""
    rows = []
    for method in methods:
        cells = [comparison for comparison in comparisons if comparison.method == method]
        if cells:
            n_leads = sum(cell.is_lead for cell in cells)
            n_our_leads = sum(cell.is_our_lead for cell in cells)
            rows.append([method, str(len(cells)), str(n_leads), str(n_our_leads)])
    return table_lines(["method", "cells", "it is ahead", f"`{OURS}` is ahead"], rows)


def _lead_row(lead: Comparison) -> list[str]:
    return [
        lead.problem,
        lead.method,
        lead.cell,
        lead.our_figure,
        lead.their_figure,
        f"{100 * lead.difference:+.2f} ± {100 * lead.standard_error:.2f}",
    ]
