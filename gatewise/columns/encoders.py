"""Encoders of a table's columns: a raw cell becomes one feature or several.

::

    number     the number
    boolean    1 or 0
    category   one feature a category (one-hot; all 0 for a category that training has not seen),
               or the category's index (ordinal; -1)
    time       parts of a date: month, weekday, hour, ...

A missing cell becomes `fill` and, where the column has one feature more, 1 in that indicator; else
NaN. Plain data, in the standard library and numpy alone: training, ``verify`` and every device
run this code, so that features have the same bits everywhere.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gatewise.columns import cells
from gatewise.documents.json_reader import NEEDED, JsonField, real, write_record
from gatewise.errors import InputError

MOST_CATEGORIES: Final = 10_000
"""Of a column."""
MOST_CELL_BYTES: Final = 256
"""A category's name, in UTF-8."""

RawRow: TypeAlias = Mapping[str, Any] | Sequence[Any]
"""Cells by column, or in the order of the columns."""

CategoryForm = Literal["one-hot", "ordinal"]


def _category(field: JsonField) -> str:
    """Read text of any characters, unlike names."""
    value = field.value
    if not isinstance(value, str) or value != value.strip() or not value:
        field.fail("must be text that neither begins nor ends with a space")
    try:
        if len(value.encode()) > MOST_CELL_BYTES:
            field.fail(f"has more than {MOST_CELL_BYTES} bytes")
    except UnicodeEncodeError:
        field.fail("is not valid Unicode")
    return value


def _time_part(field: JsonField) -> str:
    return field.choice(cells.TIME_PARTS)


def _time_format(field: JsonField) -> str:
    return field.text(64)


Text = Annotated[str, JsonField.text]
Value = Annotated[float, real(-3.4e38, 3.4e38)]
Category = Annotated[str, _category]
TimePart = Annotated[str, _time_part]


@dataclass(frozen=True, kw_only=True)
class Column(ABC):
    """A raw column and the features that it becomes.

    `fill`: values of a missing cell, without the indicator; None: NaN.
    """

    kind: ClassVar[str]
    name: Text
    features: Annotated[tuple[Text, ...], (1, MOST_CATEGORIES + 1)]
    fill: Annotated[tuple[Value, ...], (1, MOST_CATEGORIES)] | None = field(
        default=None, metadata=NEEDED
    )
    _empty: tuple[float, ...] = field(init=False, repr=False, compare=False)
    _rest: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        extra = len(self.features) - self.width
        if extra not in (0, 1) or (extra and self.fill is None):
            raise InputError(f"column {self.name!r}: {len(self.features)} features do not fit it")
        if self.fill is not None and len(self.fill) != self.width:
            raise InputError(f"column {self.name!r}: fill has {len(self.fill)} values")
        empty = (math.nan,) * self.width if self.fill is None else self.fill
        object.__setattr__(self, "_empty", (*empty, 1.0)[: self.width + extra])
        object.__setattr__(self, "_rest", (0.0,) * extra)

    @property
    @abstractmethod
    def width(self) -> int:
        """Features of a cell that is not missing, the indicator apart."""

    @abstractmethod
    def read(self, cell: Any) -> tuple[float, ...]:
        """Values of a cell that is not missing; InputError if it is none of this kind."""

    def encode(self, cell: Any, missing_words: frozenset[str]) -> tuple[float, ...]:
        """Values of all features of a cell; InputError, which names the column, if it is bad."""
        if cells.is_missing(cell, missing_words):
            return self._empty
        try:
            return self.read(cell) + self._rest
        except InputError as error:
            raise InputError(f"column {self.name!r}: {error}") from None

    def to_document(self) -> dict[str, Any]:
        """The column as an object of JSON."""
        document: dict[str, Any] = {"name": self.name, "kind": self.kind} | write_record(self)
        return document


@dataclass(frozen=True, kw_only=True)
class NumberColumn(Column):
    """A column of numbers."""

    kind: ClassVar[str] = "number"
    width: ClassVar[int] = 1

    def read(self, cell: Any) -> tuple[float, ...]:
        return (cells.read_number(cell),)


@dataclass(frozen=True, kw_only=True)
class BooleanColumn(Column):
    """A column of true and false."""

    kind: ClassVar[str] = "boolean"
    width: ClassVar[int] = 1

    def read(self, cell: Any) -> tuple[float, ...]:
        return (cells.read_boolean(cell),)


@dataclass(frozen=True, kw_only=True)
class CategoryColumn(Column):
    """A column of categories, those that training has seen."""

    kind: ClassVar[str] = "category"
    form: CategoryForm = field(default="one-hot", metadata=NEEDED)
    categories: Annotated[tuple[Category, ...], (1, MOST_CATEGORIES)]

    @property
    def width(self) -> int:
        return 1 if self.form == "ordinal" else len(self.categories)

    @cached_property
    def _place(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.categories)}

    def read(self, cell: Any) -> tuple[float, ...]:
        place = self._place.get(cells.read_category(cell), -1)
        if self.form == "ordinal":
            return (float(place),)
        return tuple(float(i == place) for i in range(len(self.categories)))


