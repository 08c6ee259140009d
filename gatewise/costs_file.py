"""Feature costs from a file: TOML tables or CSV rows, checked line by line."""

from __future__ import annotations

import csv
import tomllib
from pathlib import Path

from gatewise.errors import InputError
from gatewise.prices import check_price

__all__ = ["read_prices"]

_Table = tuple[dict[str, tuple[float, str | None]], dict[str, float]]


def read_prices(path: Path) -> _Table:
    """Read a file of prices, TOML or CSV by its ending.

    Returns
    -------
    features : dict of name to (own price, group or None)
    groups : dict of group to shared price

    Raises
    ------
    InputError
        If the file cannot be read as its ending says, or a price is not one.
    """
    readers = {".toml": _read_toml, ".csv": _read_csv}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"costs file {path}: the ending must be .toml or .csv")
    try:
        return reader(path)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"costs file {path}: {error}") from error


def _read_toml(path: Path) -> _Table:
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    unknown = set(document) - {"features", "groups"}
    if unknown:
        raise InputError(f"costs file {path}: unknown table [{sorted(unknown)[0]}]")
    features: dict[str, tuple[float, str | None]] = {}
    for name, entry in document.get("features", {}).items():
        table = entry if isinstance(entry, dict) else {"own": entry}
        unknown = set(table) - {"own", "group"}
        if unknown:
            raise InputError(f"costs file {path}: feature {name!r}: unknown {sorted(unknown)[0]!r}")
        check_price(f"the cost of feature {name!r}", table.get("own", 0.0))
        group = table.get("group")
        features[name] = (float(table.get("own", 0.0)), None if group is None else str(group))
    return features, {str(g): price for g, price in document.get("groups", {}).items()}


def _read_csv(path: Path) -> _Table:
    features: dict[str, tuple[float, str | None]] = {}
    groups: dict[str, float] = {}
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file, skipinitialspace=True)
        for wanted in ("feature", "own"):
            if wanted not in (reader.fieldnames or ()):
                raise InputError(f"costs file {path}: no column {wanted!r}")
        for row in reader:
            where = f"costs file {path}, line {reader.line_num}"
            name = row["feature"]
            if not name or name in features:
                raise InputError(f"{where}: feature {name!r} is empty or stands twice")
            group = row.get("group") or None
            features[name] = (_number(row["own"], f"{where}: cost of {name!r}"), group)
            if group is not None and row.get("shared"):
                price = _number(row["shared"], f"{where}: shared price of {group!r}")
                if groups.setdefault(group, price) != price:
                    raise InputError(f"{where}: group {group!r} has two shared prices")
    return features, groups


def _number(text: str | None, where: str) -> float:
    try:
        return float(text or "")
    except ValueError:
        raise InputError(f"{where} is {text!r}, not a number") from None
