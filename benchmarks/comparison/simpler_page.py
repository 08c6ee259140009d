"""Page of the cells in which a simpler system is significantly better than this project's.

The page is written from the figures in adapt/ like all pages of the comparison.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.comparison.pages import OURS
from benchmarks.comparison.record import BYTE_BOUNDS
from benchmarks.comparison.summary import FLAT
from benchmarks.harness import table_lines

SIMPLER = (
    *("confidence", "static", "two-stage", "sedna-cross-entropy", "sedna-threshold"),
    *("cegb-coupled", "cegb-lazy", "catboost", "entropy-forest"),
)
"""Systems with at most one stage before the high-cost model, or without a high-cost model."""

ERRORS = 2.0
"""Minimum difference, in standard errors, that counts as significant."""


class Lead(NamedTuple):
    """Cell in which another method is better than this project's."""

    problem: str
    method: str
    cell: str
    ours: str
    theirs: str
    difference: float
    error: float


def markdown(problems: Mapping[str, Any]) -> str:
    """Write the cells of simpler systems and of this project's fits within bounds of bytes."""
    simpler = [lead for name, found in problems.items() for lead in leads(name, found, SIMPLER)]
    bounded_names = tuple(f"{OURS}-{bound}" for bound in BYTE_BOUNDS)
    bounded = [
        lead for name, found in problems.items() for lead in leads(name, found, bounded_names)
    ]
    lines = [
        "# Where a simpler system is ahead",
        "",
        f"Made by `make bench-adapt` from the figures in `adapt/`: every cell in which a simpler "
        f"system is ahead of `{OURS}` by more than {ERRORS:g} standard errors of the difference "
        f"over seeds, and by more than {100 * FLAT:g} points. *Saving*: the share of the full "
        "price that is saved within 1 % of the best method on validation rows, with the accuracy "
        "that this loses on test rows. *Budget*: test accuracy within a mean cost. Validation rows "
        "choose every point.",
        "",
        *_table(simpler, problems, SIMPLER),
        "",
        "## Fits within few bytes",
        "",
        f"The cells in which `{OURS}`, fitted within a bound of bytes, is ahead of the fit without "
        "one. The bounded fit chooses among fewer shapes on the same validation rows.",
        "",
        *_table(bounded, problems, bounded_names),
        "",
    ]
    return "\n".join(lines)


def leads(name: str, found: Mapping[str, Any], others: tuple[str, ...]) -> Iterator[Lead]:
    """Find the cells of a problem in which one of `others` is significantly better."""
    ours = found["methods"].get(OURS)
    for method in others:
        theirs = found["methods"].get(method)
        if ours is None or theirs is None:
            continue
        our_rule, their_rule = ours["within_1"], theirs["within_1"]
        gap = their_rule["cut"]["mean"] - our_rule["cut"]["mean"]
        error = math.hypot(our_rule["cut"]["error"] or 0.0, their_rule["cut"]["error"] or 0.0)
        if gap > max(ERRORS * error, FLAT):
            texts = _saving(our_rule), _saving(their_rule)
            yield Lead(name, method, "saving", *texts, difference=gap, error=error)
        # at budgets, differences are paired by seed
        shared = [seed for seed in ours["seeds"] if seed in theirs["seeds"]]
        if len(shared) < 2:
            continue
        for budget, our_cell, their_cell in zip(
            found["budgets"], ours["at_budgets"], theirs["at_budgets"], strict=True
        ):
            our_accuracies = _of_seeds(our_cell, ours["seeds"], shared)
            other = _of_seeds(their_cell, theirs["seeds"], shared)
            gap = float((other - our_accuracies).mean())
            error = float((other - our_accuracies).std(ddof=1)) / len(shared) ** 0.5
            if gap > max(ERRORS * error, FLAT):
                accuracies = (f"{100 * our_accuracies.mean():.2f}", f"{100 * other.mean():.2f}")
                cell = f"budget {budget:.3g}"
                yield Lead(name, method, cell, *accuracies, difference=gap, error=error)


def _saving(rule: Mapping[str, Any]) -> str:
    return f"{100 * rule['cut']['mean']:.1f} % / {100 * rule['loss']['mean']:.2f}"


def _of_seeds(cell: Mapping[str, Any], seeds: list[int], shared: list[int]) -> NDArray[np.float64]:
    return np.array([cell["of_seeds"][seeds.index(seed)] for seed in shared])


def _table(found: list[Lead], problems: Mapping[str, Any], others: tuple[str, ...]) -> list[str]:
    n_cells = sum(
        (1 + len(figures["budgets"])) * sum(m in figures["methods"] for m in others)
        for figures in problems.values()
    )
    rows = [
        [
            lead.problem,
            lead.method,
            lead.cell,
            lead.ours,
            lead.theirs,
            f"{100 * lead.difference:+.2f} ± {100 * lead.error:.2f}",
        ]
        for lead in found
    ]
    missing = [m for m in others if all(m not in f["methods"] for f in problems.values())]
    note = f" Not among the figures: {', '.join(missing)}." if missing else ""
    count = f"{len(found)} of {n_cells} cells.{note}"
    header = ["problem", "method", "cell", f"`{OURS}`", "the other", "difference in points"]
    return [count, "", *(table_lines(header, rows) if rows else [])]
