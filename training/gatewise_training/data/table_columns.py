"""Kinds of the columns of a raw table, and problems that make them unusable for training."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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

_MAX_NAME_BYTES: Final = 200
_MAX_ODD_CELLS: Final = 10
_MAX_SHOWN: Final = 20
_BOOLEAN_WORDS: Final = frozenset({"true", "false", "yes", "no", "on", "off"})
#: Numbers with separators of thousands; 1,200 may also have a decimal comma.
_THOUSANDS: Final = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?")

Style = Literal["flags", "python"]
Commas = Literal["decimal", "thousands", "either"]


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
    def words(self) -> frozenset[str]:
        """The texts of `missing_words` in lower case, without surrounding spaces."""
        return frozenset(word.strip().lower() for word in self.missing_words)

    def with_prices(self, prices: PriceList) -> ColumnOptions:
        """Add the kinds in a price list, for the columns that these options do not name."""
        listed = {name: entry.kind for name, entry in prices.features.items() if entry.kind}
        return replace(self, kinds=listed | dict(self.kinds))


@dataclass(frozen=True)
class ColumnFacts:
    """Facts about a column's cells."""

    kind: str  # likely kind; "text" if nearly all cells differ
    rows: int  # number of rows
    missing: int  # number of rows without a value
    distinct: int  # number of different values
    example: str = ""
    odd: tuple[str, ...] = ()  # different cells that are not of this kind
    n_odd: int = 0  # rows with such a cell
    low: float = 0.0  # smallest and largest number
    high: float = 0.0
    forms: tuple[str, ...] = (ISO,)  # formats that read every date of the column
    commas: Commas | None = None  # role of the commas in numbers

    @property
    def advice(self) -> str:
        """Advice about commas in numbers."""
        if self.commas == "decimal":
            return f"decimal commas, as {self.example!r}: write points (pandas: decimal=',')"
        decimal = "" if self.commas == "thousands" else "; decimal commas as points (decimal=',')"
        return (
            f"commas in numbers, as {self.example!r}: leave out those of thousands "
            f"(pandas: thousands=','){decimal}"
        )


@dataclass(frozen=True)
class ColumnProblem:
    """A reason why a column cannot be used, and sets of options that help, the best first."""

    column: str
    reason: str
    remedies: tuple[tuple[tuple[str, str | None], ...], ...] = ()


def table_facts(frame: DataFrame, words: frozenset[str] = frozenset()) -> dict[str, ColumnFacts]:
    """Collect facts about the columns.

    If one column clearly has decimal commas, ambiguous commas of the others count as decimal.
    """
    facts = {str(name): column_facts(frame[name], words) for name in frame.columns}
    if any(f.commas == "decimal" for f in facts.values()):
        for name, column in facts.items():
            if column.commas == "either":
                facts[name] = replace(column, commas="decimal")
    return facts


def column_facts(cells: Series, words: frozenset[str] = frozenset()) -> ColumnFacts:
    """Collect facts about a column's cells; `words` also mean a missing cell."""
    values = _numbers(cells)
    if values is not None:
        return _number_facts(values, is_boolean=cells.dtype.kind == "b")
    counts = Counter(_key(cell) for cell in cells_of(cells) if not is_missing(cell, words))
    rows = len(cells)
    present = counts.total()
    missing = rows - present
    distinct = len(counts)
    if not present:
        return ColumnFacts("empty", rows, missing, 0)
    example = str(next(iter(counts))).strip()[:40]
    if all(isinstance(c, bool) or str(c).strip().lower() in _BOOLEAN_WORDS for c in counts):
        return ColumnFacts("boolean", rows, missing, distinct, example)
    # numbers or dates, where a few cells may be of another kind
    for kind, read in (("number", read_number), ("time", read_time)):
        odd = _refused_cells(counts, read)
        if kind == "number" and (commas := _with_commas(odd, counts)) is not None:
            return ColumnFacts(kind, rows, missing, distinct, commas[1], commas=commas[0])
        n_odd = sum(counts[cell] for cell in odd)
        if not odd or (len(odd) <= _MAX_ODD_CELLS and n_odd <= present / 2):
            cells_read = [cell for cell in counts if cell not in odd]
            numbers = [read_number(cell) for cell in cells_read] if kind == "number" else [0.0]
            return ColumnFacts(
                kind=kind,
                rows=rows,
                missing=missing,
                distinct=distinct,
                example=str(cells_read[0]).strip()[:40],
                odd=tuple(str(cell).strip() for cell in odd),
                n_odd=n_odd,
                low=min(numbers),
                high=max(numbers),
            )
    # dates in another format, categories or text
    forms = tuple(form for form in _date_formats() if _reads_all(counts, form))
    if forms:
        return ColumnFacts("time", rows, missing, distinct, example, forms=forms)
    kind = "text" if distinct > max(20, present / 2) else "category"
    return ColumnFacts(kind, rows, missing, distinct, example)


