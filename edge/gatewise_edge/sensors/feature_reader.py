"""Acquire one instance's features on demand, each once, and meter their cost.

A :class:`Reading` requests the features that a stage or the cloud needs from a
:class:`FeatureSource`. As in training, the cost of an instance is the sum of the own costs of its
acquired features and of the shared cost of each group with an acquired feature. A source may enter
more values than were requested; they cost nothing until they are acquired.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from operator import gt, lt
from typing import Any, Final, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gatewise.costs import FeatureCosts
from gatewise.errors import InputError
from gatewise.models.tree_sources import FLOAT32_MAX
from gatewise_edge.errors import SensorError

#: Largest number of values for which plain Python is faster than two calls of numpy.
_MAX_PLAIN_VALUES: Final = 64
#: Largest number of values of a row that is checked as a whole instead of in each stage. For a
#: longer row this would take more time, because a stage reads few of its values.
_MAX_CHECKED_ROW_VALUES: Final = 1024
#: Largest number of stages whose limits are cached; a cascade has fewer.
_MAX_CACHED_STAGES: Final = 256

Values = NDArray[np.float32]
Mask = NDArray[np.bool_]


class FeatureSource(Protocol):
    """A source of the feature values of one instance."""

    def read(
        self, features: NDArray[np.intp], reading: Reading, timeout_s: float, *, allow_failure: bool
    ) -> None:
        """Enter the values of `features`, and perhaps of others, in `reading`.

        With `allow_failure` a source enters the failure of a sensor in `reading`, and reads the
        other sensors. Without it a failure raises SensorError. A sensor that does not return within
        `timeout_s` seconds always raises it. An audit has an infinite `timeout_s`, because no
        instance waits for it.
        """
        ...


class _StageLimits(NamedTuple):
    """Smallest and largest plausible values of a stage's features, as arrays and as lists."""

    features: NDArray[np.intp]
    lowest: Values
    highest: Values
    lowest_list: list[float]
    highest_list: list[float]


class Meter:
    """Costs and plausible values of a bundle's features.

    Attributes
    ----------
    costs : FeatureCosts
    names : tuple of str
        Name of each feature's column.
    limits : tuple of ndarray, or None
        Smallest and largest plausible value of each feature.
    all_features : ndarray of bool, shape (n_features,)
        Mask of all features.
    charge : callable
        Function of the bytes of a mask of features that returns their cost, ``costs.price(mask)``,
        and their indices. It caches the results, because instances acquire few different sets of
        features.
    """

    def __init__(
        self,
        costs: FeatureCosts,
        names: Sequence[str] | None = None,
        limits: tuple[Values, Values] | None = None,
    ) -> None:
        self.costs = costs
        self.names = tuple(costs.names or () if names is None else names)
        self.limits = limits
        #: Limits of each stage, by the `id` of the stage's array of features.
        self._limits_of_stage: dict[int, _StageLimits] = {}
        self.all_features: Mask = np.ones(costs.n_features, np.bool_)
        self.all_features.flags.writeable = False
        self.charge = lru_cache(maxsize=256)(self._charge)
        lowest, highest = (-FLOAT32_MAX, FLOAT32_MAX) if limits is None else limits
        self._lowest = np.maximum(lowest, -FLOAT32_MAX)
        self._highest = np.minimum(highest, FLOAT32_MAX)

    def is_plausible_row(self, row: Values) -> bool:
        """Whether every value of a row is finite and plausible; False for a row of many values."""
        if len(row) > _MAX_CHECKED_ROW_VALUES:
            return False
        # NaN and infinity do not lie between the limits, which are finite.
        return bool(((row >= self._lowest) & (row <= self._highest)).all())

    def first_implausible(self, features: NDArray[np.intp], values: Values) -> int | None:
        """Return the first of `features` with an implausible value, or None."""
        if self.limits is None:
            return None
        # Cache the limits by the array of features, because each stage always passes the same one.
        stage_limits = self._limits_of_stage.get(id(features))
        if stage_limits is None or stage_limits.features is not features:
            lowest, highest = (limit[features] for limit in self.limits)
            stage_limits = _StageLimits(
                features, lowest, highest, lowest.tolist(), highest.tolist()
            )
            # A lazy stage passes a new array of a single feature at each call.
            if len(features) > 1 and len(self._limits_of_stage) < _MAX_CACHED_STAGES:
                self._limits_of_stage[id(features)] = stage_limits
        if len(values) <= _MAX_PLAIN_VALUES:
            value_list = values.tolist()
            is_any_outside = any(map(lt, value_list, stage_limits.lowest_list)) or any(
                map(gt, value_list, stage_limits.highest_list)
            )
            if not is_any_outside:
                return None
        is_outside = (values < stage_limits.lowest) | (values > stage_limits.highest)
        return int(features[is_outside.argmax()]) if is_outside.any() else None

    def _charge(self, mask: bytes) -> tuple[float, tuple[int, ...]]:
        acquired = np.frombuffer(mask, np.bool_)
        return self.costs.price(acquired), tuple(np.flatnonzero(acquired).tolist())


