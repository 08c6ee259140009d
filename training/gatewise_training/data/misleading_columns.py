"""Columns that mislead training, such as identifiers, copies of the label and times."""

from __future__ import annotations

import re
import shlex
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gatewise.columns.cells import ISO, is_missing, read_category, read_number, read_time
from gatewise.columns.kinds import MAX_LEARNED_CATEGORIES
from gatewise.errors import InputError
from gatewise.formats import listed
from gatewise_training.data.table_columns import ColumnFacts, numeric_values

if TYPE_CHECKING:
    from pandas import DataFrame, Series

#: Largest number of rows that are examined; these are the first rows.
MAX_ROWS: Final = 20_000

#: Largest number of columns that a remark names.
MAX_NAMED_COLUMNS: Final = 6

#: Smallest share of rows on which a copy of the label determines the label.
MIN_COPY_ACCURACY: Final = 0.995

#: Largest ratio of a copy's errors to those of always answering the most frequent class.
MAX_ERROR_RATIO: Final = 0.1

#: Smallest number of rows for a finding, because few rows may differ by chance.
MIN_ROWS: Final = 30

#: Smallest number of entities with several rows each.
MIN_ENTITIES: Final = 10

#: Largest number of columns that a column of entities is compared with.
MAX_COMPARED_COLUMNS: Final = 64

#: Number of standard errors that chance may explain, because many columns are examined.
MAX_CHANCE_ERRORS: Final = 5.0

#: Smallest share of the disagreements of labels at neighbouring values that numbers of entities
#: avoid. Weaker numbers would also make figures only a little too good.
MIN_EXPLAINED_DISAGREEMENT: Final = 0.5

#: Usual names of columns that identify subjects, machines or recordings.
_ENTITY_NAMES: Final = re.compile(
    r"(?:.*[\W_])?(?:person|patient|subject|user|customer|client|participant|speaker|worker|driver|"
    r"machine|device|unit|sensor|engine|session|recording|case|household|animal|site|idcode|id)"
    r"(?:[\W_]?(?:id|no|nr|number|code))?"
)

#: Usual names of times.
_TIME_NAMES: Final = re.compile(
    r"(?:.*[\W_])?(?:time|timestamp|datetime|date|day|week|month|year|hour|epoch|ts|t)"
    r"(?:[\W_].*)?|\w*(?:time|date|stamp)"
)

#: Short reasons, for the comments in a file of kinds.
_DROP_REASONS: Final = {
    "identifier": "each once, an identifier",
    "constant": "one value alone",
    "entities": "numbers entities of several rows each",
}

Trouble = Literal["identifier", "constant", "copy", "entities", "time", "dates", "order"]


class Advice(NamedTuple):
    """Why a column misleads training, and the option of ``gatewise train`` that avoids it."""

    reason: str
    option: str


_ADVICE: Final[dict[Trouble, Advice]] = {
    "identifier": Advice(
        "differs in every row, as an identifier does, and cannot help on new rows",
        "--drop",
    ),
    "constant": Advice("has one value alone, which costs its price and says nothing", "--drop"),
    "copy": Advice(
        f"alone tells the label of {MIN_COPY_ACCURACY:.1%} of the rows or more: drop it if it is a "
        "copy of the label, or known only after it",
        "--drop",
    ),
    "entities": Advice(
        "identifies entities with several rows each: figures are too good for new entities, unless "
        "whole entities are held out",
        "--groups",
    ),
    "time": Advice(
        "is the time of the rows, which are sorted by it: figures on rows held out at random are "
        "too good for later rows",
        "--time-split",
    ),
    "dates": Advice(
        "holds dates: if they are the times of the rows, figures on rows held out at random are "
        "too good for later ones",
        "--time-split",
    ),
    "order": Advice(
        "rises or falls from the first row to the last: if the rows came in this order, figures on "
        "rows held out at random are too good for later ones",
        "--time-split",
    ),
}

_FEATURE_TROUBLES: Final[tuple[Trouble, ...]] = ("identifier", "constant", "copy")


@dataclass(frozen=True)
class TableRemark:
    """Columns with the same trouble; for entities and times, the most certain column is first."""

    trouble: Trouble
    columns: tuple[str, ...]
    date_format: str = ISO  # of the first column, if it has dates

    @property
    def option(self) -> str:
        """Option of ``gatewise train`` that avoids the trouble."""
        return _ADVICE[self.trouble].option

    @property
    def text(self) -> str:
        """The columns, the reason and the option as a sentence."""
        names = ", ".join(map(repr, self.columns[:MAX_NAMED_COLUMNS]))
        n_more = len(self.columns) - MAX_NAMED_COLUMNS
        names += f" and {n_more} more" if n_more > 0 else ""
        return f"{names}: {_ADVICE[self.trouble].reason} ({shlex.join(self.arguments)})"

    @property
    def arguments(self) -> list[str]:
        """The option with its values, for each column if several can be dropped."""
        if self.option == "--drop":
            return [text for name in self.columns[:MAX_NAMED_COLUMNS] for text in ("--drop", name)]
        name = self.columns[0]
        return [self.option, name if self.date_format == ISO else f"{name}={self.date_format}"]


