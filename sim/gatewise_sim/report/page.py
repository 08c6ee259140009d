"""Self-contained HTML pages from one template, without scripts and requests."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from gatewise_sim.report.findings import KeyFigure, SummarySentence
from gatewise_sim.report.tables import PageTable

_PACKAGE: Final = "gatewise_sim.report"
#: Number of characters of a command that fit one line of the page.
_MAX_COMMAND_LENGTH: Final = 80
_SPACE_BEFORE_UNIT: Final = re.compile(r"(?<=\d) (?=%|ms\b|J\b|kJ\b|mJ\b|min\b|h\b|s\b|day|EUR\b)")


@dataclass(frozen=True)
class Plot:
    """A plot with an optional title."""

    svg: Markup
    title: str = ""


@dataclass(frozen=True, kw_only=True)
class Section:
    """A section of a page, with plots followed by tables.

    `key` is the id of its element. `pair_tables` are tables of names and values, which are next to
    each other. `command` is the command line that repeats the run.
    """

    key: str
    title: str
    text: str = ""
    plots: Sequence[Plot] = ()
    tables: Sequence[PageTable] = ()
    pair_tables: Sequence[PageTable] = ()
    command: str = ""


@dataclass(frozen=True, kw_only=True)
class Page:
    """Contents of a page; `description` says which run or sweep it shows."""

    title: str
    description: str
    headline: SummarySentence
    warnings: Sequence[str] = ()
    key_figures: Sequence[KeyFigure] = ()
    sections: Sequence[Section]
    footer: str

    @property
    def n_columns(self) -> int:
        """Number of columns of the key figures, chosen so that no row has a single figure."""
        n_figures = len(self.key_figures)
        if n_figures < 4:
            return n_figures
        return next((n_columns for n_columns in (4, 5, 3) if n_figures % n_columns != 1), 4)


def write_page(page: Page) -> str:
    """Write a page as HTML.

    Text is escaped, and the content security policy of the page forbids scripts and requests.
    """
    style = files(_PACKAGE).joinpath("page.css").read_text(encoding="utf-8")
    return _make_environment().get_template("page.html.j2").render(page=page, style=Markup(style))


@cache
def _make_environment() -> Environment:
    environment = Environment(
        loader=PackageLoader(_PACKAGE, "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["nonbreaking_units"] = _nonbreaking_units
    environment.filters["shell_lines"] = _split_for_shell
    return environment


def _nonbreaking_units(text: str) -> str:
    """Replace the space between a number and its unit by one that does not break a line."""
    return _SPACE_BEFORE_UNIT.sub("\N{NO-BREAK SPACE}", text)


def _split_for_shell(command: str) -> str:
    """Split a long command into lines with backslashes for a shell."""
    if len(command) <= _MAX_COMMAND_LENGTH:
        return command
    return command.strip().replace(" --", " \\\n    --")
