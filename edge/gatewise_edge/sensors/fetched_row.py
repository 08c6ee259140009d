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
    from gatewise_edge.sensors.feature_reader import FeatureSource, Reading

Fetch = Callable[[Sequence[str], float], Mapping[str, Any]]
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

    def __init__(self, cells: Mapping[str, Any], fetch: Fetch) -> None:
        self._cells = dict(cells)
        self._fetch = fetch

    def bind(self, names: Sequence[str], encoder: RowEncoder | None) -> FeatureSource:
        """Make the source of a bundle's features; `names` are features or, encoded, columns."""
        return _FetchedSource(self._cells, self._fetch, names, encoder)


class _FetchedSource:
    """Known and fetched cells as a :class:`.FeatureSource`."""

    def __init__(
        self, cells: dict[str, Any], fetch: Fetch, names: Sequence[str], encoder: RowEncoder | None
    ) -> None:
        self._cells = cells
        self._fetch = fetch
        self._encoder = encoder
        self._columns = names if encoder is None else encoder.names
        self._column_of = range(len(names)) if encoder is None else encoder.column_of

    def read(
        self, features: NDArray[np.intp], known: Reading, timeout: float, *, spare: bool
    ) -> None:
        columns = dict.fromkeys(self._column_of[k] for k in features.tolist() if not known.have[k])
        absent = [self._columns[c] for c in columns if self._columns[c] not in self._cells]
        problem = "it was not fetched"
        if absent:
            try:
                self._cells |= self._fetch(absent, timeout)
            except Exception as error:  # the user's function may raise anything
                problem = f"it could not be fetched: {one_line(error) or type(error).__name__}"
        for column in columns:
            self._enter(column, known, problem, spare=spare)

    def _enter(self, column: int, known: Reading, problem: str, *, spare: bool) -> None:
        """Enter the values of a column, or its failure, in `known`."""
        name = self._columns[column]
        members = [column] if self._encoder is None else list(self._encoder.members(column))
        failure = SensorError(name, f"column {name!r}: {problem}")
        if name in self._cells:
            cell = self._cells[name]
            try:
                if self._encoder is None:
                    values: Sequence[float] = [np.nan if cell is None else float(cell)]
                else:
                    values = self._encoder.cell(column, cell)
            except (TypeError, ValueError) as error:
                failure = SensorError(name, f"column {name!r}: {one_line(error)}")
            else:
                for k, value in zip(members, values, strict=True):
                    known.enter(k, value)
                return
        known.fail(members, failure, spare=spare)
