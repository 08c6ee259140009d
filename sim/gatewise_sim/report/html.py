"""Pages from templates: self-contained, and forbidden to ask anybody for anything."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from gatewise_sim.report import words
from gatewise_sim.report.drawings.marks import pattern_definitions

__all__ = ["one_line_each", "write_page"]

_PACKAGE: Final = "gatewise_sim.report"
_LINE: Final = 80
_UNITS: Final = re.compile(r"(?<=\d) (?=%|ms\b|J\b|kJ\b|mJ\b|min\b|h\b|s\b|day|EUR\b)")


def write_page(template: str, *, script: str | None = None, **values: Any) -> str:
    """Fill in a template that extends ``base.html.j2``.

    Parameters
    ----------
    template : str
        A file of this package.
    script : str, optional
        A file of this package that the page carries and may run; no other is.
    **values
        For the template; all that it names must be given.

    Returns
    -------
    str
        HTML. Text is escaped, and the page's own policy refuses every request to elsewhere.
    """
    code = "" if script is None else _text(script)
    allowed = "'none'"
    if code:
        allowed = f"'sha256-{base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()}'"
    return (
        _environment()
        .get_template(template)
        .render(
            style=Markup(_text("page.css")),
            script=Markup(code),
            policy=f"default-src 'none'; style-src 'unsafe-inline'; script-src {allowed}",
            patterns=pattern_definitions(),
            **values,
        )
    )


def one_line_each(command: str) -> str:
    r"""Break a long command into lines that a shell still takes.

    Examples
    --------
    >>> print(one_line_each("gatewise simulate bundle " + "--option value " * 5))
    gatewise simulate bundle \
        --option value \
        --option value \
        --option value \
        --option value \
        --option value
    """
    return command if len(command) <= _LINE else command.strip().replace(" --", " \\\n    --")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader(_PACKAGE, "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {
        name: getattr(words, name) for name in ("count", "millis", "number", "percent")
    }
    environment.filters["tied"] = _tied
    return environment


def _tied(text: str) -> str:
    """Keep figures and their units on one line."""
    return _UNITS.sub("\N{NO-BREAK SPACE}", text)


def _text(name: str) -> str:
    return files(_PACKAGE).joinpath(name).read_text(encoding="utf-8")
