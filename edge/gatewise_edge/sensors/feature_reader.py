"""Acquire one instance's features on demand, each once, and meter their cost.

A :class:`FeatureSource` provides values, a :class:`Reading` requests from it what a stage or the
cloud needs. The cost of an instance is that of its acquired features: own costs, and each touched
group's shared cost once, as in training. Values that a source delivers unasked are kept, and cost
nothing until they are acquired.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gatewise.costs import FeatureCosts
from gatewise.errors import InputError
from gatewise_edge.errors import SensorError

__all__ = ["FeatureSource", "FeatureValues", "Meter", "Reading", "RowSource"]

Values = NDArray[np.float32]
Mask = NDArray[np.bool_]


class FeatureValues:
    """Values of one instance, as far as they have been read.

    `values` is NaN where nothing was read, `have` marks what was read, and `failures` holds the
    error of each failed sensor's features: it is not read again for the same instance.
    """

    __slots__ = ("failures", "have", "values")

    def __init__(self, n_features: int) -> None:
        self.values: Values = np.empty(n_features, np.float32)
        self.values.fill(np.nan)  # three times as fast as np.full
        self.have: Mask = np.zeros(n_features, np.bool_)
        self.failures: dict[int, SensorError] = {}


class FeatureSource(Protocol):
    """Where the values of one instance come from."""

    def read(
        self, features: NDArray[np.intp], known: FeatureValues, timeout: float, *, spare: bool
    ) -> None:
        """Enter the values of `features`, and perhaps of more, in `known`.

        With `spare` a failed sensor is entered there and the others are read; else, or if a sensor
        does not return within `timeout` seconds, it raises SensorError.
        """
        ...


class Meter:
    """Costs of sets of features, remembered: instances visit one of a few sets."""

    def __init__(self, costs: FeatureCosts) -> None:
        self.costs = costs
        self._cost_of_bits = lru_cache(maxsize=256)(self._cost)

    def cost(self, acquired: Mask) -> float:
        """Cost of a mask of features: exactly ``costs.price(acquired)``."""
        return self._cost_of_bits(acquired.tobytes())

    def _cost(self, bits: bytes) -> float:
        return self.costs.price(np.frombuffer(bits, np.bool_))


class Reading:
    """One instance with its features acquired step by step.

    `acquired`, a mask of shape (n_features,), is what is paid for. A value that was read and
    refused is paid for, too; one that could not be read is not, however often it was tried.
    """

    def __init__(self, source: FeatureSource, names: Sequence[str], meter: Meter) -> None:
        self._source = source
        self._names = names
        self._meter = meter
        self._known = FeatureValues(len(names))
        self._troubled = False
        self.acquired: Mask = np.zeros(len(names), np.bool_)

    @property
    def cost(self) -> float:
        """Cost of the acquired features."""
        return self._meter.cost(self.acquired)

    @property
    def failure(self) -> SensorError | None:
        """The first failure of a sensor for this instance."""
        return next(iter(self._known.failures.values()), None)

    def acquire(
        self,
        features: NDArray[np.intp],
        *,
        allow_missing: bool,
        timeout: float,
        spare: bool = False,
    ) -> Values:
        """Values of `features`, float32, each read once for the instance.

        `allow_missing` says whether NaN may be among them; with `spare`, too, a sensor that fails
        gives one. Sensors may take `timeout` seconds. Raises SensorError if a sensor fails or
        blocks, or a value is refused; what failed or was refused before raises again at once.
        """
        known = self._known
        if self._troubled:
            self._raise_again(features, allow_missing, spare)
        unread = features[~known.have[features]]
        if known.failures:
            unread = np.array([k for k in unread.tolist() if k not in known.failures], np.intp)
        if len(unread):
            try:
                self._source.read(unread, known, timeout, spare=spare)
            except SensorError:
                self.acquired[features] |= known.have[features]
                self._troubled = True
                raise
        if known.failures:
            self._troubled = True
            self.acquired[features] |= known.have[features]
        else:
            self.acquired[features] = True
        values = known.values[features]
        if not np.isfinite(values).all():
            self._refuse(features, values, allow_missing)
        return values

    def acquire_one(self, feature: int, *, allow_missing: bool, timeout: float) -> float:
        """Value of one feature, as :meth:`acquire`, for a stage that acquires them one by one."""
        known = self._known
        if not known.have[feature]:
            one = np.array([feature])
            return float(self.acquire(one, allow_missing=allow_missing, timeout=timeout)[0])
        self.acquired[feature] = True
        value = float(known.values[feature])
        if not math.isfinite(value) and (not allow_missing or math.isinf(value)):
            self._refuse(np.array([feature]), known.values[[feature]], allow_missing)
        return value

    def _raise_again(self, features: NDArray[np.intp], allow_missing: bool, spare: bool) -> None:
        known = self._known
        for k in features.tolist():
            if not spare and k in known.failures and not known.have[k]:
                raise known.failures[k]
        paid = features[self.acquired[features]]
        self._refuse(paid, known.values[paid], allow_missing)

    def _refuse(self, features: NDArray[np.intp], values: Values, allow_missing: bool) -> None:
        """Raise for the first value that must not be used, if there is one."""
        infinite = features[np.isinf(values)]
        if len(infinite):
            self._troubled = True
            name = self._names[infinite[0]]
            raise SensorError(
                name, f"feature {name!r} is infinite, or beyond float32", why="infinite"
            )
        missing = features[np.isnan(values)]
        if len(missing) and not allow_missing:
            self._troubled = True
            name = self._names[missing[0]]
            raise SensorError(
                name,
                f"feature {name!r} is missing (NaN), which the model was not trained for",
                why="missing",
            )


class RowSource:
    """A source with all values at hand, NaN being missing; InputError if they are no such row.

    `columns` are the row's positions of the bundle's features; without them it is in their order.
    """

    def __init__(
        self, row: ArrayLike, n_values: int, columns: NDArray[np.intp] | None = None
    ) -> None:
        try:
            with np.errstate(over="ignore"):
                self._row: Values = np.asarray(row, np.float32)
        except (TypeError, ValueError) as error:
            raise InputError(f"an instance must be a row of numbers: {error}") from None
        if self._row.shape != (n_values,):
            raise InputError(
                f"an instance of shape {self._row.shape}; it must have {n_values} features"
            )
        if columns is not None:
            self._row = self._row[columns]

    def read(
        self, features: NDArray[np.intp], known: FeatureValues, timeout: float, *, spare: bool
    ) -> None:
        """See :class:`FeatureSource`."""
        known.values = self._row
        known.have.fill(True)
