"""Instances of which some values are known, and a function fetches the others on demand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gatewise.columns.encoders import RowEncoder
from gatewise.errors import one_line
from gatewise_edge.errors import SensorError

if TYPE_CHECKING:
    from gatewise_edge.sensors.feature_reader import Reading

FetchFunction = Callable[[Sequence[str], float], Mapping[str, Any]]
"""A function of the names of columns and the seconds left that returns their cells by name."""


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


class FetchedSource:
    """The features of a FetchedRow as a :class:`.FeatureSource`.

    `feature_names` are those of the bundle, which the `encoder` computes from columns, if any.
    """

    def __init__(
        self, row: FetchedRow, feature_names: Sequence[str], encoder: RowEncoder | None
    ) -> None:
        self._row = row
        self._encoder = encoder
        self._columns = feature_names if encoder is None else encoder.names
        self._column_of = range(len(feature_names)) if encoder is None else encoder.column_of

    def read(
        self, features: NDArray[np.intp], reading: Reading, timeout_s: float, *, allow_failure: bool
    ) -> None:
        """Enter the values of `features`; see :meth:`.FeatureSource.read`."""
        unread_features = features[~reading.was_read[features]].tolist()
        columns = dict.fromkeys(self._column_of[feature] for feature in unread_features)
        names = [self._columns[column] for column in columns]
        absent_names = [name for name in names if name not in self._row.cells]
        problem = "it was not fetched"
        if absent_names:
            try:
                self._row.cells |= self._row.fetch(absent_names, timeout_s)
            except Exception as error:  # the user's function may raise anything
                problem = f"it could not be fetched: {one_line(error) or type(error).__name__}"
        for column in columns:
            self._enter(column, reading, problem, allow_failure=allow_failure)

    def _enter(self, column: int, reading: Reading, problem: str, *, allow_failure: bool) -> None:
        """Enter the values of a column, or its failure, in `reading`."""
        name = self._columns[column]
        column_features = [column] if self._encoder is None else list(self._encoder.members(column))
        failure = SensorError(name, f"column {name!r}: {problem}")
        if name in self._row.cells:
            cell = self._row.cells[name]
            try:
                if self._encoder is None:
                    values: Sequence[float] = [np.nan if cell is None else float(cell)]
                else:
                    values = self._encoder.cell(column, cell)
            except (TypeError, ValueError) as error:
                failure = SensorError(name, f"column {name!r}: {one_line(error)}")
            else:
                for feature, value in zip(column_features, values, strict=True):
                    reading.enter(feature, value)
                return
        reading.enter_failure(column_features, failure, allow_failure=allow_failure)
