"""Options for the columns of a raw table, and facts about their cells."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from gatewise.columns.cells import ISO, is_missing, read_number, read_time
from gatewise.columns.csv_file import DECIMAL_COMMA
from gatewise.columns.kinds import (
    DROP,
)
from gatewise.errors import InputError
from gatewise.prices import PriceList
from gatewise_training.data.frames import cells_of

if TYPE_CHECKING:
    from pandas import DataFrame, Series

#: Largest number of different cells that do not match a column's kind; each becomes an option.
MAX_ODD_CELLS: Final = 10
#: Largest number of different numbers in a column of codes, such as versions 3 and v4.1.
_MAX_NUMBER_CODES: Final = 12
#: Largest share of texts in a column of at most _MAX_NUMBER_CODES numbers. A column with more texts
#: has codes, and the texts do not stand for failures of a sensor.
_MAX_ODD_SHARE_OF_CODES: Final = 0.1
#: Words that only booleans have; y, n, 0 and 1 may also be categories or numbers.
_BOOLEAN_WORDS: Final = frozenset({"true", "false", "yes", "no", "on", "off"})
#: Numbers with separators of thousands; 1,200 may also have a decimal comma.
_THOUSANDS: Final = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?")

CommaRole = Literal["decimal", "thousands", "either"]


@dataclass(frozen=True, kw_only=True)
class ColumnOptions:
    """Kinds of a table's columns, and the treatment of empty cells."""

    # by name: category, ordinal, boolean, time:%d.%m.%Y, drop, ... (:mod:`gatewise.columns.kinds`)
    kinds: Mapping[str, str] = field(default_factory=dict)
    impute: bool = False  # fill empty cells, and mark them in an additional feature
    allow_missing: bool = False  # NaN is a value
    missing_words: tuple[str, ...] = ()  # additional texts that mean an empty cell

    @property
    def dropped(self) -> list[str]:
        """Columns that do not become features."""
        return [name for name, kind in self.kinds.items() if kind == DROP]

    @property
    def normalised_missing_words(self) -> frozenset[str]:
        """The texts of `missing_words` in lower case, without surrounding spaces."""
        return frozenset(word.strip().lower() for word in self.missing_words)

    def with_prices(self, prices: PriceList) -> ColumnOptions:
        """Add the kinds in a price list, for the columns that these options do not name."""
        listed_kinds = {name: entry.kind for name, entry in prices.features.items() if entry.kind}
        return replace(self, kinds=listed_kinds | dict(self.kinds))


@dataclass(frozen=True)
class ColumnFacts:
    """Facts about a column's cells."""

    #: Likely kind; "empty", "lists", or "text" if more than half of the cells (over 20) differ.
    kind: str
    n_rows: int  # number of rows
    n_missing: int  # number of rows without a value
    n_distinct: int  # number of different values
    example: str = ""
    odd_cells: tuple[str, ...] = ()  # different cells that are not of this kind
    n_odd_rows: int = 0  # rows with such a cell
    min_number: float = 0.0  # smallest and largest number
    max_number: float = 0.0
    date_formats: tuple[str, ...] = (ISO,)  # formats that read every date of the column
    comma_role: CommaRole | None = None  # role of the commas in numbers

    @property
    def comma_advice(self) -> str:
        """Advice about commas in numbers."""
        if self.comma_role == "decimal":
            return f"decimal commas, as {self.example!r}: write points (pandas: decimal=',')"
        decimal_advice = (
            "" if self.comma_role == "thousands" else "; decimal commas as points (decimal=',')"
        )
        return (
            f"commas in numbers, as {self.example!r}: leave out those of thousands "
            f"(pandas: thousands=','){decimal_advice}"
        )


def table_facts(
    frame: DataFrame, missing_words: frozenset[str] = frozenset()
) -> dict[str, ColumnFacts]:
    """Collect facts about the columns.

    If one column clearly has decimal commas, ambiguous commas of other columns count as decimal.
    """
    facts = {str(name): column_facts(frame[name], missing_words) for name in frame.columns}
    if any(column.comma_role == "decimal" for column in facts.values()):
        for name, column in facts.items():
            if column.comma_role == "either":
                facts[name] = replace(column, comma_role="decimal")
    return facts