def table_remarks(
    frame: DataFrame, y: NDArray[Any], facts: Mapping[str, ColumnFacts], dropped: Sequence[str] = ()
) -> list[TableRemark]:
    """List the columns of a table that mislead training.

    `facts` describe the columns, and `y`, (n,), are the labels. Columns in `dropped` are only
    reported as entities or times.
    """
    # encode the columns, and examine a column with one trouble for no other trouble
    labels = np.unique(y[:MAX_ROWS].astype(str), return_inverse=True)[1].astype(np.int64)
    codes = {
        name: _encode_column(frame[name].iloc[:MAX_ROWS], column)
        for name, column in facts.items()
        # numbers with commas cannot be read yet
        if column.kind not in ("empty", "lists") and column.comma_role is None
    }
    constant_columns = [name for name in codes if _is_constant(facts[name])]
    codes = _drop_columns(codes, constant_columns)
    identifier_columns = [
        name for name, column in codes.items() if _is_identifier(facts[name], column)
    ]
    codes = _drop_columns(codes, identifier_columns)
    entity_columns = _list_entities(codes, facts, labels)
    codes = _drop_columns(codes, entity_columns)
    columns_by_trouble: dict[Trouble, list[str]] = {
        "identifier": identifier_columns,
        "constant": constant_columns,
        "copy": [name for name, column in codes.items() if _determines_label(column, labels)],
        "entities": entity_columns,
    }
    for name, column in codes.items():
        if (order_trouble := _find_order_trouble(name, column, facts[name])) is not None:
            columns_by_trouble.setdefault(order_trouble, []).append(name)
    for trouble in _FEATURE_TROUBLES:
        columns_by_trouble[trouble] = [
            name for name in columns_by_trouble[trouble] if name not in dropped
        ]
    return [
        TableRemark(
            trouble,
            tuple(names),
            facts[names[0]].date_formats[0] if trouble in ("time", "dates") else ISO,
        )
        for trouble, names in columns_by_trouble.items()
        if names
    ]


def _drop_columns(codes: dict[str, _ColumnCodes], names: Sequence[str]) -> dict[str, _ColumnCodes]:
    return {name: column for name, column in codes.items() if name not in names}


@dataclass(frozen=True)
class _ColumnCodes:
    """Cells of a column as numbers: values of numbers or times, or indices of texts."""

    values: NDArray[np.float64]  # (n,); NaN: missing
    value_index: NDArray[np.int64]  # (n,): number of the distinct value, rising with it
    n_distinct: int
    is_number: bool

    @property
    def rows_per_value(self) -> float:
        """Mean number of rows per distinct value."""
        return len(self.values) / max(self.n_distinct, 1)

    @property
    def is_whole(self) -> bool:
        """Whether the cells are texts, or numbers without fractions."""
        present_values = self.values[~np.isnan(self.values)]
        return not self.is_number or bool(np.all(present_values == np.round(present_values)))


def _encode_column(cells: Any, facts: ColumnFacts) -> _ColumnCodes:
    """Encode a column by the likely kind of its cells."""
    values = numeric_values(cells) if facts.kind in ("number", "boolean") else None
    if values is None and facts.kind == "number":  # a dropped column is read as text
        values = np.array(_read_cells(cells, read_number, np.nan))
    elif facts.kind == "time":
        date_format = facts.date_formats[0]
        values = np.array(_read_cells(cells, lambda cell: _read_seconds(cell, date_format), np.nan))
    if values is None:
        texts = _read_cells(cells, read_category, "")
        value_index = np.unique(texts, return_inverse=True)[1].astype(np.int64)
        n_distinct = int(value_index.max()) + 1
        return _ColumnCodes(value_index.astype(np.float64), value_index, n_distinct, False)
    distinct_values, value_index = np.unique(values, return_inverse=True)
    return _ColumnCodes(values, value_index.astype(np.int64), len(distinct_values), True)


def _read_cells(cells: Series, read_cell: Callable[[Any], Any], fallback: Any) -> list[Any]:
    """Read the cells of a column; a cell that cannot be read gets the value `fallback`."""
    readings = []
    for cell in cells.tolist():
        try:
            readings.append(fallback if is_missing(cell) else read_cell(cell))
        except (InputError, OverflowError, OSError):
            readings.append(fallback)
    return readings


