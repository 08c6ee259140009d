"""One instance being read: features are acquired on demand, once, and metered.

A :class:`Source` knows how values are had, a :class:`Reading` asks it for what a stage or the
cloud needs. The price of an instance is ``FeatureCosts.of`` of the features acquired: own prices,
and each touched group's shared price once, as training counts. What a source delivers beyond
what was asked for is kept, and priced only when it is acquired.
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

__all__ = ["Known", "Meter", "Reading", "Row", "Source"]

Values = NDArray[np.float32]
Mask = NDArray[np.bool_]


class Known:
    """What is known of one instance.

    Attributes
    ----------
    values : ndarray of float32, shape (n_features,)
        NaN where nothing was read.
    have : ndarray of bool, shape (n_features,)
        What was read.
    failures : dict of int to SensorError
        Features whose sensor failed, and how. A failed sensor is not asked again for the same
        instance.
    """

    __slots__ = ("failures", "have", "values")

    def __init__(self, n_features: int) -> None:
        self.values: Values = np.empty(n_features, np.float32)
        self.values.fill(np.nan)  # three times as fast as np.full
        self.have: Mask = np.zeros(n_features, np.bool_)
        self.failures: dict[int, SensorError] = {}


class Source(Protocol):
    """Where the values of one instance come from."""

    def read(
        self, features: NDArray[np.intp], known: Known, timeout: float, *, spare: bool
    ) -> None:
        """Enter the values of `features`, and perhaps of more, in `known`.

        Parameters
        ----------
        features : ndarray of intp, shape (k,)
        known : Known
            A sensor that fails is entered in its `failures`.
        timeout : float
            Seconds that this may take.
        spare : bool
            Whether to go on with the other features after one that failed.

        Raises
        ------
        SensorError
            If a sensor fails and is not spared, or does not return within `timeout` seconds.
            What was read before it is entered.
        """
        ...


class Meter:
    """Prices of sets of features, remembered: instances visit one of a few sets.

    Parameters
    ----------
    costs : FeatureCosts
    """

    def __init__(self, costs: FeatureCosts) -> None:
        self.costs = costs
        self._of_bits = lru_cache(maxsize=256)(self._price)

    def of(self, acquired: Mask) -> float:
        """Price of a mask of features: exactly ``costs.of(acquired)``."""
        return self._of_bits(acquired.tobytes())

    def _price(self, bits: bytes) -> float:
        return self.costs.of(np.frombuffer(bits, np.bool_))


class Reading:
    """One instance whose features are acquired step by step.

    Parameters
    ----------
    source : Source
        Where the values come from.
    names : sequence of str
        Names of all features.
    meter : Meter
        The prices.

    Attributes
    ----------
    acquired : ndarray of bool, shape (n_features,)
        What has been paid for. A value that was read and refused is paid for, too; one that
        could not be read is not, however often it was tried.
    """

    def __init__(self, source: Source, names: Sequence[str], meter: Meter) -> None:
        self._source = source
        self._names = names
        self._meter = meter
        self._known = Known(len(names))
        self._troubled = False
        self.acquired: Mask = np.zeros(len(names), np.bool_)

    @property
    def meter(self) -> float:
        """What the acquired features cost."""
        return self._meter.of(self.acquired)

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
        """Values of `features`, each read once in the instance's life.

        What failed or was refused before is told at once: nothing more is bought for it.

        Parameters
        ----------
        features : ndarray of intp, shape (k,)
        allow_missing : bool
            Whether NaN, a missing value, may be among them.
        timeout : float
            Seconds that sensors may take.
        spare : bool, default False
            Whether a sensor that fails gives a missing value. Only with `allow_missing`.

        Returns
        -------
        ndarray of float32, shape (k,)

        Raises
        ------
        SensorError
            If a sensor fails or blocks, or a value is refused. The error names it.
        """
        known = self._known
        if self._troubled:
            self._look_back(features, allow_missing, spare)
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
        """Value of one feature: :meth:`acquire`, for a stage that buys one after another."""
        known = self._known
        if not known.have[feature]:
            one = np.array([feature])
            return float(self.acquire(one, allow_missing=allow_missing, timeout=timeout)[0])
        self.acquired[feature] = True
        value = float(known.values[feature])
        if not math.isfinite(value) and (not allow_missing or math.isinf(value)):
            self._refuse(np.array([feature]), known.values[[feature]], allow_missing)
        return value

    def _look_back(self, features: NDArray[np.intp], allow_missing: bool, spare: bool) -> None:
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


class Row:
    """A source with all values at hand.

    Parameters
    ----------
    row : array-like of shape (n_features,)
        In the manifest's order; NaN marks a missing value.
    n_features : int

    Raises
    ------
    InputError
        If it is not a row of `n_features` numbers.
    """

    def __init__(self, row: ArrayLike, n_features: int) -> None:
        try:
            with np.errstate(over="ignore"):
                self._row: Values = np.asarray(row, np.float32)
        except (TypeError, ValueError) as error:
            raise InputError(f"an instance must be a row of numbers: {error}") from None
        if self._row.shape != (n_features,):
            raise InputError(
                f"an instance of shape {self._row.shape}; the bundle has {n_features} features"
            )

    def read(
        self, features: NDArray[np.intp], known: Known, timeout: float, *, spare: bool
    ) -> None:
        """See :class:`Source`."""
        known.values = self._row
        known.have.fill(True)
