"""Values are read when asked for, once, and cost what FeatureCosts says."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatewise.costs import FeatureCosts
from gatewise.errors import InputError
from gatewise_edge.errors import SensorError
from gatewise_edge.sensors.feature_reader import Meter, Reading, row_values
from gatewise_edge.sensors.sensors import SensorCounts, Sensors

COSTS = FeatureCosts(
    [1.0, 0.1, 0.2, 0.3, 2.5],
    group=[None, "blood", "blood", "urine", None],
    shared={"blood": 2.1, "urine": 0.7},
    names=["age", "chol", "fbs", "ph", "ecg"],
)
NAN = float("nan")


def reading_of(source, timeout: float = 5.0) -> Reading:
    return Reading(source, Meter(COSTS), lambda: timeout)


def acquire(reading: Reading, *features: int, allow_missing: bool = False):
    return reading.acquire(np.array(features, np.intp), allow_missing=allow_missing).tolist()


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
    reading = reading_of(row_values([1.0, 2.0, 3.0, 4.0, 5.0], 5))
    acquired: set[int] = set()
    for step in steps:
        assert acquire(reading, *step) == [1.0 + k for k in step]
        acquired.update(step)
        assert reading.cost == COSTS.price(sorted(acquired))
        assert np.flatnonzero(reading.acquired).tolist() == sorted(acquired)


def test_nothing_is_read_twice(count):
    sensors, reads = count(
        {"age": 50.0, "ecg": 2.0}, {"blood": lambda: [240.0, 1.0], "urine": lambda: {"ph": 6.5}}
    )
    reading = reading_of(sensors.bind(COSTS))
    assert acquire(reading, 0, 1) == [50.0, 240.0]
    assert reading.cost == COSTS.price([0, 1])
    assert acquire(reading, 2, 1, 0) == [1.0, 240.0, 50.0]
    assert reading.cost == COSTS.price([0, 1, 2])
    assert acquire(reading, 3) == [6.5]
    assert reads == {"age": 1, "blood": 1, "urine": 1}
    other = reading_of(sensors.bind(COSTS))
    assert other.cost == 0.0
    acquire(other, 0)
    assert reads["age"] == 2


def test_a_features_own_sensor_goes_before_its_groups(count):
    sensors, reads = count({"chol": 1.0}, {"blood": lambda: {"chol": 9.0, "fbs": 2.0}})
    reading = reading_of(sensors.bind(COSTS))
    assert acquire(reading, 1) == [1.0]
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
        acquire(reading_of(sensors.bind(COSTS)), feature)
    assert (caught.value.sensor, caught.value.why) == (sensor, "sensor")


def test_what_was_read_before_a_failure_is_paid(count):
    sensors, _ = count({"age": 1.0, "ecg": fails, "ph": 7.0})
    reading = reading_of(sensors.bind(COSTS))
    with pytest.raises(SensorError):
        acquire(reading, 0, 4, 3)
    assert np.flatnonzero(reading.acquired).tolist() == [0]
    assert reading.cost == COSTS.price([0])


@pytest.mark.parametrize("value", [np.inf, -np.inf, 1e39, -1e300])
def test_infinite_is_always_refused_and_paid(count, value):
    sensors, _ = count({"age": value})
    row = [value, 0, 0, 0, 0]
    for source in (sensors.bind(COSTS), row_values(row, 5)):
        reading = reading_of(source)
        with pytest.raises(SensorError, match="'age' is infinite") as caught:
            acquire(reading, 0, allow_missing=True)
        assert (caught.value.sensor, caught.value.why) == ("age", "infinite")
        assert reading.cost == 1.0


@pytest.mark.parametrize("n", [3, 200])
def test_the_largest_values_pass_and_one_among_them_that_is_none_does_not(n):
    names, every = [f"x{k}" for k in range(n)], np.arange(n)
    meter = Meter(FeatureCosts(np.ones(n), names=names))
    row = np.full(n, np.finfo(np.float32).max)
    for last, why in (
        (row[0], None),
        (np.inf, "infinite"),
        (-np.inf, "infinite"),
        (NAN, "missing"),
    ):
        row[-1] = last
        reading = Reading(row_values(row, n), meter, lambda: 1.0)
        if why is None:
            assert reading.acquire(every, allow_missing=False).tolist() == row.tolist()
            continue
        with pytest.raises(SensorError) as caught:
            reading.acquire(every, allow_missing=False)
        assert (caught.value.sensor, caught.value.why) == (names[-1], why)


def test_nan_passes_only_where_it_may(count):
    sensors, _ = count({"age": NAN})
    for source in (sensors.bind(COSTS), row_values([NAN, 0, 0, 0, 0], 5)):
        reading = reading_of(source)
        with pytest.raises(SensorError, match="'age' is missing") as caught:
            acquire(reading, 0)
        assert caught.value.why == "missing"
        assert np.isnan(acquire(reading, 0, allow_missing=True)).all()
        assert reading.cost == 1.0


def test_a_blocking_sensor_is_left_behind(count):
    gate = threading.Event()
    sensors, reads = count({"age": 1.0, "ecg": lambda: gate.wait(60) and 2.0})
    bound = sensors.bind(COSTS)
    reading = reading_of(bound, timeout=0.1)
    started = time.monotonic()
    with pytest.raises(SensorError, match="'ecg' did not answer in time") as caught:
        acquire(reading, 0, 4)
    assert 0.1 <= time.monotonic() - started < 30
    assert (caught.value.sensor, caught.value.why) == ("ecg", "sensor-late")
    assert reading.cost == COSTS.price([0])
    # While it still blocks, the next instance gives up in its own time; reads do not pile up.
    with pytest.raises(SensorError):
        acquire(reading_of(bound, timeout=0.05), 0)
    assert reads == {"age": 1, "ecg": 1}
    gate.set()
    later = reading_of(bound)
    assert acquire(later, 0, 4) == [1.0, 2.0]


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
        row_values(row, 5)


def test_sensors_can_be_closed_and_used_again(count):
    sensors, _ = count({"age": 1.0})
    bound = sensors.bind(COSTS)
    assert acquire(reading_of(bound), 0) == [1.0]
    sensors.close()
    sensors.close()
    assert acquire(reading_of(bound), 0) == [1.0]


class Flaky:
    """A sensor that fails so many times before it gives its value."""

    def __init__(self, failures: int, value: object = 3.0) -> None:
        self.left, self.value, self.reads = failures, value, 0

    def __call__(self):
        self.reads += 1
        if self.left:
            self.left -= 1
            raise OSError("bus busy")
        return self.value


@pytest.fixture
def make_sensors():
    made: list[Sensors] = []

    def make(*args, **kwargs) -> Sensors:
        made.append(Sensors(*args, **kwargs))
        return made[-1]

    yield make
    for sensors in made:
        sensors.close()


def test_a_failed_read_is_tried_again_and_paid_once(make_sensors):
    age, blood = Flaky(2, 50.0), Flaky(1, {"chol": 240.0, "fbs": 1.0})
    sensors = make_sensors({"age": age}, groups={"blood": blood}, retries=2)
    reading = reading_of(sensors.bind(COSTS))
    assert acquire(reading, 0, 2) == [50.0, 1.0]
    assert (age.reads, blood.reads) == (3, 2)
    assert reading.cost == COSTS.price([0, 2])
    assert sensors.counts["age"] == SensorCounts(reads=3, retries=2)
    assert sensors.counts["blood"] == SensorCounts(reads=2, retries=1)
    # Cached for the instance, read anew for the next.
    assert acquire(reading, 0, 1, 2) == [50.0, 240.0, 1.0]
    assert (age.reads, blood.reads) == (3, 2)
    acquire(reading_of(sensors.bind(COSTS)), 0)
    assert age.reads == 4


def test_tries_are_bounded_and_by_name(make_sensors):
    age, ecg = Flaky(9), Flaky(9)
    sensors = make_sensors({"age": age, "ecg": ecg}, retries={"age": 1})
    for k, says in ((0, r"'age' failed: OSError: bus busy \(2 tries\)"), (4, "bus busy$")):
        reading = reading_of(sensors.bind(COSTS))
        with pytest.raises(SensorError, match=says):
            acquire(reading, k)
        assert (reading.cost, reading.acquired.any()) == (0.0, False)
    assert (age.reads, ecg.reads) == (2, 1)
    assert sensors.counts["age"].failures == sensors.counts["ecg"].failures == 1


def test_no_try_begins_after_the_deadline(make_sensors):
    age = Flaky(9)
    sensors = make_sensors({"age": age}, retries=5, retry_wait=60.0)
    started = time.monotonic()
    with pytest.raises(SensorError, match="bus busy") as caught:
        acquire(reading_of(sensors.bind(COSTS), timeout=20.0), 0)
    assert time.monotonic() - started < 10.0
    assert (age.reads, caught.value.why) == (1, "sensor")


def test_a_sensor_that_failed_is_not_read_again_for_the_instance(make_sensors):
    blood = Flaky(1, [240.0, 1.0])
    sensors = make_sensors({"age": lambda: 50.0}, groups={"blood": blood})
    bound = sensors.bind(COSTS)
    reading = reading_of(bound)
    with pytest.raises(SensorError, match="'blood' failed"):
        acquire(reading, 1)
    with pytest.raises(SensorError, match="'blood' failed"):
        acquire(reading, 0, 2)  # at once: age is not acquired in vain
    assert (blood.reads, reading.cost) == (1, 0.0)
    x = reading.acquire(np.array([0, 1]), allow_missing=True, spare=True)
    assert x[0] == 50.0
    assert np.isnan(x[1])
    assert (blood.reads, reading.cost) == (1, 1.0)
    assert reading.failure is not None
    assert reading.failure.sensor == "blood"
    assert acquire(reading_of(bound), 2) == [1.0]


def test_what_was_paid_and_refused_is_not_acquired_beside(make_sensors):
    age = Flaky(0, NAN)
    sensors = make_sensors({"age": age, "ecg": lambda: 1.0})
    reading = reading_of(sensors.bind(COSTS))
    for features in ((0,), (4, 0)):
        with pytest.raises(SensorError, match="'age' is missing"):
            acquire(reading, *features)
    assert np.flatnonzero(reading.acquired).tolist() == [0]
    assert age.reads == 1


def test_a_sensors_own_timeout_leaves_time_for_the_others(make_sensors):
    gate = threading.Event()
    sensors = make_sensors(
        {"age": lambda: 50.0, "ecg": lambda: gate.wait(30) and 2.0}, timeout={"ecg": 0.05}
    )
    bound = sensors.bind(COSTS)
    reading = reading_of(bound, timeout=25.0)
    started = time.monotonic()
    with pytest.raises(SensorError, match="'ecg' did not answer in time") as caught:
        acquire(reading, 0, 4)
    assert time.monotonic() - started < 20.0
    assert (caught.value.sensor, caught.value.why) == ("ecg", "sensor-late")
    assert sensors.counts["ecg"].late == 1
    # All else is at hand, so nothing waits for the blocked one.
    x = reading.acquire(np.array([0, 4]), allow_missing=True, spare=True)
    assert x[0] == 50.0
    assert np.isnan(x[1])
    # Another instance that must wait for it is told who blocks.
    with pytest.raises(SensorError, match="'ecg' did not answer in time"):
        acquire(reading_of(bound, timeout=0.05), 0)
    gate.set()
    assert acquire(reading_of(bound), 0, 4) == [50.0, 2.0]


def test_a_group_leaves_features_with_a_sensor_of_their_own_alone(make_sensors):
    sensors = make_sensors({"chol": lambda: 1.0}, groups={"blood": lambda: [9.0, 2.0]})
    reading = reading_of(sensors.bind(COSTS))
    assert acquire(reading, 2) == [2.0]
    assert acquire(reading, 1) == [1.0]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"retries": -1}, "retries is -1; give a whole number, at least 0"),
        ({"retries": 1.5}, "retries is 1.5"),
        ({"retries": {"pulse": 1}}, "retries for 'pulse': there is no such sensor"),
        ({"timeout": -0.1}, "timeout is -0.1; give seconds"),
        ({"timeout": {"age": NAN}}, "timeout is nan"),
        ({"retry_wait": "1"}, "retry_wait is '1'"),
    ],
)
def test_rules_are_checked(settings, says):
    with pytest.raises(InputError, match=says):
        Sensors({"age": lambda: 1.0}, **settings)
