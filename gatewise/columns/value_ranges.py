"""Value ranges of training rows, from which devices derive limits of plausible values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError

#: Largest distance of a plausible value from the training range, in standard deviations.
#:
#: It is above 0, because new rows often lie a little outside the range.
MAX_DEVIATIONS: Final = 3.0

#: Largest number of values that are measured together, so that the distances fit into memory.
MAX_VALUES: Final = 1 << 20

Values = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class ValueRanges:
    """Range and standard deviation of each column of training rows, shapes (n_columns,).

    They are NaN for a column without values.
    """

    low: Values
    high: Values
    deviation: Values

    @classmethod
    def of_rows(cls, rows: NDArray[Any]) -> Self:
        """Measure rows of shape (n, n_columns), ignoring NaN."""
        n_rows, n_columns = rows.shape
        counts = np.zeros(n_columns)
        sums = np.zeros(n_columns)
        sums_of_squares = np.zeros(n_columns)
        low = np.fmin.reduce(rows, axis=0)
        high = np.fmax.reduce(rows, axis=0)
        # measure distances from the middle of the range, so that their squares keep precision
        midrange = low.astype(np.float64) / 2.0 + high.astype(np.float64) / 2.0
        block_size = max(1, MAX_VALUES // max(1, n_columns))
        for start in range(0, n_rows, block_size):
            distances = rows[start : start + block_size] - midrange
            counts += (~np.isnan(distances)).sum(axis=0)
            sums += np.nansum(distances, axis=0)
            sums_of_squares += np.nansum(distances**2, axis=0)
        counts = np.maximum(counts, 1)
        variance = np.maximum(sums_of_squares / counts - (sums / counts) ** 2, 0.0)
        return cls(*(statistic.astype(np.float32) for statistic in (low, high, np.sqrt(variance))))

    @classmethod
    def from_table(cls, table: NDArray[Any], n_columns: int) -> Self:
        """Read the result of :meth:`table`; InputError if its shape or type is wrong."""
        if table.shape != (3, n_columns) or table.dtype != np.float32:
            raise InputError(
                f"ranges of shape {table.shape} and type {table.dtype}, not {(3, n_columns)} and "
                "float32"
            )
        return cls(*table)

    def table(self) -> Values:
        """Stack `low`, `high` and `deviation`, shape (3, n_columns)."""
        return np.stack([self.low, self.high, self.deviation])

    def limits(self) -> tuple[Values, Values]:
        """Compute the smallest and largest plausible value of each column, shapes (n_columns,).

        A column without values, or with one distinct value, has no limits.
        """
        with np.errstate(all="ignore"):
            distance = np.where(self.deviation > 0, MAX_DEVIATIONS * self.deviation, np.inf)
            margin = distance.astype(np.float32)
            return self.low - margin, self.high + margin


@dataclass(frozen=True, eq=False)
class TrainingRanges:
    """Value ranges of a system's training rows."""

    features: ValueRanges  # one range per feature, or one for all values of an array
    channels: ValueRanges | None = None  # one range per channel of windows
    # (n_channels,): whether a channel varied within every training window, unlike a dead sensor
    is_varying: NDArray[np.bool_] | None = None

    @classmethod
    def of_rows(cls, rows: Values, windows: NDArray[Any] | None = None) -> Self:
        """Measure rows of shape (n, n_features), and windows of shape (n, samples, n_channels)."""
        if windows is None:
            return cls(ValueRanges.of_rows(rows))
        # ignore NaN, as a device does
        largest, smallest = np.fmax.reduce(windows, axis=1), np.fmin.reduce(windows, axis=1)
        is_varying = (largest > smallest).all(axis=0)
        channel_rows = windows.reshape(-1, windows.shape[2])
        return cls(ValueRanges.of_rows(rows), ValueRanges.of_rows(channel_rows), is_varying)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays for a file, by name."""
        arrays: dict[str, NDArray[Any]] = {"features": self.features.table()}
        if self.channels is not None and self.is_varying is not None:
            arrays |= {"channels": self.channels.table(), "varies": self.is_varying}
        return arrays

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, NDArray[Any]], n_features: int, n_channels: int = 0
    ) -> Self:
        """Read the result of :meth:`arrays`; InputError if an array is missing or malformed."""
        names = {"features", "channels", "varies"} if n_channels else {"features"}
        if set(arrays) != names:
            raise InputError(f"value ranges have arrays {sorted(arrays)}, not {sorted(names)}")
        features = ValueRanges.from_table(arrays["features"], n_features)
        if not n_channels:
            return cls(features)
        is_varying = arrays["varies"]
        if is_varying.shape != (n_channels,) or is_varying.dtype != np.bool_:
            raise InputError(
                f"array varies has shape {is_varying.shape} and type {is_varying.dtype}, not "
                f"({n_channels},) and bool"
            )
        return cls(features, ValueRanges.from_table(arrays["channels"], n_channels), is_varying)
