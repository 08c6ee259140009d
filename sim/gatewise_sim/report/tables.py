"""A simulation's report as CSV: one table a file, one header line, empty where nothing is known."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = ["csv_files", "to_csv"]


def csv_files(report: Mapping[str, Any]) -> dict[str, str]:
    """Write the tables of a simulation's report.

    Parameters
    ----------
    report : mapping
        As written to ``report.json``.

    Returns
    -------
    dict of str to str
        ``legs.csv``, ``timeline.csv`` and ``classes.csv``. A figure with an interval takes three
        columns: ``accuracy``, ``accuracy_low`` and ``accuracy_high``; what is nested has its path
        for a name, as ``latency_ms_p50``.
    """
    return {
        f"{name}.csv": to_csv([_flat(row, skip) for row in report[name]])
        for name, skip in (("legs", {"histogram"}), ("timeline", set()), ("classes", set()))
    }


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    r"""Write rows as CSV; columns are those of all rows, in the order in which they are met.

    Examples
    --------
    >>> to_csv([{"a": 1}, {"a": None, "b": "x,y"}])
    'a,b\n1,\n,"x,y"\n'
    """
    columns = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


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
