"""Readers of feature prices from files and Python values, and the prices of an offload."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from gatewise.columns.csv_file import csv_rows
from gatewise.columns.kinds import DROP, KINDS, read_kind
from gatewise.documents import Amount, Meta, Record, Text, read_toml
from gatewise.errors import InputError


def check_price(subject: str, price: float) -> None:
    """Check that a price is finite and at least 0; `subject` starts the message of InputError."""
    if not isinstance(price, int | float | np.number) or isinstance(price, bool):
        raise InputError(f"{subject} is {price!r}, not a number")
    if not math.isfinite(price) or price < 0:
        raise InputError(f"{subject} is {price}; a price must be finite and at least 0")


class CloudPrices(Record, frozen=True):
    """Prices of an offload, in addition to its features and in the unit of the feature costs.

    Parameters
    ----------
    request, byte, evaluation : float, default 0
        Price of a request, of each of its bytes (:func:`request_bytes`), and of an evaluation of
        the high-cost model.
    item_size : int, default 4
        Bytes of a value in a request.

    Raises
    ------
    InputError
        If a price is negative or not finite.

    Examples
    --------
    >>> CloudPrices(request=1.0, byte=0.01).offload_price(n_features=16)
    2.33
    """

    request: Amount = 0.0
    byte: Amount = 0.0
    evaluation: Amount = 0.0
    item_size: Annotated[int, Meta(ge=1, le=8)] = 4

    def __post_init__(self) -> None:
        for name in ("request", "byte", "evaluation"):
            check_price(f"cloud price {name!r}", getattr(self, name))

    def offload_price(self, n_features: int) -> float:
        """Compute the price of offloading one instance with `n_features` values."""
        return self.request_price(n_features) + self.evaluation

    def request_price(self, n_features: int) -> float:
        """Compute the price of a request with `n_features` values, without the evaluation."""
        return self.request + self.byte * request_bytes(n_features, item_size=self.item_size)


#: Approximate size of the fields of a request besides its matrix (docs/wire.md).
FIXED_REQUEST_BYTES: Final = 69

#: Largest size of a message: the limit of AWS IoT Core, the lowest one among common brokers.
MAX_REQUEST_BYTES: Final = 128 * 1024


def request_bytes(n_features: int, *, rows: int = 1, item_size: int = 4) -> int:
    """Estimate the size of a request's payload in bytes, within 5 % of the real message.

    The payload is a CBOR map (docs/wire.md). The other fields take FIXED_REQUEST_BYTES, and the
    matrix takes ``rows * n_features * item_size`` bytes. The MQTT header is not included.

    >>> request_bytes(16), request_bytes(16, rows=10)
    (133, 709)
    """
    return FIXED_REQUEST_BYTES + rows * n_features * item_size


# -- files ---------------------------------------------------------------------------------


class ColumnPrice(Record, frozen=True):
    """Entry of a feature or raw column in a price file; see `read_kind` for `kind`."""

    own: Amount = 0.0
    group: Text | None = None
    kind: Text | None = None

    def __post_init__(self) -> None:
        if self.kind is not None:
            kind, cell_format = read_kind(self.kind)
            if kind != DROP:
                KINDS[kind].check_format(cell_format)


class PriceFile(Record, frozen=True):
    """Price file in TOML; only the simulator reads `bill`."""

    default: Amount | None = None
    features: dict[Text, Amount | ColumnPrice] = msgspec.field(default_factory=dict)
    groups: dict[Text, Amount] = msgspec.field(default_factory=dict)
    cloud: CloudPrices | None = None
    bill: dict[str, Any] = msgspec.field(default_factory=dict)


@dataclass(frozen=True)
class PriceList:
    """Content of a price file; `default` is the price of features that it does not list."""

    file_description: str
    features: Mapping[str, ColumnPrice]
    groups: Mapping[str, float] = field(default_factory=dict)
    default: float | None = None
    cloud: CloudPrices | None = None

    @classmethod
    def read(cls, path: str | Path) -> PriceList:
        """Read a TOML or CSV file; raise InputError if it is missing or malformed."""
        path = Path(path)
        file_description = f"costs file {path}"
        readers = {".toml": _read_toml, ".csv": _read_csv}
        reader = readers.get(path.suffix.lower())
        if reader is None:
            raise InputError(f"{file_description}: the file extension must be .toml or .csv")
        if not path.is_file():
            raise InputError(f"{file_description} does not exist")
        return reader(path, file_description)

    @property
    def dropped_columns(self) -> tuple[str, ...]:
        """Columns of kind ``drop``, which have no features."""
        return tuple(
            name for name, column_price in self.features.items() if column_price.kind == DROP
        )

    def for_columns(self, names: Iterable[str], *, default: float | None = None) -> PriceList:
        """Select the prices of these columns, in this order.

        A column that is not listed has the default price of the file, or else `default`. An
        InputError names all columns without a price, and all listed columns that are not in
        `names`, except columns of kind ``drop``.
        """
        # report columns without a price, and listed columns that are not in `names`
        column_names = list(names)
        default = default if self.default is None else self.default
        problems = []
        absent_names = [name for name in column_names if name not in self.features]
        if absent_names and default is None:
            toml_hint = ""
            if self.file_description.endswith(".toml"):
                toml_hint = " under [features], or give `default = 1.0` at the top"
            problems.append(
                f"has no price for feature {quoted_names(absent_names)}: list it{toml_hint}"
            )
        unknown_names = [
            name
            for name in self.features
            if name not in column_names and name not in self.dropped_columns
        ]
        if unknown_names:
            problems.append(
                f"prices an unknown feature {quoted_names(unknown_names)}; the features are "
                f"{quoted_names(column_names)}"
            )
        if problems:
            raise InputError(f"{self.file_description} {'; it '.join(problems)}")
        # a column without a price has passed the check above only if there is a default
        features = {
            name: self.features.get(name) or ColumnPrice(default or 0.0) for name in column_names
        }
        # remove the groups whose columns are all of kind `drop`, as no feature pays their price
        used_groups = {column_price.group for column_price in features.values()}
        unused_groups = {self.features[name].group for name in self.dropped_columns} - used_groups
        groups = {
            group: price for group, price in self.groups.items() if group not in unused_groups
        }
        return PriceList(self.file_description, features, groups, self.default, self.cloud)


def quoted_names(names: Sequence[str | int]) -> str:
    """Quote the first eight names and count the others."""
    return ", ".join(map(repr, names[:8])) + (f" and {len(names) - 8} more" if names[8:] else "")


def _read_toml(path: Path, file_description: str) -> PriceList:
    price_file = read_toml(path, PriceFile, "costs")
    features = {
        name: price if isinstance(price, ColumnPrice) else ColumnPrice(price)
        for name, price in price_file.features.items()
    }
    if not features and price_file.default is None:
        raise InputError(f"{file_description} lists neither features nor a default price")
    return PriceList(
        file_description, features, price_file.groups, price_file.default, price_file.cloud
    )


def _read_csv(path: Path, file_description: str) -> PriceList:
    """Read a CSV file of features; each row of a group repeats the group's shared price."""
    features: dict[str, ColumnPrice] = {}
    groups: dict[str, float] = {}
    rows = csv_rows(path)
    _, columns = next(rows)
    # check the header
    absent_columns = [name for name in ("feature", "own") if name not in columns]
    unknown_columns = [
        column for column in columns if column not in ("feature", "own", "group", "shared")
    ]
    if absent_columns or unknown_columns:
        problems = [f"unknown column {quoted_names(unknown_columns)}"] if unknown_columns else []
        problems += [f"no column {quoted_names(absent_columns)}"] if absent_columns else []
        raise InputError(
            f"{file_description}: {' and '.join(problems)} among "
            f"{quoted_names(columns) or 'none'}; its first line is feature,own or "
            "feature,own,group,shared"
        )
    ungrouped_lines: list[int] = []
    for line, cells in rows:
        location = f"{file_description}, line {line}"
        row = dict(zip(columns, cells, strict=True))
        name = row["feature"]
        if not name or name in features:
            raise InputError(f"{location}: feature {name!r} is empty or repeated")
        group = row.get("group") or None
        features[name] = ColumnPrice(
            _read_price(row["own"], f"{location}: cost of {name!r}"), group
        )
        if not row.get("shared"):
            continue
        price = _read_price(row["shared"], f"{location}: shared price of {group or name!r}")
        if group is None and price:
            ungrouped_lines.append(line)
        elif group is not None and groups.setdefault(group, price) != price:
            raise InputError(f"{location}: group {group!r} has two shared prices")
    if ungrouped_lines:
        lines = quoted_names(ungrouped_lines)
        raise InputError(
            f"{file_description} has a shared price without a group in line {lines}: name the group"
        )
    if not features:
        raise InputError(f"{file_description} lists no feature")
    return PriceList(file_description, features, groups)


