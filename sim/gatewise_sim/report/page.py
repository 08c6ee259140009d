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
    """A plot with a title above it."""

    plot: Markup
    title: str = ""


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of a page: plots first, then tables.

    `key` is its id, `pairs` are tables of names and values, side by side, and `command` repeats the
    run.
    """

    key: str
    title: str
    text: str = ""
    figures: Sequence[Plot] = ()
    tables: Sequence[PageTable] = ()
    pairs: Sequence[PageTable] = ()
    command: str = ""


@dataclass(frozen=True, kw_only=True)
class Page:
    """Contents of a page; `headline` is the answer in two halves, the more important one first."""

    title: str
    about: str
    headline: tuple[str, str]
    warnings: Sequence[str] = ()
    figures: Sequence[KeyFigure] = ()
    sections: Sequence[Section]
    footer: str

    @property
    def columns(self) -> int:
        """Number of columns of the key figures; no figure stands alone in the last row."""
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
