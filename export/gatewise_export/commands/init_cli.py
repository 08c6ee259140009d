"""The sub-command ``gatewise init``, which writes a file of prices and kinds for a table."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gatewise.columns.cells import ISO
from gatewise.columns.kinds import DROP, KINDS
from gatewise.console import emit, note
from gatewise.errors import InputError
from gatewise.formats import plural
from gatewise_export.commands.options import AsJson, Target

if TYPE_CHECKING:
    from gatewise_training.data.misleading_columns import TableRemark
    from gatewise_training.data.table_columns import ColumnFacts

#: A number as a spreadsheet formats it, such as €1,200 or 70 %.
_FORMATTED_NUMBER = re.compile(
    r"[^\w.+-]*[+-]?\d{1,3}(,\d{3})+(\.\d+)?\W*"
    r"|[^\w.+-]*[+-]?\d+(\.\d+)?\s*[^\w\s]+"
    r"|[^\w.+-]+[+-]?\d+(\.\d+)?"
)


def init(
    data: Annotated[Path, typer.Argument(help="Table of rows: .csv or .parquet.")],
    target: Target = None,
    out: Annotated[Path, typer.Option(help="File of prices and kinds: .toml.")] = Path(
        "prices.toml"
    ),
    as_json: AsJson = False,
) -> None:
    """Write a file with prices and likely kinds of a table's columns.

    Every column has the price 1 until you edit the file. The command prints how to train with it.

    Example:

        gatewise init data.csv --target label
    """
    from gatewise_training.data.datasets import read_table
    from gatewise_training.data.input_checks import check_classes
    from gatewise_training.data.misleading_columns import drop_reason

    if out.suffix.lower() != ".toml":
        raise InputError(f"--out {out}: give a file that ends in .toml")
    if not data.is_file():
        raise InputError(f"{data} is not a file: give a table")
    if data.suffix.lower() not in (".csv", ".parquet"):
        raise InputError(f"{data}: give a table that ends in .csv or .parquet")
    if out.exists():
        raise InputError(f"{out} exists: give another file with --out, or remove it")
    table = read_table(data, target=target)
    check_classes(table.y)
    columns = table.facts
    remarks = table.remarks()
    reasons = {name: drop_reason(name, facts, remarks) for name, facts in columns.items()}
    kinds = {name: DROP if reasons[name] else facts.kind for name, facts in columns.items()}
    # Build the training command. --na marks cells that do not fit their column's kind as missing;
    # --impute is needed if a kind without missing values has missing cells.
    words = ["gatewise", "train", str(data)]
    if target is not None:
        words += ["--target", target]
    words += ["--costs", str(out)]
    odd_words = dict.fromkeys(
        word for n, f in columns.items() if kinds[n] != DROP for word in f.odd_cells
    )
    for word in odd_words:
        words += ["--na", word]
    if odd_words or any(
        f.n_missing and kinds[n] != DROP and not KINDS[kinds[n]].takes_missing
        for n, f in columns.items()
    ):
        words.append("--impute")
    words += _split_options(remarks, columns)
    command = shlex.join([*words, "--out", "bundle"])
    lines = [_line(name, facts, kinds[name], reasons[name]) for name, facts in columns.items()]
    try:
        out.write_text(
            _TEXT.format(
                data=data, command=command, columns="\n".join(lines), kinds=", ".join(KINDS)
            ),
            "utf-8",
        )
    except OSError as error:
        raise InputError(f"{out} cannot be written: {error.strerror}") from error
    if as_json:
        texts = [remark.text for remark in remarks]
        emit({"prices": str(out), "kinds": kinds, "train": command, "remarks": texts})
        return
    note(
        f"wrote {out} for the label {table.target!r}: set the prices, check the kinds, then run\n"
        f"    {command}"
    )
    for remark in remarks:
        note(f"note: {remark.text}")


commands: dict[str, Callable[..., None]] = {"init": init}


_TEXT = """\
# Prices of the columns of {data}. Edit them, then run
#     {command}
#
# A price is the cost of acquiring the column's value for one instance, in any unit: ms, mJ, cents.
# Kinds: {kinds}, drop (the column is no feature).
# docs/tables.md describes this file.

default = 1.0  # price of a column that is not listed

[features]
{columns}

# Columns that one reading gives can share a price, which is paid once for all of them:
#     ax = {{own = 0.1, group = "imu"}}
#     ay = {{own = 0.1, group = "imu"}}
[groups]
# imu = 2.0

# Prices of an offload in addition to its features.
[cloud]
request = 0.0
byte = 0.0
evaluation = 0.0
"""


def _split_options(remarks: Sequence[TableRemark], columns: Mapping[str, ColumnFacts]) -> list[str]:
    """List the options that hold out whole entities or the latest rows, if remarks advise it."""
    for trouble in ("entities", "time"):
        for remark in remarks:
            if remark.trouble == trouble:
                name = remark.columns[0]
                form = columns[name].date_formats[0]
                needs_format = trouble == "time" and columns[name].kind == "time" and form != ISO
                return [remark.option, f"{name}={form}" if needs_format else name]
    return []


def _line(name: str, facts: ColumnFacts, kind: str, reason: str | None) -> str:
    """Write the line of a column with a comment on its cells."""
    value = "1.0" if kind == "number" else f'{{own = 1.0, kind = "{kind}"}}'
    if kind == "time" and facts.date_formats[0] != ISO:
        value = f'{{own = 1.0, kind = "time:{facts.date_formats[0]}"}}'
    if kind == DROP:
        value = '{kind = "drop"}'
    contents = {
        "number": f"numbers from {facts.min_number:g} to {facts.max_number:g}",
        "boolean": "true and false",
        "time": f"dates such as {facts.example!r}",
        "empty": "empty",
    }.get(facts.kind, f"{facts.n_distinct:,} different texts such as {facts.example!r}")
    if facts.comma_role is not None:
        contents = facts.comma_advice
    elif facts.kind in ("text", "category") and _FORMATTED_NUMBER.fullmatch(facts.example):
        reason = None
        contents += f": if numbers, write them like {re.sub(r'[^0-9.+-]', '', facts.example)}"
    if reason:
        contents += f": {reason}"
    if facts.odd_cells:
        contents += (
            f"; {plural(facts.n_odd_rows, 'row')} with other cells such as {facts.odd_cells[0]!r}"
        )
    if facts.n_missing and facts.kind != "empty":
        contents += f"; empty in {facts.n_missing:,} of {facts.n_rows:,} rows"
    return f"{_quoted(name)} = {value}  # {_printable(contents)}"


def _quoted(name: str) -> str:
    """Write a name as a TOML key."""
    if name.isascii() and name.replace("_", "").replace("-", "").isalnum():
        return name
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in escaped) + '"'


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)
