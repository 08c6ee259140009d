"""Sensors as functions that are called when a feature is needed, with retries and timeouts.

Another thread calls them, one at a time, because a sensor that blocks must not keep the device from
answering. If a sensor hangs, its thread is abandoned, and a new thread reads the other sensors. An
audit reads on a third thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gatewise.columns.encoders import RowEncoder
from gatewise.costs import FeatureCosts
from gatewise.errors import InputError
from gatewise_edge.errors import SensorError
from gatewise_edge.sensors.blocking_reader import BlockingReader
from gatewise_edge.sensors.bound_sensors import (
    BoundSensors,
    ReadState,
    SensorCounts,
    SensorFunction,
)
from gatewise_edge.sensors.cell_source import InputColumns
from gatewise_edge.sensors.feature_reader import FeatureSource

FeatureSensor = Callable[[], Any]
GroupSensor = Callable[[], Mapping[str, float] | Sequence[float] | NDArray[Any]]


class Sensors:
    """Sensors as functions, each of which reads one feature or one group of features.

    Parameters
    ----------
    features : mapping of str to callable, optional
        Functions without arguments that return the value of a feature, by the feature's name. If
        the bundle has encoders, the names are those of columns, and a function returns the raw
        cell: text, a number, a date, or None if it is missing.
    groups : mapping of str to callable, optional
        Functions without arguments that return the values of a whole group, by the group's name.
        They return a mapping by feature name, or a sequence in the bundle's order of the group's
        features. A feature's own sensor takes precedence over the sensor of its group.
    retries : int or mapping of str to int, default 0
        Largest number of retries after a failed read, for all sensors or by the name of the feature
        or group. No retry begins after the deadline.
    timeout : float or mapping of str to float, optional
        Longest time of a sensor per instance in seconds, including its retries. By default a sensor
        may take all the time until the deadline, which leaves no time for the cloud.

    Raises
    ------
    InputError
        If a sensor is not a function, a number is negative, or a mapping names an unknown sensor.

    Notes
    -----
    Functions run one at a time, except while one hangs, and while an audit reads after an answer.
    The same function never runs twice at the same time: until a hanging call returns, the sensor
    counts as failed for every instance that needs it. Therefore at most one thread per sensor can
    hang. :attr:`hung_sensors` lists the sensors that hang.

    A function returns NaN for a missing value and raises an exception if it cannot read. Apart from
    retries, it is called at most once per instance. An acquired feature costs as much as in
    training, even after retries; a feature that could not be read costs nothing. :attr:`counts` has
    the number of reads.

    If a sensor fails, the instance is offloaded if the cloud's model does not need the feature or
    was trained with missing values. Otherwise the last finished stage answers. If no stage has
    finished, :class:`SensorError` names the sensor.

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
        timeout: float | Mapping[str, float] | None = None,
    ) -> None:
        self._features = dict(features or {})
        self._groups = dict(groups or {})
        for name, read_sensor in (self._features | self._groups).items():
            if not callable(read_sensor):
                raise InputError(
                    f"sensor {name!r} is {read_sensor!r}; give a function that reads it"
                )
        names = self._features.keys() | self._groups.keys()
        self._retries = _setting_by_sensor("retries", retries, names)
        self._timeouts = _setting_by_sensor(
            "timeout", math.inf if timeout is None else timeout, names
        )
        self._states = {name: ReadState() for name in (*self._features, *self._groups)}
        self._reader = BlockingReader(max_hung_threads=len(self._states))

    @property
    def counts(self) -> dict[str, SensorCounts]:
        """Counts of each sensor, by the name of its feature or group."""
        return {name: replace(state.counts) for name, state in self._states.items()}

    @property
    def hung_sensors(self) -> tuple[str, ...]:
        """Names of the sensors with a read that did not return in time and is still running."""
        return tuple(name for name, state in self._states.items() if state.is_hanging)

    @property
    def trouble(self) -> str | None:
        """Description of the sensors that hang, or None."""
        names = self.hung_sensors
        if not names:
            return None
        sensor_list = ", ".join(map(repr, names))
        if len(names) == 1:
            return f"sensor {sensor_list} does not return"
        return f"sensors {sensor_list} do not return"

    def bind(
        self,
        costs: FeatureCosts,
        needed_features: ArrayLike = (),
        encoder: RowEncoder | None = None,
    ) -> FeatureSource:
        """Match the sensors with a bundle's features, or with the raw columns of its `encoder`.

        `costs` names the features and groups. Raises InputError if one of the features in
        `needed_features` has no sensor, or if the bundle has no feature or group with a sensor's
        name.
        """
        columns = InputColumns(costs.names or (), encoder)
        column_noun = "feature" if encoder is None else "column"
        sensors: dict[int, SensorFunction] = {}

        def add_sensor(
            name: str, sensor_columns: list[int], read_cells: Callable[[], Mapping[int, Any]]
        ) -> None:
            """Bind a sensor that reads cells to the features of its columns."""

            def read_features() -> dict[int, float]:
                values: dict[int, float] = {}
                for column, cell in read_cells().items():
                    values |= zip(
                        columns.features(column), columns.encode(column, cell), strict=True
                    )
                return values

            sensor = SensorFunction(
                name,
                tuple(feature for column in sensor_columns for feature in columns.features(column)),
                read_features,
                self._states[name],
                max_retries=self._retries.get(name, self._retries[""]),
                timeout_s=self._timeouts.get(name, self._timeouts[""]),
            )
            sensors.update(dict.fromkeys(sensor.features, sensor))

        # Groups come first, because a feature's own sensor replaces the sensor of its group.
        for name, group_sensor in self._groups.items():
            if name not in costs.group_names:
                raise InputError(f"group sensor {name!r}: the bundle has no such feature group")
            is_read = [self._reads_group(name, group, costs) for group in costs.group.tolist()]
            group_columns = list(dict.fromkeys(compress(columns.column_of, is_read)))
            own_columns = [
                column for column in group_columns if columns.names[column] not in self._features
            ]
            read_cells = partial(
                _read_group_cells, name, group_sensor, group_columns, columns.names
            )
            add_sensor(name, own_columns, read_cells)
        for name, sensor_function in self._features.items():
            if name not in columns.names:
                raise InputError(f"sensor {name!r}: the bundle has no such {column_noun}")
            column = columns.names.index(name)
            add_sensor(name, [column], partial(_read_feature_cell, column, sensor_function))
        column_names = [columns.names[column] for column in columns.column_of]
        for feature in np.asarray(needed_features, np.intp).tolist():
            if feature not in sensors:
                raise InputError(f"{column_noun} {column_names[feature]!r} has no sensor: add one")
        return BoundSensors(column_names, sensors, self._reader)

    def _reads_group(self, name: str, group: int, costs: FeatureCosts) -> bool:
        """Whether the sensor of group `name` reads the group with the index `group`.

        It reads its own group, and the groups without a sensor that require its group.
        """
        group_name = costs.group_names[group] if group >= 0 else None
        if group_name is None or group_name in self._groups:
            return group_name == name
        return name in [
            costs.group_names[required_group] for required_group in costs.requires[group]
        ]

    def close(self) -> None:
        """End the reading thread, unless a sensor blocks it."""
        self._reader.close()


