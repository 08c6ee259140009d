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


def answer_with_fault(bundle, faulty_feature, fault, n_instances, deadline_ms=DEADLINE_MS):
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


@pytest.mark.parametrize("faulty_feature", "abce")
@pytest.mark.parametrize("fault", ["hung", "dead", "slow"])
def test_last_stage_with_its_features_answers(bundle, faulty_feature, fault):
    outcomes, max_seconds, hung_sensors = answer_with_fault(bundle, faulty_feature, fault, 3)
    for needed_features, kind_outcomes, usual_outcome in zip(
        NEEDED_FEATURES, outcomes, USUAL_OUTCOMES, strict=True
    ):
        if faulty_feature == "a":
            assert kind_outcomes == {("error", "a"): 1}, (needed_features, kind_outcomes)
        elif faulty_feature == "b":
            # The cloud does not need b, and answers if there is time left.
            possible_outcomes = (
                {("cloud", 2)} if fault == "dead" else {("cloud", 2), ("error", "b")}
            )
            assert possible_outcomes >= set(kind_outcomes), (needed_features, kind_outcomes)
        elif faulty_feature in needed_features:
            # An earlier stage answers: stage 0 without c, stage 1 without e.
            assert kind_outcomes == {("fallback", 0 if faulty_feature == "c" else 1): 1}, (
                needed_features,
                kind_outcomes,
            )
        else:
            assert kind_outcomes == {usual_outcome: 1}, (needed_features, kind_outcomes)
    assert hung_sensors == ((faulty_feature,) if fault == "hung" else hung_sensors)
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


# -- 2,000 instances -------------------------------------------------------------------------

N_INSTANCES = 2000
#: So that 2,000 instances of which some wait for it take seconds.
SHORT_DEADLINE_MS = 40.0
#: Largest share of instances with another outcome, because a busy machine delays good sensors.
MAX_STRAY_SHARE = 0.02
#: Outcomes of an instance that needs a failed sensor: an error if no stage has finished, the answer
#: of the cloud, which does not need b, or the answer of the last stage with all its features.
OUTCOMES_WITHOUT_FEATURE = {
    "a": {("error", "a")},
    "b": {("cloud", 2), ("error", "b")},
    "c": {("fallback", 0)},
    "e": {("fallback", 1)},
}


@pytest.mark.slow
@pytest.mark.parametrize("faulty_feature", OUTCOMES_WITHOUT_FEATURE)
@pytest.mark.parametrize("fault", ["hung", "dead", "slow"])
def test_every_instance_is_answered_wherever_a_stage_has_its_features(
    bundle, faulty_feature, fault
):
    outcomes, _, hung_sensors = answer_with_fault(
        bundle, faulty_feature, fault, N_INSTANCES, SHORT_DEADLINE_MS
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
        # Only the instances that wait for b have no time left for the cloud.
        if fault != "slow" and faulty_feature == "b":
            n_strays += counts["error", "b"]
    assert n_strays <= MAX_STRAY_SHARE * N_INSTANCES, outcomes
    if fault == "hung":
        assert hung_sensors == (faulty_feature,)
