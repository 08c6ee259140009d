"""The page of ``--serve``: one document with its script and style inside, and what it is told."""

from __future__ import annotations

import base64
import hashlib
import math
from functools import cache
from importlib.resources import files
from typing import Any

from gatewise_sim.view.state import Picture
from gatewise_sim.view.timeline import ROUTES
from gatewise_sim.view.words import (
    after,
    answered_text,
    clock_text,
    count,
    fault_text,
    figures,
    leg_text,
    roughly,
    time_ticks,
    where_text,
)

__all__ = ["page", "tell"]


@cache
def page() -> tuple[bytes, str]:
    """Put the page together.

    Returns
    -------
    tuple of bytes and str
        HTML, and the Content-Security-Policy under which nothing but its own script runs and
        nothing but its own server is asked.
    """
    here = files("gatewise_sim.view")
    html, style, script = (
        (here / name).read_text("utf-8") for name in ("page.html", "page.css", "page.js")
    )
    html = html.replace("/*style*/", style).replace("/*script*/", script)
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    return html.encode(), policy


def tell(picture: Picture, *, final: bool, report: str | None) -> dict[str, Any]:
    """Say a picture as the page wants it; every text is ready to be shown.

    Parameters
    ----------
    picture : Picture
    final : bool
        Whether nothing more will come.
    report : str or None
        Where the finished report is on this machine, for people.
    """
    now, at = picture.now, picture.fault_time
    many, rest = answered_text(picture)
    return {
        "phase": picture.phase,
        "final": final,
        "report": report,
        "title": picture.title or "about to begin",
        "status": _status(picture),
        "done": now.done,
        "left": roughly(picture.left) if picture.left is not None else None,
        "where": where_text(picture) if picture.phase == "running" else "",
        "answered": [many, rest],
        "routes": [
            [route, picture.shares.get(route, 0.0), count(getattr(now, route))] for route in ROUTES
        ],
        "figures": [list(pair) for pair in figures(picture)],
        "at": now.at,
        "width": picture.width,
        "span": picture.span,
        "ticks": [[t, clock_text(t, picture.span)] for t in time_ticks(picture.span)],
        "bins": [
            [round(getattr(b, route), 3) for route in ROUTES] + [b.p50_ms, b.p95_ms]
            for b in picture.bins
        ],
        "faults": [
            {
                "begin": fault.begin,
                "end": fault.end if math.isfinite(fault.end) else None,
                "when": fault.when(at),
                "what": fault.what,
                "text": fault_text(fault, at, picture.span),
            }
            for fault in picture.faults
        ],
        "legs": [leg_text(leg).removeprefix("done: ") for leg in picture.legs],
    }


def _status(picture: Picture) -> str:
    """What a screen reader is told: changes seldom."""
    if picture.phase == "waiting":
        return "about to begin"
    if picture.phase == "ended":
        return f"ended after {roughly(picture.elapsed)}{after(picture.text)}"
    down = sorted({f.what for f in picture.faults if f.when(picture.fault_time) == "on"})
    said = f"running: {picture.leg_name or picture.title}"
    return f"{said}; down: {', '.join(down)}" if down else said


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
