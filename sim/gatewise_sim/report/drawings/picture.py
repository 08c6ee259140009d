"""One drawing for wide places and one for phones: letters keep their size, lines do not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

__all__ = ["Picture", "pictured"]

_DESK: Final = 440.0  # half of the page
_PHONE: Final = 330.0


@dataclass(frozen=True)
class Picture:
    """Twice the same; the style sheet shows the one that fits.

    Parameters
    ----------
    desk, phone : Markup
    """

    desk: Markup
    phone: Markup


def pictured(
    draw: Callable[..., Markup], name: str, *, desk: float = _DESK, phone: float = _PHONE
) -> Picture:
    """Draw something in both widths.

    Parameters
    ----------
    draw : callable
        Takes `width`, of the drawing's coordinates, and `name`, a prefix of ids that is unique on
        the page.
    name : str
    desk, phone : float
        The widths.
    """
    return Picture(draw(width=desk, name=name), draw(width=phone, name=f"{name}-phone"))