def _read_seconds(cell: Any, date_format: str) -> float:
    return read_time(cell, date_format).replace(tzinfo=None).timestamp()


def _is_constant(facts: ColumnFacts) -> bool:
    return facts.n_distinct == 1 and not facts.n_missing


def _is_identifier(facts: ColumnFacts, codes: _ColumnCodes) -> bool:
    """Whether all cells differ, and are texts or whole numbers.

    The name of a column with fractions says nothing: ``heat_index`` is a measurement.
    """
    n = len(codes.values)
    if n < MIN_ROWS or facts.n_missing or facts.kind == "time" or facts.n_distinct < facts.n_rows:
        return False
    return codes.is_whole


def _determines_label(codes: _ColumnCodes, labels: NDArray[np.int64]) -> bool:
    """Whether the column alone determines the label of nearly all rows.

    Its errors must also be few beside those of always answering the most frequent class, which is
    right on nearly all rows if the other classes are rare.
    """
    n = len(labels)
    n_classes = int(labels.max()) + 1
    if n < MIN_ROWS or n_classes < 2:
        return False
    n_minor = n - int(np.bincount(labels).max())
    max_errors = min((1 - MIN_COPY_ACCURACY) * n, MAX_ERROR_RATIO * n_minor)
    if codes.rows_per_value >= 10:  # with fewer rows, the labels of a value agree by chance
        # the most frequent label of each value
        label_counts = np.zeros((codes.n_distinct, n_classes), np.int64)
        np.add.at(label_counts, (codes.value_index, labels), 1)
        return bool(n - label_counts.max(axis=1).sum() <= max_errors)
    if not codes.is_number:
        return False
    # sorted by value, the label changes n_classes - 1 times; a row on the wrong side adds 2 changes
    row_order = np.argsort(codes.value_index, kind="stable")
    n_changes = int(np.sum(np.diff(labels[row_order]) != 0))
    return n_changes <= (n_classes - 1) + 2 * max_errors


def _list_entities(
    codes: Mapping[str, _ColumnCodes], facts: Mapping[str, ColumnFacts], labels: NDArray[np.int64]
) -> list[str]:
    """List the columns that identify entities with several rows; the most certain is first."""
    evidence_by_name = {}
    for name, column in codes.items():
        if facts[name].kind in ("time", "boolean") or not column.is_whole:
            continue
        row_counts = np.bincount(column.value_index, minlength=column.n_distinct)
        is_repeated = row_counts >= 2
        n_repeated = int(is_repeated.sum())
        # most rows must belong to entities with several rows
        if n_repeated < MIN_ENTITIES or row_counts[is_repeated].sum() < 0.6 * len(labels):
            continue
        # a usual name weighs as much as two traits
        evidence = 2 * bool(_ENTITY_NAMES.fullmatch(name.lower()))
        evidence += _count_traits(name, column, codes)
        has_many_entities = column.rows_per_value <= 20 and n_repeated >= 3 * MIN_ENTITIES
        # if equal numbers have equal labels more often than near numbers, the number is a name
        if column.is_number and has_many_entities:
            evidence += _has_labels_of_its_own(column, labels)
        if evidence:
            evidence_by_name[name] = evidence
    return sorted(evidence_by_name, key=lambda name: -evidence_by_name[name])


