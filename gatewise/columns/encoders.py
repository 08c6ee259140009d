"""Encoder from raw rows to features, which training and devices share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gatewise.columns.kinds import AnyColumn
from gatewise.documents import Meta, Record, Text
from gatewise.errors import InputError

#: Largest number of columns in a manifest.
MAX_COLUMNS = 65535

#: Mapping from column name to cell, or a sequence of cells in the order of the columns.
RawRow: TypeAlias = Mapping[str, Any] | Sequence[Any]


class RowEncoder(Record, frozen=True, dict=True):
    """Encoder for rows with the given `columns`.

    `missing_words` are texts in lower case that mean a missing cell, in addition to
    :data:`.cells.MISSING_WORDS`.

    >>> from gatewise.columns.kinds import CategoryColumn, NumberColumn
    >>> supplier = CategoryColumn("supplier", ("acme", "bolt"), categories=("ACME", "Bolt"))
    >>> encoder = RowEncoder((NumberColumn("mass", ("mass",)), supplier))
    >>> encoder.row({"supplier": "Bolt", "mass": "0.5"}).tolist()
    [0.5, 0.0, 1.0]
    """

    columns: Annotated[tuple[AnyColumn, ...], Meta(min_length=1, max_length=MAX_COLUMNS)]
    missing_words: Annotated[frozenset[Text], Meta(max_length=1000)] = frozenset()

    def __post_init__(self) -> None:
        if len(set(self.names)) < len(self.names):
            duplicate = next(name for name in self.names if self.names.count(name) > 1)
            raise InputError(f"column {duplicate!r} is repeated: rename one")

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the raw columns."""
        return tuple(column.name for column in self.columns)

    @cached_property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features."""
        return tuple(name for column in self.columns for name in column.features)

    @cached_property
    def first_features(self) -> tuple[int, ...]:
        """Index of the first feature of each column, followed by the number of features."""
        n_features_by_column = [len(column.features) for column in self.columns]
        return tuple(np.cumsum([0, *n_features_by_column]).tolist())

    @cached_property
    def column_of(self) -> tuple[int, ...]:
        """Index of the column of each feature."""
        return tuple(
            column_index
            for column_index, column in enumerate(self.columns)
            for _ in column.features
        )

    def members(self, column: int) -> range:
        """List the indices of the features of one column."""
        return range(self.first_features[column], self.first_features[column + 1])

    def cell(self, column: int, cell: object) -> tuple[float, ...]:
        """Encode a cell of a column; an InputError for an invalid cell names the column."""
        return self.columns[column].encode(cell, self.missing_words)

    def invalid_cells(self, rows: Iterable[Sequence[str]]) -> Iterator[tuple[int, InputError]]:
        """Yield the row number and the error of each invalid cell, in order."""
        errors: dict[tuple[int, str], InputError | None] = {}
        for row_number, row in enumerate(rows):
            for column_and_cell in enumerate(row):
                if column_and_cell not in errors:
                    errors[column_and_cell] = None
                    try:
                        self.cell(*column_and_cell)
                    except InputError as error:
                        errors[column_and_cell] = error
                if (error_of_cell := errors[column_and_cell]) is not None:
                    yield row_number, error_of_cell

    def cells(self, row: RawRow) -> list[Any]:
        """List the cells of a raw row in the order of the columns.

        Raises InputError if a column is missing, or the number of cells is wrong.
        """
        if isinstance(row, Mapping):
            absent_names = [name for name in self.names if name not in row]
            if absent_names:
                raise InputError(
                    f"the instance has no column {', '.join(map(repr, absent_names[:8]))}"
                )
            return [row[name] for name in self.names]
        if (
            isinstance(row, str | bytes)
            or not hasattr(row, "__len__")
            or len(row) != len(self.names)
        ):
            raise InputError(
                f"an instance must be a mapping by column, or a list of {len(self.names)} cells"
            )
        return list(row)

    def row(self, row: RawRow) -> NDArray[np.float32]:
        """Encode a raw row: float32, shape (n_features,)."""
        features: NDArray[np.float32] = self.rows([row])[0]
        return features

    def rows(self, rows: Sequence[RawRow]) -> NDArray[np.float32]:
        """Encode raw rows: float32, shape (n, n_features)."""
        feature_values = [
            [
                value
                for column, cell in enumerate(self.cells(row))
                for value in self.cell(column, cell)
            ]
            for row in rows
        ]
        # a value beyond the float32 range becomes infinite, and a later check refuses it
        with np.errstate(over="ignore"):
            features64 = np.array(feature_values, np.float64).reshape(-1, self.first_features[-1])
            features: NDArray[np.float32] = np.asarray(features64, np.float32)
        return features