def _read_price(text: str, location: str) -> float:
    try:
        price = float(text)
    except ValueError:
        raise InputError(f"{location} is {text!r}, not a number") from None
    check_price(location, price)
    return price


# -- mappings, Series, sequences --------------------------------------------------------------

#: Label of a feature group.
GroupLabel = int | str


def split_names_and_prices(own_prices: Any) -> tuple[tuple[str, ...] | None, Any]:
    """Split a mapping or Series into names and prices; other values have no names."""
    if isinstance(own_prices, Mapping):
        return tuple(str(name) for name in own_prices), list(own_prices.values())
    # pandas is not imported here, so its Series is recognised by its attributes
    series_index = getattr(own_prices, "index", None)
    if (
        series_index is not None
        and hasattr(own_prices, "to_numpy")
        and hasattr(series_index, "dtype")
    ):
        values = own_prices.to_numpy()
        keys = tuple(series_index)
        return (keys, values) if all(isinstance(key, str) for key in keys) else (None, values)
    return None, own_prices


def read_own_prices(own_prices: ArrayLike, names: tuple[str, ...] | None) -> NDArray[np.float64]:
    """Read the own prices of features; an InputError names the feature, or gives its number."""
    try:
        prices = np.array(own_prices, np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"feature costs must be numbers: {error}") from error
    if prices.ndim != 1 or not len(prices):
        raise InputError(f"feature costs must be a list of prices, not of shape {prices.shape}")
    is_invalid = ~(np.isfinite(prices) & (prices >= 0))
    for feature in np.flatnonzero(is_invalid).tolist():
        name = repr(names[feature]) if names is not None and feature < len(names) else str(feature)
        check_price(f"the cost of feature {name}", float(prices[feature]))
    return prices