def _count_traits(name: str, entity: _ColumnCodes, codes: Mapping[str, _ColumnCodes]) -> int:
    """Count the columns that vary between entities, but rarely within an entity."""
    row_order = np.argsort(entity.value_index, kind="stable")
    is_same_entity = np.diff(entity.value_index[row_order]) == 0
    n_traits = 0
    column_step = -(-len(codes) // MAX_COMPARED_COLUMNS)
    for other_name, column in list(codes.items())[::column_step]:
        # with few values, the rows of an entity could agree by chance
        has_many_values = 20 <= column.n_distinct <= entity.n_distinct
        if other_name == name or not has_many_values or not column.is_number:
            continue
        is_change = np.diff(column.value_index[row_order]) != 0
        # A trait may change in 2 % of the rows of an entity, for errors in the table. A column that
        # is nearly always 0 also changes rarely, but between entities as well.
        rate_within = is_change[is_same_entity].mean()
        rate_between = is_change[~is_same_entity].mean()
        is_trait = rate_within < min(0.02, 0.1 * rate_between)
        # a rounded copy of the entity's number is not a trait
        n_traits += bool(is_trait and not _rises_with(entity, column))
    return n_traits


def _rises_with(entity: _ColumnCodes, column: _ColumnCodes) -> bool:
    """Whether a column rises or falls with the entity's number, as a rounded copy would."""
    if not entity.is_number:
        return False
    sorted_values = column.values[np.argsort(entity.values, kind="stable")]
    differences = np.diff(sorted_values)
    return bool(np.all(differences >= 0) or np.all(differences <= 0))


def _has_labels_of_its_own(column: _ColumnCodes, labels: NDArray[np.int64]) -> bool:
    """Whether labels agree much more often at equal values than at neighbouring values.

    They do for numbers of entities, but hardly for a measured quantity. Each value is compared with
    its own neighbours, because a quantity may have many equal values where one label is frequent.
    """
    row_order = np.lexsort((np.random.default_rng(0).permutation(len(labels)), column.value_index))
    sorted_index = column.value_index[row_order]
    sorted_labels = labels[row_order]
    is_agreeing = (sorted_labels[1:] == sorted_labels[:-1]).astype(np.float64)
    is_same_value = sorted_index[1:] == sorted_index[:-1]
    # agreement of the pairs of rows with each value
    value_of_pair = sorted_index[1:][is_same_value]
    n_pairs = np.bincount(value_of_pair, minlength=column.n_distinct)
    n_agreeing = np.bincount(value_of_pair, is_agreeing[is_same_value], column.n_distinct)
    # agreement of the last row of a value with the first row of the next value
    agreement_with_next = is_agreeing[~is_same_value]
    has_neighbours = n_pairs > 0
    has_neighbours[[0, -1]] = False  # the first and the last value have one neighbour
    if np.count_nonzero(has_neighbours) < MIN_ROWS:
        return False
    agreement_with_neighbours = np.full(column.n_distinct, np.nan)
    agreement_with_neighbours[1:-1] = (agreement_with_next[:-1] + agreement_with_next[1:]) / 2
    agreement_within = n_agreeing[has_neighbours] / n_pairs[has_neighbours]
    agreement_beside = agreement_with_neighbours[has_neighbours]
    excess = agreement_within - agreement_beside
    error = excess.std() / np.sqrt(len(excess))
    disagreement_beside = 1.0 - agreement_beside.mean()
    return bool(
        excess.mean() > MAX_CHANCE_ERRORS * error
        and excess.mean() > MIN_EXPLAINED_DISAGREEMENT * disagreement_beside
    )


def _find_order_trouble(
    name: str, codes: _ColumnCodes, facts: ColumnFacts
) -> Literal["time", "dates", "order"] | None:
    """Get the trouble of a column that has dates or that the rows are sorted by, or None."""
    if (
        facts.kind not in ("number", "time")
        or facts.n_missing
        or facts.odd_cells
        or codes.n_distinct < 5  # sorted by a category, for example
    ):
        return None
    differences = np.diff(codes.values)
    if len(differences) >= MIN_ROWS and (np.all(differences >= 0) or np.all(differences <= 0)):
        is_time = facts.kind == "time" or _TIME_NAMES.fullmatch(name.lower())
        return "time" if is_time else "order"
    return "dates" if facts.kind == "time" else None


def drop_reason(name: str, facts: ColumnFacts, remarks: Iterable[TableRemark]) -> str | None:
    """Get the reason why a column should not become a feature, or None if it may."""
    if facts.kind == "empty":
        return "no feature"
    if facts.kind == "lists":
        return "several values in a cell"
    for remark in remarks:
        if name in remark.columns and remark.trouble in _DROP_REASONS:
            return _DROP_REASONS[remark.trouble]
    if facts.kind == "text":
        return "too many texts for categories"
    if facts.kind == "category" and facts.n_distinct > MAX_LEARNED_CATEGORIES:
        return f"more than {MAX_LEARNED_CATEGORIES:,} categories"
    return None


def label_remark(labels: Iterable[Any]) -> str | None:
    """Write which labels differ only in case, spaces or the encoding of letters.

    >>> label_remark(["ok", "OK ", "fault"]).partition(":")[0]
    "the labels 'ok' and 'OK ' differ only in case or spelling"
    >>> label_remark([1, 2, 12])
    """
    labels_by_spelling: dict[str, list[str]] = {}
    for label in dict.fromkeys(map(str, labels)):
        letters = unicodedata.normalize("NFKC", label).casefold()
        labels_by_spelling.setdefault("".join(letters.split()), []).append(label)
    similar_labels = [variants for variants in labels_by_spelling.values() if len(variants) > 1]
    if not similar_labels:
        return None
    pairs = "; ".join(listed(list(map(repr, variants))) for variants in similar_labels)
    return (
        f"the labels {pairs} differ only in case or spelling: write one of them if they are one "
        "class"
    )
