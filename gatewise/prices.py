"""Prices of an offloaded instance, files of feature prices, and the check of any price."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np

from gatewise.columns.csv_file import csv_rows
from gatewise.documents.json_reader import NEEDED, NO_KEY, WRITTEN, real
from gatewise.documents.toml_settings import SettingsTable
from gatewise.errors import InputError

Price = Annotated[float, real(0.0, 1e300)]
"""Of a manifest."""

COLUMN_KINDS: Final = ("number", "boolean", "category", "ordinal", "time", "drop")
"""What a file of prices may say that a column is (:mod:`gatewise.columns`); drop: left out."""
PRICE_TABLES: Final = ("default", "features", "groups", "cloud", "bill")
"""What a TOML file of prices may hold; ``bill`` is the simulator's."""


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
    item_size : int, default 4
        Bytes of a value in a request: of float32, unless instances are arrays of another type.

    Raises
    ------
    InputError
        If a price is negative or not finite.

    Examples
    --------
    >>> CloudPrices(request=1.0, byte=0.01).of_offload(n_features=16)
    2.33
    """

    request: Price = field(default=0.0, metadata=NEEDED)
    byte: Price = field(default=0.0, metadata=NEEDED)
    evaluation: Price = field(default=0.0, metadata=NEEDED)
    gateway: Price = field(default=0.0, metadata=WRITTEN)
    item_size: int = field(default=4, metadata=NO_KEY)

    def __post_init__(self) -> None:
        for name in ("request", "byte", "evaluation", "gateway"):
            check_price(f"cloud price {name!r}", getattr(self, name))

    def of_offload(self, n_features: int) -> float:
        """Get the price of one instance with `n_features` values that the cloud answers."""
        return self.of_message(n_features) + self.evaluation

    def of_message(self, n_features: int) -> float:
        """Get the price of the request alone, with `n_features` values."""
        return self.request + self.byte * request_bytes(n_features, item_size=self.item_size)


LARGEST_REQUEST: Final = 128 * 1024
"""Bytes of a message at most: AWS IoT Core's limit, the lowest of the usual brokers."""


def request_bytes(n_features: int, *, rows: int = 1, item_size: int = 4) -> int:
    """Estimate the bytes of an offload request's payload.

    The message is a CBOR map (docs/wire.md): fields of fixed size take about 69 bytes,
    the matrix ``rows * n_features * item_size`` bytes. A test of the wire holds this
    within 5 % of the real message; MQTT's own header (topic and 2 to 5 bytes) is not in it.

    >>> request_bytes(16), request_bytes(16, rows=10)
    (133, 709)
    """
    return 69 + rows * n_features * item_size


# -- files ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class ColumnPrice:
    """Entry of a feature, or of a table's column, in a file of prices.

    `kind` is one of :data:`COLUMN_KINDS`, or None where the file does not say; `format` is that of
    a time.
    """

    own: float
    group: str | None = None
    kind: str | None = None
    format: str | None = None


@dataclass(frozen=True)
class PriceList:
    """Content of a file of prices; `default` is the price of what `features` does not list."""

    where: str
    features: Mapping[str, ColumnPrice]
    groups: Mapping[str, float] = field(default_factory=dict)
    default: float | None = None
    cloud: CloudPrices | None = None

    @classmethod
    def read(cls, path: str | Path) -> PriceList:
        """Read a TOML or CSV file; InputError, which names it, if it is not there or malformed."""
        path = Path(path)
        where = f"costs file {path}"
        readers = {".toml": _read_toml, ".csv": _read_csv}
        reader = readers.get(path.suffix.lower())
        if reader is None:
            raise InputError(f"{where}: the ending must be .toml or .csv")
        if not path.is_file():
            raise InputError(f"{where} does not exist")
        return reader(path, where)

    @property
    def dropped(self) -> tuple[str, ...]:
        """Columns that are no features: of kind ``drop``."""
        return tuple(name for name, entry in self.features.items() if entry.kind == "drop")

    def of_columns(self, names: Iterable[str], *, default: float | None = None) -> PriceList:
        """Get the prices of these columns, in this order.

        Those that are not listed cost the file's default, or else `default`. Raises InputError
        that names all columns without a price, and all listed ones that are not there; columns of
        kind ``drop`` may be missing.
        """
        order = list(names)
        default = default if self.default is None else self.default
        problems = []
        absent = [n for n in order if n not in self.features]
        if absent and default is None:
            at_top = ""
            if self.where.endswith(".toml"):
                at_top = " under [features], or give `default = 1.0` at the top"
            problems.append(
                f"has no price for feature {named(absent)}: list it{at_top}, or give "
                "--default-price"
            )
        extra = [n for n in self.features if n not in order and n not in self.dropped]
        if extra:
            problems.append(f"prices an unknown feature {named(extra)}; there are {named(order)}")
        if problems:
            raise InputError(f"{self.where} {'; it '.join(problems)}")
        features = {n: self.features.get(n) or ColumnPrice(default or 0.0) for n in order}
        used = {entry.group for entry in features.values()}
        gone = {self.features[n].group for n in self.dropped} - used
        groups = {g: price for g, price in self.groups.items() if g not in gone}
        return PriceList(self.where, features, groups, self.default, self.cloud)


