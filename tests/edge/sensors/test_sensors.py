"""Sensors are read on demand and only once, their costs are charged, and errors name them."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatewise.costs import FeatureCosts
from gatewise.errors import InputError
from gatewise_edge.device.device import Device
from gatewise_edge.errors import SensorError
from gatewise_edge.link.link import InProcessLink
from gatewise_edge.sensors.bound_sensors import SensorCounts
from gatewise_edge.sensors.feature_reader import Meter, Reading, row_values
from gatewise_edge.sensors.sensors import Sensors
from gatewise_export.bundle.manifest_records import MissingSpec
from tests.support.small_bundle import cloud_answers
from tests.support.waiting import wait_until

#: Own price of each feature, and the price that the features of a group share.
COSTS = FeatureCosts(
    [1.0, 0.1, 0.2, 0.3, 2.5],
    group=[None, "blood", "blood", "urine", None],
    shared={"blood": 2.1, "urine": 0.7},
    names=["age", "chol", "fbs", "ph", "ecg"],
)
NAN = float("nan")


def begin_reading(source, timeout: float = 5.0) -> Reading:
    """Begin to read an instance that has `timeout` seconds left."""
    return Reading(source, Meter(COSTS), lambda: timeout)


def acquire(reading: Reading, *features: int, allow_missing: bool = False):
    return reading.acquire(np.array(features, np.intp), allow_missing=allow_missing).tolist()


def acquired_features(reading: Reading) -> list[int]:
    return np.flatnonzero(reading.acquired).tolist()


class FlakySensor:
    """A sensor that counts its reads, and fails `n_failures` times before it returns its value."""

    def __init__(self, n_failures: int, value: object = 3.0) -> None:
        self.n_failures_left = n_failures
        self.value = value
        self.n_reads = 0

    def __call__(self):
        self.n_reads += 1
        if self.n_failures_left:
            self.n_failures_left -= 1
            raise OSError("bus busy")
        return self.value() if callable(self.value) else self.value


@pytest.fixture
def make_sensors():
    """Return a factory of Sensors that are closed after the test.

    A plain value stands for a sensor that returns it.
    """
    all_sensors: list[Sensors] = []

    def make_sensors(features: dict, groups: dict | None = None, **settings) -> Sensors:
        feature_sensors, group_sensors = (
            {
                name: sensor if callable(sensor) else FlakySensor(0, sensor)
                for name, sensor in named_sensors.items()
            }
            for named_sensors in (features, groups or {})
        )
        all_sensors.append(Sensors(feature_sensors, groups=group_sensors, **settings))
        return all_sensors[-1]

    yield make_sensors
    for sensors in all_sensors:
        sensors.close()


@given(st.lists(st.lists(st.integers(0, 4), max_size=5), max_size=6))
def test_meter_charges_the_acquired_features(feature_lists):
    reading = begin_reading(row_values([1.0, 2.0, 3.0, 4.0, 5.0], 5))
    expected_features: set[int] = set()
    for features in feature_lists:
        assert acquire(reading, *features) == [1.0 + feature for feature in features]
        expected_features.update(features)
        assert reading.cost == COSTS.price(sorted(expected_features))
        assert acquired_features(reading) == sorted(expected_features)


def test_failed_read_is_retried_and_no_feature_is_read_twice(make_sensors):
    age, blood = FlakySensor(2, 50.0), FlakySensor(1, [240.0, 1.0])
    ecg, urine = FlakySensor(0, 2.0), FlakySensor(0, {"ph": 6.5})
    sensors = make_sensors({"age": age, "ecg": ecg}, {"blood": blood, "urine": urine}, retries=2)
    reading = begin_reading(sensors.bind(COSTS))
    assert acquire(reading, 0, 1) == [50.0, 240.0]
    assert reading.cost == COSTS.price([0, 1])
    assert acquire(reading, 2, 1, 0, 3) == [1.0, 240.0, 50.0, 6.5]
    assert reading.cost == COSTS.price([0, 1, 2, 3])
    # Two failures of age and one of blood come before their values; ecg was not needed.
    assert (age.n_reads, blood.n_reads, urine.n_reads, ecg.n_reads) == (3, 2, 1, 0)
    assert sensors.counts["age"] == SensorCounts(reads=3, retries=2)
    assert sensors.counts["blood"] == SensorCounts(reads=2, retries=1)
    sensors.close()
    sensors.close()
    acquire(begin_reading(sensors.bind(COSTS)), 0)  # another instance, after closing
    assert age.n_reads == 4


def test_sensor_of_a_feature_takes_precedence_over_its_group(make_sensors):
    blood = FlakySensor(0, {"chol": 9.0, "fbs": 2.0})
    reading = begin_reading(make_sensors({"chol": 1.0}, {"blood": blood}).bind(COSTS))
    assert (acquire(reading, 1), blood.n_reads) == ([1.0], 0)
    assert acquire(reading, 2, 1) == [2.0, 1.0]


@pytest.mark.parametrize(
    ("features", "groups", "feature", "sensor", "message"),
    [
        ({"age": FlakySensor(9)}, {}, 0, "age", "sensor 'age' failed: OSError: bus busy$"),
        ({"age": lambda: None}, {}, 0, "age", "sensor 'age' failed: TypeError"),
        ({"age": lambda: "warm"}, {}, 0, "age", "sensor 'age' failed: ValueError"),
        ({}, {"blood": FlakySensor(9)}, 2, "blood", "sensor 'blood' failed: OSError"),
        ({}, {"blood": lambda: [1.0]}, 2, "blood", "returned 1 values for 2 features"),
        ({}, {"blood": lambda: {"fbs": 1.0}}, 2, "blood", "returned no 'chol'"),
        ({}, {"blood": lambda: 3.0}, 2, "blood", "sensor 'blood' failed: TypeError"),
        ({"ecg": 1.0}, {}, 0, "age", "column 'age' has no sensor"),
    ],
)
def test_error_names_the_sensor_that_failed(
    make_sensors, features, groups, feature, sensor, message
):
    with pytest.raises(SensorError, match=message) as error_info:
        acquire(begin_reading(make_sensors(features, groups).bind(COSTS)), feature)
    assert (error_info.value.sensor, error_info.value.cause) == (sensor, "sensor")


def test_retries_are_bounded_by_name_and_by_the_deadline(make_sensors):
    age, ecg = FlakySensor(9), FlakySensor(9)
    sensors = make_sensors({"age": age, "ecg": ecg}, retries={"age": 1})
    for feature, message in ((0, r"'age' failed: OSError: bus busy \(2 tries\)"), (4, "bus busy$")):
        reading = begin_reading(sensors.bind(COSTS))
        with pytest.raises(SensorError, match=message):
            acquire(reading, feature)
        assert (reading.cost, acquired_features(reading)) == (0.0, [])
    assert (age.n_reads, ecg.n_reads) == (2, 1)
    assert sensors.counts["age"].failures == sensors.counts["ecg"].failures == 1


def test_instance_uses_the_value_that_an_audit_is_reading(make_sensors):
    has_begun = threading.Event()
    may_return = threading.Event()
    has_second_reader = threading.Event()

    def read_slowly() -> float:
        has_begun.set()
        assert may_return.wait(30)
        return 7.0

    class ObservedLock:
        """A lock that sets `has_second_reader` when a second thread waits for it."""

        def __init__(self) -> None:
            self._lock = threading.Lock()

        def __enter__(self) -> None:
            if not self._lock.acquire(blocking=False):
                has_second_reader.set()
                self._lock.acquire()

        def __exit__(self, *_: object) -> None:
            self._lock.release()

    sensors = make_sensors({"age": 5.0, "ecg": read_slowly})
    source = sensors.bind(COSTS)
    source._sensors[4].state.read_lock = ObservedLock()  # feature 4 is ecg
    audit_reading, instance_reading = begin_reading(source), begin_reading(source)
    audit_reading.lift_deadline()
    with ThreadPoolExecutor(2) as pool:
        audit_values = pool.submit(acquire, audit_reading, 4)
        assert has_begun.wait(30)
        assert acquire(instance_reading, 0) == [5.0]  # another sensor does not wait
        instance_values = pool.submit(acquire, instance_reading, 4)
        assert has_second_reader.wait(30)
        may_return.set()
        assert (audit_values.result(), instance_values.result()) == ([7.0], [7.0])
    assert sensors.counts["ecg"].reads == 1
    assert instance_reading.cost == 3.5  # age 1 and ecg 2.5


def test_failed_sensor_is_neither_read_again_for_the_instance_nor_charged(make_sensors):
    blood = FlakySensor(1, [240.0, 1.0])
    source = make_sensors({"age": 50.0, "ecg": 2.0}, {"blood": blood}).bind(COSTS)
    reading = begin_reading(source)
    with pytest.raises(SensorError, match="'blood' failed"):
        acquire(reading, 4, 1, 0)
    with pytest.raises(SensorError, match="'blood' failed"):
        acquire(reading, 0, 2)  # it raises at once, before age is acquired
    assert (blood.n_reads, acquired_features(reading), reading.cost) == (1, [4], 2.5)
    values = reading.acquire(np.array([0, 1]), allow_missing=True, allow_failure=True)
    assert values[0] == 50.0
    assert np.isnan(values[1])
    assert (blood.n_reads, acquired_features(reading)) == (1, [0, 4])
    assert reading.first_failure.sensor == "blood"
    assert acquire(begin_reading(source), 2) == [1.0]


@pytest.mark.parametrize(
    ("value", "cause", "message"),
    [
        (np.inf, "infinite", "'age' is infinite"),
        (-np.inf, "infinite", "'age' is infinite"),
        (1e39, "infinite", "'age' is infinite"),  # above the largest float32
        (NAN, "missing", "'age' is missing"),
    ],
)
def test_refused_value_is_charged_and_no_further_feature_is_acquired(
    make_sensors, value, cause, message
):
    age = FlakySensor(0, value)
    for source in (
        make_sensors({"age": age, "ecg": 1.0}).bind(COSTS),
        row_values([value, 0, 0, 0, 0], 5),
    ):
        reading = begin_reading(source)
        for features in ((0,), (4, 0)):
            with pytest.raises(SensorError, match=message) as error_info:
                acquire(reading, *features, allow_missing=cause == "infinite")
            assert (error_info.value.sensor, error_info.value.cause) == ("age", cause)
        assert (acquired_features(reading), reading.cost, age.n_reads) == ([0], 1.0, 1)
        if cause == "missing":
            assert np.isnan(acquire(reading, 0, allow_missing=True)).all()


# Few and many features are checked in different ways.
@pytest.mark.parametrize("n_features", [3, 200])
def test_largest_float32_values_are_allowed_and_infinity_is_not(n_features):
    names = [f"x{feature}" for feature in range(n_features)]
    features = np.arange(n_features)
    meter = Meter(FeatureCosts(np.ones(n_features), names=names))
    row = np.full(n_features, np.finfo(np.float32).max)
    reading = Reading(row_values(row, n_features), meter, lambda: 1.0)
    assert reading.acquire(features, allow_missing=False).tolist() == row.tolist()
    for last_value, cause in ((np.inf, "infinite"), (-np.inf, "infinite"), (NAN, "missing")):
        row[-1] = last_value
        reading = Reading(row_values(row, n_features), meter, lambda: 1.0)
        with pytest.raises(SensorError) as error_info:
            reading.acquire(features, allow_missing=False)
        assert (error_info.value.sensor, error_info.value.cause) == (names[-1], cause)


@pytest.mark.parametrize("has_timeout", [False, True], ids=["deadline", "sensor's timeout"])
def test_blocking_sensor_is_abandoned(make_sensors, has_timeout, caplog):
    may_return = threading.Event()
    age = FlakySensor(0, 50.0)
    ecg = FlakySensor(0, lambda: may_return.wait(60) and 2.0)
    sensors = make_sensors({"age": age, "ecg": ecg}, timeout={"ecg": 0.5} if has_timeout else None)
    source = sensors.bind(COSTS)
    reading = begin_reading(source, timeout=25.0 if has_timeout else 0.5)
    started_at = time.monotonic()
    with pytest.raises(SensorError, match="'ecg' did not answer in time") as error_info:
        acquire(reading, 0, 4)
    assert 0.5 <= time.monotonic() - started_at < 20
    assert (error_info.value.sensor, error_info.value.cause) == ("ecg", "sensor-late")
    assert (reading.cost, sensors.counts["ecg"].late) == (COSTS.price([0]), 1)
    # The instance has acquired age, and does not wait for the blocked sensor again.
    values = reading.acquire(np.array([0, 4]), allow_missing=True, allow_failure=True)
    assert values[0] == 50.0
    assert np.isnan(values[1])
    # The next instance reads the other sensor, and waits for the blocked one for at most its own
    # timeout. A later instance does not wait.
    for timeout in (0.05, 1e6):
        assert acquire(begin_reading(source, timeout=5.0), 0) == [50.0]
        with pytest.raises(SensorError, match="'ecg' did not answer in time"):
            acquire(begin_reading(source, timeout=timeout), 4)
    assert (age.n_reads, ecg.n_reads) == (3, 1)
    assert sensors.counts["ecg"] == SensorCounts(reads=1, late=3, hung=1)
    assert sensors.hung_sensors == ("ecg",)
    assert caplog.messages == [
        "sensor 'ecg' did not answer in time (late instances so far: 1)",
        "sensor 'ecg' did not answer in time (late instances so far: 2)",
    ]
    assert sensors.trouble == "sensor 'ecg' does not return"
    may_return.set()
    wait_until(lambda: not sensors.hung_sensors, "the sensor", 60)
    assert acquire(begin_reading(source), 0, 4) == [50.0, 2.0]
    assert sensors.trouble is None


@pytest.mark.slow
def test_other_sensors_are_read_and_each_hung_sensor_takes_one_thread(make_sensors):
    may_return = threading.Event()
    hanging_sensors = {name: (lambda: float(may_return.wait(60))) for name in ("chol", "fbs", "ph")}
    # The good sensor has no limit, because a busy machine may delay it.
    timeouts = dict.fromkeys(hanging_sensors, 0.1)
    sensors = make_sensors({"age": 50.0} | hanging_sensors, timeout=timeouts)
    n_threads_before = threading.active_count()
    for _ in range(50):
        reading = begin_reading(sensors.bind(COSTS))  # a device binds them for each adopted bundle
        values = reading.acquire(np.arange(4), allow_missing=True, allow_failure=True)
        assert values[0] == 50.0
        assert np.isnan(values[1:]).all()
    # One thread for each hung sensor, and one that reads the others.
    assert threading.active_count() <= n_threads_before + 4
    assert sensors.hung_sensors == ("chol", "fbs", "ph")
    assert [sensors.counts[name].reads for name in sensors.hung_sensors] == [1, 1, 1]
    may_return.set()
    wait_until(lambda: threading.active_count() <= n_threads_before + 1, "the threads to end", 60)


@pytest.mark.parametrize(
    ("features", "groups", "needed_features", "message"),
    [
        ({"pulse": 1.0}, {}, [], "sensor 'pulse': the bundle has no such feature"),
        ({}, {"hair": [1.0]}, [], "group sensor 'hair': the bundle has no such feature group"),
        ({"age": 1.0}, {}, [0, 3], "feature 'ph' has no sensor"),
    ],
)
def test_sensor_names_must_match_the_bundle(
    make_sensors, features, groups, needed_features, message
):
    with pytest.raises(InputError, match=message):
        make_sensors(features, groups).bind(COSTS, needed_features)


@pytest.mark.parametrize("row", [[1.0] * 4, [[1.0] * 5], 3.0, ["a"] * 5, [None, object(), 1, 1, 1]])
def test_row_must_have_the_shape_of_the_bundle(row):
    with pytest.raises(InputError):
        row_values(row, 5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"retries": -1}, "retries is -1; give a whole number, at least 0"),
        ({"retries": 1.5}, "retries is 1.5"),
        ({"retries": {"pulse": 1}}, "retries for 'pulse': no sensor has this name"),
        ({"timeout": -0.1}, "timeout is -0.1; give seconds"),
        ({"timeout": {"age": NAN}}, "timeout is nan"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(InputError, match=message):
        Sensors({"age": lambda: 1.0}, **settings)


@pytest.mark.parametrize("sensors", [{"features": {"age": 50.0}}, {"groups": {"hair": [1.0]}}])
def test_sensor_that_is_not_callable_is_refused(sensors):
    with pytest.raises(InputError, match=r"give a function that reads it"):
        Sensors(**sensors)


# -- failures in a device ------------------------------------------------------------------

# In the small bundle stage 0 reads a and b, stage 1 reads c, and the cloud reads a, c and e.
HARD_ROW = {"a": 0.1, "b": 0.0, "c": 0.1, "d": 0.0, "e": -1.0}
BROKEN_SENSOR = FlakySensor(10**6)  # more failures than there are reads


def make_device(bundle, *, has_link=True, timeout=None, policy="system", **replacements) -> Device:
    """Make a device with sensors that return a hard row, except for the `replacements` ones."""
    sensors = {name: lambda name=name: HARD_ROW[name] for name in HARD_ROW} | replacements
    link = InProcessLink(lambda X: cloud_answers(np.nan_to_num(X)))
    return Device(
        bundle,
        link=link if has_link else None,
        sensors=Sensors(sensors, timeout=timeout),
        deadline_ms=2_000,  # met also on a loaded machine
        policy=policy,
    )


@pytest.fixture
def bundle_with_missing(make_bundle):
    """A bundle with a cloud that allows missing values, and stages that do not."""
    return make_bundle("tolerant", missing=MissingSpec("refused", "allowed"))


def test_failed_feature_that_the_cloud_does_not_read_is_offloaded(bundle, bundle_with_missing):
    with make_device(bundle, b=BROKEN_SENSOR) as device:
        answer = device.answer()
    assert (answer.route, answer.reason, answer.label) == ("cloud", "sensor:b", "no")
    assert answer.acquired == (0, 2, 4)  # a was read before b failed
    for name in "ace":  # features of stage 0, of stage 1, and of the cloud only
        with make_device(bundle_with_missing, **{name: BROKEN_SENSOR}) as device:
            answer = device.answer()
        assert (answer.route, answer.reason) == ("cloud", f"sensor:{name}")
        assert "abcdef".index(name) not in answer.acquired


def test_failed_feature_that_the_cloud_reads_is_a_fallback(bundle):
    with make_device(bundle, c=BROKEN_SENSOR) as device:
        answer = device.answer()
    assert (answer.route, answer.reason, answer.stage) == ("fallback", "sensor:c", 0)
    # The request is impossible without c, so that e is not acquired for it.
    assert (answer.acquired, answer.cost) == ((0, 1), 1.5)  # a 1 and b 0.5
    for options in ({"a": BROKEN_SENSOR}, {"has_link": False, "b": BROKEN_SENSOR}):
        with (
            make_device(bundle, **options) as device,
            pytest.raises(SensorError, match="failed: OSError: bus"),
        ):
            device.answer()
        assert device.counters["errors"] == 1


def test_cloud_only_falls_back_to_the_stages_after_a_failed_feature(bundle):
    with make_device(bundle, policy="cloud-only", e=BROKEN_SENSOR) as device:
        answer = device.answer()
    assert (answer.route, answer.reason, answer.stage) == ("fallback", "sensor:e", 1)
    assert answer.acquired == (0, 1, 2)
    with (
        make_device(bundle, policy="cloud-only", a=BROKEN_SENSOR) as device,
        pytest.raises(SensorError, match="sensor 'a' failed"),
    ):
        device.answer()


def test_sensor_with_a_timeout_leaves_time_for_the_cloud(bundle_with_missing):
    for name in ("e", "c"):
        may_return = threading.Event()
        blocked_sensor = {name: lambda may_return=may_return: float(may_return.wait(60))}
        with make_device(bundle_with_missing, timeout={name: 0.02}, **blocked_sensor) as device:
            answer = device.answer()
            may_return.set()
        assert (answer.route, answer.reason) == ("cloud", f"sensor-late:{name}")
        assert answer.acquired == ((0, 1, 2) if name == "e" else (0, 1, 4))
