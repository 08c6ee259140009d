"""Kinds of the columns of a raw table, and problems that make them unusable for training."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from gatewise.columns.cells import ISO, is_missing, read_number, read_time
from gatewise.columns.csv_file import DECIMAL_COMMA
from gatewise.columns.kinds import (
    DROP,
    KINDS,
    MAX_LEARNED_CATEGORIES,
    BooleanColumn,
    NumberColumn,
    read_kind,
)
from gatewise.errors import InputError
from gatewise.formats import plural
from gatewise.prices import PriceList
from gatewise_training.data.frames import cells_of

if TYPE_CHECKING:
    from pandas import DataFrame, Series

#: Longest name of a column, which a manifest and error messages contain.
_MAX_NAME_BYTES: Final = 200
#: Largest number of different cells that do not match a column's kind; each becomes an option.
_MAX_ODD_CELLS: Final = 10
#: Largest number of different numbers in a column of codes, such as versions 3 and v4.1.
_MAX_NUMBER_CODES: Final = 12
#: Largest share of texts in a column of at most _MAX_NUMBER_CODES numbers. A column with more texts
#: has codes, and the texts do not stand for failures of a sensor.
_MAX_ODD_SHARE_OF_CODES: Final = 0.1
#: Largest number of columns that a message names.
_MAX_SHOWN_NAMES: Final = 20
#: Words that only booleans have; y, n, 0 and 1 may also be categories or numbers.
_BOOLEAN_WORDS: Final = frozenset({"true", "false", "yes", "no", "on", "off"})
#: Numbers with separators of thousands; 1,200 may also have a decimal comma.
_THOUSANDS: Final = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?")

#: How a message writes options: as flags of ``gatewise train`` or as arguments of TableEncoder.
Style = Literal["flags", "python"]
#: An option, with underscores, and its value, or None for a switch.
Option = tuple[str, str | None]
#: Options that together solve a problem.
Remedy = tuple[Option, ...]
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


@dataclass(frozen=True)
class ColumnProblem:
    """A reason why a column cannot be used, and sets of options that help, the best first."""

    column: str
    reason: str
    remedies: tuple[Remedy, ...] = ()


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
    counts = _count_cells(cells, missing_words)
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
        odd_cells = _list_refused(counts, read_cell)
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
    if len(odd_cells) > _MAX_ODD_CELLS or n_odd_rows > counts.total() / 2:
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
    is_mostly_other = len(other_cells) > _MAX_ODD_CELLS or n_other_rows > counts.total() / 2
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


def column_problems(
    frame: DataFrame, options: ColumnOptions, facts: Mapping[str, ColumnFacts] | None = None
) -> list[ColumnProblem]:
    """List the problems of columns that cannot be used.

    If `facts` is None, collect the facts about the columns that are not dropped.
    """
    columns = [str(name) for name in frame.columns]
    unknown_names = [name for name in options.kinds if name not in columns]
    problems = [
        ColumnProblem(name, "is named, but there is no such column") for name in unknown_names
    ]
    if unknown_names:
        shown_names = ", ".join(columns[:_MAX_SHOWN_NAMES])
        if len(columns) > _MAX_SHOWN_NAMES:
            shown_names += ", ..."
        problems[-1] = replace(problems[-1], reason=f"{problems[-1].reason}; it has {shown_names}")
    kinds = {}
    for name, kind_text in options.kinds.items():
        try:
            kind, kind_format = read_kind(kind_text)
            if kind != DROP:
                KINDS[kind].check_format(kind_format)
        except InputError as error:
            problems.append(ColumnProblem(name, str(error)))
        else:
            kinds[name] = (kind, kind_format)
    invalid_names = options.kinds.keys() - kinds.keys()
    used_columns = [
        name
        for name in columns
        if kinds.get(name, ("", ""))[0] != DROP and name not in invalid_names
    ]
    if facts is None:
        facts = table_facts(frame[used_columns], options.normalised_missing_words)
    for name in used_columns:
        problem = _find_column_problem(name, frame[name], facts[name], kinds.get(name), options)
        if problem is not None:
            problems.append(problem)
    return problems


def _find_column_problem(
    name: str,
    cells: Series,
    facts: ColumnFacts,
    declared_kind: tuple[str, str] | None,
    options: ColumnOptions,
) -> ColumnProblem | None:
    """Find the problem of a column; `declared_kind` is its kind and format, if it has one."""
    drop_remedy = (_make_kind_option(name, DROP),)
    if not (name.isprintable() and 1 <= len(name.encode(errors="replace")) <= _MAX_NAME_BYTES):
        return ColumnProblem(
            name, "has a name that is empty, long or not printable", (drop_remedy,)
        )
    if facts.kind == "empty":
        return ColumnProblem(name, "is empty", (drop_remedy,))
    if facts.kind == "lists":
        return ColumnProblem(name, "holds lists, not single values", (drop_remedy,))
    accepts_missing = options.impute or options.allow_missing
    if declared_kind is None:
        problem = _check_undeclared(name, facts, advise_impute=not accepts_missing)
    else:
        missing_words = options.normalised_missing_words
        problem = _check_declared(
            name,
            _count_cells(cells, missing_words),
            *declared_kind,
            advise_impute=not accepts_missing,
        )
    if problem is not None:
        return problem
    kind = KINDS[facts.kind if declared_kind is None else declared_kind[0]]
    largest_float32 = float(np.finfo(np.float32).max)
    if kind is NumberColumn and max(-facts.min_number, facts.max_number) > largest_float32:
        return ColumnProblem(
            name, "has infinite values, or values too large for float32", (drop_remedy,)
        )
    if facts.n_missing and not accepts_missing and not kind.takes_missing:
        reason = f"is empty (NaN) in {facts.n_missing:,} of {facts.n_rows:,} rows"
        return ColumnProblem(name, reason, ((("impute", None),), (("allow_missing", None),)))
    return None


def _check_undeclared(
    name: str, facts: ColumnFacts, *, advise_impute: bool
) -> ColumnProblem | None:
    """Find the problem of a column without a declared kind; numbers and booleans need none."""
    drop_remedy = (_make_kind_option(name, DROP),)
    category_remedy = (_make_kind_option(name, "category"),)
    missing_remedy: Remedy = tuple(("na", cell) for cell in facts.odd_cells)
    if advise_impute and (missing_remedy or facts.n_missing):
        missing_remedy += (("impute", None),)
    examples = ", ".join(map(repr, facts.odd_cells[:3]))
    if facts.comma_role is not None:
        return ColumnProblem(name, f"has {facts.comma_advice}")
    if facts.kind == "number" and facts.odd_cells:
        reason = f"is not numbers in {plural(facts.n_odd_rows, 'row')} (as {examples})"
        return ColumnProblem(name, reason, (missing_remedy, drop_remedy))
    if facts.kind == "number" and facts.n_distinct == facts.n_rows and name.startswith("Unnamed: "):
        return ColumnProblem(name, "has no name and numbers the rows", (drop_remedy,))
    if facts.kind in ("number", "boolean"):
        return None
    if facts.kind == "time":
        reason = f"holds dates (as {facts.example!r})"
        if facts.odd_cells:
            reason += f", in {plural(facts.n_odd_rows, 'row')} not (as {examples})"
        time_kinds = [
            "time" if date_format == ISO else f"time:{date_format}"
            for date_format in facts.date_formats
        ]
        time_remedies = [
            (_make_kind_option(name, kind_text), *missing_remedy) for kind_text in time_kinds
        ]
        return ColumnProblem(name, reason, (*time_remedies, drop_remedy))
    if facts.n_distinct == 1 and not facts.n_missing:
        reason = f"has the text {facts.example!r} in all rows"
        return ColumnProblem(name, reason, (drop_remedy, category_remedy))
    reason = f"is not numbers: {facts.n_distinct:,} different texts (as {facts.example!r})"
    if facts.n_distinct > MAX_LEARNED_CATEGORIES:
        return ColumnProblem(name, reason, (drop_remedy,))
    if facts.kind == "category":
        return ColumnProblem(name, reason, (category_remedy, drop_remedy))
    return ColumnProblem(name, reason, (drop_remedy, category_remedy))


def _check_declared(
    name: str, counts: Counter[Any], kind_name: str, kind_format: str, *, advise_impute: bool
) -> ColumnProblem | None:
    """Find the problem of a column, with `counts` of its cells, that has a declared kind."""
    kind = KINDS[kind_name]
    drop_remedy = (_make_kind_option(name, DROP),)
    odd_cells = _list_refused(counts, lambda cell: kind.check_cell(cell, kind_format))
    if odd_cells:
        n_odd_rows = sum(counts[cell] for cell in odd_cells)
        examples = ", ".join(repr(str(cell).strip()[:40]) for cell in odd_cells[:3])
        required_form = f"{kind.requirement} as {kind_format}" if kind_format else kind.requirement
        reason = f"is not {required_form} in {plural(n_odd_rows, 'row')} (as {examples})"
        if kind is BooleanColumn and len(odd_cells) == len(counts) <= MAX_LEARNED_CATEGORIES:
            category_remedy = (_make_kind_option(name, "category"),)
            return ColumnProblem(name, f"{reason}; make it a category", (category_remedy,))
        remedies: tuple[Remedy, ...] = (drop_remedy,)
        if len(odd_cells) <= _MAX_ODD_CELLS:
            missing_remedy: list[Option] = [("na", str(cell).strip()) for cell in odd_cells]
            if advise_impute and not kind.takes_missing:
                missing_remedy.append(("impute", None))
            remedies = (tuple(missing_remedy), drop_remedy)
        return ColumnProblem(name, reason, remedies)
    if kind.max_distinct is not None and len(counts) > kind.max_distinct:
        reason = f"has {len(counts):,} categories, more than {kind.max_distinct:,}"
        return ColumnProblem(name, reason, (drop_remedy,))
    return None


def _make_kind_option(name: str, kind: str) -> Option:
    """Get the option that gives a column a kind."""
    return ("drop", name) if kind == DROP else ("column", f"{name}={kind}")


def problem_text(problems: Sequence[ColumnProblem], *, style: Style) -> str:
    """Write problems in one line, with the options for each column and those for all columns."""
    texts = []
    for problem in problems[:_MAX_SHOWN_NAMES]:
        choices = " or ".join(_write_remedy(remedy, style) for remedy in problem.remedies)
        texts.append(f"{problem.column!r} {problem.reason}" + (f" ({choices})" if choices else ""))
    if len(problems) > _MAX_SHOWN_NAMES:
        texts.append(f"and {len(problems) - _MAX_SHOWN_NAMES} more")
    first_remedies = [problem.remedies[0] for problem in problems if problem.remedies]
    all_have_remedies = len(first_remedies) == len(problems)
    subject = "a column needs" if len(problems) == 1 else f"{len(problems)} columns need"
    text = f"{subject} {'an option' if all_have_remedies else 'a change'}: {'; '.join(texts)}"
    if len(first_remedies) > 1:
        all_options = tuple(dict.fromkeys(chain.from_iterable(first_remedies)))
        mended_columns = "all" if all_have_remedies else "those with options"
        text += f". To mend {mended_columns}: {_write_remedy(all_options, style)}"
        if style == "flags":
            text += "; or have `gatewise init` write a file of kinds, for --costs"
    return text


def _write_remedy(remedy: Remedy, style: Style) -> str:
    """Write options as flags of ``gatewise train`` or as arguments of TableEncoder."""
    if style == "flags":
        return " ".join(
            f"--{option.replace('_', '-')}" + ("" if value is None else f" {shlex.quote(value)}")
            for option, value in remedy
        )
    columns = dict(
        value.rpartition("=")[::2] for option, value in remedy if option == "column" and value
    )
    columns |= {value: DROP for option, value in remedy if option == "drop" and value}
    missing_words = [value for option, value in remedy if option == "na"]
    arguments = [f"columns={columns!r}"] if columns else []
    arguments += [f"missing_words={missing_words!r}"] if missing_words else []
    return ", ".join([*arguments, *(f"{option}=True" for option, value in remedy if value is None)])


def _count_cells(cells: Series, missing_words: frozenset[str]) -> Counter[Any]:
    """Count the rows of each different cell, except missing ones; texts lose outer spaces."""
    return Counter(
        cell.strip() if isinstance(cell, str) else cell
        for cell in cells_of(cells)
        if not is_missing(cell, missing_words)
    )


def _list_refused(counts: Counter[Any], read_cell: Callable[[Any], object]) -> list[Any]:
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
