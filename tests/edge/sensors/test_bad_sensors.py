"""A device with a hung, dead or slow sensor answers every instance whose stages do not need it."""

from __future__ import annotations

import threading
import time
from collections import Counter

import numpy as np
import pytest

from gatewise_edge import Device, SensorError, Sensors
from gatewise_edge.link.link import InProcessLink
from tests.support.small_bundle import cloud_answers

#: Long enough for the sensors without a fault on a loaded machine.
DEADLINE_MS = 200.0
#: Values of a and c for three kinds of instances. Stage 0 reads a and b and stops for the first
#: kind. Stage 1 also reads c and stops for the second kind. The cloud reads a, c and e for the
#: third kind.
CELLS_BY_KIND = ((1.0, 0.0), (0.1, 1.0), (0.1, 0.1))
#: Features that an answer to an instance of each kind needs.
NEEDED_FEATURES = ("ab", "abc", "abce")
#: Route and last stage of an answer to an instance of each kind without a fault.
USUAL_OUTCOMES = (("edge", 0), ("edge", 1), ("cloud", 2))
#: Outcomes of an instance that needs a failed sensor: an error if no stage has finished, the answer
#: of the cloud, which does not need b, or the answer of the last stage with all its features.
OUTCOMES_WITHOUT_FEATURE = {
    "a": {("error", "a")},
    "b": {("cloud", 2), ("error", "b")},
    "c": {("fallback", 0)},
    "e": {("fallback", 1)},
}


def answer_with_fault(bundle, faulty_feature, fault, n_instances, deadline_ms):
    """Answer `n_instances` instances with a fault in sensor `faulty_feature`.

    Returns the outcomes by kind, the longest time to an outcome, and the hung sensors.
    """
    may_return = threading.Event()
    values = dict.fromkeys("abcdef", 0.0)

    def make_sensor(feature):
        def read():
            if feature == faulty_feature:
                if fault == "dead":
                    raise OSError("no such device")
                # A slow sensor takes three times as long as an instance may.
                may_return.wait(None if fault == "hung" else 3 * deadline_ms / 1000.0)
            return values[feature]

        return read

    outcomes = [Counter() for _ in CELLS_BY_KIND]
    max_seconds = 0.0
    sensors = Sensors({feature: make_sensor(feature) for feature in "abcdef"})
    link = InProcessLink(cloud_answers)
    with Device(bundle, sensors=sensors, link=link, deadline_ms=deadline_ms) as device:
        for i in range(n_instances):
            kind = i % len(CELLS_BY_KIND)
            values["a"], values["c"] = CELLS_BY_KIND[kind]
            values["e"] = -1.0
            started_at = time.monotonic()
            try:
                answer = device.answer()
                outcomes[kind][answer.route, answer.stage] += 1
            except SensorError as error:
                outcomes[kind]["error", error.sensor] += 1
                # A busy machine may stall the thread of a good sensor. Later instances would not
                # wait for it, and hundreds of them would fail within the stall.
                while set(sensors.hung_sensors) - {faulty_feature}:
                    time.sleep(0.001)
            max_seconds = max(max_seconds, time.monotonic() - started_at)
        counters = device.counters
        hung_sensors = sensors.hung_sensors
        may_return.set()
    assert (
        sum(counters[count_name] for count_name in ("edge", "cloud", "fallback", "errors"))
        == n_instances
    )
    return outcomes, max_seconds, hung_sensors


@pytest.mark.parametrize("faulty_feature", OUTCOMES_WITHOUT_FEATURE)
@pytest.mark.parametrize("fault", ["hung", "dead", "slow"])
@pytest.mark.parametrize(
    ("n_instances", "deadline_ms", "max_stray_share"),
    [
        (3, DEADLINE_MS, 0.0),
        # a busy machine delays good sensors of some of so many instances
        pytest.param(2000, 40.0, 0.02, marks=pytest.mark.slow),
    ],
)
def test_last_stage_with_its_features_answers(
    bundle, faulty_feature, fault, n_instances, deadline_ms, max_stray_share
):
    outcomes, max_seconds, hung_sensors = answer_with_fault(
        bundle, faulty_feature, fault, n_instances, deadline_ms
    )
    n_strays = 0
    for needed_features, counts, usual_outcome in zip(
        NEEDED_FEATURES, outcomes, USUAL_OUTCOMES, strict=True
    ):
        expected_outcomes = (
            OUTCOMES_WITHOUT_FEATURE[faulty_feature]
            if faulty_feature in needed_features
            else {usual_outcome}
        )
        n_strays += counts.total() - sum(counts[outcome] for outcome in expected_outcomes)
    # Only instances that wait for b have no time left for the cloud: the first with a hung sensor.
    if faulty_feature == "b" and (fault == "dead" or (fault == "hung" and n_instances > 3)):
        n_strays += sum(counts["error", "b"] for counts in outcomes)
    assert n_strays <= max_stray_share * n_instances, outcomes
    if fault == "hung":
        assert hung_sensors == (faulty_feature,)
    if n_instances == 3:
        assert max_seconds < 1.0  # the deadline of 0.2 s and the delays of a loaded machine


def test_hung_sensor_is_read_again_after_its_call_has_returned(bundle):
    may_return = threading.Event()
    values = {"a": 0.1, "b": 0.0, "c": 1.0, "d": 0.0, "e": 0.0, "f": 0.0}
    remaining_hangs = iter([True])

    def read_c():
        if next(remaining_hangs, False):
            may_return.wait()
        return values["c"]

    other_sensors = {name: (lambda value=values[name]: value) for name in "abdef"}
    sensors = Sensors({"c": read_c, **other_sensors})
    with Device(bundle, sensors=sensors, deadline_ms=DEADLINE_MS) as device:
        assert [device.answer().route for _ in range(3)] == ["fallback"] * 3
        may_return.set()
        deadline = time.monotonic() + 30.0
        while device.answer().route != "edge":
            assert time.monotonic() < deadline
        assert np.isclose(device.answer().probabilities.sum(), 1.0)
        assert sensors.hung_sensors == ()
