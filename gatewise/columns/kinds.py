"""Kinds of raw columns, and the features that each kind becomes.

::

    number     the number
    boolean    1 or 0
    category   one feature per category (one-hot; all 0 for an unknown category)
    ordinal    index of the category (-1 for an unknown category)
    time       parts of a date: month, weekday, hour, ...

A missing cell becomes NaN. In a column with `fill` it becomes the values of `fill`, and
the indicator feature, if there is one, becomes 1. To add a kind, add a class here and to
:data:`AnyColumn`. Tables, price files, commands and bundles then accept it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, Final, Self, TypeAlias, TypeVar, get_args

import numpy as np

from gatewise.columns import cells
from gatewise.documents import Meta, Record, Text
from gatewise.errors import InputError

#: Largest number of categories in a column of a bundle.
MAX_CATEGORIES: Final = 10_000
#: Largest number of categories that training learns for a column.
MAX_LEARNED_CATEGORIES: Final = 1000
#: Largest number of categories for one-hot features; a column with more has one feature.
MAX_ONE_HOT: Final = 12
#: Largest size of a category's name, in bytes of UTF-8.
MAX_CELL_BYTES: Final = 256

#: A number that float32 can represent.
Value = Annotated[float, Meta(ge=-3.4e38, le=3.4e38)]
FeatureNames = Annotated[tuple[Text, ...], Meta(min_length=1, max_length=MAX_CATEGORIES + 1)]
Fill = Annotated[tuple[Value, ...], Meta(min_length=1, max_length=MAX_CATEGORIES)]
Categories = Annotated[tuple[str, ...], Meta(min_length=1, max_length=MAX_CATEGORIES)]
TimeParts = Annotated[tuple[str, ...], Meta(min_length=1, max_length=len(cells.TIME_PARTS))]


@dataclass(frozen=True, kw_only=True)
class LearningOptions:
    """Options for learning a column from training cells."""

    format: str = ""  # format of a time column
    has_missing: bool = False  # whether training rows have missing cells
    fill_missing: bool = False  # whether to fill missing cells


class Column(Record, frozen=True, dict=True, tag_field="kind"):
    """A raw column and its features.

    `fill` holds the feature values of a missing cell, without the indicator. None means NaN.
    """

    name: Text
    features: FeatureNames
    fill: Fill | None = None

    #: Description of a valid cell in error messages.
    requirement: ClassVar[str]
    #: Whether cells of a file stay texts even if they look like numbers.
    is_text: ClassVar[bool] = True
    #: Whether a missing cell counts as a category.
    takes_missing: ClassVar[bool] = False
    #: Largest number of distinct training cells; None means no limit.
    max_distinct: ClassVar[int | None] = None

    def __post_init__(self) -> None:
        n_indicators = len(self.features) - self.width
        if n_indicators not in (0, 1) or (n_indicators and self.fill is None):
            n_features = len(self.features)
            raise InputError(
                f"column {self.name!r} of kind {self.kind} cannot have {n_features} features"
            )
        if self.fill is not None and len(self.fill) != self.width:
            raise InputError(f"column {self.name!r}: fill has {len(self.fill)} values")

    @property
    def kind(self) -> str:
        """Name of the kind in files and options."""
        return kind_name(type(self))

    @property
    def width(self) -> int:
        """Number of features without the indicator."""
        return 1

    @classmethod
    def check_format(cls, cell_format: str) -> None:
        """Raise InputError if the kind does not accept a format such as ``%d.%m.%Y``."""
        if cell_format:
            raise InputError(f"{cell_format!r}: only a time has a format")

    @classmethod
    def check_cell(cls, cell: object, cell_format: str) -> None:
        """Raise InputError for a training cell that is not of this kind."""
        raise NotImplementedError

    @classmethod
    def learn(cls, name: str, present_cells: Sequence[Any], options: LearningOptions) -> Column:
        """Learn a column from the training cells that are not missing."""
        raise NotImplementedError

    def read(self, cell: object) -> tuple[float, ...]:
        """Convert a cell that is not missing; InputError if it is not of this kind."""
        raise NotImplementedError

    def encode(self, cell: object, missing_words: frozenset[str]) -> tuple[float, ...]:
        """Convert a cell to the values of all features; an InputError names the column."""
        if cells.is_missing(cell, missing_words):
            return self._missing_values
        try:
            return self.read(cell) + self._indicator_values
        except InputError as error:
            raise InputError(f"column {self.name!r}: {error}") from None

    def encodes_unknown(self, values: Sequence[float]) -> bool:
        """Return whether `values`, the features of a cell, encode an unknown category."""
        return False

    @cached_property
    def _missing_values(self) -> tuple[float, ...]:
        fill_values = (math.nan,) * self.width if self.fill is None else self.fill
        return (*fill_values, 1.0)[: len(self.features)]

    @cached_property
    def _indicator_values(self) -> tuple[float, ...]:
        return (0.0,) * (len(self.features) - self.width)


class NumberColumn(Column, frozen=True, tag="number"):
    """A column of numbers."""

    requirement: ClassVar[str] = "a number"
    is_text: ClassVar[bool] = False

    @classmethod
    def check_cell(cls, cell: object, cell_format: str) -> None:
        cells.read_number(cell)

    @classmethod
    def learn(cls, name: str, present_cells: Sequence[Any], options: LearningOptions) -> Self:
        fill = None
        if options.fill_missing:
            fill = float(np.float32(np.median([cells.read_number(cell) for cell in present_cells])))
        return _make_plain_column(cls, name, fill, options)

    def read(self, cell: object) -> tuple[float, ...]:
        return (cells.read_number(cell),)


class BooleanColumn(Column, frozen=True, tag="boolean"):
    """A column of true and false."""

    requirement: ClassVar[str] = "true or false"
    is_text: ClassVar[bool] = False

    @classmethod
    def check_cell(cls, cell: object, cell_format: str) -> None:
        cells.read_boolean(cell)

    @classmethod
    def learn(cls, name: str, present_cells: Sequence[Any], options: LearningOptions) -> Self:
        fill = None
        if options.fill_missing:
            fill = float(2 * sum(map(cells.read_boolean, present_cells)) >= len(present_cells))
        return _make_plain_column(cls, name, fill, options)

    def read(self, cell: object) -> tuple[float, ...]:
        return (cells.read_boolean(cell),)


PlainColumn = TypeVar("PlainColumn", bound=Column)


def _make_plain_column(
    column_type: type[PlainColumn], name: str, fill: float | None, options: LearningOptions
) -> PlainColumn:
    """Make a column with one feature, and with an indicator if training rows have gaps to fill."""
    indicator = _name_indicator(name, options) if fill is not None else ()
    return column_type(name, (name, *indicator), None if fill is None else (fill,))


class CategoryColumn(Column, frozen=True, tag="category", kw_only=True):
    """A column of categories, with one feature for each known category."""

    categories: Categories

    requirement: ClassVar[str] = f"text of at most {MAX_CELL_BYTES} bytes"
    takes_missing: ClassVar[bool] = True
    max_distinct: ClassVar[int | None] = MAX_LEARNED_CATEGORIES

    def __post_init__(self) -> None:
        super().__post_init__()
        for category in self.categories:
            if not category or category != cells.read_category(category):
                raise InputError(f"category {category!r} is empty or not in its canonical form")
            _check_category(category)
        if len(set(self.categories)) < len(self.categories):
            raise InputError(f"column {self.name!r} repeats a category")

    @property
    def width(self) -> int:
        return len(self.categories)

    @classmethod
    def check_cell(cls, cell: object, cell_format: str) -> None:
        _check_category(cells.read_category(cell))

    @classmethod
    def learn(
        cls, name: str, present_cells: Sequence[Any], options: LearningOptions
    ) -> CategoryColumn:
        # a column with many categories has one feature, the index of the category
        categories = _sort_categories(present_cells)
        if len(categories) > MAX_ONE_HOT:
            return OrdinalColumn.learn(name, present_cells, options)
        return cls(
            name,
            (*_name_one_hot(name, categories), *_name_indicator(name, options)),
            (0.0,) * len(categories) if options.has_missing or options.fill_missing else None,
            categories=categories,
        )

    def encodes_unknown(self, values: Sequence[float]) -> bool:
        return not any(values)

    @cached_property
    def _index_of_category(self) -> dict[str, int]:
        return {category: index for index, category in enumerate(self.categories)}

    def read(self, cell: object) -> tuple[float, ...]:
        index = self._index_of_category.get(cells.read_category(cell), -1)
        return tuple(float(position == index) for position in range(len(self.categories)))


class OrdinalColumn(CategoryColumn, frozen=True, tag="ordinal"):
    """A column of categories with one feature, the index of the category."""

    @property
    def width(self) -> int:
        return 1

    @classmethod
    def learn(
        cls, name: str, present_cells: Sequence[Any], options: LearningOptions
    ) -> CategoryColumn:
        fill = (-1.0,) if options.has_missing or options.fill_missing else None
        features = (name, *_name_indicator(name, options))
        return cls(name, features, fill, categories=_sort_categories(present_cells))

    def encodes_unknown(self, values: Sequence[float]) -> bool:
        return values[0] == -1.0 and not any(values[1:])

    def read(self, cell: object) -> tuple[float, ...]:
        return (float(self._index_of_category.get(cells.read_category(cell), -1)),)


class TimeColumn(Column, frozen=True, tag="time", kw_only=True):
    """A column of dates or times, with one feature for each of `parts`."""

    parts: TimeParts
    format: Text = cells.ISO

    requirement: ClassVar[str] = "a date"

    def __post_init__(self) -> None:
        super().__post_init__()
        cells.check_time_format(self.format)
        unknown_parts = [part for part in self.parts if part not in cells.TIME_PARTS]
        if unknown_parts:
            raise InputError(
                f"parts: {unknown_parts[0]!r} is not one of {', '.join(cells.TIME_PARTS)}"
            )

    @property
    def width(self) -> int:
        return len(self.parts)

    @classmethod
    def check_format(cls, cell_format: str) -> None:
        cells.check_time_format(cell_format or cells.ISO)

    @classmethod
    def check_cell(cls, cell: object, cell_format: str) -> None:
        cells.read_time(cell, cell_format or cells.ISO)

    @classmethod
    def learn(cls, name: str, present_cells: Sequence[Any], options: LearningOptions) -> Self:
        time_format = options.format or cells.ISO
        times = sorted(
            (cells.read_time(cell, time_format) for cell in present_cells),
            key=lambda time: cells.time_part(time, "days"),
        )
        time_parts = _list_varying_parts(times)
        fill = None
        if options.fill_missing:
            # fill a missing time with the median time
            median_time = times[len(times) // 2]
            fill = tuple(
                float(np.float32(cells.time_part(median_time, part))) for part in time_parts
            )
        indicator = _name_indicator(name, options) if fill is not None else ()
        features = (*(f"{name}_{part}" for part in time_parts), *indicator)
        return cls(name, features, fill, parts=time_parts, format=time_format)

    def read(self, cell: object) -> tuple[float, ...]:
        time = cells.read_time(cell, self.format)
        return tuple(cells.time_part(time, part) for part in self.parts)


AnyColumn: TypeAlias = NumberColumn | BooleanColumn | CategoryColumn | OrdinalColumn | TimeColumn


def kind_name(kind: type[Column]) -> str:
    """Return the name of a kind in files and options."""
    return str(kind.__struct_config__.tag)


KINDS: Final[dict[str, type[Column]]] = {kind_name(kind): kind for kind in get_args(AnyColumn)}
#: Kind of a column that has no features.
DROP: Final = "drop"


def read_kind(text: str) -> tuple[str, str]:
    """Split a text such as ``time:%d.%m.%Y`` into a kind and its format.

    Raises InputError for an unknown kind.

    >>> read_kind("category"), read_kind("time:unix")
    (('category', ''), ('time', 'unix'))
    """
    kind, _, cell_format = text.partition(":")
    if kind not in KINDS and kind != DROP:
        raise InputError(f"kind is {kind!r}; choose one of {', '.join((*KINDS, DROP))}")
    return kind, cell_format


def _check_category(text: str) -> None:
    try:
        n_bytes = len(text.encode())
    except UnicodeEncodeError:
        raise InputError(f"{text!r} is not valid Unicode") from None
    if n_bytes > MAX_CELL_BYTES:
        raise InputError(f"category {text[:40]!r}... has more than {MAX_CELL_BYTES} bytes")


def _sort_categories(present_cells: Sequence[Any]) -> tuple[str, ...]:
    """List the distinct categories: numbers by value, then other texts."""

    def sort_key(category: str) -> tuple[bool, float, str]:
        try:
            return False, cells.read_number(category), category
        except InputError:
            return True, 0.0, category

    return tuple(sorted({cells.read_category(cell) for cell in present_cells}, key=sort_key))


def _name_indicator(name: str, options: LearningOptions) -> tuple[str, ...]:
    return (f"{name}_missing",) if options.has_missing else ()


def _name_one_hot(name: str, categories: Sequence[str]) -> list[str]:
    """Name the features of categories; the names are printable, short and distinct."""
    names: list[str] = []
    for index, category in enumerate(categories):
        # longer names would not fit into tables and plots; the index keeps short names distinct
        short_name = "".join(
            character if character.isprintable() else "_" for character in category
        )[:12]
        is_short_name = category and category.isprintable() and len(category.encode()) <= 40
        names.append(f"{name}={category if is_short_name else f'{short_name}~{index}'}")
    return names


def _list_varying_parts(times: Sequence[Any]) -> tuple[str, ...]:
    """List the parts from month to hour that vary between times, or else minute and second."""

    def select_varying(*parts: str) -> tuple[str, ...]:
        return tuple(
            part for part in parts if len({cells.time_part(time, part) for time in times}) > 1
        )

    return (
        select_varying("month", "day", "weekday", "hour")
        or select_varying("minute", "second")
        or ("month",)
    )