class Reading:
    """The features of one instance, which its stages acquire in turn.

    Parameters
    ----------
    source : FeatureSource or ndarray of float32, shape (n_features,)
        All values, or the source from which to read them.
    meter : Meter
        Costs and plausible values.
    seconds_left : callable
        Returns the seconds that a read may take now.

    Attributes
    ----------
    values : ndarray of float32, shape (n_features,)
        Values of the features; NaN if a feature was not read.
    was_read : ndarray of bool, shape (n_features,)
        Features that were read.
    failures : dict of int to SensorError
        Errors of failed sensors, by feature. They are not read again for this instance.
    acquired : ndarray of bool, shape (n_features,)
        Features to charge. A feature with a refused value is charged; a feature that could not be
        read is not.
    implausible : str
        Name of the first acquired column or channel with a value far outside the training range;
        empty if every value is plausible.
    """

    def __init__(
        self, source: FeatureSource | Values, meter: Meter, seconds_left: Callable[[], float]
    ) -> None:
        n_features = len(meter.all_features)
        self._source: FeatureSource | None = None
        self._is_plausible_row = False  # whether every value is known and may be used
        if isinstance(source, np.ndarray):
            self.values = source
            self.was_read = meter.all_features
            self._is_plausible_row = meter.is_plausible_row(source)
        else:
            self._source = source
            self.values = np.full(n_features, np.nan, np.float32)
            self.was_read = np.zeros(n_features, np.bool_)
        self.failures: dict[int, SensorError] = {}
        self.acquired: Mask = np.zeros(n_features, np.bool_)
        self._meter = meter
        self._seconds_left = seconds_left
        self._has_failed = False  # whether a sensor failed or a value was refused
        self.implausible: str = getattr(source, "implausible", "")

    @property
    def cost(self) -> float:
        """Cost of the acquired features."""
        return self._meter.charge(self.acquired.tobytes())[0]

    @property
    def first_failure(self) -> SensorError | None:
        """The first failure of a sensor for this instance, or None."""
        return next(iter(self.failures.values()), None)

    def has(self, features: NDArray[np.intp]) -> bool:
        """Whether all of `features` were read."""
        return bool(self.was_read[features].all())

    def is_unread(self, feature: int) -> bool:
        """Whether a feature was not read and has not failed."""
        return not self.was_read[feature] and feature not in self.failures

    def lift_deadline(self) -> None:
        """Remove the deadline of an instance that has been answered."""
        self._seconds_left = lambda: math.inf

    def enter(self, features: slice | int, values: Any) -> None:
        """Enter values that were read; a value beyond float32 becomes infinite and is refused."""
        with np.errstate(over="ignore"):
            self.values[features] = values
        self.was_read[features] = True

    def enter_failure(
        self, features: Iterable[int], failure: SensorError, *, allow_failure: bool
    ) -> None:
        """Enter the failure of `features`; raise it unless `allow_failure`."""
        self.failures |= dict.fromkeys(features, failure)
        if not allow_failure:
            raise failure

    def acquire(
        self, features: NDArray[np.intp], *, allow_missing: bool, allow_failure: bool = False
    ) -> Values:
        """Return the values of `features`, float32; each is read once for the instance.

        With `allow_missing` NaN is allowed. With `allow_failure` the value of a failed sensor is
        NaN. Raises SensorError if a sensor fails or blocks, or if a value is refused. A feature
        that failed or was refused before raises the same error at once.
        """
        if self._is_plausible_row:
            self.acquired[features] = True
            return self.values[features]
        if self._has_failed:
            self._raise_past_failure(features, allow_missing, allow_failure)
        # Read the features that this instance lacks.
        if self._source is not None:
            unread_features = features[~self.was_read[features]]
            if self.failures:
                unread_features = np.array([*filter(self.is_unread, features.tolist())], np.intp)
            if len(unread_features):
                try:
                    self._source.read(
                        unread_features, self, self._seconds_left(), allow_failure=allow_failure
                    )
                except SensorError:
                    self.acquired[features] |= self.was_read[features]
                    self._has_failed = True
                    raise
        # Charge the features that were read, then check their values.
        if self.failures:
            self._has_failed = True
            self.acquired[features] |= self.was_read[features]
        else:
            self.acquired[features] = True
        values = self.values[features]
        if not _all_finite(values):
            self._refuse(features, values, allow_missing)
        if self._meter.limits is not None:
            feature = self._meter.first_implausible(features, values)
            if feature is not None:
                self._record_implausible(feature)
        return values

    def value_getter(
        self, features: Sequence[int], *, allow_missing: bool
    ) -> Callable[[int], float]:
        """Return a function that acquires the feature at a position in `features`.

        It treats missing values and errors as :meth:`acquire` does.
        """
        values = self.values
        was_read = self.was_read
        acquired = self.acquired
        limits = self._meter.limits

        def acquire_at(position: int) -> float:
            feature = features[position]
            if not was_read[feature]:
                return float(self.acquire(np.array([feature]), allow_missing=allow_missing)[0])
            acquired[feature] = True
            value = float(values[feature])
            if not math.isfinite(value) and (not allow_missing or math.isinf(value)):
                self._refuse(np.array([feature]), values[[feature]], allow_missing)
            if limits is not None and (value < limits[0][feature] or value > limits[1][feature]):
                self._record_implausible(feature)
            return value

        return acquire_at

    def _record_implausible(self, feature: int) -> None:
        self.implausible = self.implausible or self._meter.names[feature]

    def _raise_past_failure(
        self, features: NDArray[np.intp], allow_missing: bool, allow_failure: bool
    ) -> None:
        for feature in features.tolist():
            if not allow_failure and feature in self.failures and not self.was_read[feature]:
                raise self.failures[feature]
        acquired_features = features[self.acquired[features]]
        self._refuse(acquired_features, self.values[acquired_features], allow_missing)

    def _refuse(self, features: NDArray[np.intp], values: Values, allow_missing: bool) -> None:
        """Raise SensorError for the first value that must not be used, if any."""
        refusals: list[tuple[Mask, Literal["infinite", "missing"], str]]
        refusals = [(np.isinf(values), "infinite", "is infinite, or beyond float32")]
        if not allow_missing:
            problem = "is missing (NaN), which the model was not trained for"
            refusals.append((np.isnan(values), "missing", problem))
        for is_refused, cause, problem in refusals:
            if is_refused.any():
                self._has_failed = True
                column_name = self._meter.names[features[is_refused][0]]
                raise SensorError(column_name, f"column {column_name!r} {problem}", cause=cause)


def row_values(row: ArrayLike, n_values: int, columns: NDArray[np.intp] | None = None) -> Values:
    """Return the values of all features in a row of `n_values` numbers.

    `columns` are the positions of the bundle's features in the row; None stands for the order of
    the features. Raises InputError for anything but such a row.
    """
    if not isinstance(row, np.ndarray) or row.dtype != np.float32:
        try:
            with np.errstate(over="ignore"):
                row = np.asarray(row, np.float32)
        except (TypeError, ValueError) as error:
            raise InputError(f"an instance must be a row of numbers: {error}") from None
    if row.shape != (n_values,):
        raise InputError(f"an instance of shape {row.shape}; it must have {n_values} features")
    return row if columns is None else row[columns]


def _all_finite(values: Values) -> bool:
    """Whether no value is NaN or infinite."""
    if len(values) <= _MAX_PLAIN_VALUES:
        return math.isfinite(sum(values.tolist()))  # few float32 values cannot overflow float64
    return bool(np.isfinite(values).all())
