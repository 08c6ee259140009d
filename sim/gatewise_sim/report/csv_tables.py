"""The tables of a run as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from gatewise_sim.report.model import Report

_TABLES: Final[dict[str, tuple[str, ...]]] = {
    "legs": ("histogram", "computation"), "timeline": (), "classes": (),
}  # fmt: skip
"""Keys of a report to what is left out of their rows."""


def csv_files(report: Report) -> dict[str, str]:
    """Write the tables of a run as CSV."""
    document = report.to_dict()
    return {
        f"{name}.csv": to_csv([_flat(row, skip) for row in document[name]])
        for name, skip in _TABLES.items()
    }


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    r"""Write rows as CSV; columns are those of all rows, in their order of appearance.

    A text that a spreadsheet would take for a formula gets an apostrophe before it.

    >>> to_csv([{"a": -1}, {"a": None, "b": "x,y"}, {"b": "=1+1"}])
    'a,b\n-1,\n,"x,y"\n,\'=1+1\n'
    """
    columns = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _no_formula(value) for name, value in row.items()} for row in rows)
    return out.getvalue()


def _no_formula(value: object) -> object:
    if not isinstance(value, str) or not value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def _flat(row: Mapping[str, Any], skip: Iterable[str]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if name in skip:
            continue
        if isinstance(value, Mapping):
            for inner, x in _flat(value, ()).items():
                flat[name if inner == "value" else f"{name}_{inner}"] = x
        else:
            flat[name] = value
    return flat
