"""A device with a hung, dead or slow sensor answers every instance whose stages do not need it."""

from __future__ import annotations

import threading
import time
from collections import Counter

import numpy as np
import pytest

from gatewise_edge import Device, SensorError, Sensors
from gatewise_edge.link.link import InProcessLink
from tests.support.small_bundle import cloud_says

DEADLINE_MS = 200.0
#: Values of a and c for three kinds of instances. Stage 0 reads a and b and stops for the first
#: kind. Stage 1 also reads c and stops for the second kind. The cloud reads a, c and e for the
#: third kind.
KINDS = ((1.0, 0.0), (0.1, 1.0), (0.1, 0.1))
#: Features that an answer to an instance of each kind needs.
NEEDS = ("ab", "abc", "abce")


def run(bundle, name, fault, n, deadline_ms=DEADLINE_MS):
    """Answer `n` instances with a fault in sensor `name`.

    Returns the outcomes by kind, the longest time to an outcome, and the hung sensors.
    """
    never = threading.Event()
    values = dict.fromkeys("abcdef", 0.0)

    def sensor(feature):
        def read():
            if feature == name:
                if fault == "dead":
                    raise OSError("no such device")
                never.wait(None if fault == "hung" else 3 * deadline_ms / 1000.0)
            return values[feature]

        return read

    outcomes = [Counter() for _ in KINDS]
    longest = 0.0
    sensors = Sensors({feature: sensor(feature) for feature in "abcdef"})
    link = InProcessLink(cloud_says)
    with Device(bundle, sensors=sensors, link=link, deadline_ms=deadline_ms) as device:
        for i in range(n):
            kind = i % 3
            values["a"], values["c"] = KINDS[kind]
            values["e"] = -1.0
            started = time.monotonic()
            try:
                answer = device.answer()
                outcomes[kind][answer.route, answer.stage] += 1
            except SensorError as error:
                outcomes[kind]["error", error.sensor] += 1
            longest = max(longest, time.monotonic() - started)
        counters = device.counters
        hung = sensors.hung
        never.set()
    assert sum(counters[k] for k in ("edge", "cloud", "fallback", "errors")) == n
    return outcomes, longest, hung


@pytest.mark.parametrize("name", "abce")
@pytest.mark.parametrize("fault", ["hung", "dead", "slow"])
def test_last_stage_with_its_features_answers(bundle, name, fault):
    outcomes, longest, hung = run(bundle, name, fault, 3)
    outcomes_without_fault = [("edge", 0), ("edge", 1), ("cloud", 2)]
    for needs, outcome, usual in zip(NEEDS, outcomes, outcomes_without_fault, strict=True):
        if name == "a":
            assert outcome == {("error", "a"): 1}, (needs, outcome)
        elif name == "b":
            # The cloud does not need b, and answers if there is time left.
            possible = {("cloud", 2)} if fault == "dead" else {("cloud", 2), ("error", "b")}
            assert possible >= set(outcome), (needs, outcome)
        elif name in needs:
            # An earlier stage answers: stage 0 without c, stage 1 without e.
            assert outcome == {("fallback", 0 if name == "c" else 1): 1}, (needs, outcome)
        else:
            assert outcome == {usual: 1}, (needs, outcome)
    assert hung == ((name,) if fault == "hung" else hung)
    assert longest < 1.0


def test_hung_sensor_is_read_again_after_its_call_has_returned(bundle):
    may_return = threading.Event()
    values = {"a": 0.1, "b": 0.0, "c": 1.0, "d": 0.0, "e": 0.0, "f": 0.0}
    hangs = iter([True])

    def c():
        if next(hangs, False):
            may_return.wait()
        return values["c"]

    others = {name: (lambda value=values[name]: value) for name in "abdef"}
    sensors = Sensors({"c": c, **others})
    with Device(bundle, sensors=sensors, deadline_ms=DEADLINE_MS) as device:
        assert [device.answer().route for _ in range(3)] == ["fallback"] * 3
        may_return.set()
        deadline = time.monotonic() + 30.0
        while device.answer().route != "edge":
            assert time.monotonic() < deadline
        assert np.isclose(device.answer().probabilities.sum(), 1.0)
        assert sensors.hung == ()
