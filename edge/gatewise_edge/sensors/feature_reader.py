"""Acquire one instance's features on demand, each once, and meter their cost.

A :class:`FeatureSource` provides values; a :class:`Reading` requests from it the features that a
stage or the cloud needs. The cost of an instance is that of its acquired features: own costs, and
each touched group's shared cost once, as in training. A source may deliver more values than were
requested; they cost nothing until they are acquired.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import gt, lt
from typing import Any, Final, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gatewise.columns.encoders import RawRow, RowEncoder
from gatewise.costs import FeatureCosts
from gatewise.errors import InputError
from gatewise.models.instances import InstanceSpec
from gatewise.models.jpeg import check_jpeg, decode_jpeg
from gatewise.models.tree_sources import FLOAT32_MAX
from gatewise_edge.errors import SensorError
from gatewise_edge.sensors.blocking_reader import BlockingReader, StillReading
from gatewise_edge.sensors.table import in_order
from gatewise_signals.blocks.block import FunctionBlock
from gatewise_signals.signal_input import SignalInput

#: Number of values up to which Python's sum takes less time than two of numpy's calls.
_FEW: Final = 64
#: Number of values up to which a row at hand is checked once, and not again by each stage.
_CHECKED_AT_ONCE: Final = 1024

#: Number of stages whose limits are kept.
_MOST_STAGES: Final = 256

Values = NDArray[np.float32]
Mask = NDArray[np.bool_]


class FeatureSource(Protocol):
    """Where the values of one instance are read from."""

    def read(
        self, features: NDArray[np.intp], known: Reading, timeout: float, *, spare: bool
    ) -> None:
        """Enter the values of `features`, and perhaps of others, in `known`.

        With `spare` the failure of a sensor is entered there, and the other sensors are read.
        Without it a failure raises SensorError, as does a sensor that does not return within
        `timeout` seconds. The `timeout` of an audit, for which no instance waits, is infinite.
        """
        ...


class Meter:
    """Costs of sets of features, cached because instances acquire one of a few sets.

    Attributes
    ----------
    costs : FeatureCosts
    names : tuple of str
        Name of each feature's column.
    limits : tuple of ndarray, or None
        Least and largest plausible value of each feature.
    every : ndarray of bool, shape (n_features,)
        Mask of all features.
    charge : callable
        Cost of a mask, given as its bytes, exactly ``costs.price(mask)``, and its indices.
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
        self._limits_of: dict[int, tuple[NDArray[np.intp], Values, Values, Any, Any]] = {}
        self.every: Mask = np.ones(costs.n_features, np.bool_)
        self.every.flags.writeable = False
        self.charge = lru_cache(maxsize=256)(self._charge)
        lowest, highest = (-FLOAT32_MAX, FLOAT32_MAX) if limits is None else limits
        self._lowest = np.maximum(lowest, -FLOAT32_MAX)
        self._highest = np.minimum(highest, FLOAT32_MAX)

    def is_sound(self, row: Values) -> bool:
        """Whether every value of a row is finite and plausible; False also for a long row."""
        if len(row) > _CHECKED_AT_ONCE:
            return False
        # no comparison holds for NaN, and no infinity lies between finite limits
        return bool(((row >= self._lowest) & (row <= self._highest)).all())

    def first_outside(self, features: NDArray[np.intp], values: Values) -> int | None:
        """First of `features` with an implausible value, or None."""
        if self.limits is None:
            return None
        # stages acquire by the same arrays again and again
        cached = self._limits_of.get(id(features))
        if cached is None or cached[0] is not features:
            lowest, highest = (limit[features] for limit in self.limits)
            cached = features, lowest, highest, lowest.tolist(), highest.tolist()
            if len(features) > 1 and len(self._limits_of) < _MOST_STAGES:
                self._limits_of[id(features)] = cached
        if len(values) <= _FEW:
            numbers = values.tolist()
            if not (any(map(lt, numbers, cached[3])) or any(map(gt, numbers, cached[4]))):
                return None
        outside = (values < cached[1]) | (values > cached[2])
        return int(features[outside.argmax()]) if outside.any() else None

    def _charge(self, mask: bytes) -> tuple[float, tuple[int, ...]]:
        acquired = np.frombuffer(mask, np.bool_)
        return self.costs.price(acquired), tuple(np.flatnonzero(acquired).tolist())


