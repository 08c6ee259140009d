"""Numbers and findings as people read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["caveats", "headline", "millis", "number", "percent"]


def number(value: float | None) -> str:
    """Three significant digits, thousands set apart.

    Examples
    --------
    >>> number(23.456), number(1234567.0), number(64.0), number(None)
    ('23.5', '1,234,567', '64', 'n/a')
    """
    if value is None:
        return "n/a"
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def percent(share: float | None, digits: int = 1) -> str:
    """A share as a percentage.

    Examples
    --------
    >>> percent(0.98765), percent(1.0), percent(None)
    ('98.8 %', '100 %', 'n/a')
    """
    if share is None:
        return "n/a"
    return f"{100 * share:.{0 if share in (0, 1) else digits}f} %"


def millis(value: float | None) -> str:
    """A time in milliseconds.

    Examples
    --------
    >>> millis(0.0731), millis(12.34), millis(1234.5)
    ('0.073 ms', '12.3 ms', '1,234 ms')
    """
    if value is None:
        return "n/a"
    if value < 1:
        return f"{value:.2g} ms"
    return f"{number(value)} ms"


def headline(report: Mapping[str, Any]) -> str:
    """The saving in one sentence; a loss is called a loss.

    Examples
    --------
    >>> headline({"answers": {"edge": 9, "cloud": 1, "fallback": 0},
    ...           "cost_reduction": 0.612, "bytes": {"system": 20, "cloud_only": 100},
    ...           "accuracy": {"system": 0.985, "cloud_only": 0.989}})
    '61 % less feature cost and 80 % fewer bytes than always asking the cloud, at 98.5 % \
accuracy against 98.9 %.'
    """
    if not sum(report["answers"][route] for route in ("edge", "cloud", "fallback")):
        return "No instance was answered."
    saved = report["cost_reduction"]
    total = report["bytes"]["cloud_only"]
    parts = []
    if saved is not None:
        parts.append(_compared(saved, "less feature cost", "more feature cost"))
    if total:
        share = 1 - report["bytes"]["system"] / total
        parts.append(_compared(share, "fewer bytes", "more bytes"))
    saving = f"{' and '.join(parts)} than always asking the cloud" if parts else "Nothing to save"
    ours, theirs = (percent(report["accuracy"][k]) for k in ("system", "cloud_only"))
    if ours == theirs:
        return f"{saving}, at the same accuracy of {ours}."
    return f"{saving}, at {ours} accuracy against {theirs}."


def caveats(report: Mapping[str, Any]) -> list[str]:
    """What a reader must know before believing the headline; empty after a clean run.

    Examples
    --------
    >>> clean = {"lost": 0, "fallback": 0}
    >>> caveats({"instances": 81, "passes": {
    ...     "system": clean, "edge_only": clean, "cloud_only": {"lost": 0, "fallback": 81}}})
    ['All cloud: the cloud was not in time for 81 of 81 instances; the device answered.']
    """
    names = {"system": "Gatewise", "edge_only": "All edge", "cloud_only": "All cloud"}
    total = f"of {report['instances']:,} instances"
    said = []
    for key, name in names.items():
        answers = report["passes"][key]
        if answers["lost"]:
            said.append(
                f"{name}: {answers['lost']:,} {total} got no answer; they count as wrong, "
                "and are left out of the other figures."
            )
        if answers["fallback"]:
            said.append(
                f"{name}: the cloud was not in time for {answers['fallback']:,} {total}; "
                "the device answered."
            )
    return said


def _compared(saved: float, less: str, more: str) -> str:
    return f"{percent(abs(saved), 0)} {less if saved >= 0 else more}"