def _with_commas(odd: Sequence[Any], counts: Counter[Any]) -> tuple[Commas, str] | None:
    """Get the role of the commas in a column of numbers, and an example; None without commas."""
    decimal = {cell for cell in odd if DECIMAL_COMMA.fullmatch(str(cell))}
    thousands = {cell for cell in odd if _THOUSANDS.fullmatch(str(cell))}
    without_commas = set(odd) - decimal - thousands
    n_without = sum(counts[cell] for cell in without_commas)
    is_mostly_other = len(without_commas) > _MAX_ODD_CELLS or n_without > counts.total() / 2
    if not decimal | thousands or is_mostly_other:
        return None
    unambiguous = decimal ^ thousands  # cells that match one pattern only
    example = next(cell for cell in odd if cell in (unambiguous or decimal))
    if not unambiguous or (unambiguous & decimal and unambiguous & thousands):
        return "either", example
    return "decimal" if unambiguous & decimal else "thousands", example


def _date_formats() -> Iterator[str]:
    """Yield formats of dates other than ISO 8601; those with the day first come first."""
    for day in ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%Y/%m/%d", "%d.%m.%y"):
        yield from (day, f"{day} %H:%M", f"{day} %H:%M:%S")


def _reads_all(counts: Counter[Any], form: str) -> bool:
    try:
        for cell in counts:
            read_time(cell, form)
    except InputError:
        return False
    return True


def _number_facts(values: NDArray[np.float64], *, is_boolean: bool) -> ColumnFacts:
    present = values[~np.isnan(values)]
    missing = len(values) - len(present)
    if not len(present):
        return ColumnFacts("empty", len(values), missing, 0)
    kind = "boolean" if is_boolean else "number"
    low = float(present.min())
    high = float(present.max())
    distinct = len(np.unique(present))
    return ColumnFacts(kind, len(values), missing, distinct, f"{low:g}", low=low, high=high)


def column_problems(
    frame: DataFrame, options: ColumnOptions, facts: Mapping[str, ColumnFacts] | None = None
) -> list[ColumnProblem]:
    """List the problems of columns that cannot be used.

    If `facts` is None, collect the facts about the columns that are not dropped.
    """
    columns = [str(name) for name in frame.columns]
    unknown = [name for name in options.kinds if name not in columns]
    problems = [ColumnProblem(name, "is named, but there is no such column") for name in unknown]
    if unknown:
        listed = ", ".join(columns[:_MAX_SHOWN]) + (", ..." if columns[_MAX_SHOWN:] else "")
        problems[-1] = ColumnProblem(unknown[-1], f"{problems[-1].reason}; it has {listed}")
    kinds = {}
    for name, text in options.kinds.items():
        try:
            kind, form = read_kind(text)
            if kind != DROP:
                KINDS[kind].check_format(form)
        except InputError as error:
            problems.append(ColumnProblem(name, str(error)))
        else:
            kinds[name] = (kind, form)
    invalid = options.kinds.keys() - kinds.keys()
    used = [
        name for name in columns if kinds.get(name, ("", ""))[0] != DROP and name not in invalid
    ]
    facts = table_facts(frame[used], options.words) if facts is None else facts
    for name in used:
        problems += _problems_of(name, frame[name], facts[name], kinds.get(name), options)
    return problems


