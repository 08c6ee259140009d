"""Values are read when asked for, once, and cost what FeatureCosts says."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatewise_edge.errors import SensorError
from gatewise_edge.sensors import Meter, Reading, Row, Sensors
from gatewise_training.costs import FeatureCosts
from gatewise_training.errors import InputError

COSTS = FeatureCosts(
    [1.0, 0.1, 0.2, 0.3, 2.5],
    group=[None, "blood", "blood", "urine", None],
    shared={"blood": 2.1, "urine": 0.7},
    names=["age", "chol", "fbs", "ph", "ecg"],
)
NAMES = COSTS.names or ()
NAN = float("nan")


def reading_of(source) -> Reading:
    return Reading(source, NAMES, Meter(COSTS))


def buy(reading: Reading, *features: int, allow_missing: bool = False, timeout: float = 5.0):
    return reading.acquire(
        np.array(features, np.intp), allow_missing=allow_missing, timeout=timeout
    ).tolist()


@pytest.fixture
def count():
    """Make sensors that count how often they are read."""
    made: list[Sensors] = []
    reads: dict[str, int] = {}

    def counting(name: str, give):
        def read():
            reads[name] = reads.get(name, 0) + 1
            return give() if callable(give) else give

        return read

    def make(features: dict, groups: dict | None = None) -> tuple[Sensors, dict[str, int]]:
        sensors = Sensors(
            {n: counting(n, v) for n, v in features.items()},
            groups={n: counting(n, v) for n, v in (groups or {}).items()},
        )
        made.append(sensors)
        return sensors, reads

    yield make
    for sensors in made:
        sensors.close()


@given(st.lists(st.lists(st.integers(0, 4), max_size=5), max_size=6))
def test_the_meter_is_the_cost_of_what_was_acquired(steps):
    reading = reading_of(Row([1.0, 2.0, 3.0, 4.0, 5.0], 5))
    bought: set[int] = set()
    for step in steps:
        assert buy(reading, *step) == [1.0 + k for k in step]
        bought.update(step)
        assert reading.meter == COSTS.of(sorted(bought))
        assert np.flatnonzero(reading.acquired).tolist() == sorted(bought)


def test_nothing_is_read_twice(count):
    sensors, reads = count(
        {"age": 50.0, "ecg": 2.0}, {"blood": lambda: [240.0, 1.0], "urine": lambda: {"ph": 6.5}}
    )
    reading = reading_of(sensors.bind(COSTS))
    assert buy(reading, 0, 1) == [50.0, 240.0]
    assert reading.meter == COSTS.of([0, 1])
    assert buy(reading, 2, 1, 0) == [1.0, 240.0, 50.0]
    assert reading.meter == COSTS.of([0, 1, 2])
    assert buy(reading, 3) == [6.5]
    assert reads == {"age": 1, "blood": 1, "urine": 1}
    other = reading_of(sensors.bind(COSTS))
    assert other.meter == 0.0
    buy(other, 0)
    assert reads["age"] == 2


def test_a_features_own_sensor_goes_before_its_groups(count):
    sensors, reads = count({"chol": 1.0}, {"blood": lambda: {"chol": 9.0, "fbs": 2.0}})
    reading = reading_of(sensors.bind(COSTS))
    assert buy(reading, 1) == [1.0]
    assert "blood" not in reads


def fails():
    raise OSError("no device on the bus")


@pytest.mark.parametrize(
    ("features", "groups", "feature", "sensor", "says"),
    [
        ({"age": fails}, {}, 0, "age", "sensor 'age' failed: OSError: no device on the bus"),
        ({"age": lambda: None}, {}, 0, "age", "sensor 'age' failed: TypeError"),
        ({"age": lambda: "warm"}, {}, 0, "age", "sensor 'age' failed: ValueError"),
        ({}, {"blood": fails}, 2, "blood", "sensor 'blood' failed: OSError"),
        ({}, {"blood": lambda: [1.0]}, 2, "blood", "gave 1 values for 2 features"),
        ({}, {"blood": lambda: {"fbs": 1.0}}, 2, "blood", "gave no 'chol'"),
        ({}, {"blood": lambda: 3.0}, 2, "blood", "sensor 'blood' failed: TypeError"),
        ({"ecg": 1.0}, {}, 0, "age", "feature 'age' has no sensor"),
    ],
)
def test_a_sensor_that_fails_is_named(count, features, groups, feature, sensor, says):
    sensors, _ = count(features, groups)
    with pytest.raises(SensorError, match=says) as caught:
        buy(reading_of(sensors.bind(COSTS)), feature)
    assert (caught.value.sensor, caught.value.why) == (sensor, "sensor")


def test_what_was_read_before_a_failure_is_paid(count):
    sensors, _ = count({"age": 1.0, "ecg": fails, "ph": 7.0})
    reading = reading_of(sensors.bind(COSTS))
    with pytest.raises(SensorError):
        buy(reading, 0, 4, 3)
    assert np.flatnonzero(reading.acquired).tolist() == [0]
    assert reading.meter == COSTS.of([0])


@pytest.mark.parametrize("value", [np.inf, -np.inf, 1e39, -1e300])
def test_infinite_is_always_refused_and_paid(count, value):
    sensors, _ = count({"age": value})
    row = [value, 0, 0, 0, 0]
    for source in (sensors.bind(COSTS), Row(row, 5)):
        reading = reading_of(source)
        with pytest.raises(SensorError, match="'age' is infinite") as caught:
            buy(reading, 0, allow_missing=True)
        assert (caught.value.sensor, caught.value.why) == ("age", "infinite")
        assert reading.meter == 1.0


def test_nan_passes_only_where_it_may(count):
    sensors, _ = count({"age": NAN})
    for source in (sensors.bind(COSTS), Row([NAN, 0, 0, 0, 0], 5)):
        reading = reading_of(source)
        with pytest.raises(SensorError, match="'age' is missing") as caught:
            buy(reading, 0)
        assert caught.value.why == "missing"
        assert np.isnan(buy(reading, 0, allow_missing=True)).all()
        assert reading.meter == 1.0


def test_a_blocking_sensor_is_left_behind(count):
    gate = threading.Event()
    sensors, reads = count({"age": 1.0, "ecg": lambda: gate.wait(10) and 2.0})
    bound = sensors.bind(COSTS)
    reading = reading_of(bound)
    started = time.monotonic()
    with pytest.raises(SensorError, match="'ecg' did not answer in time") as caught:
        buy(reading, 0, 4, timeout=0.1)
    assert 0.1 <= time.monotonic() - started < 0.6
    assert (caught.value.sensor, caught.value.why) == ("ecg", "sensor-late")
    assert reading.meter == COSTS.of([0])
    # While it still blocks, the next instance gives up in its own time; reads do not pile up.
    with pytest.raises(SensorError):
        buy(reading_of(bound), 0, timeout=0.05)
    assert reads == {"age": 1, "ecg": 1}
    gate.set()
    later = reading_of(bound)
    assert buy(later, 0, 4) == [1.0, 2.0]


def test_names_must_fit(count):
    with pytest.raises(InputError, match="sensor 'pulse': the bundle has no such feature"):
        count({"pulse": 1.0})[0].bind(COSTS)
    with pytest.raises(InputError, match="group sensor 'hair': the bundle has no such feature gr"):
        count({}, {"hair": [1.0]})[0].bind(COSTS)
    with pytest.raises(InputError, match="feature 'ph' has no sensor"):
        count({"age": 1.0})[0].bind(COSTS, [0, 3])


@pytest.mark.parametrize("row", [[1.0] * 4, [[1.0] * 5], 3.0, ["a"] * 5, [None, object(), 1, 1, 1]])
def test_rows_must_fit(row):
    with pytest.raises(InputError):
        Row(row, 5)


def test_sensors_can_be_closed_and_used_again(count):
    sensors, _ = count({"age": 1.0})
    bound = sensors.bind(COSTS)
    assert buy(reading_of(bound), 0) == [1.0]
    sensors.close()
    sensors.close()
    assert buy(reading_of(bound), 0) == [1.0]