class Reading:
    """One instance with its features acquired step by step.

    Parameters
    ----------
    source : FeatureSource or ndarray of float32, shape (n_features,)
        All values, or where they are read from.
    meter : Meter
    remaining : callable
        Seconds that a read may take now.

    Attributes
    ----------
    values : ndarray of float32, shape (n_features,)
        NaN where nothing was read.
    have : ndarray of bool, shape (n_features,)
        Features that were read.
    failures : dict of int to SensorError
        Errors of failed sensors, by feature: they are not read again for this instance.
    acquired : ndarray of bool, shape (n_features,)
        Features that are paid for. A feature with a refused value is paid for, a feature that
        could not be read is not, however often that was tried.
    implausible : str
        Name of the first acquired column or channel with a value far outside of those in training;
        empty without one.
    """

    def __init__(
        self,
        source: FeatureSource | Values,
        meter: Meter,
        remaining: Callable[[], float],
    ) -> None:
        n = len(meter.every)
        self._source: FeatureSource | None = None
        self._is_sound = False  # every value is at hand and may be used
        if isinstance(source, np.ndarray):
            self.values = source
            self.have = meter.every
            self._is_sound = meter.is_sound(source)
        else:
            self._source = source
            self.values = np.full(n, np.nan, np.float32)
            self.have = np.zeros(n, np.bool_)
        self.failures: dict[int, SensorError] = {}
        self.acquired: Mask = np.zeros(n, np.bool_)
        self._meter = meter
        self._remaining = remaining
        self._troubled = False
        self.implausible: str = getattr(source, "implausible", "")

    @property
    def cost(self) -> float:
        """Cost of the acquired features."""
        return self._meter.charge(self.acquired.tobytes())[0]

    @property
    def failure(self) -> SensorError | None:
        """The first failure of a sensor for this instance."""
        return next(iter(self.failures.values()), None)

    def has(self, features: NDArray[np.intp]) -> bool:
        """Whether all of `features` were read."""
        return bool(self.have[features].all())

    def lift_deadline(self) -> None:
        """Take any time from now on: the instance has its answer, and is audited."""
        self._remaining = lambda: math.inf

    def enter(self, features: slice | int, values: Any) -> None:
        """Enter read values; one beyond float32 becomes infinite, which is refused later."""
        with np.errstate(over="ignore"):
            self.values[features] = values
        self.have[features] = True

    def fail(self, features: Iterable[int], failure: SensorError, *, spare: bool) -> None:
        """Enter the failure of `features`, and raise it unless `spare`."""
        self.failures |= dict.fromkeys(features, failure)
        if not spare:
            raise failure

    def acquire_file(self, features: NDArray[np.intp], most: int) -> bytes | None:
        """Acquire `features` as the JPEG file that the instance is.

        None if the instance is not a file, has more than `most` bytes, or could not be decoded.
        """
        content: bytes | None = getattr(self._source, "content", None)
        if content is None or len(content) > most or self._troubled:
            return None
        self.acquired[features] = True
        return content

    def acquire(
        self, features: NDArray[np.intp], *, allow_missing: bool, spare: bool = False
    ) -> Values:
        """Values of `features`, float32, each read once for the instance.

        With `allow_missing` NaN is a value. With `spare` a sensor that fails gives NaN. Raises
        SensorError if a sensor fails or blocks, or a value is refused; for a feature that failed
        or was refused before it raises the same error at once.
        """
        if self._is_sound:
            self.acquired[features] = True
            return self.values[features]
        if self._troubled:
            self._raise_again(features, allow_missing, spare)
        if self._source is not None:
            unread = features[~self.have[features]]
            if self.failures:
                unread = np.array([k for k in unread.tolist() if k not in self.failures], np.intp)
            if len(unread):
                try:
                    self._source.read(unread, self, self._remaining(), spare=spare)
                except SensorError:
                    self.acquired[features] |= self.have[features]
                    self._troubled = True
                    raise
        if self.failures:
            self._troubled = True
            self.acquired[features] |= self.have[features]
        else:
            self.acquired[features] = True
        values = self.values[features]
        if not _all_finite(values):
            self._refuse(features, values, allow_missing)
        if self._meter.limits is not None:
            feature = self._meter.first_outside(features, values)
            if feature is not None:
                self._note_implausible(feature)
        return values

    def one_by_one(self, features: Sequence[int], *, allow_missing: bool) -> Callable[[int], float]:
        """Function that acquires one of the `features`, given its position, as :meth:`acquire`."""
        values = self.values
        have = self.have
        acquired = self.acquired
        limits = self._meter.limits

        def value_of(position: int) -> float:
            k = features[position]
            if not have[k]:
                return float(self.acquire(np.array([k]), allow_missing=allow_missing)[0])
            acquired[k] = True
            value = float(values[k])
            if not math.isfinite(value) and (not allow_missing or math.isinf(value)):
                self._refuse(np.array([k]), values[[k]], allow_missing)
            if limits is not None and (value < limits[0][k] or value > limits[1][k]):
                self._note_implausible(k)
            return value

        return value_of

    def _note_implausible(self, feature: int) -> None:
        self.implausible = self.implausible or self._meter.names[feature]

    def _raise_again(self, features: NDArray[np.intp], allow_missing: bool, spare: bool) -> None:
        for k in features.tolist():
            if not spare and k in self.failures and not self.have[k]:
                raise self.failures[k]
        paid = features[self.acquired[features]]
        self._refuse(paid, self.values[paid], allow_missing)

    def _refuse(self, features: NDArray[np.intp], values: Values, allow_missing: bool) -> None:
        """Raise for the first value that must not be used, if there is one."""
        checks: list[tuple[Mask, Literal["infinite", "missing"], str]]
        checks = [(np.isinf(values), "infinite", "is infinite, or beyond float32")]
        if not allow_missing:
            text = "is missing (NaN), which the model was not trained for"
            checks.append((np.isnan(values), "missing", text))
        for refused, why, text in checks:
            if refused.any():
                self._troubled = True
                name = self._meter.names[features[refused][0]]
                raise SensorError(name, f"column {name!r} {text}", why=why)