def _problems_of(
    name: str,
    cells: Series,
    facts: ColumnFacts,
    declared: tuple[str, str] | None,
    options: ColumnOptions,
) -> list[ColumnProblem]:
    drop = (_as_kind(name, DROP),)
    if not (name.isprintable() and 1 <= len(name.encode(errors="replace")) <= _MAX_NAME_BYTES):
        return [ColumnProblem(name, "has a name that is empty, long or not printable", (drop,))]
    if facts.kind == "empty":
        return [ColumnProblem(name, "is empty", (drop,))]
    accepts_missing = options.impute or options.allow_missing
    if declared is None:
        kind_name, problem = _undeclared(name, facts, fill=not accepts_missing)
        if problem is not None:
            return [problem]
    else:
        kind_name = declared[0]
        if (problem := _misdeclared(name, cells, *declared, options.words)) is not None:
            return [problem]
    kind = KINDS[kind_name]
    if kind is NumberColumn and max(-facts.low, facts.high) > np.finfo(np.float32).max:
        reason = "has infinite values, or values too large for float32"
        return [ColumnProblem(name, reason, (drop,))]
    if facts.missing and not accepts_missing and not kind.takes_missing:
        reason = f"is empty (NaN) in {facts.missing:,} of {facts.rows:,} rows"
        return [ColumnProblem(name, reason, ((("impute", None),), (("allow_missing", None),)))]
    return []


def _undeclared(name: str, facts: ColumnFacts, *, fill: bool) -> tuple[str, ColumnProblem | None]:
    drop = (_as_kind(name, DROP),)
    category = (_as_kind(name, "category"),)
    na: tuple[tuple[str, str | None], ...] = tuple(("na", word) for word in facts.odd)
    if fill and (na or facts.missing):
        na += (("impute", None),)
    examples = ", ".join(map(repr, facts.odd[:3]))
    if facts.commas is not None:
        return "number", ColumnProblem(name, f"has {facts.advice}")
    if facts.kind == "number" and facts.odd:
        reason = f"is not numbers in {plural(facts.n_odd, 'row')} (as {examples})"
        return "number", ColumnProblem(name, reason, (na, drop))
    if facts.kind == "number" and facts.distinct == facts.rows and name.startswith("Unnamed: "):
        reason = "has no name and numbers the rows"
        return "number", ColumnProblem(name, reason, (drop,))
    if facts.kind in ("number", "boolean"):
        return facts.kind, None
    if facts.kind == "time":
        reason = f"holds dates (as {facts.example!r})"
        if facts.odd:
            reason += f", in {plural(facts.n_odd, 'row')} not (as {examples})"
        named = ["time" if form == ISO else f"time:{form}" for form in facts.forms]
        remedies = [(_as_kind(name, kind), *na) for kind in named]
        return "time", ColumnProblem(name, reason, (*remedies, drop))
    reason = f"is not numbers: {facts.distinct:,} different texts (as {facts.example!r})"
    if facts.distinct > MAX_LEARNED_CATEGORIES:
        return "category", ColumnProblem(name, reason, (drop,))
    if facts.kind == "category":
        return "category", ColumnProblem(name, reason, (category, drop))
    return "category", ColumnProblem(name, reason, (drop, category))


