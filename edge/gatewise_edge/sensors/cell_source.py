"""The cells of an instance by column, some of which a function may fetch on demand."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gatewise.columns.encoders import RawRow, RowEncoder
from gatewise.errors import InputError, one_line
from gatewise_edge.errors import SensorError
from gatewise_edge.sensors.row_reader import order_cells

if TYPE_CHECKING:
    from gatewise_edge.sensors.feature_reader import Reading

#: A function of the names of columns and the seconds left that returns their cells by name.
FetchFunction = Callable[[Sequence[str], float], Mapping[str, Any]]


class InputColumns:
    """The columns of a bundle's rows: its features, or the raw columns of its `encoder`.

    `names` are the names of the columns, and `column_of` has the column of each feature.
    """

    def __init__(self, feature_names: Sequence[str], encoder: RowEncoder | None) -> None:
        self._encoder = encoder
        self.names = feature_names if encoder is None else encoder.names
        self.column_of: Sequence[int] = (
            range(len(feature_names)) if encoder is None else encoder.column_of
        )

    def features(self, column: int) -> range:
        """Indices of the features of a column."""
        return range(column, column + 1) if self._encoder is None else self._encoder.members(column)

    def encode(self, column: int, cell: Any) -> Sequence[float]:
        """Values of a column's features.

        Raises TypeError, ValueError or OverflowError for an invalid cell.
        """
        return (float(cell),) if self._encoder is None else self._encoder.cell(column, cell)


class FetchedRow:
    """An instance for :meth:`.Device.answer` with a function that fetches absent columns.

    Parameters
    ----------
    cells : mapping of str to cell
        Known cells.
    fetch : callable
        ``fetch(names, seconds)`` returns, by name, the cells that the next stage or the request
        needs. A column that it leaves out counts as a failed sensor, and so do all columns if it
        raises an exception.
    """

    def __init__(self, cells: Mapping[str, Any], fetch: FetchFunction) -> None:
        self.cells = dict(cells)
        self.fetch = fetch


class CellSource:
    """A :class:`.FeatureSource` with the cells of an instance; it encodes a cell when it is read.

    A cell that cannot be encoded counts as a failed sensor. `fetch` gets absent cells.
    """

    def __init__(
        self, cells: dict[str, Any], columns: InputColumns, fetch: FetchFunction | None = None
    ) -> None:
        self._cells = cells
        self._columns = columns
        self._fetch = fetch

    def read(
        self, features: NDArray[np.intp], reading: Reading, timeout_s: float, *, allow_failure: bool
    ) -> None:
        """Enter the values of `features`; see :meth:`.FeatureSource.read`."""
        columns = dict.fromkeys(self._columns.column_of[feature] for feature in features.tolist())
        names = [self._columns.names[column] for column in columns]
        absent_names = [name for name in names if name not in self._cells]
        problem = "it was not fetched"
        if absent_names and self._fetch is not None:
            try:
                self._cells |= self._fetch(absent_names, timeout_s)
            except Exception as error:  # the user's function may raise anything
                problem = f"it could not be fetched: {one_line(error) or type(error).__name__}"
        for name, column in zip(names, columns, strict=True):
            column_features = self._columns.features(column)
            failure = SensorError(name, f"column {name!r}: {problem}")
            if name in self._cells:
                cell = self._cells[name]
                try:
                    values = self._columns.encode(column, math.nan if cell is None else cell)
                except InputError as error:  # of an encoder; it names the column
                    failure = SensorError(name, str(error))
                except (TypeError, ValueError, OverflowError) as error:
                    failure = SensorError(name, f"column {name!r}: {one_line(error)}")
                else:
                    reading.enter(slice(column_features.start, column_features.stop), values)
                    continue
            reading.enter_failure(column_features, failure, allow_failure=allow_failure)


def raw_cells(
    row: RawRow, encoder: RowEncoder, columns: Sequence[str] | None = None
) -> dict[str, Any]:
    """Get the cells of a raw row by column.

    `row` is a mapping by column, or a sequence of cells in the order of `columns`, by default the
    encoder's. A column that a mapping lacks gets an empty cell. Raises InputError if the row has
    another form or none of the columns.
    """
    if columns is not None and not isinstance(row, Mapping):
        if not isinstance(row, Sequence | np.ndarray) or len(row) != len(columns):
            raise InputError(f"an instance must be a list of {len(columns)} cells")
        row = dict(zip(columns, row, strict=True))
    if isinstance(row, Mapping):
        row = order_cells(row, encoder.names, "columns")
    return dict(zip(encoder.names, encoder.cells(row), strict=True))
