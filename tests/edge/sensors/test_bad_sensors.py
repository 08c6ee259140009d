"""A device with a hung, dead or slow sensor answers if the stages do not need the sensor."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest

from gatewise_edge import Device, SensorError, Sensors
from gatewise_edge.link.link import InProcessLink
from tests.support.small_bundle import cloud_answers
from tests.support.waiting import wait_until

#: Deadlines of attempts. A busy machine may stall a good sensor beyond a short deadline; then the
#: test is repeated with a longer one. A fault of the device shows at each deadline.
DEADLINES_MS = (60.0, 600.0, 6000.0)
N_INSTANCES = 60
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


def find_problem(bundle, faulty_feature: str, fault: str, deadline_ms: float) -> str:
    """Answer instances with a fault in a sensor; describe what is not as promised."""
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

    outcomes = Counter()
    sensors = Sensors({feature: make_sensor(feature) for feature in "abcdef"})
    link = InProcessLink(cloud_answers)
    with Device(bundle, sensors=sensors, link=link, deadline_ms=deadline_ms) as device:
        for number in range(N_INSTANCES):
            kind = number % len(CELLS_BY_KIND)
            values["a"], values["c"] = CELLS_BY_KIND[kind]
            values["e"] = -1.0
            started_at = time.monotonic()
            try:
                answer = device.answer()
                outcome = (answer.route, answer.stage)
            except SensorError as error:
                outcome = ("error", error.sensor)
            seconds = time.monotonic() - started_at
            outcomes[outcome] += 1
            is_needed = faulty_feature in NEEDED_FEATURES[kind]
            expected_outcomes = (
                OUTCOMES_WITHOUT_FEATURE[faulty_feature] if is_needed else {USUAL_OUTCOMES[kind]}
            )
            if outcome not in expected_outcomes or seconds > 5 * deadline_ms / 1000.0:
                break
        else:
            outcome = None
        n_counted = sum(device.counters[name] for name in ("edge", "cloud", "fallback", "errors"))
        hung_sensors = sensors.hung_sensors
        may_return.set()
    assert n_counted == outcomes.total()
    if outcome is not None:
        return f"instance {number} of kind {kind}: {outcome} after {seconds:.3f} s"
    if fault == "hung" and hung_sensors != (faulty_feature,):
        return f"hung sensors {hung_sensors}"
    # Two instances wait for each read of b in vain, and have no time left for the cloud.
    n_waits = 0 if fault == "dead" else 2 * sensors.counts["b"].reads
    if faulty_feature == "b" and outcomes["error", "b"] > n_waits:
        return f"{outcomes['error', 'b']} errors, but at most {n_waits} instances may wait for b"
    return ""


@pytest.mark.parametrize("faulty_feature", OUTCOMES_WITHOUT_FEATURE)
@pytest.mark.parametrize("fault", ["hung", "dead", "slow"])
def test_last_stage_with_its_features_answers(bundle, faulty_feature, fault):
    problems = []
    for deadline_ms in DEADLINES_MS:
        problem = find_problem(bundle, faulty_feature, fault, deadline_ms)
        if not problem:
            return
        problems.append(f"deadline {deadline_ms:g} ms: {problem}")
    pytest.fail("; ".join(problems))


def test_hung_sensor_is_read_again_after_its_call_has_returned(bundle):
    may_return = threading.Event()
    sensors = Sensors(
        {"a": lambda: 0.1, "b": lambda: 0.0, "c": lambda: float(may_return.wait(240))},
        timeout={"c": 0.05},  # the other sensors have all the time until the deadline
    )
    with Device(bundle, sensors=sensors, deadline_ms=120_000) as device:
        for _ in range(4):  # two wait for c, and the others do not
            answer = device.answer()
            assert (answer.route, answer.reason, answer.stage) == ("fallback", "sensor-late:c", 0)
            assert answer.cost == 1.5  # a and b
        may_return.set()
        wait_until(lambda: device.answer().route == "edge", "an answer of stage 1")
        assert sensors.hung_sensors == ()