def _misdeclared(
    name: str, cells: Series, kind_name: str, form: str, words: frozenset[str]
) -> ColumnProblem | None:
    """Get the problem of a column with cells that are not of the declared kind."""
    kind = KINDS[kind_name]
    drop = (_as_kind(name, DROP),)
    counts = Counter(_key(c) for c in cells_of(cells) if not is_missing(c, words))
    odd = _refused_cells(counts, lambda cell: kind.check_cell(cell, form))
    if odd:
        rows = sum(counts[cell] for cell in odd)
        examples = ", ".join(repr(str(cell).strip()[:40]) for cell in odd[:3])
        as_format = f" as {form}" if form else ""
        reason = f"is not {kind.requirement}{as_format} in {plural(rows, 'row')} (as {examples})"
        if kind is BooleanColumn and len(odd) == len(counts) <= MAX_LEARNED_CATEGORIES:
            category = _as_kind(name, "category")
            return ColumnProblem(name, f"{reason}; make it a category", ((category,),))
        na = tuple(("na", str(cell).strip()) for cell in odd)
        return ColumnProblem(name, reason, (na, drop) if len(odd) <= _MAX_ODD_CELLS else (drop,))
    if kind.max_distinct is not None and len(counts) > kind.max_distinct:
        reason = f"has {len(counts):,} categories, more than {kind.max_distinct:,}"
        return ColumnProblem(name, reason, (drop,))
    return None


def _as_kind(name: str, kind: str) -> tuple[str, str]:
    """Get the option that gives a column a kind."""
    return ("drop", name) if kind == DROP else ("column", f"{name}={kind}")


def problem_text(problems: Sequence[ColumnProblem], *, style: Style) -> str:
    """Write problems in one line, with the options for each column and those for all columns."""
    texts = [
        f"{p.column!r} {p.reason}"
        + "".join(
            f" ({' or '.join(_options(option_list, style) for option_list in p.remedies)})"
            for _ in p.remedies[:1]
        )
        for p in problems[:_MAX_SHOWN]
    ]
    more = f"; and {len(problems) - _MAX_SHOWN} more" if problems[_MAX_SHOWN:] else ""
    first_remedies = [p.remedies[0] for p in problems if p.remedies]
    needs = "an option" if len(first_remedies) == len(problems) else "a change"
    summary = f"a column needs {needs}"
    if len(problems) > 1:
        summary = f"{len(problems)} columns need {needs}"
    text = f"{summary}: {'; '.join(texts)}{more}"
    if len(first_remedies) > 1:
        all_options = dict.fromkeys(
            option for option_list in first_remedies for option in option_list
        )
        all_of_them = "all" if len(first_remedies) == len(problems) else "those with options"
        text += f". To mend {all_of_them}: {_options(tuple(all_options), style)}"
        if style == "flags":
            text += "; or have `gatewise init` write a file of kinds, for --costs"
    return text


def _options(remedy: Iterable[tuple[str, str | None]], style: Style) -> str:
    if style == "flags":
        return " ".join(
            f"--{option.replace('_', '-')}" + ("" if value is None else f" {shlex.quote(value)}")
            for option, value in remedy
        )
    columns = dict(v.rpartition("=")[::2] for option, v in remedy if option == "column" and v)
    columns |= {v: DROP for option, v in remedy if option == "drop" and v}
    words = [value for option, value in remedy if option == "na"]
    flags = [f"{option}=True" for option, value in remedy if value is None]
    arguments = [f"columns={columns!r}"] if columns else []
    arguments += [f"missing_words={words!r}"] if words else []
    return ", ".join([*arguments, *flags])


def _key(cell: Any) -> Any:
    return cell.strip() if isinstance(cell, str) else cell


def _refused_cells(counts: Counter[Any], read: Callable[[Any], object]) -> list[Any]:
    """List the cells that `read` refuses."""
    odd = []
    for cell in counts:
        try:
            read(cell)
        except InputError:
            odd.append(cell)
    return odd


def _numbers(cells: Series) -> NDArray[np.float64] | None:
    """Get a column of a numeric type as float64 with NaN for missing cells, or None."""
    if getattr(cells.dtype, "kind", "O") not in "biuf":
        return None
    return np.asarray(cells.to_numpy(np.float64, na_value=np.nan), np.float64)