def read_label(group: Any) -> GroupLabel | None:
    """Read the label of a group; None, NaN, NA, -1 and an empty text mean no group.

    A column of whole numbers with missing values holds floats, so that whole floats are numbers.
    """
    is_float = isinstance(group, float | np.floating)
    # pandas is not imported here, so its NA is recognised by its type
    if group is None or type(group).__name__ == "NAType" or (is_float and math.isnan(group)):
        return None
    if isinstance(group, int | np.integer) or (is_float and float(group).is_integer()):
        return None if group < 0 else int(group)
    return str(group) or None


def read_shared_prices(shared: Any) -> dict[GroupLabel, float]:
    """Read shared prices from a mapping by label or a sequence by number."""
    if shared is None:
        return {}
    prices_by_group = shared.items() if isinstance(shared, Mapping) else enumerate(shared)
    prices: dict[GroupLabel, float] = {}
    for group, price in prices_by_group:
        label = read_label(group)
        if label is None:
            raise InputError(f"shared price of group {group!r}: not a group")
        check_price(f"the shared price of group {group!r}", price)
        prices[label] = float(price)
    return prices


def read_prerequisites(requires: Any) -> dict[GroupLabel, tuple[GroupLabel, ...]]:
    """Read the groups that each group requires, given as one label or several."""
    prerequisites: dict[GroupLabel, tuple[GroupLabel, ...]] = {}
    for group, required_groups in (requires or {}).items():
        required_list = (
            [required_groups]
            if isinstance(required_groups, str | int | np.integer)
            else list(required_groups)
        )
        labels = [read_label(label) for label in (group, *required_list)]
        if any(label is None for label in labels):
            raise InputError(
                f"requires: {group!r} or {required_groups!r} is not the label of a group"
            )
        group_label, *prerequisite_labels = (label for label in labels if label is not None)
        prerequisites[group_label] = tuple(dict.fromkeys(prerequisite_labels))
    return prerequisites


def read_feature_groups(
    group: Sequence[GroupLabel | None] | NDArray[Any] | Mapping[str, GroupLabel] | None,
    names: tuple[str, ...] | None,
    n_features: int,
) -> list[GroupLabel | None]:
    """Read the label of each feature's group; None means no group."""
    if isinstance(group, Mapping):
        unknown_names = [name for name in group if name not in (names or ())]
        if unknown_names:
            raise InputError(f"group: {unknown_names[0]!r} is not the name of a feature")
        group = [group.get(name) for name in names or ()]
    if group is None:
        return [None] * n_features
    label_of_feature = [read_label(label) for label in group]
    if len(label_of_feature) != n_features:
        raise InputError(
            f"{len(label_of_feature)} group labels for {n_features} features: give one for each"
        )
    return label_of_feature


def list_groups(
    label_of_feature: Sequence[GroupLabel | None],
    prices: Mapping[GroupLabel, float],
    prerequisites_of_label: Mapping[GroupLabel, Sequence[GroupLabel]],
) -> list[GroupLabel]:
    """List the groups that have features, and then the groups that other groups only require."""
    groups = list(dict.fromkeys(label for label in label_of_feature if label is not None))
    required_groups = set(chain.from_iterable(prerequisites_of_label.values()))
    groups += [label for label in prices if label in required_groups and label not in groups]
    unknown_groups = [label for label in prices if label not in groups and prices[label] != 0.0]
    if unknown_groups:
        raise InputError(f"shared price of group {unknown_groups[0]!r}, but no feature is in it")
    absent_groups = [
        label for label in (*prerequisites_of_label, *required_groups) if label not in groups
    ]
    if absent_groups:
        raise InputError(f"requires names {absent_groups[0]!r}, which is not a group")
    return groups
