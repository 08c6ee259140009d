"""Sensors as functions: read when a feature is needed, with retries and timeouts.

They run on a thread of their own, one at a time, so that one that blocks cannot keep the device
from answering. A sensor that hangs is left behind with its thread, and the others are read on a new
one. An audit, after an answer, reads on another thread.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gatewise.columns.encoders import RowEncoder
from gatewise.costs import FeatureCosts
from gatewise.errors import InputError
from gatewise_edge.errors import SensorError
from gatewise_edge.sensors.blocking_reader import BlockingReader, ReaderCall, StillReading
from gatewise_edge.sensors.feature_reader import FeatureSource, Reading

FeatureSensor = Callable[[], Any]
#: Instances that wait, each within its own time, for a read that an earlier one gave up. Later ones
#: do not wait for the sensor until it returns, so that its failure leaves time for the cloud.
_PATIENT_WAITS: Final = 2

GroupSensor = Callable[[], Mapping[str, float] | Sequence[float] | NDArray[Any]]


@dataclass(slots=True)
class SensorCounts:
    """Counts of one sensor's reads.

    Attributes
    ----------
    reads : int
        Calls of its function, repeated ones included.
    retries : int
        Calls after a call that failed.
    failures : int
        Instances for which every call failed.
    late : int
        Instances for which it did not return in time.
    hung : int
        Calls that were left behind with their thread.
    """

    reads: int = 0
    retries: int = 0
    failures: int = 0
    late: int = 0
    hung: int = 0


@dataclass(slots=True, eq=False)
class _ReadState:
    """State of one sensor's reads, which bundles share.

    The lock `reading` is held while its function runs. `n_waits` is the number of instances that
    have given up waiting for the read that is under way.
    """

    counts: SensorCounts = field(default_factory=SensorCounts)
    reading: threading.Lock = field(default_factory=threading.Lock)
    n_waits: int = 0

    @property
    def hangs(self) -> bool:
        """Whether a read that an instance has given up is still under way."""
        return self.n_waits > 0 and self.reading.locked()

    def returns(self, until: float) -> bool:
        """Wait until `until` for the read that is under way; return whether it has ended."""
        if self.n_waits >= _PATIENT_WAITS:
            return False
        if not self.reading.acquire(timeout=max(0.0, until - time.monotonic())):
            return False
        self.reading.release()
        return True


class Sensors:
    """Sensors as functions: one per feature, one per group of features, or both.

    Parameters
    ----------
    features : mapping of str to callable, optional
        Feature name to a function without arguments that gives its value. Where the bundle has
        encoders, a column's name, and its raw cell: text, a number, a date, None if missing.
    groups : mapping of str to callable, optional
        Group name to a function without arguments that gives the values of the whole group:
        a mapping by feature name, or a sequence in the bundle's order of the group's features.
        A feature that also has its own sensor is read by that.
    retries : int or mapping of str to int, default 0
        Largest number of further tries at once after a failed read, or by the name of the
        feature or group. No try begins after the deadline.
    retry_wait : float, default 0
        Seconds before each further try.
    timeout : float or mapping of str to float, optional
        Seconds that a sensor may take per instance, its retries included. Without one it may
        take the rest of the deadline, which leaves no time for the cloud.

    Raises
    ------
    InputError
        If a number is negative, or names a sensor that is not among them.

    Notes
    -----
    Functions run one at a time, except while one hangs, and while an audit reads one
    after an answer. No function runs twice at a time: an instance that needs a sensor whose last
    read has not returned treats it as one that fails, so at most one thread per sensor hangs.
    :attr:`hung` names such sensors. A function gives NaN for a missing value and raises if it
    cannot read. Each is called once per instance, if at all; a sensor that failed is not read again
    for that instance. Features are priced as in training: once when acquired, however many tries
    that took, and not at all where every try failed. :attr:`counts` has the tries.

    A sensor that fails sends the instance to the cloud if the cloud's model can do without its
    value: it does not read that feature, or it was trained with missing values. Otherwise the last
    finished stage answers, and where none has finished, :class:`SensorError` names the sensor.

    Examples
    --------
    >>> costs = FeatureCosts([1.0, 0.5, 0.5], group=[None, "imu", "imu"], shared={"imu": 2.0},
    ...                      names=["temp", "ax", "ay"])
    >>> sensors = Sensors({"temp": lambda: 21.5}, groups={"imu": lambda: [0.1, 0.2]}, retries=2)
    >>> from gatewise_edge.sensors.feature_reader import Meter, Reading
    >>> reading = Reading(sensors.bind(costs), Meter(costs), lambda: 1.0)
    >>> reading.acquire(np.array([1]), allow_missing=False).round(1).tolist()
    [0.10000000149011612]
    >>> reading.cost
    2.5
    >>> sensors.counts["imu"]
    SensorCounts(reads=1, retries=0, failures=0, late=0, hung=0)
    >>> sensors.close()
    """

    def __init__(
        self,
        features: Mapping[str, FeatureSensor] | None = None,
        *,
        groups: Mapping[str, GroupSensor] | None = None,
        retries: int | Mapping[str, int] = 0,
        retry_wait: float = 0.0,
        timeout: float | Mapping[str, float] | None = None,
    ) -> None:
        self._features = dict(features or {})
        self._groups = dict(groups or {})
        names = self._features.keys() | self._groups.keys()
        self._retries = _by_name("retries", retries, names)
        self._timeouts = _by_name("timeout", math.inf if timeout is None else timeout, names)
        self._wait = _by_name("retry_wait", retry_wait, names)[""]
        self._states = {name: _ReadState() for name in (*self._features, *self._groups)}
        self._reader = BlockingReader(max_hung=len(self._states))

    @property
    def counts(self) -> dict[str, SensorCounts]:
        """Counts of each sensor, by name of its feature or group."""
        return {name: replace(state.counts) for name, state in self._states.items()}

    @property
    def hung(self) -> tuple[str, ...]:
        """Names of the sensors with a read that was given up and has not returned."""
        return tuple(name for name, state in self._states.items() if state.hangs)

    @property
    def trouble(self) -> str | None:
        """Description of the sensors that hang, or None."""
        names = self.hung
        if not names:
            return None
        listed = ", ".join(map(repr, names))
        return f"sensor{'s' * (len(names) > 1)} {listed} do{'es' * (len(names) == 1)} not return"

    def bind(
        self, costs: FeatureCosts, needed: ArrayLike = (), encoder: RowEncoder | None = None
    ) -> FeatureSource:
        """Match the sensors with a bundle's features, or with the raw columns of its `encoder`.

        `costs` names the features and groups; each of the features in `needed` must have a sensor.
        Raises InputError if one has none, or the bundle has no feature or group of a sensor's name.
        """
        names = costs.names or ()
        sensors: dict[int, _Sensor] = {}
        # a sensor gives a feature, or a cell that becomes the features of its column
        columns, noun = (names, "feature") if encoder is None else (encoder.names, "column")
        column_of = range(len(names)) if encoder is None else encoder.column_of

        def members(column: int) -> Sequence[int]:
            return (column,) if encoder is None else encoder.members(column)

        def values(column: int, cell: Any) -> Sequence[float]:
            return (float(cell),) if encoder is None else encoder.cell(column, cell)

        def add(name: str, its_columns: list[int], cells: Callable[[], Mapping[int, Any]]) -> None:
            def read() -> dict[int, float]:
                return {
                    k: value
                    for c, cell in cells().items()
                    for k, value in zip(members(c), values(c, cell), strict=True)
                }

            sensor = _Sensor(
                name,
                tuple(k for c in its_columns for k in members(c)),
                read,
                self._states[name],
                retries=self._retries.get(name, self._retries[""]),
                timeout=self._timeouts.get(name, self._timeouts[""]),
                wait=self._wait,
            )
            sensors.update(dict.fromkeys(sensor.members, sensor))

        def provides(name: str, group: int) -> bool:
            """Whether sensor `name` reads a group: its own, or one that requires it."""
            group_name = costs.group_names[group] if group >= 0 else None
            if group_name is None or group_name in self._groups:
                return group_name == name
            return name in (costs.group_names[g] for g in costs.requires[group])

        # a feature's own sensor takes precedence over its group's
        for name, group in self._groups.items():
            if name not in costs.group_names:
                raise InputError(f"group sensor {name!r}: the bundle has no such feature group")
            inside = [k for k, g in enumerate(costs.group.tolist()) if provides(name, g)]
            among = list(dict.fromkeys(column_of[k] for k in inside))
            group_columns = [c for c in among if columns[c] not in self._features]
            add(name, group_columns, partial(_group_cells, name, group, among, columns))
        for name, sensor_function in self._features.items():
            if name not in columns:
                raise InputError(f"sensor {name!r}: the bundle has no such {noun}")
            column = columns.index(name)
            add(name, [column], partial(_own_cell, column, sensor_function))
        for k in np.asarray(needed, np.intp).tolist():
            if k not in sensors:
                raise InputError(f"{noun} {columns[column_of[k]]!r} has no sensor")
        return _BoundSensors([columns[c] for c in column_of], sensors, self._reader)

    def close(self) -> None:
        """End the thread that reads, unless a sensor blocks it."""
        self._reader.close()


def _by_name(what: str, setting: float | Mapping[str, float], names: Set[str]) -> dict[str, float]:
    """Values of a setting by name of the sensor; the name "" is for unlisted sensors."""
    default = math.inf if what == "timeout" else 0
    table = dict(setting) if isinstance(setting, Mapping) else {"": setting}
    for name, value in table.items():
        if name and name not in names:
            raise InputError(f"{what} for {name!r}: there is no such sensor")
        kinds = (int,) if what == "retries" else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds) or not value >= 0:
            kind = "a whole number" if what == "retries" else "seconds"
            raise InputError(f"{what} is {value!r}; give {kind}, at least 0")
    return {"": default} | table


@dataclass(slots=True, eq=False)
class _Sensor:
    """A function that gives the values of some features; one thread at a time calls it.

    `latest` is the outcome of the last of `n_read` reads.
    """

    label: str
    members: tuple[int, ...]
    call: Callable[[], dict[int, float]]
    state: _ReadState
    retries: float
    timeout: float
    wait: float
    latest: dict[int, float] | SensorError = field(default_factory=dict)
    n_read: int = 0

    def read(self, until: float) -> dict[int, float]:
        """Call the function, and again after a failure while there is time.

        An instance that needs a value which an audit is reading uses the audit's: it waits no
        longer than for another read.
        """
        before = self.n_read
        with self.state.reading:
            if self.n_read == before:
                try:
                    self.latest = self._read(until)
                except SensorError as error:
                    self.latest = error
                self.n_read += 1
                self.state.n_waits = 0
            if isinstance(self.latest, SensorError):
                raise self.latest
            return self.latest

    def _read(self, until: float) -> dict[int, float]:
        tries = 0
        while True:
            tries += 1
            self.state.counts.reads += 1
            try:
                return self.call()
            except Exception as error:
                # A driver may raise anything; the device must still answer.
                if tries > self.retries or time.monotonic() + self.wait >= until:
                    self.state.counts.failures += 1
                    raise self._failed(error, tries) from error
            self.state.counts.retries += 1
            if self.wait:
                time.sleep(self.wait)

    def _failed(self, error: Exception, tries: int) -> SensorError:
        if isinstance(error, SensorError):
            return error
        often = f" ({tries} tries)" if tries > 1 else ""
        text = f"sensor {self.label!r} failed: {type(error).__name__}: {error}{often}"
        return SensorError(self.label, text)


class _BoundSensors:
    """Sensors with features as indices: see :class:`FeatureSource`."""

    def __init__(
        self, names: Sequence[str], sensors: Mapping[int, _Sensor], reader: BlockingReader
    ) -> None:
        self._names = names
        self._sensors = sensors
        self._reader = reader
        self._timed = any(sensor.timeout < math.inf for sensor in sensors.values())

    def read(
        self, features: NDArray[np.intp], known: Reading, timeout: float, *, spare: bool
    ) -> None:
        """Read `features`, as :class:`.FeatureSource` has it."""
        until = time.monotonic() + timeout
        indices: list[int] = features.tolist()
        for k in indices:
            sensor = self._sensors.get(k)
            if sensor is None:
                name = self._names[k]
                failure = SensorError(name, f"column {name!r} has no sensor")
                known.fail([k], failure, spare=spare)
            elif sensor.state.hangs and k not in known.failures:
                # An audit does not wait for a sensor that hangs, because it has no deadline.
                own_end = min(until, time.monotonic() + sensor.timeout)
                if own_end == math.inf or not sensor.state.returns(own_end):
                    failure = self._late(sensor.label, known)
                    if not spare:
                        raise failure
        if timeout == math.inf:
            self._read_in_turn(indices, known, until, spare, None)
            return
        if not self._timed:
            self._run(indices, known, until, spare)
            return
        for k in indices:
            if known.have[k] or k in known.failures:
                continue
            now = time.monotonic()
            try:
                self._run([k], known, min(until, now + self._sensors[k].timeout), spare)
            except SensorError:
                # Only a late sensor itself is spared, not the sensors that wait for it.
                if not spare or k not in known.failures or time.monotonic() >= until:
                    raise

    def _run(self, features: list[int], known: Reading, until: float, spare: bool) -> None:
        """Read features on the reader's thread, in one call."""
        call = partial(self._read_in_turn, features, known, until, spare)
        try:
            self._reader.run(call, until - time.monotonic())
        except StillReading as still:
            label = still.label or self._sensors[features[0]].label
            raise self._late(label, known, abandoned=still.abandoned) from None

    def _read_in_turn(
        self, features: list[int], known: Reading, until: float, spare: bool, job: ReaderCall | None
    ) -> None:
        """Read on this thread; a `job` gets the name of each sensor that is read."""
        for k in features:
            if known.have[k] or k in known.failures:
                continue
            if time.monotonic() >= until:
                return  # too late: the caller has stopped waiting
            sensor = self._sensors[k]
            if job is not None:
                job.label = sensor.label
            failure: SensorError | None = None
            values: dict[int, float] = {}
            try:
                values = sensor.read(until)
            except SensorError as error:
                failure = error
            # The instance has its answer: values that come now would change its cost.
            if job is not None and job.abandoned:
                return
            if failure is not None:
                known.fail(sensor.members, failure, spare=spare)
                continue
            for index in sensor.members:
                known.enter(index, values[index])

    def _late(self, label: str, known: Reading, *, abandoned: bool = False) -> SensorError:
        """Enter the failure of the late sensor `label` for an instance, and return it."""
        error = SensorError(label, f"sensor {label!r} did not answer in time", why="sensor-late")
        for k, sensor in self._sensors.items():
            if sensor.label == label:
                if k == sensor.members[0]:
                    sensor.state.counts.late += 1
                    sensor.state.counts.hung += abandoned
                    sensor.state.n_waits += 1
                known.failures[k] = error
        return error


def _own_cell(column: int, sensor: FeatureSensor) -> dict[int, Any]:
    return {column: sensor()}


def _group_cells(
    name: str, sensor: GroupSensor, members: list[int], names: Sequence[str]
) -> dict[int, Any]:
    """Values of a group's members, from a mapping by name or a sequence in their order."""
    cells = sensor()
    if isinstance(cells, Mapping):
        missing = [names[k] for k in members if names[k] not in cells]
        if missing:
            raise SensorError(name, f"group sensor {name!r} gave no {missing[0]!r}")
        return {k: cells[names[k]] for k in members}
    if len(cells) != len(members):
        raise SensorError(
            name, f"group sensor {name!r} gave {len(cells)} values for {len(members)} features"
        )
    return dict(zip(members, cells, strict=True))
