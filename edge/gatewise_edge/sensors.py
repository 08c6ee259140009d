"""Feature values on demand: read what is asked for, once, and meter what it costs.

:class:`Sensors` say how features are read, :class:`Reading` is one instance being read. The
price of an instance is ``FeatureCosts.of`` of the features acquired: own prices, and each
touched group's shared price once. A group's sensor may deliver more features than were asked
for; those are kept, and priced only when they are acquired.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gatewise_edge._reader import Reader, StillReading
from gatewise_edge.errors import SensorError
from gatewise_training.costs import FeatureCosts
from gatewise_training.errors import InputError

__all__ = ["Meter", "Reading", "Row", "Sensors", "Source"]

FeatureSensor = Callable[[], float]
GroupSensor = Callable[[], Mapping[str, float] | Sequence[float] | NDArray[Any]]
Values = NDArray[np.float32]
Mask = NDArray[np.bool_]


class Source(Protocol):
    """Where the values of one instance come from."""

    def read(self, features: NDArray[np.intp], values: Values, have: Mask, timeout: float) -> None:
        """Write the values of `features`, and perhaps of more, and mark them in `have`.

        Raises
        ------
        SensorError
            If a sensor fails, or does not return within `timeout` seconds. What was read
            before it is written and marked.
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
        What has been paid for. A value that was read and refused is paid for, too.
    """

    def __init__(self, source: Source, names: Sequence[str], meter: Meter) -> None:
        self._source = source
        self._names = names
        self._meter = meter
        self._values: Values = np.full(len(names), np.nan, np.float32)
        self._have: Mask = np.zeros(len(names), np.bool_)
        self.acquired: Mask = np.zeros(len(names), np.bool_)

    @property
    def meter(self) -> float:
        """What the acquired features cost."""
        return self._meter.of(self.acquired)

    def acquire(self, features: NDArray[np.intp], *, allow_missing: bool, timeout: float) -> Values:
        """Values of `features`, each read once in the instance's life.

        Parameters
        ----------
        features : ndarray of intp, shape (k,)
        allow_missing : bool
            Whether NaN, a missing value, may be among them.
        timeout : float
            Seconds that sensors may take.

        Returns
        -------
        ndarray of float32, shape (k,)

        Raises
        ------
        SensorError
            If a sensor fails or blocks, or a value is refused. The error names it.
        """
        unread = features[~self._have[features]]
        try:
            if len(unread):
                self._source.read(unread, self._values, self._have, timeout)
        finally:
            self.acquired[features] |= self._have[features]
        values = self._values[features]
        if not np.isfinite(values).all():
            self._refuse(features, values, allow_missing)
        return values

    def acquire_one(self, feature: int, *, allow_missing: bool, timeout: float) -> float:
        """Value of one feature: :meth:`acquire`, for a stage that buys one after another."""
        have = self._have
        if not have[feature]:
            try:
                self._source.read(np.array([feature]), self._values, have, timeout)
            finally:
                self.acquired[feature] = have[feature]
        self.acquired[feature] = True
        value = float(self._values[feature])
        if not math.isfinite(value) and (not allow_missing or math.isinf(value)):
            self._refuse(np.array([feature]), self._values[[feature]], allow_missing)
        return value

    def _refuse(self, features: NDArray[np.intp], values: Values, allow_missing: bool) -> None:
        infinite = features[np.isinf(values)]
        if len(infinite):
            name = self._names[infinite[0]]
            raise SensorError(
                name, f"feature {name!r} is infinite, or beyond float32", why="infinite"
            )
        if not allow_missing:
            name = self._names[features[np.isnan(values)][0]]
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

    def read(self, features: NDArray[np.intp], values: Values, have: Mask, timeout: float) -> None:
        """See :class:`Source`."""
        values[:] = self._row
        have[:] = True


class Sensors:
    """Sensors as functions: one a feature, one a group of features, or both.

    Parameters
    ----------
    features : mapping of str to callable, optional
        Feature name to a function without arguments that gives its value.
    groups : mapping of str to callable, optional
        Group name to a function without arguments that gives the values of the whole group:
        a mapping by feature name, or a sequence in the bundle's order of the group's features.
        A feature that also has its own sensor is read by that.

    Notes
    -----
    The functions run on a thread of their own, so that one that blocks cannot keep the device
    from answering; they never run side by side. A function gives NaN for a missing value and
    raises if it cannot read.

    Examples
    --------
    >>> costs = FeatureCosts([1.0, 0.5, 0.5], group=[None, "imu", "imu"], shared={"imu": 2.0},
    ...                      names=["temp", "ax", "ay"])
    >>> sensors = Sensors({"temp": lambda: 21.5}, groups={"imu": lambda: [0.1, 0.2]})
    >>> reading = Reading(sensors.bind(costs), costs.names, Meter(costs))
    >>> reading.acquire(np.array([1]), allow_missing=False, timeout=1.0).round(1).tolist()
    [0.10000000149011612]
    >>> reading.meter
    2.5
    >>> sensors.close()
    """

    def __init__(
        self,
        features: Mapping[str, FeatureSensor] | None = None,
        *,
        groups: Mapping[str, GroupSensor] | None = None,
    ) -> None:
        self._features = dict(features or {})
        self._groups = dict(groups or {})
        self._reader = Reader()

    def bind(self, costs: FeatureCosts, needed: ArrayLike = ()) -> Source:
        """Match the sensors with a bundle's features.

        Parameters
        ----------
        costs : FeatureCosts
            With names: the bundle's features and groups.
        needed : array-like of int
            Features that must have a sensor.

        Raises
        ------
        InputError
            If a name is neither a feature nor a group of the bundle, or if a needed feature has
            no sensor.
        """
        names = costs.names or ()
        for name in self._features:
            if name not in names:
                raise InputError(f"sensor {name!r}: the bundle has no such feature")
        members: dict[str, NDArray[np.intp]] = {}
        for name in self._groups:
            if name not in costs.group_names:
                raise InputError(f"group sensor {name!r}: the bundle has no such feature group")
            members[name] = np.flatnonzero(costs.group == costs.group_names.index(name))
        bound = _BoundSensors(names, self._features, self._groups, members, self._reader)
        for k in np.asarray(needed, np.intp):
            if int(k) not in bound.readers:
                raise InputError(f"feature {names[k]!r} has no sensor")
        return bound

    def close(self) -> None:
        """End the thread that reads, unless a sensor blocks it."""
        self._reader.close()


class _BoundSensors:
    """Sensors with features as indices: see :class:`Source`."""

    def __init__(
        self,
        names: Sequence[str],
        features: Mapping[str, FeatureSensor],
        groups: Mapping[str, GroupSensor],
        members: Mapping[str, NDArray[np.intp]],
        reader: Reader,
    ) -> None:
        self._names = names
        self._reader = reader
        self.readers: dict[int, Callable[[], Mapping[int, float]]] = {}
        self._labels: dict[int, str] = {}
        for name, sensor in groups.items():
            for k in members[name].tolist():
                self.readers[k] = self._of_group(name, sensor, members[name].tolist())
                self._labels[k] = name
        for name, own in features.items():
            k = names.index(name)
            self.readers[k] = self._of_feature(k, own)
            self._labels[k] = name

    def read(self, features: NDArray[np.intp], values: Values, have: Mask, timeout: float) -> None:
        """See :class:`Source`."""
        at = [self._names[features[0]]]

        def work() -> None:
            for k in features.tolist():
                if have[k]:
                    continue
                at[0] = self._labels.get(k, self._names[k])
                for index, value in self._read_one(k).items():
                    with np.errstate(over="ignore"):
                        values[index] = value
                    have[index] = True

        try:
            self._reader.run(work, timeout)
        except StillReading:
            raise SensorError(
                at[0], f"sensor {at[0]!r} did not answer in time", why="sensor-late"
            ) from None

    def _read_one(self, k: int) -> Mapping[int, float]:
        reader = self.readers.get(k)
        if reader is None:
            raise SensorError(self._names[k], f"feature {self._names[k]!r} has no sensor")
        label = self._labels[k]
        try:
            return reader()
        except SensorError:
            raise
        except Exception as error:
            # A driver may raise anything; the device must still answer.
            raise SensorError(
                label, f"sensor {label!r} failed: {type(error).__name__}: {error}"
            ) from error

    def _of_feature(self, k: int, sensor: FeatureSensor) -> Callable[[], Mapping[int, float]]:
        return lambda: {k: float(sensor())}

    def _of_group(
        self, name: str, sensor: GroupSensor, members: list[int]
    ) -> Callable[[], Mapping[int, float]]:
        def read() -> Mapping[int, float]:
            given = sensor()
            if isinstance(given, Mapping):
                missing = [self._names[k] for k in members if self._names[k] not in given]
                if missing:
                    raise SensorError(name, f"group sensor {name!r} gave no {missing[0]!r}")
                return {k: float(given[self._names[k]]) for k in members}
            if len(given) != len(members):
                raise SensorError(
                    name,
                    f"group sensor {name!r} gave {len(given)} values for {len(members)} features",
                )
            return {k: float(v) for k, v in zip(members, given, strict=True)}

        return read
