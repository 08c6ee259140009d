"""Times and counts as the board, the plain lines and the page say them."""

from __future__ import annotations

import math
from typing import Final

from gatewise_sim.report.words import millis, percent
from gatewise_sim.view.faults import Fault
from gatewise_sim.view.state import LegDone, Picture

__all__ = [
    "after",
    "answered_text",
    "clock_text",
    "count",
    "fault_text",
    "figures",
    "leg_text",
    "roughly",
    "time_ticks",
    "where_text",
]

_STEPS: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800)  # s, as clocks divide
_HOURS: Final = (3600, 7200, 10800, 21600, 43200, 86400)
_STALE: Final = 5.0  # s without news until that is said


def clock_text(at: float, span: float) -> str:
    """Say a time of the run, as fine as its length asks for; no time of day is meant.

    Parameters
    ----------
    at : float
        In s since the run's begin.
    span : float
        The run's length, in s.

    Examples
    --------
    >>> clock_text(45296, 86400), clock_text(75, 600), clock_text(3.21, 20)
    ('12h34m', '1m15s', '3.2 s')
    """
    if not math.isfinite(at):
        return "?"
    if span >= 7200:
        minutes = int(at // 60)
        return f"{minutes // 60}h{minutes % 60:02d}m"
    if span >= 120:
        return f"{int(at // 60)}m{int(at % 60):02d}s"
    return f"{at:.1f} s"


def roughly(seconds: float) -> str:
    """Say a span of time as one says it aloud.

    Examples
    --------
    >>> roughly(0.4), roughly(43), roughly(260), roughly(8000)
    ('1 s', '43 s', '4 min 20 s', '2 h 13 min')
    """
    if not math.isfinite(seconds):
        return "?"
    whole = max(round(seconds), 1)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        rest = 10 * round(whole % 60 / 10)
        minutes = whole // 60 + rest // 60
        return f"{minutes} min {rest} s" if rest % 60 else f"{minutes} min"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def count(value: float) -> str:
    """A count, short where it is long.

    Examples
    --------
    >>> count(1234), count(2_345_678), count(1.44e9)
    ('1,234', '2,345,678', '1,440 M')
    """
    return f"{value:,.0f}" if value < 1e8 else f"{value / 1e6:,.0f} M"


def time_ticks(span: float, most: int = 4) -> list[float]:
    """Times of a run to write at its axis, in s: at most `most` steps.

    Examples
    --------
    >>> time_ticks(86400.0), time_ticks(30.0)
    ([0.0, 21600.0, 43200.0, 64800.0, 86400.0], [0.0, 10.0, 20.0, 30.0])
    """
    if not (span > 0 and math.isfinite(span)):
        return [0.0]
    step = next((s for s in (*_STEPS, *_HOURS) if span <= s * most), None)
    if step is None:
        step = 86400 * math.ceil(span / 86400 / most)
    if span < 1:
        return [0.0, span]
    return [float(k * step) for k in range(int(span / step + 1e-9) + 1)]


def fault_text(fault: Fault, at: float | None, span: float) -> str:
    """Say how a fault stands, or without a time when it is.

    Examples
    --------
    >>> fault = Fault("cloud", 43200.0, 43800.0)
    >>> fault_text(fault, 0.0, 86400.0)
    'cloud down from 12h00m to 12h10m, to come'
    >>> fault_text(fault, 43300.0, 86400.0)
    'cloud DOWN since 12h00m, until 12h10m'
    >>> fault_text(fault, 50000.0, 86400.0)
    'cloud was down from 12h00m to 12h10m'
    """
    begin, end = clock_text(fault.begin, span), clock_text(fault.end, span)
    known = math.isfinite(fault.end)
    when = fault.when(at)
    if when in {"to come", "any"}:
        said = f"{fault.what} down from {begin}{f' to {end}' if known else ''}"
        return f"{said}, to come" if when == "to come" else said
    if when == "on":
        return f"{fault.what} DOWN since {begin}{f', until {end}' if known else ''}"
    return f"{fault.what} was down from {begin} to {end}"


def leg_text(leg: LegDone) -> str:
    """Say what a leg came to.

    Examples
    --------
    >>> leg_text(LegDone("edge_only", "All edge", 1200, 0.0, 0.9125, 3.0))
    'done: All edge, 1,200 answered, 91.25 % right, 0 % offloaded'
    """
    parts = [f"done: {leg.name}", f"{count(leg.answered)} answered"]
    if leg.accuracy is not None:
        parts.append(f"{percent(leg.accuracy, 2)} right")
    if leg.offload_rate is not None:
        parts.append(f"{percent(leg.offload_rate)} offloaded")
    return ", ".join(parts)


def after(text: str) -> str:
    """Put a colon before a text; nothing for none."""
    return f": {text}" if text else ""


def where_text(picture: Picture) -> str:
    """Say where a leg stands on its own clock, and how long it has taken on the viewer's."""
    now = picture.now
    said = f"at {clock_text(now.at, picture.seconds)}"
    if picture.seconds:
        said += f" of {clock_text(picture.seconds, picture.seconds)}"
    speed = picture.speed
    if speed is not None and not 0.8 < speed < 1.25:
        said += f", {speed:,.0f}" if speed >= 10 else f", {speed:.1f}"
        said += " times real time"
    said += f"; {roughly(picture.elapsed)} so far"
    if picture.quiet > _STALE:
        said += f"; no news for {roughly(picture.quiet)}"
    return said


def answered_text(picture: Picture) -> tuple[str, str]:
    """Say how many are answered, and of how many, how fast."""
    rest = f" of about {count(picture.total)}" if picture.total else ""
    if picture.rate is not None:
        rest += f", {count(picture.rate)} a second"
    return f"{count(picture.now.answered)} answered", rest


def figures(picture: Picture) -> list[tuple[str, str]]:
    """Name and value of a leg's figures: two of answers, two of latency, then who is up."""
    now = picture.now
    pairs = [
        ("accuracy so far", percent(picture.accuracy, 2)),
        ("offloaded", percent(picture.offload_rate)),
        ("latency p50", millis(now.p50_ms)),
        ("p95", millis(now.p95_ms)),
        ("in flight", count(now.in_flight)),
    ]
    if now.workers_up is not None:
        pairs.append(("workers up", count(now.workers_up)))
    if now.devices_up is not None:
        pairs.append(("devices up", count(now.devices_up)))
    return pairs
