"""Output of commands: tables, JSON and progress.

rich is imported only by the functions that use it, so that devices start quickly.
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
    """Function that reports the progress of long work: ``report(done, total, step)``.

    The first report of a step has a `done` of 0. A `total` of 0 means that it is not known yet.
    """

    def __call__(self, done: float, total: float, step: str = "") -> None: ...


def as_json_value(value: Any) -> Any:
    """Convert numpy scalars and arrays, paths and tuples to values of JSON.

    NaN and infinities, which JSON cannot represent, become None.
    """
    if isinstance(value, Mapping):
        return {str(key): as_json_value(element) for key, element in value.items()}
    if hasattr(value, "tolist"):  # a numpy scalar or array; numpy itself need not be imported
        return as_json_value(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Iterable):
        return [as_json_value(element) for element in value]
    return str(value)  # such as a path


def emit(document: Mapping[str, Any]) -> None:
    """Print one JSON document on standard output."""
    print(json.dumps(as_json_value(document), indent=2))


def print_line(text: str, document: Mapping[str, Any], *, as_json: bool) -> None:
    """Print `text`, or the document as JSON, as one line on standard output, and flush it."""
    print(json.dumps(as_json_value(document)) if as_json else text, flush=True)


def note(text: str) -> None:
    """Print a line on standard error, so that JSON on standard output stays clean."""
    print(text, file=sys.stderr, flush=True)


def print_table(title: str, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table with numbers aligned to the right.

    The first column names the rows and is aligned to the left.
    """
    from rich.console import Console
    from rich.table import Table

    rows = [[str(cell) for cell in row] for row in rows]
    table = Table(title=title, title_justify="left", header_style="bold", box=None, pad_edge=False)
    for column_index, column_name in enumerate(header):
        # the first character decides, because a unit may follow a number; "n" is that of nan
        first_characters = [row[column_index][0] for row in rows if row[column_index]]
        is_numeric = all(
            character.isdigit() or character in "-+.n" for character in first_characters
        )
        table.add_column(column_name, justify="right" if column_index and is_numeric else "left")
    for row in rows:
        table.add_row(*row)
    # a file or pipe has no width; rich would assume 80 columns and wrap the wider tables
    width = None if sys.stdout.isatty() else 120
    # without markup, because names of users may contain brackets
    Console(width=width, highlight=False, markup=False).print(table)


def text_table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Format a small table as plain text with numbers aligned to the right.

    >>> print(text_table(("stage", "cost"), [("first", 1.5), ("second", 12)]))
    stage   cost
    first    1.5
    second    12
    """
    header_and_rows = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*header_and_rows, strict=True)]
    # the first column names the rows
    is_aligned_right = [
        column_index > 0
        and all(
            re.fullmatch(r"[-+]?[\d.,]+( %)?", row[column_index])
            for row in header_and_rows[1:]
            if row[column_index]
        )
        for column_index in range(len(header))
    ]
    lines = [
        "  ".join(
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(row, widths, is_aligned_right, strict=True)
        )
        for row in header_and_rows
    ]
    return "\n".join(map(str.rstrip, lines))


#: Whether :func:`progress` writes; commands enable it, so that a library call prints nothing.
_SHOWS_PROGRESS = ContextVar("_SHOWS_PROGRESS", default=False)


@contextmanager
def showing_progress(is_enabled: bool = True) -> Iterator[None]:
    """Enable or disable :func:`progress` within a ``with`` block."""
    token = _SHOWS_PROGRESS.set(is_enabled)
    try:
        yield
    finally:
        _SHOWS_PROGRESS.reset(token)


@contextmanager
def progress(title: str, *, quiet: bool | None = None) -> Iterator[Progress]:
    """Report progress as a bar on a terminal, or else as a line per tenth and per new step.

    The block calls the function that it gets. If `quiet` is None, progress appears only within a
    block of :func:`showing_progress`. Progress is written to standard error.
    """
    is_quiet = not _SHOWS_PROGRESS.get() if quiet is None else quiet
    if is_quiet:
        yield lambda done, total, step="": None
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

            def draw_bar(done: float, total: float, step: str = "") -> None:
                description = f"{title}: {step}" if step else title
                bar.update(task, completed=done, total=total, description=description)

            yield draw_bar
    else:
        note(title)
        last_tenth = 0
        started_steps = {""}  # a report without a step does not start one

        def print_tenth(done: float, total: float, step: str = "") -> None:
            nonlocal last_tenth
            tenth = int(10 * done / total) if total else 0
            starts_step = done == 0 and step not in started_steps
            if tenth > last_tenth or starts_step:
                last_tenth = max(tenth, last_tenth)  # a new step begins again at 0
                started_steps.add(step)
                note(f"  {title}: {10 * tenth}% {step}".rstrip())

        yield print_tenth
