"""The sub-command ``gatewise init``, which writes a file of prices and kinds for a table."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gatewise.columns.cells import ISO
from gatewise.columns.kinds import DROP, KINDS
from gatewise.console import emit, note
from gatewise.errors import InputError
from gatewise.formats import listed, plural
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
    from gatewise_training.data.misleading_columns import drop_reason, label_remark

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
    facts_of_column = table.facts
    remarks = table.remarks()
    drop_reasons = {
        name: drop_reason(name, facts, remarks) for name, facts in facts_of_column.items()
    }
    kind_of_column = {
        name: DROP if drop_reasons[name] else facts.kind for name, facts in facts_of_column.items()
    }
    # build the training command, and write the file
    arguments = ["gatewise", "train", str(data)]
    if target is not None:
        arguments += ["--target", target]
    arguments += ["--costs", str(out), *_missing_options(facts_of_column, kind_of_column)]
    command = shlex.join([*arguments, *_split_options(remarks), "--out", "bundle"])
    lines = [
        _column_line(name, facts, kind_of_column[name], drop_reasons[name])
        for name, facts in facts_of_column.items()
    ]
    try:
        out.write_text(
            _PRICE_FILE.format(
                data=_replace_unprintable(str(data)),
                command=_replace_unprintable(command),
                columns="\n".join(lines),
                kinds=", ".join(KINDS),
            ),
            "utf-8",
        )
    except OSError as error:
        raise InputError(f"{out} cannot be written: {error.strerror}") from error
    remark_texts = [
        *(remark.text for remark in remarks),
        *_remarks_on_choices(facts_of_column, drop_reasons, remarks),
    ]
    if (label_remark_text := label_remark(table.y)) is not None:
        remark_texts.append(label_remark_text)
    if as_json:
        emit(
            {"prices": str(out), "kinds": kind_of_column, "train": command, "remarks": remark_texts}
        )
        return
    note(
        f"wrote {out} for the label {table.target!r}: set the prices, check the kinds, then run\n"
        f"    {command}"
    )
    for text in remark_texts:
        note(f"note: {text}")


_PRICE_FILE = """\
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


def _remarks_on_choices(
    columns: Mapping[str, ColumnFacts],
    drop_reasons: Mapping[str, str | None],
    remarks: Sequence[TableRemark],
) -> list[str]:
    """Write which columns the file drops without a remark, and which dates are ambiguous."""
    named_columns = {name for remark in remarks for name in remark.columns}
    names_of_reason: dict[str, list[str]] = {}
    for name, reason in drop_reasons.items():
        if reason is not None and name not in named_columns:
            is_empty = columns[name].kind == "empty"
            names_of_reason.setdefault("empty" if is_empty else reason, []).append(name)
    texts = [
        f"{listed([repr(name) for name in names])}: {reason}; dropped in the file"
        for reason, names in names_of_reason.items()
    ]
    return texts + [
        f"{name!r}: its dates, such as {facts.example!r}, fit "
        f"{' and '.join(facts.date_formats)}; the file has the first format"
        for name, facts in columns.items()
        if len(facts.date_formats) > 1 and drop_reasons[name] is None
    ]


def _missing_options(
    facts_of_column: Mapping[str, ColumnFacts], kind_of_column: Mapping[str, str]
) -> list[str]:
    """List the options that give missing cells a meaning.

    --na marks cells that do not fit the kind of their column as missing. --impute is needed if a
    column of a kind without missing values has missing cells.
    """
    feature_columns = [
        (facts, kind_of_column[name])
        for name, facts in facts_of_column.items()
        if kind_of_column[name] != DROP
    ]
    odd_cells = dict.fromkeys(
        odd_cell for facts, _ in feature_columns for odd_cell in facts.odd_cells
    )
    must_impute = bool(odd_cells) or any(
        facts.n_missing and not KINDS[kind].takes_missing for facts, kind in feature_columns
    )
    options = [option for odd_cell in odd_cells for option in ("--na", odd_cell)]
    return options + ["--impute"] * must_impute


def _split_options(remarks: Sequence[TableRemark]) -> list[str]:
    """List the options that hold out whole entities or the latest rows, if remarks advise it."""
    for trouble in ("entities", "time"):
        for remark in remarks:
            if remark.trouble == trouble:
                return remark.arguments
    return []


def _column_line(name: str, facts: ColumnFacts, kind: str, reason: str | None) -> str:
    """Write the line of a column with a comment on its cells."""
    toml_value = "1.0" if kind == "number" else f'{{own = 1.0, kind = "{kind}"}}'
    if kind == "time" and facts.date_formats[0] != ISO:
        toml_value = f'{{own = 1.0, kind = "time:{facts.date_formats[0]}"}}'
    if kind == DROP:
        toml_value = '{kind = "drop"}'
    comment = {
        "number": f"numbers from {facts.min_number:g} to {facts.max_number:g}",
        "boolean": "true and false",
        "time": f"dates such as {facts.example!r}",
        "empty": "empty",
        "lists": "lists",
    }.get(facts.kind, f"{facts.n_distinct:,} different texts such as {facts.example!r}")
    if facts.comma_role is not None:
        comment = facts.comma_advice
    elif facts.kind in ("text", "category") and _FORMATTED_NUMBER.fullmatch(facts.example):
        reason = None  # the reason holds for texts, but perhaps not for numbers
        comment += f": if numbers, write them like {re.sub(r'[^0-9.+-]', '', facts.example)}"
    if reason:
        comment += f": {reason}"
    if facts.odd_cells:
        comment += (
            f"; {plural(facts.n_odd_rows, 'row')} with other cells such as {facts.odd_cells[0]!r}"
        )
    if facts.n_missing and facts.kind != "empty":
        comment += f"; empty in {facts.n_missing:,} of {facts.n_rows:,} rows"
    return f"{_toml_key(name)} = {toml_value}  # {_replace_unprintable(comment)}"


def _toml_key(name: str) -> str:
    """Write a name as a TOML key."""
    if name.isascii() and name.replace("_", "").replace("-", "").isalnum():
        return name
    escaped_name = name.replace("\\", "\\\\").replace('"', '\\"')
    return (
        '"'
        + "".join(
            character if character.isprintable() else f"\\U{ord(character):08x}"
            for character in escaped_name
        )
        + '"'
    )


def _replace_unprintable(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)
