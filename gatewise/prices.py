"""Prices of an offloaded instance, files of feature prices, and the check of any price."""

from __future__ import annotations

import csv
import math
import tomllib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gatewise.errors import InputError

__all__ = ["CloudPrices", "check_price", "read_prices", "request_bytes"]


def check_price(what: str, price: float) -> None:
    """Refuse a price that is no number, not finite or below 0; `what` names it."""
    if not isinstance(price, int | float | np.number) or isinstance(price, bool):
        raise InputError(f"{what} is {price!r}, not a number")
    if not math.isfinite(price) or price < 0:
        raise InputError(f"{what} is {price}; a price must be finite and at least 0")


@dataclass(frozen=True)
class CloudPrices:
    """Prices of an offloaded instance beside its features, in the unit of the feature costs.

    Parameters
    ----------
    request, byte, evaluation : float, default 0
        Price of a request, of a byte sent up (:func:`request_bytes`), of one evaluation of
        the high-cost model. Request and bytes are the device's, paid once whoever answers.
    gateway : float, default 0
        Price of a gateway's work on an instance, where stages run on one
        (:mod:`gatewise.tiers`), whether it answers or passes the instance on.

    Raises
    ------
    InputError
        If a price is negative or not finite.

    Examples
    --------
    >>> CloudPrices(request=1.0, byte=0.01).of_offload(n_features=16)
    2.33
    """

    request: float = 0.0
    byte: float = 0.0
    evaluation: float = 0.0
    gateway: float = 0.0

    def __post_init__(self) -> None:
        for name in ("request", "byte", "evaluation", "gateway"):
            check_price(f"cloud price {name!r}", getattr(self, name))

    def of_offload(self, n_features: int) -> float:
        """Get the price of one instance with `n_features` float32 values that the cloud answers."""
        return self.request + self.evaluation + self.byte * request_bytes(n_features)

    def of_message(self, n_features: int) -> float:
        """Get the price of its request alone."""
        return self.request + self.byte * request_bytes(n_features)


def request_bytes(n_features: int, *, rows: int = 1, item_size: int = 4) -> int:
    """Estimate the bytes of an offload request's payload.

    The message is a CBOR map (docs/wire.md): fields of fixed size take about 69 bytes,
    the matrix ``rows * n_features * item_size`` bytes. A test of the wire holds this
    within 5 % of the real message; MQTT's own header (topic and 2 to 5 bytes) is not in it.

    Examples
    --------
    >>> request_bytes(16), request_bytes(16, rows=10)
    (133, 709)
    """
    return 69 + rows * n_features * item_size


# -- files ---------------------------------------------------------------------------------

_Table = tuple[dict[str, tuple[float, str | None]], dict[str, float]]


def read_prices(path: Path) -> _Table:
    """Read a file of prices, TOML or CSV by its ending."""
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