def row_values(row: ArrayLike, n_values: int, columns: NDArray[np.intp] | None = None) -> Values:
    """Values of all features in a row; InputError if it does not hold `n_values` numbers.

    `columns` are the positions of the bundle's features in the row; without them the row is in
    the order of the features.
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


class JpegSource:
    """A source that is an image as a JPEG file, decoded when the first value is acquired.

    InputError if it is not a JPEG image of the instance's size.
    """

    def __init__(self, content: bytes, spec: InstanceSpec) -> None:
        check_jpeg(content, spec)
        self.content = content
        self._spec = spec

    def read(
        self, features: NDArray[np.intp], known: Reading, timeout: float, *, spare: bool
    ) -> None:
        """Decode the image; all its values fail together, with `spare` and without it."""
        try:
            known.values[:] = decode_jpeg(self.content, self._spec)
        except InputError as error:
            raise SensorError("image", str(error)) from error
        known.have[:] = True


class RawRowSource:
    """A source with the raw cells of a row; a cell is encoded when its column is acquired.

    `row` is a mapping by column, or cells in the order `columns`, by default the encoder's. A cell
    that cannot be encoded counts as a failed sensor, and a column that a mapping lacks as an empty
    cell. InputError if the row has another form, or lacks all columns.
    """

    def __init__(
        self, row: RawRow, encoder: RowEncoder, columns: Sequence[str] | None = None
    ) -> None:
        if columns is not None and not isinstance(row, Mapping):
            if not isinstance(row, Sequence | np.ndarray) or len(row) != len(columns):
                raise InputError(f"an instance must be a list of {len(columns)} cells")
            row = dict(zip(columns, row, strict=True))
        if isinstance(row, Mapping):
            row = in_order(row, encoder.names, "columns")
        self._cells = encoder.cells(row)
        self._encoder = encoder

    def read(
        self, features: NDArray[np.intp], known: Reading, timeout: float, *, spare: bool
    ) -> None:
        """Read `features`, as :class:`.FeatureSource` has it."""
        encoder = self._encoder
        for column in dict.fromkeys(encoder.column_of[k] for k in features.tolist()):
            members = encoder.members(column)
            try:
                values = encoder.cell(column, self._cells[column])
            except InputError as error:
                known.fail(members, SensorError(encoder.names[column], str(error)), spare=spare)
            else:
                known.enter(slice(members.start, members.stop), values)


@dataclass(frozen=True, eq=False)
class ChannelLimits:
    """Plausible values of a window's channels.

    Attributes
    ----------
    names : sequence of str
        Names of the channels.
    lowest, highest : ndarray of float32, shape (n_channels,)
        Least and largest plausible value.
    varies : ndarray of bool, shape (n_channels,)
        Whether the channel varied within each window of training.
    """

    names: Sequence[str]
    lowest: Values
    highest: Values
    varies: Mask

    def first_outside(self, window: NDArray[Any]) -> str:
        """Name the first channel of a window, (n_values, n_channels), that is implausible."""
        low = np.fmin.reduce(window, axis=0)
        high = np.fmax.reduce(window, axis=0)
        outside = (low < self.lowest) | (high > self.highest) | (self.varies & (low == high))
        return self.names[outside.argmax()] if outside.any() else ""


class WindowSource:
    """A source with one window at hand, each block of which is computed once, when it is read.

    The window's own values, where they are columns, cost nothing. A block that cannot be computed
    counts as a failed sensor. A block that is a function is run by the `reader`, and counts as a
    late sensor if it is not done in time. InputError if the window has another shape or type.

    `implausible` is the name of the first channel with values far outside of those in training, or
    without any change, where it always varied; empty: every channel is plausible.
    """

    def __init__(
        self,
        window: ArrayLike,
        signal: SignalInput,
        reader: BlockingReader | None = None,
        channels: ChannelLimits | None = None,
    ) -> None:
        self._graph = signal.graph
        self._signal = signal
        self._reader = reader
        windows = window[np.newaxis] if isinstance(window, np.ndarray) else [window]
        try:
            self._window = signal.checked(windows)  # type: ignore[arg-type]
            self._values = signal.graph.start(self._window[0])
        except InputError as error:
            raise InputError(f"no instance: {error}") from None
        self.implausible = ""
        if channels is not None:
            self.implausible = channels.first_outside(signal.by_channel(self._window)[0])

    def read(
        self, features: NDArray[np.intp], known: Reading, timeout: float, *, spare: bool
    ) -> None:
        """Read `features`, as :class:`.FeatureSource` has it."""
        graph = self._graph
        until = time.monotonic() + timeout
        computed = len(graph.block_of)
        if len(features) and features.max() >= computed:
            known.enter(slice(computed, None), self._signal.values(self._window)[0])
            features = features[features < computed]
        for number in dict.fromkeys(graph.block_of[features].tolist()):
            columns = graph.columns(number)
            label = graph.blocks[number].label
            members = range(columns.start, columns.stop)
            try:
                values = self._computed(number, until)[0]
            except StillReading:
                text = f"block {label} was not computed in time"
                known.fail(members, SensorError(label, text, why="sensor-late"), spare=False)
            except Exception as error:  # a user's function may raise anything
                failure = SensorError(label, f"block {label} cannot be computed: {error}")
                known.fail(members, failure, spare=spare)
            else:
                known.enter(columns, values)

    def _computed(self, number: int, until: float) -> NDArray[Any]:
        """Features of a block; StillReading if it is a function that is not done in time."""
        block = self._graph.blocks[number]
        reader = self._reader
        if reader is None or until == math.inf or not isinstance(block, FunctionBlock):
            return self._values.of_block(number)
        return reader.run(lambda _: self._values.of_block(number), until - time.monotonic())


def _all_finite(values: Values) -> bool:
    """Whether no value is NaN or infinite; no sum of float32 values is too large in float64."""
    if len(values) <= _FEW:
        return math.isfinite(sum(values.tolist()))
    return bool(np.isfinite(values).all())
