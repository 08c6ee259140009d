"""Markdown tables of errors at budgets, and sentences that compare two of their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.harness import table_lines

CurvePoint = Mapping[str, Any]


def error_table(
    budgets: Sequence[float], curves: Mapping[str, Sequence[CurvePoint | None]]
) -> list[str]:
    """Write a table of errors, with test costs in brackets; the lowest error per budget is bold."""
    lowest_errors = [
        min((p["error"] for p in column if p is not None), default=None)
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
    first: Sequence[CurvePoint | None],
    second: Sequence[CurvePoint | None],
    first_name: str,
    second_name: str,
) -> str:
    """Write at how many budgets the `first` curve has a lower test error than the `second`."""
    pairs = [(a, b) for a, b in zip(first, second, strict=True) if a is not None and b is not None]
    gaps = [a["error"] - b["error"] for a, b in pairs]
    n_lower, n_higher = sum(g < -1e-9 for g in gaps), sum(g > 1e-9 for g in gaps)
    largest_gap_text = f", by at most {100 * max(gaps):.3f} points" if n_higher else ""
    return (
        f"On test rows {first_name} has a lower error than {second_name} at {n_lower} of "
        f"{len(gaps)} budgets, a higher one at {n_higher}{largest_gap_text}."
    )
