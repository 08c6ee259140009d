"""Tables and sentences that several sections of the page of budgeted trees have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.harness import table_lines

#: Figures of a part in trees.json, or of one table, row or point in it.
Figures = Mapping[str, Any]

#: Remark on the sample of MiniBooNE.
SAMPLE = (
    "`mbne_tiny` is the authors' sample of 5,000 rows of MiniBooNE, whereas their table used "
    "45,523 training rows. Errors are higher on the sample and cannot be compared with the paper's."
)


def error_table(
    budgets: Sequence[float], curves: Mapping[str, Sequence[Figures | None]]
) -> list[str]:
    """Write a table of errors, with test costs in brackets; the lowest error per budget is bold."""
    lowest_errors = [
        min((point["error"] for point in points if point is not None), default=None)
        for points in zip(*curves.values(), strict=True)
    ]
    rows = []
    for title, curve in curves.items():
        cells = []
        for point, lowest_error in zip(curve, lowest_errors, strict=True):
            if point is None:
                cells.append("")
                continue
            mark = "**" if point["error"] == lowest_error else ""
            cells.append(f"{mark}{point['error']:.4f}{mark} ({point['cost']:.1f})")
        rows.append([title, *cells])
    return table_lines(["budget", *(f"{budget:g}" for budget in budgets)], rows)


def compare_curves(
    first: Sequence[Figures | None],
    second: Sequence[Figures | None],
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


def verdict(is_met: bool) -> str:
    """Write whether an aim is met."""
    return "met" if is_met else "missed"
