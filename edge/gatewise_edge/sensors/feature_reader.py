"""Acquire one instance's features on demand, each once, and meter their cost.

A :class:`FeatureSource` provides values, a :class:`Reading` requests from it what a stage or the
cloud needs. The cost of an instance is that of its acquired features: own costs, and each touched
group's shared cost once, as in training. Values that a source delivers unasked are kept, and cost
nothing until they are acquired.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Protocol, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gatewise.columns.encoders import RawRow, RowEncoder
from gatewise.costs import FeatureCosts
from gatewise.errors import InputError
from gatewise.models.instances import InstanceSpec
from gatewise.models.jpeg import check_jpeg, decode_jpeg
from gatewise_edge.errors import SensorError

Values = NDArray[np.float32]
Mask = NDArray[np.bool_]


class FeatureValues:
    """Values of one instance, as far as they have been read.

    `values` is NaN where nothing was read, `have` marks what was read, and `failures` holds the
    error of each failed sensor's features: it is not read again for the same instance.
    """

    __slots__ = ("failures", "have", "values")

    def __init__(self, values: Values, have: Mask) -> None:
        self.values = values
        self.have = have
        self.failures: dict[int, SensorError] = {}

    @classmethod
    def unread(cls, n_features: int) -> Self:
        """Values of which none has been read."""
        return cls(np.full(n_features, np.nan, np.float32), np.zeros(n_features, np.bool_))


class FeatureSource(Protocol):
    """Where the values of one instance come from."""

    def start(self) -> FeatureValues:
        """Begin with an instance: the values that are at hand."""
        ...

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
        self._remembered = lru_cache(maxsize=256)(self._charge)

    def charge(self, acquired: Mask) -> tuple[float, tuple[int, ...]]:
        """Cost of a mask of features, exactly ``costs.price(acquired)``, and their indices."""
        return self._remembered(acquired.tobytes())

    def _charge(self, bits: bytes) -> tuple[float, tuple[int, ...]]:
        acquired = np.frombuffer(bits, np.bool_)
        return self.costs.price(acquired), tuple(np.flatnonzero(acquired).tolist())


class Reading:
    """One instance with its features acquired step by step.

    `acquired`, a mask of shape (n_features,), is what is paid for. A value that was read and
    refused is paid for, too; one that could not be read is not, however often it was tried.
    """

    def __init__(self, source: FeatureSource, names: Sequence[str], meter: Meter) -> None:
        self._source = source
        self._names = names
        self._meter = meter
        self._known = source.start()
        self._troubled = False
        self.acquired: Mask = np.zeros(len(names), np.bool_)

    @property
    def cost(self) -> float:
        """Cost of the acquired features."""
        return self.charge[0]

    @property
    def charge(self) -> tuple[float, tuple[int, ...]]:
        """Cost of the acquired features, and their indices."""
        return self._meter.charge(self.acquired)

    @property
    def failure(self) -> SensorError | None:
        """The first failure of a sensor for this instance."""
        return next(iter(self._known.failures.values()), None)

    def acquire_file(self, features: NDArray[np.intp], most: int) -> bytes | None:
        """Acquire `features` as the JPEG file that the instance is; None if it is none.

        Nor if it has more than `most` bytes, or could not be decoded.
        """
        content: bytes | None = getattr(self._source, "content", None)
        if content is None or len(content) > most or self._troubled:
            return None
        self.acquired[features] = True
        return content

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
        if known.have is not _all_read(len(known.have)):
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
        with np.errstate(over="ignore"):
            sizes = values.dot(values)
        if not math.isfinite(sizes):  # a value is not, or a square is too large
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
        self._row: Values
        if isinstance(row, np.ndarray) and row.dtype == np.float32:
            self._row = row
        else:
            try:
                with np.errstate(over="ignore"):
                    self._row = np.asarray(row, np.float32)
            except (TypeError, ValueError) as error:
                raise InputError(f"an instance must be a row of numbers: {error}") from None
        if self._row.shape != (n_values,):
            raise InputError(
                f"an instance of shape {self._row.shape}; it must have {n_values} features"
            )
        if columns is not None:
            self._row = self._row[columns]

    def start(self) -> FeatureValues:
        """See :class:`FeatureSource`."""
        return FeatureValues(self._row, _all_read(len(self._row)))

    def read(
        self, features: NDArray[np.intp], known: FeatureValues, timeout: float, *, spare: bool
    ) -> None:
        """See :class:`FeatureSource`."""
        raise AssertionError("every value of a row is at hand")


class JpegSource:
    """A source that is an image as a JPEG file, decoded when the first value is acquired.

    InputError if it is no JPEG image of the instance's size.
    """

    def __init__(self, content: bytes, spec: InstanceSpec) -> None:
        check_jpeg(content, spec)
        self.content = content
        self._spec = spec

    def start(self) -> FeatureValues:
        """See :class:`FeatureSource`."""
        return FeatureValues.unread(self._spec.n_values)

    def read(
        self, features: NDArray[np.intp], known: FeatureValues, timeout: float, *, spare: bool
    ) -> None:
        """See :class:`FeatureSource`; without all values there is no instance to spare any for."""
        try:
            known.values[:] = decode_jpeg(self.content, self._spec)
        except InputError as error:
            raise SensorError("image", str(error)) from error
        known.have[:] = True


class RawRowSource:
    """A source with the raw cells of a row, each encoded when its column is acquired.

    `row` is a mapping by column, or cells in the order `columns`, by default the encoder's. A bad
    cell is a failed sensor; a column that a mapping lacks is missing, like an empty cell.
    InputError if it is no such row, or lacks all columns.
    """

    def __init__(
        self, row: RawRow, encoder: RowEncoder, columns: Sequence[str] | None = None
    ) -> None:
        if columns is not None and not isinstance(row, Mapping):
            if not isinstance(row, Sequence | np.ndarray) or len(row) != len(columns):
                raise InputError(f"an instance must be a list of {len(columns)} cells")
            row = dict(zip(columns, row, strict=True))
        if isinstance(row, Mapping):
            names = encoder.names
            if not any(name in row for name in names):
                raise InputError(f"the instance has none of the columns, as {names[0]!r}")
            row = [row.get(name) for name in names]
        self._cells = encoder.cells(row)
        self._encoder = encoder

    def start(self) -> FeatureValues:
        """See :class:`FeatureSource`."""
        return FeatureValues.unread(self._encoder.starts[-1])

    def read(
        self, features: NDArray[np.intp], known: FeatureValues, timeout: float, *, spare: bool
    ) -> None:
        """See :class:`FeatureSource`."""
        encoder = self._encoder
        for column in dict.fromkeys(encoder.column_of[k] for k in features.tolist()):
            members = encoder.members(column)
            try:
                values = encoder.cell(column, self._cells[column])
            except InputError as error:
                failure = SensorError(encoder.names[column], str(error))
                known.failures |= dict.fromkeys(members, failure)
                if not spare:
                    raise failure from error
                continue
            place = slice(members.start, members.stop)
            with np.errstate(over="ignore"):  # beyond float32 is refused as infinite
                known.values[place] = values
            known.have[place] = True


@lru_cache(maxsize=16)
def _all_read(n_features: int) -> Mask:
    """The mask of an instance with every value at hand; one object, which none changes."""
    mask = np.ones(n_features, np.bool_)
    mask.flags.writeable = False
    return mask
