"""Numbers and findings as people read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = [
    "caveats",
    "compared",
    "count",
    "duration",
    "ends",
    "headline",
    "interval",
    "joules",
    "listed",
    "millis",
    "number",
    "outage",
    "percent",
    "plural",
]


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
    >>> millis(0.0731), millis(12.34), millis(1234.5), millis(3e-5)
    ('0.073 ms', '12.3 ms', '1,234 ms', '0 ms')
    """
    if value is None:
        return "n/a"
    if 5e-4 < value < 1:
        return f"{value:.2g} ms"
    if value < 1:
        return "0 ms"
    return f"{number(value)} ms"


def count(value: float) -> str:
    """A number of things, short where it is long.

    Examples
    --------
    >>> count(1234.4), count(1.44e9), count(2.6e6)
    ('1,234', '1.44 billion', '2.6 million')
    """
    if value >= 1e9:
        return f"{value / 1e9:.3g} billion"
    return f"{value / 1e6:.3g} million" if value >= 1e6 else f"{value:,.0f}"


def joules(value: float | None) -> str:
    """An energy in J, mJ or uJ.

    Examples
    --------
    >>> joules(12.34), joules(0.0123), joules(4.5e-6), joules(0.0), joules(4_031.0)
    ('12.3 J', '12.3 mJ', '4.5 uJ', '0 J', '4.03 kJ')
    """
    if value is None:
        return "n/a"
    for unit, size in (("kJ", 1e3), ("J", 1.0), ("mJ", 1e-3)):
        if value >= 0.9995 * size:
            return f"{number(value / size)} {unit}"
    return f"{number(value / 1e-6)} uJ" if value else "0 J"


def duration(seconds: float) -> str:
    """A length of time in the unit that suits it.

    Examples
    --------
    >>> duration(45), duration(600), duration(5400), duration(86_400), duration(604_800)
    ('45 s', '10 min', '1.5 h', '1 day', '7 days')
    """
    for unit, size in (("day", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= size:
            n = f"{seconds / size:.3g}"
            return f"{n} {unit}{'s' if unit == 'day' and n != '1' else ''}"
    return f"{seconds:.3g} s"


def ends(estimate: Mapping[str, float], form: Callable[[float | None], str]) -> str:
    """The ends of an interval, the unit said once; nothing if they are the same when rounded.

    Examples
    --------
    >>> ends({"value": 0.5, "low": 0.4, "high": 0.6}, percent)
    '40.0 to 60.0 %'
    """
    low, high = form(estimate["low"]), form(estimate["high"])
    if low == high:
        return ""
    figure, _, unit = low.partition(" ")
    return f"{figure if high.endswith(f' {unit}') else low} to {high}"


def interval(
    estimate: Mapping[str, float] | None, form: Callable[[float | None], str], *, level: float
) -> str:
    """The confidence interval of an estimate, if it has one.

    Examples
    --------
    >>> interval({"value": 0.5, "low": 0.4, "high": 0.6}, percent, level=0.95)
    '95 % interval 40.0 to 60.0 %'
    """
    text = "" if estimate is None else ends(estimate, form)
    return f"{percent(level, 0)} interval {text}" if text else ""


def outage(fault: Mapping[str, Any]) -> str:
    """What was down.

    Examples
    --------
    >>> outage({"what": "cloud", "count": 1}), outage({"what": "workers", "count": 2})
    ('cloud down', '2 workers down')
    """
    if fault["what"] != "workers":
        return f"{fault['what']} down"
    return f"{plural(fault['count'], 'worker')} down"


def plural(n: float, thing: str) -> str:
    """So many things.

    Examples
    --------
    >>> plural(1, "device"), plural(1_000, "device")
    ('1 device', '1,000 devices')
    """
    return f"{n:,.0f} {thing}{'s' if n != 1 else ''}"


def listed(things: Sequence[str]) -> str:
    """Join with commas, and the last with "and".

    Examples
    --------
    >>> listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"])
    ('a', 'a and b', 'a, b and c')
    """
    if len(things) < 2:
        return "".join(things)
    return f"{', '.join(things[:-1])} and {things[-1]}"


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
        parts.append(compared(saved, "less feature cost", "more feature cost"))
    if total:
        share = 1 - report["bytes"]["system"] / total
        parts.append(compared(share, "fewer bytes", "more bytes"))
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


def compared(saved: float, less: str, more: str) -> str:
    """A saving as a share; a loss is called a loss.

    Examples
    --------
    >>> compared(0.5, "fewer bytes", "more bytes"), compared(-0.1, "fewer bytes", "more bytes")
    ('50 % fewer bytes', '10 % more bytes')
    """
    return f"{percent(abs(saved), 0)} {less if saved >= 0 else more}"