def named(names: Sequence[str | int]) -> str:
    """Quote the first of some names, and count the others."""
    return ", ".join(map(repr, names[:8])) + (f" and {len(names) - 8} more" if names[8:] else "")


def _read_toml(path: Path, where: str) -> PriceList:
    document = SettingsTable.read(path, "costs file", PRICE_TABLES)
    features: dict[str, ColumnPrice] = {}
    for name, entry in _entries(document, "features").items():
        values = entry if isinstance(entry, dict) else {"own": entry}
        at = f"{where}: feature {name!r}"
        unknown = set(values) - {"own", "group", "kind", "format"}
        if unknown:
            raise InputError(f"{at}: unknown {sorted(unknown)[0]!r}")
        kind = values.get("kind")
        if kind is not None and kind not in COLUMN_KINDS:
            raise InputError(f"{at}: kind is {kind!r}; choose one of {', '.join(COLUMN_KINDS)}")
        own = values.get("own", 0.0)
        check_price(f"the cost of feature {name!r}", own)
        group, form = values.get("group"), values.get("format")
        if form is not None and kind != "time":
            raise InputError(f"{at}: a format is for kind = 'time'")
        features[name] = ColumnPrice(
            float(own),
            None if group is None else str(group),
            kind,
            None if form is None else str(form),
        )
    groups = {}
    for name, price in _entries(document, "groups").items():
        check_price(f"the shared price of group {name!r}", price)
        groups[name] = float(price)
    default = document.number("default") if "default" in document.values else None
    cloud = None
    if "cloud" in document.values:
        keys = ("request", "byte", "evaluation", "gateway")
        listed = document.table("cloud", keys).numbers(keys)
        request, byte, evaluation, gateway = (listed.get(key, 0.0) for key in keys)
        cloud = CloudPrices(request, byte, evaluation, gateway)
    if not features and default is None:
        raise InputError(f"{where} lists no feature, and no default price")
    return PriceList(where, features, groups, default, cloud)


def _entries(document: SettingsTable, key: str) -> dict[str, Any]:
    found = document.values.get(key, {})
    if not isinstance(found, dict):
        raise InputError(f"{document.place(key)} is {found!r}, not a table")
    return found


def _read_csv(path: Path, where: str) -> PriceList:
    features: dict[str, ColumnPrice] = {}
    groups: dict[str, float] = {}
    rows = csv_rows(path)
    _, columns = next(rows)
    absent = [name for name in ("feature", "own") if name not in columns]
    unknown = [c for c in columns if c not in ("feature", "own", "group", "shared")]
    if absent or unknown:
        wrong = [f"unknown column {named(unknown)}"] if unknown else []
        wrong += [f"no column {named(absent)}"] if absent else []
        raise InputError(
            f"{where}: {' and '.join(wrong)} among {named(columns) or 'none'}; "
            "its first line is feature,own or feature,own,group,shared"
        )
    ungrouped: list[int] = []
    for line, cells in rows:
        at, row = f"{where}, line {line}", dict(zip(columns, cells, strict=True))
        name = row["feature"]
        if not name or name in features:
            raise InputError(f"{at}: feature {name!r} is empty or stands twice")
        group = row.get("group") or None
        features[name] = ColumnPrice(_number(row["own"], f"{at}: cost of {name!r}"), group)
        if not row.get("shared"):
            continue
        price = _number(row["shared"], f"{at}: shared price of {group or name!r}")
        if group is None and price:
            ungrouped.append(line)
        elif group is not None and groups.setdefault(group, price) != price:
            raise InputError(f"{at}: group {group!r} has two shared prices")
    if ungrouped:
        raise InputError(f"{where} has a shared price without a group in line {named(ungrouped)}")
    if not features:
        raise InputError(f"{where} lists no feature")
    return PriceList(where, features, groups)


def _number(text: str | None, where: str) -> float:
    try:
        return float(text or "")
    except ValueError:
        raise InputError(f"{where} is {text!r}, not a number") from None
