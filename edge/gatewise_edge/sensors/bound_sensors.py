"""Reads of sensors: one at a time, with retries, within the deadline of an instance.

:class:`BoundSensors` enters the values, or the failures of sensors, in a
:class:`~gatewise_edge.sensors.feature_reader.Reading`.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gatewise_edge.errors import SensorError
from gatewise_edge.sensors.blocking_reader import BlockingReader, ReadTask, ReadTimeoutError
from gatewise_edge.sensors.feature_reader import Reading

_LOG = logging.getLogger(__name__)

#: Number of instances that may wait in vain for a read. Later instances do not wait for it, so that
#: they have time for the cloud.
_MAX_FUTILE_WAITS: Final = 2


@dataclass(slots=True)
class SensorCounts:
    """Counts of one sensor's reads.

    Attributes
    ----------
    reads : int
        Calls of its function, retries included.
    retries : int
        Calls after a failed call.
    failures : int
        Instances for which every call failed.
    late : int
        Instances for which it did not return in time.
    hung : int
        Calls that were abandoned with their thread.
    """

    reads: int = 0
    retries: int = 0
    failures: int = 0
    late: int = 0
    hung: int = 0


@dataclass(slots=True, eq=False)
class ReadState:
    """State of one sensor's reads, which all bundles of a device share.

    `read_lock` is held while the sensor's function runs. `n_futile_waits` is the number of
    instances that have waited in vain for the running read.
    """

    counts: SensorCounts = field(default_factory=SensorCounts)
    read_lock: threading.Lock = field(default_factory=threading.Lock)
    n_futile_waits: int = 0

    @property
    def is_hanging(self) -> bool:
        """Whether a read that did not return in time is still running."""
        return self.n_futile_waits > 0 and self.read_lock.locked()

    def wait_for_return(self, deadline: float) -> bool:
        """Wait until `deadline` for the running read; return whether it has ended."""
        if self.n_futile_waits >= _MAX_FUTILE_WAITS:
            return False
        if not self.read_lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            return False
        self.read_lock.release()
        return True


@dataclass(slots=True, eq=False)
class SensorFunction:
    """A function that returns the values of some features, called by one thread at a time.

    `last_outcome` has the values or the error of the last read, and `n_reads` counts the reads.
    """

    name: str
    features: tuple[int, ...]
    read_values: Callable[[], dict[int, float]]
    state: ReadState
    max_retries: float
    timeout_s: float
    last_outcome: dict[int, float] | SensorError = field(default_factory=dict)
    n_reads: int = 0

    def read(self, deadline: float) -> dict[int, float] | SensorError:
        """Call the function, and retry after a failure while there is time; return the outcome.

        If another thread is reading the sensor for an audit, wait for that read and return its
        outcome.
        """
        n_reads_before = self.n_reads
        with self.state.read_lock:
            if self.n_reads == n_reads_before:
                self.last_outcome = self._call_function(deadline)
                self.n_reads += 1
                self.state.n_futile_waits = 0
            return self.last_outcome

    def _call_function(self, deadline: float) -> dict[int, float] | SensorError:
        """Call the function until it returns values, within the retries and the deadline."""
        n_calls = 0
        while True:
            n_calls += 1
            self.state.counts.reads += 1
            try:
                return self.read_values()
            except Exception as error:  # a driver may raise anything
                if n_calls > self.max_retries or time.monotonic() >= deadline:
                    self.state.counts.failures += 1
                    return self._failure(error, n_calls)
            self.state.counts.retries += 1

    def _failure(self, error: Exception, n_calls: int) -> SensorError:
        if isinstance(error, SensorError):
            return error
        calls_note = f" ({n_calls} tries)" if n_calls > 1 else ""
        message = f"sensor {self.name!r} failed: {type(error).__name__}: {error}{calls_note}"
        failure = SensorError(self.name, message)
        failure.__cause__ = error
        return failure


class BoundSensors:
    """The sensors of a bundle's features, by index, as a :class:`.FeatureSource`."""

    def __init__(
        self,
        column_names: Sequence[str],
        sensors: Mapping[int, SensorFunction],
        reader: BlockingReader,
    ) -> None:
        self._column_names = column_names
        self._sensors = sensors
        self._reader = reader
        self._has_timeouts = any(sensor.timeout_s < math.inf for sensor in sensors.values())

    def read(
        self, features: NDArray[np.intp], reading: Reading, timeout_s: float, *, allow_failure: bool
    ) -> None:
        """Enter the values of `features`; see :meth:`.FeatureSource.read`."""
        deadline = time.monotonic() + timeout_s
        feature_indices: list[int] = features.tolist()
        # Enter the failures of absent sensors and of sensors that hang.
        for feature in feature_indices:
            sensor = self._sensors.get(feature)
            if sensor is None:
                column_name = self._column_names[feature]
                failure = SensorError(column_name, f"column {column_name!r} has no sensor")
                reading.enter_failure([feature], failure, allow_failure=allow_failure)
            elif sensor.state.is_hanging and feature not in reading.failures:
                # An audit has no deadline, so it does not wait for a sensor that hangs.
                wait_until = min(deadline, time.monotonic() + sensor.timeout_s)
                if wait_until == math.inf or not sensor.state.wait_for_return(wait_until):
                    failure = self._enter_late(sensor.name, reading)
                    if not allow_failure:
                        raise failure
        # Read the others: for an audit on this thread, otherwise on the reader's thread, in one
        # call or, with timeouts, one by one.
        if timeout_s == math.inf:
            self._read_in_turn(feature_indices, reading, deadline, allow_failure, None)
            return
        if not self._has_timeouts:
            self._read_on_thread(feature_indices, reading, deadline, allow_failure)
            return
        for feature in feature_indices:
            if not reading.is_unread(feature):
                continue
            sensor_deadline = time.monotonic() + self._sensors[feature].timeout_s
            try:
                self._read_on_thread(
                    [feature], reading, min(deadline, sensor_deadline), allow_failure
                )
            except SensorError:
                # Continue only if this sensor was late itself, and did not wait for another one.
                is_sensor_late = feature in reading.failures and time.monotonic() < deadline
                if not (allow_failure and is_sensor_late):
                    raise

    def _read_on_thread(
        self, features: list[int], reading: Reading, deadline: float, allow_failure: bool
    ) -> None:
        """Read features in one call on the reader's thread."""
        read_in_turn = partial(self._read_in_turn, features, reading, deadline, allow_failure)
        try:
            self._reader.run(read_in_turn, deadline - time.monotonic())
        except ReadTimeoutError as error:
            sensor_name = error.sensor_name or self._sensors[features[0]].name
            raise self._enter_late(sensor_name, reading, is_abandoned=error.is_abandoned) from None

    def _read_in_turn(
        self,
        features: list[int],
        reading: Reading,
        deadline: float,
        allow_failure: bool,
        task: ReadTask | None,
    ) -> None:
        """Read features on this thread; set the sensor's name in `task` before each read."""
        for feature in features:
            if not reading.is_unread(feature):
                continue
            if time.monotonic() >= deadline:
                return  # the caller has stopped waiting
            sensor = self._sensors[feature]
            if task is not None:
                task.sensor_name = sensor.name
            outcome = sensor.read(deadline)
            # The instance has been answered, and further values would change its cost.
            if task is not None and task.is_abandoned:
                return
            if isinstance(outcome, SensorError):
                reading.enter_failure(sensor.features, outcome, allow_failure=allow_failure)
                continue
            for sensor_feature in sensor.features:
                reading.enter(sensor_feature, outcome[sensor_feature])

    def _enter_late(
        self, sensor_name: str, reading: Reading, *, is_abandoned: bool = False
    ) -> SensorError:
        """Enter the failure of the late sensor `sensor_name`, and return it."""
        failure = SensorError(
            sensor_name, f"sensor {sensor_name!r} did not answer in time", cause="sensor-late"
        )
        for feature, sensor in self._sensors.items():
            if sensor.name == sensor_name:
                if feature == sensor.features[0]:  # a sensor of several features counts once
                    counts = sensor.state.counts
                    counts.late += 1
                    if counts.late & (counts.late - 1) == 0:  # the 1st, 2nd, 4th, 8th and so on
                        _LOG.warning("%s (late instances so far: %d)", failure, counts.late)
                    counts.hung += is_abandoned
                    sensor.state.n_futile_waits += 1
                reading.failures[feature] = failure
        return failure
