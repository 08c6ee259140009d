"""Output of the command lines: tables for people, JSON for machines, progress.

rich is imported late, since a device's command line uses this.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol


class Progress(Protocol):
    """Progress reports of long work: called as ``report(done, total, what)``."""

    def __call__(self, done: float, total: float, what: str = "") -> None: ...


def plain(value: Any) -> Any:
    """Turn numpy scalars and arrays, paths and tuples into values of JSON.

    NaN and infinities become None: JSON has no word for them.
    """
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Iterable):
        return [plain(v) for v in value]
    return str(value)


def emit(document: Mapping[str, Any]) -> None:
    """Print one JSON document on standard output."""
    print(json.dumps(plain(document), indent=2))


def print_line(text: str, document: Mapping[str, Any], *, as_json: bool) -> None:
    """Print a line on standard output at once: the text, or the document as JSON."""
    print(json.dumps(plain(document)) if as_json else text, flush=True)


def note(text: str) -> None:
    """Print a line on standard error, so that JSON on standard output stays clean."""
    print(text, file=sys.stderr, flush=True)


def table(title: str, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table, numbers to the right, words to the left."""
    from rich.console import Console
    from rich.table import Table

    rows = [[str(cell) for cell in row] for row in rows]
    out = Table(title=title, title_justify="left", header_style="bold", box=None, pad_edge=False)
    for i, name in enumerate(header):
        numeric = all(row[i][:1].isdigit() or row[i][:1] in "-+.n" for row in rows if row[i])
        out.add_column(name, justify="right" if i and numeric else "left")
    for row in rows:
        out.add_row(*row)
    width = None if sys.stdout.isatty() else 120
    Console(width=width, highlight=False, markup=False).print(out)


def text_table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Lay a small table out as plain text, numbers to the right.

    >>> print(text_table(("stage", "cost"), [("first", 1.5), ("second", 12)]))
    stage   cost
    first    1.5
    second    12
    """
    lines = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    numeric = [
        all(re.fullmatch(r"[-+]?[\d.,]+( %)?", line[i]) for line in lines[1:] if line[i])
        for i in range(len(header))
    ]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if i and right else cell.ljust(width)
            for i, (cell, width, right) in enumerate(zip(line, widths, numeric, strict=True))
        ).rstrip()
        for line in lines
    )


def html_table(
    title: str, header: Sequence[str], rows: Iterable[Sequence[Any]], lines: Sequence[str] = ()
) -> str:
    """Lay a title, lines and a table out as HTML for a notebook."""
    from html import escape

    head = "".join(
        f"<th style='text-align:left;padding-right:1em'>{escape(str(name))}</th>" for name in header
    )
    body = "".join(
        "<tr>"
        + "".join(
            f"<td style='text-align:left;padding-right:1em'>{escape(str(cell))}</td>"
            for cell in row
        )
        + "</tr>"
        for row in rows
    )
    text = "".join(f"<div>{escape(line)}</div>" for line in lines)
    table_text = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f"<div><strong>{escape(title)}</strong>{text}{table_text if body else ''}</div>"


_SHOWS_PROGRESS = ContextVar("_SHOWS_PROGRESS", default=False)


@contextmanager
def showing_progress(shows: bool = True) -> Iterator[None]:
    """Let :func:`progress` report the work in a block, such as a fit."""
    token = _SHOWS_PROGRESS.set(shows)
    try:
        yield
    finally:
        _SHOWS_PROGRESS.reset(token)


@contextmanager
def progress(title: str, *, quiet: bool | None = None) -> Iterator[Progress]:
    """Show a progress bar on a terminal, elsewhere a line per tenth and per new step.

    Without `quiet`, progress appears only within a block of :func:`showing_progress`.
    """
    if not _SHOWS_PROGRESS.get() if quiet is None else quiet:
        yield lambda done, total, what="": None
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeElapsedColumn(),
        )
        with Bar(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task(title, total=None)

            def draw(done: float, total: float, what: str = "") -> None:
                text = f"{title}: {what}" if what else title
                bar.update(task, completed=done, total=total, description=text)

            yield draw
    else:
        note(title)
        last_tenth = 0
        begun = {""}

        def print_tenth(done: float, total: float, what: str = "") -> None:
            nonlocal last_tenth
            tenth = int(10 * done / total) if total else 0
            if tenth > last_tenth or (not done and what not in begun):
                last_tenth = max(tenth, last_tenth)
                begun.add(what)
                note(f"  {title}: {10 * tenth}% {what}".rstrip())

        yield print_tenth
