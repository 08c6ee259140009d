"""Self-contained pages from one template; they have no script and make no request."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from gatewise_sim.report.findings import KeyFigure
from gatewise_sim.report.tables import PageTable

_PACKAGE: Final = "gatewise_sim.report"
_LINE: Final = 80
_UNITS: Final = re.compile(r"(?<=\d) (?=%|ms\b|J\b|kJ\b|mJ\b|min\b|h\b|s\b|day|EUR\b)")


@dataclass(frozen=True)
class Plot:
    """A plot."""

    plot: Markup
    title: str = ""  # above it; empty within a section of one plot
    note: str = ""
    wide: bool = False  # over the whole width; a narrow page scrolls it


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of a page: plots first, narrow ones side by side, then tables."""

    key: str  # its id
    title: str
    text: str = ""
    figures: Sequence[Plot] = ()
    tables: Sequence[PageTable] = ()
    pairs: Sequence[PageTable] = ()  # of names and values, side by side
    command: str = ""  # what repeats the run


@dataclass(frozen=True, kw_only=True)
class Page:
    """What the template fills in."""

    title: str
    about: str
    headline: tuple[str, str]  # the answer, and its less important half
    warnings: Sequence[str] = ()
    figures: Sequence[KeyFigure] = ()
    sections: Sequence[Section]
    footer: str

    @property
    def columns(self) -> int:
        """Columns of the key figures, so that none stands alone in the last row."""
        n = len(self.figures)
        return n if n < 4 else next((c for c in (4, 5, 3) if n % c != 1), 4)


def write_page(page: Page) -> str:
    """Write a page as HTML.

    Text is escaped, and the page's own policy refuses every script, and every request to elsewhere.
    """
    style = files(_PACKAGE).joinpath("page.css").read_text(encoding="utf-8")
    return _environment().get_template("page.html.j2").render(page=page, style=Markup(style))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader(_PACKAGE, "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["tied"] = lambda text: _UNITS.sub("\N{NO-BREAK SPACE}", text)
    # A long command in lines that a shell still takes.
    environment.filters["shell_lines"] = lambda command: (
        command if len(command) <= _LINE else command.strip().replace(" --", " \\\n    --")
    )
    return environment
