"""Markdown tables of errors at budgets, and sentences that compare two of their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

CurvePoint = Mapping[str, Any]


def error_table(
    budgets: Sequence[float], curves: Mapping[str, Sequence[CurvePoint | None]]
) -> list[str]:
    """Write a table of errors, with test costs in brackets; the lowest error per budget is bold."""
    lines = [
        "| budget | " + " | ".join(f"{b:g}" for b in budgets) + " |",
        "| --- " * (len(budgets) + 1) + "|",
    ]
    lowest_errors = [
        min((p["error"] for p in column if p is not None), default=None)
        for column in zip(*curves.values(), strict=True)
    ]
    for title, points in curves.items():
        cells = []
        for point, best_error in zip(points, lowest_errors, strict=True):
            if point is None:
                cells.append("")
                continue
            mark = "**" if point["error"] == best_error else ""
            cells.append(f"{mark}{point['error']:.4f}{mark} ({point['cost']:.1f})")
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return lines


def compare(
    first: Sequence[CurvePoint | None], second: Sequence[CurvePoint | None], name: str, other: str
) -> str:
    """Write at how many budgets the `first` curve has a lower test error than the `second`."""
    pairs = [(a, b) for a, b in zip(first, second, strict=True) if a is not None and b is not None]
    gaps = [a["error"] - b["error"] for a, b in pairs]
    n_lower, n_higher = sum(g < -1e-9 for g in gaps), sum(g > 1e-9 for g in gaps)
    largest_gap = f", by at most {100 * max(gaps):.3f} points" if n_higher else ""
    return (
        f"On test rows {name} has a lower error than {other} at {n_lower} of {len(gaps)} budgets, "
        f"a higher one at {n_higher}{largest_gap}."
    )
