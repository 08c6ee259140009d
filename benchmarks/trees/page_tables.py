"""Tables of errors at budgets, and sentences that compare two of their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Found = Mapping[str, Any]


def error_table(
    budgets: Sequence[float], curves: Mapping[str, Sequence[Found | None]]
) -> list[str]:
    """Table of errors at budgets with test costs in brackets; the lowest error is bold."""
    lines = [
        "| budget | " + " | ".join(f"{b:g}" for b in budgets) + " |",
        "| --- " * (len(budgets) + 1) + "|",
    ]
    best = [
        min((p["error"] for p in column if p is not None), default=None)
        for column in zip(*curves.values(), strict=True)
    ]
    for title, points in curves.items():
        cells = []
        for point, best_error in zip(points, best, strict=True):
            if point is None:
                cells.append("")
                continue
            mark = "**" if point["error"] == best_error else ""
            cells.append(f"{mark}{point['error']:.4f}{mark} ({point['cost']:.1f})")
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return lines


def against(
    ours: Sequence[Found | None], other: Sequence[Found | None], name: str, against: str
) -> str:
    """Sentence that counts the budgets at which each curve has the lower error on test rows."""
    pairs = [(a, b) for a, b in zip(ours, other, strict=True) if a is not None and b is not None]
    gaps = [a["error"] - b["error"] for a, b in pairs]
    lower, higher = sum(g < -1e-9 for g in gaps), sum(g > 1e-9 for g in gaps)
    largest_gap = f", by at most {100 * max(gaps):.3f} points" if higher else ""
    return (
        f"On test rows {name} has a lower error than {against} at {lower} of {len(gaps)} budgets, "
        f"a higher one at {higher}{largest_gap}."
    )