def _setting_by_sensor(
    setting_name: str, setting_values: float | Mapping[str, float], names: Set[str]
) -> dict[str, float]:
    """Check a setting; return its values by the name of the sensor, and "" for other sensors."""
    default = math.inf if setting_name == "timeout" else 0
    values_by_sensor = (
        dict(setting_values) if isinstance(setting_values, Mapping) else {"": setting_values}
    )
    for name, value in values_by_sensor.items():
        if name and name not in names:
            raise InputError(f"{setting_name} for {name!r}: no sensor has this name")
        number_types = (int,) if setting_name == "retries" else (int, float)
        if isinstance(value, bool) or not isinstance(value, number_types) or not value >= 0:
            expected_text = "a whole number" if setting_name == "retries" else "seconds"
            raise InputError(f"{setting_name} is {value!r}; give {expected_text}, at least 0")
    return {"": default} | values_by_sensor


def _read_feature_cell(column: int, read_cell: FeatureSensor) -> dict[int, Any]:
    return {column: read_cell()}


def _read_group_cells(
    group_name: str, read_cells: GroupSensor, columns: list[int], column_names: Sequence[str]
) -> dict[int, Any]:
    """Read the cells of a group's members, from a mapping by name or a sequence in order."""
    cells = read_cells()
    if isinstance(cells, Mapping):
        missing_names = [
            column_names[column] for column in columns if column_names[column] not in cells
        ]
        if missing_names:
            raise SensorError(
                group_name, f"group sensor {group_name!r} returned no {missing_names[0]!r}"
            )
        return {column: cells[column_names[column]] for column in columns}
    if len(cells) != len(columns):
        raise SensorError(
            group_name,
            f"group sensor {group_name!r} returned {len(cells)} values for {len(columns)} features",
        )
    return dict(zip(columns, cells, strict=True))