@dataclass(frozen=True, kw_only=True)
class TimeColumn(Column):
    """A column of dates or times, as some of their parts."""

    kind: ClassVar[str] = "time"
    parts: Annotated[tuple[TimePart, ...], (1, len(cells.TIME_PARTS))]
    format: Annotated[str, _time_format] = field(default=cells.ISO, metadata=NEEDED)

    def __post_init__(self) -> None:
        super().__post_init__()
        cells.check_time_format(self.format)
        strange = [part for part in self.parts if part not in cells.TIME_PARTS]
        if strange:
            raise InputError(f"column {self.name!r}: a time has no {strange[0]!r}")

    @property
    def width(self) -> int:
        return len(self.parts)

    def read(self, cell: Any) -> tuple[float, ...]:
        time = cells.read_time(cell, self.format)
        return tuple(cells.time_part(time, part) for part in self.parts)


@dataclass(frozen=True)
class RowEncoder:
    """Encoders of all columns of a raw row, in order; its features follow each other.

    `missing_words`: texts of a missing cell, in lower case, beside the usual ones.

    >>> supplier = CategoryColumn(name="supplier", features=("acme", "bolt"),
    ...                           categories=("ACME", "Bolt"))
    >>> encoder = RowEncoder((NumberColumn(name="mass", features=("mass",)), supplier))
    >>> encoder.row({"supplier": "Bolt", "mass": "0.5"}).tolist()
    [0.5, 0.0, 1.0]
    """

    columns: tuple[Column, ...]
    missing_words: frozenset[str] = frozenset()

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the raw columns."""
        return tuple(column.name for column in self.columns)

    @cached_property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features."""
        return tuple(name for column in self.columns for name in column.features)

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """First feature of each column and, last, the number of features."""
        sizes = [len(column.features) for column in self.columns]
        return tuple(np.cumsum([0, *sizes]).tolist())

    @cached_property
    def column_of(self) -> tuple[int, ...]:
        """Column of each feature."""
        return tuple(c for c, column in enumerate(self.columns) for _ in column.features)

    def members(self, column: int) -> range:
        """Features of a column."""
        return range(self.starts[column], self.starts[column + 1])

    def cell(self, column: int, cell: Any) -> tuple[float, ...]:
        """Values of a column's features; InputError, which names the column, for a bad cell."""
        return self.columns[column].encode(cell, self.missing_words)

    def bad_cells(self, rows: Iterable[Sequence[str]]) -> Iterator[tuple[int, InputError]]:
        """Yield the row and the error of each cell that is not of its column's kind, in order."""
        known: dict[tuple[int, str], InputError | None] = {}
        for number, row in enumerate(rows):
            for place in enumerate(row):
                if place not in known:
                    known[place] = None
                    try:
                        self.cell(*place)
                    except InputError as error:
                        known[place] = error
                if (bad := known[place]) is not None:
                    yield number, bad

    def cells(self, row: RawRow) -> list[Any]:
        """Cells of a raw row in the columns' order; InputError if some are not there."""
        if isinstance(row, Mapping):
            absent = [name for name in self.names if name not in row]
            if absent:
                raise InputError(f"the instance has no column {', '.join(map(repr, absent[:8]))}")
            return [row[name] for name in self.names]
        if (
            isinstance(row, str | bytes)
            or not hasattr(row, "__len__")
            or len(row) != len(self.names)
        ):
            raise InputError(
                f"an instance is a mapping by column, or a list of {len(self.names)} cells"
            )
        return list(row)

    def row(self, row: RawRow) -> NDArray[np.float32]:
        """Encode a raw row: float32, shape (n_features,)."""
        values: NDArray[np.float32] = self.rows([row])[0]
        return values

    def rows(self, rows: Sequence[RawRow]) -> NDArray[np.float32]:
        """Encode raw rows: float32, shape (n, n_features)."""
        values = [
            [v for c, cell in enumerate(self.cells(row)) for v in self.cell(c, cell)]
            for row in rows
        ]
        with np.errstate(over="ignore"):  # what float32 cannot hold is refused as infinite
            wide = np.array(values, np.float64).reshape(-1, self.starts[-1])
            narrow: NDArray[np.float32] = np.asarray(wide, np.float32)
        return narrow

    def to_document(self) -> dict[str, Any]:
        """The encoder as an object of JSON."""
        return {
            "missing_words": sorted(self.missing_words),
            "columns": [column.to_document() for column in self.columns],
        }


#: Kinds that a manifest may name.
KINDS: Final[dict[str, type[Column]]] = {
    c.kind: c for c in (NumberColumn, BooleanColumn, CategoryColumn, TimeColumn)
}