def column_facts(cells: Series, missing_words: frozenset[str] = frozenset()) -> ColumnFacts:
    """Collect facts about a column's cells; `missing_words` also mean a missing cell."""
    values = numeric_values(cells)
    if values is not None:
        return _describe_numbers(values, is_boolean=cells.dtype.kind == "b")
    if any(isinstance(cell, list | dict | np.ndarray) for cell in cells_of(cells)):
        return ColumnFacts("lists", len(cells), 0, len(cells))
    counts = count_cells(cells, missing_words)
    n_present = counts.total()
    facts = ColumnFacts("empty", len(cells), len(cells) - n_present, len(counts))
    if not counts:
        return facts
    facts = replace(facts, example=str(next(iter(counts))).strip()[:40])
    if all(
        isinstance(cell, bool) or str(cell).strip().lower() in _BOOLEAN_WORDS for cell in counts
    ):
        return replace(facts, kind="boolean")
    # numbers or dates, where a few cells may be of another kind
    for kind, read_cell in (("number", read_number), ("time", read_time)):
        odd_cells = list_refused(counts, read_cell)
        if (
            kind == "number"
            and (role_and_example := _find_comma_role(odd_cells, counts)) is not None
        ):
            comma_role, example = role_and_example
            return replace(facts, kind=kind, example=example, comma_role=comma_role)
        n_odd_rows = sum(counts[cell] for cell in odd_cells)
        if _are_failures(odd_cells, counts):
            matching_cells = [cell for cell in counts if cell not in odd_cells]
            numbers = [read_number(cell) for cell in matching_cells] if kind == "number" else [0.0]
            return replace(
                facts,
                kind=kind,
                example=str(matching_cells[0]).strip()[:40],
                odd_cells=tuple(str(cell).strip() for cell in odd_cells),
                n_odd_rows=n_odd_rows,
                min_number=min(numbers),
                max_number=max(numbers),
            )
    # dates in another format, categories or text
    date_formats = tuple(
        date_format for date_format in _list_date_formats() if _can_read_all(counts, date_format)
    )
    if date_formats:
        return replace(facts, kind="time", date_formats=date_formats)
    # categories occur in several rows; a small table may have a few that do not
    is_text = len(counts) > max(20, n_present / 2)
    return replace(facts, kind="text" if is_text else "category")


def _are_failures(odd_cells: Sequence[Any], counts: Counter[Any]) -> bool:
    """Whether the cells that do not fit a kind are few enough to be the words of a failure."""
    n_odd_rows = sum(counts[cell] for cell in odd_cells)
    if len(odd_cells) > MAX_ODD_CELLS or n_odd_rows > counts.total() / 2:
        return False
    has_few_numbers = len(counts) - len(odd_cells) <= _MAX_NUMBER_CODES
    return not has_few_numbers or n_odd_rows <= _MAX_ODD_SHARE_OF_CODES * counts.total()


def _find_comma_role(
    odd_cells: Sequence[Any], counts: Counter[Any]
) -> tuple[CommaRole, str] | None:
    """Get the role of the commas in a column of numbers, and an example, or None without commas."""
    decimal_cells = {cell for cell in odd_cells if DECIMAL_COMMA.fullmatch(str(cell))}
    thousands_cells = {cell for cell in odd_cells if _THOUSANDS.fullmatch(str(cell))}
    other_cells = set(odd_cells) - decimal_cells - thousands_cells
    n_other_rows = sum(counts[cell] for cell in other_cells)
    is_mostly_other = len(other_cells) > MAX_ODD_CELLS or n_other_rows > counts.total() / 2
    if not decimal_cells | thousands_cells or is_mostly_other:
        return None
    unambiguous_cells = decimal_cells ^ thousands_cells  # cells that match one pattern only
    example = next(cell for cell in odd_cells if cell in (unambiguous_cells or decimal_cells))
    if not unambiguous_cells or (
        unambiguous_cells & decimal_cells and unambiguous_cells & thousands_cells
    ):
        return "either", example
    return "decimal" if unambiguous_cells & decimal_cells else "thousands", example


def _list_date_formats() -> Iterator[str]:
    """Yield formats of dates other than ISO 8601; formats with the day first come first."""
    for day_format in ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%Y/%m/%d", "%d.%m.%y"):
        yield from (day_format, f"{day_format} %H:%M", f"{day_format} %H:%M:%S")


def _can_read_all(counts: Counter[Any], date_format: str) -> bool:
    try:
        for cell in counts:
            read_time(cell, date_format)
    except InputError:
        return False
    return True


def _describe_numbers(values: NDArray[np.float64], *, is_boolean: bool) -> ColumnFacts:
    numbers = values[~np.isnan(values)]
    n_missing = len(values) - len(numbers)
    if not len(numbers):
        return ColumnFacts("empty", len(values), n_missing, 0)
    kind = "boolean" if is_boolean else "number"
    smallest_number = float(numbers.min())
    facts = ColumnFacts(
        kind, len(values), n_missing, len(np.unique(numbers)), f"{smallest_number:g}"
    )
    return replace(facts, min_number=smallest_number, max_number=float(numbers.max()))


def count_cells(cells: Series, missing_words: frozenset[str]) -> Counter[Any]:
    """Count the rows of each different cell, except missing ones; texts lose outer spaces."""
    return Counter(
        cell.strip() if isinstance(cell, str) else cell
        for cell in cells_of(cells)
        if not is_missing(cell, missing_words)
    )


def list_refused(counts: Counter[Any], read_cell: Callable[[Any], object]) -> list[Any]:
    """List the cells that `read_cell` refuses."""
    refused_cells = []
    for cell in counts:
        try:
            read_cell(cell)
        except InputError:
            refused_cells.append(cell)
    return refused_cells


def numeric_values(cells: Series) -> NDArray[np.float64] | None:
    """Get a column of a numeric type as float64 with NaN for missing cells, or None."""
    if getattr(cells.dtype, "kind", "O") not in "biuf":
        return None
    return np.asarray(cells.to_numpy(np.float64, na_value=np.nan), np.float64)
