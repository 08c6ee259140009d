"""Counts of categories that were not in the training rows."""

from __future__ import annotations

import logging
from typing import Final

from gatewise.columns.encoders import RowEncoder
from gatewise.columns.kinds import CategoryColumn
from gatewise_edge.sensors.feature_reader import Reading

_LOG = logging.getLogger(__name__)

#: Number of cells after which a column with only unseen categories is reported.
#:
#: The first few cells of a column may have rare categories by chance.
MIN_CELLS_TO_REPORT: Final = 20


class UnseenCategories:
    """Counts of the cells and of the unseen cells in each column of categories.

    A model learns nothing from a column with only unseen categories. The usual cause is that its
    texts are spelled differently than in training. Not thread-safe.
    """

    def __init__(self) -> None:
        self._n_cells_by_column: dict[str, int] = {}
        self._n_unseen_by_column: dict[str, int] = {}

    def count(self, encoder: RowEncoder, reading: Reading) -> bool:
        """Count the acquired cells of an instance; return whether one of them is unseen."""
        has_unseen = False
        for index, column in enumerate(encoder.columns):
            column_features = slice(
                encoder.first_features[index], encoder.first_features[index + 1]
            )
            is_acquired = reading.acquired[column_features].any()
            if not isinstance(column, CategoryColumn) or not is_acquired:
                continue
            name = column.name
            self._n_cells_by_column[name] = self._n_cells_by_column.get(name, 0) + 1
            if column.encodes_unknown(reading.values[column_features].tolist()):
                has_unseen = True
                self._n_unseen_by_column[name] = self._n_unseen_by_column.get(name, 0) + 1
            if self._n_cells_by_column[name] == MIN_CELLS_TO_REPORT and name in self.columns:
                _LOG.warning(
                    "column %r: no category of its first %d cells was in the training rows; check "
                    "that its texts are spelled as in training",
                    name,
                    MIN_CELLS_TO_REPORT,
                )
        return has_unseen

    @property
    def columns(self) -> list[str]:
        """Columns with at least MIN_CELLS_TO_REPORT cells, if all of these are unseen."""
        return [
            name
            for name, n_cells in self._n_cells_by_column.items()
            if n_cells >= MIN_CELLS_TO_REPORT and self._n_unseen_by_column.get(name, 0) == n_cells
        ]
