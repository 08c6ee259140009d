"""A sensor that fails sends the instance to the cloud or, if it must, ends in an error by name."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from gatewise_edge.device.device import Device
from gatewise_edge.errors import SensorError
from gatewise_edge.link.link import InProcessLink
from gatewise_edge.sensors.sensors import Sensors

# The small bundle: stage 0 reads a and b, stage 1 reads c, the cloud reads a, c and e.
HARD = {"a": 0.1, "b": 0.0, "c": 0.1, "d": 0.0, "e": -1.0}


def broken():
    raise OSError("no such bus")


def device_of(bundle, tools, *, link=True, deadline_ms=2_000, timeout=None, **special) -> Device:
    readers = {n: lambda n=n: HARD[n] for n in HARD} | special
    seen = InProcessLink(lambda X: tools.cloud_says(np.nan_to_num(X)), allow_missing=True)
    return Device(
        bundle,
        link=seen if link else None,
        sensors=Sensors(readers, timeout=timeout),
        deadline_ms=deadline_ms,
    )


@pytest.fixture
def tolerant(make_bundle):
    return make_bundle("tolerant", missing={"stages": "refused", "cloud": "allowed"})


def test_a_feature_that_the_cloud_does_not_read(bundle, tools):
    with device_of(bundle, tools, b=broken) as device:
        answer = device.answer()
    assert (answer.route, answer.reason, answer.label) == ("cloud", "sensor:b", "no")
    assert answer.acquired == (0, 2, 4)  # a was read before b failed


def test_a_feature_that_the_cloud_may_miss(tolerant, tools):
    for name, stage in (("a", -1), ("c", 0), ("e", 1)):
        with device_of(tolerant, tools, **{name: broken}) as device:
            answer = device.answer()
        assert (answer.route, answer.reason) == ("cloud", f"sensor:{name}"), stage
        assert "abcdef".index(name) not in answer.acquired


def test_a_feature_that_the_cloud_needs_too(bundle, tools):
    with device_of(bundle, tools, c=broken) as device:
        answer = device.answer()
        assert (answer.route, answer.reason, answer.stage) == ("fallback", "sensor:c", 0)
        # Known to be in vain: e is not bought for the cloud.
        assert (answer.acquired, answer.cost) == ((0, 1), 1.5)
    with (
        device_of(bundle, tools, a=broken) as device,
        pytest.raises(SensorError, match="sensor 'a' failed: OSError: no such bus") as caught,
    ):
        device.answer()
    assert caught.value.sensor == "a"


def test_without_a_cloud_the_sensor_is_what_is_told(bundle, tools):
    with device_of(bundle, tools, link=False, c=broken) as device:
        assert device.answer().reason == "sensor:c"
    with device_of(bundle, tools, link=False, b=broken) as device:
        with pytest.raises(SensorError, match="'b'"):
            device.answer()
        assert device.counters["errors"] == 1


def test_a_sensor_with_a_timeout_of_its_own_leaves_time_for_the_cloud(tolerant, tools):
    gate = threading.Event()
    for name in "ec":  # for the cloud, and in a stage before it
        special = {name: lambda: float(gate.wait(60))}
        given = {} if name == "e" else {"e": lambda: -1.0}
        rows = device_of(tolerant, tools, timeout={name: 0.02}, **special, **given)
        with rows as device:
            answer = device.answer()
            if name == "e":
                assert (answer.route, answer.reason) == ("cloud", "sensor-late:e")
                assert answer.acquired == (0, 1, 2)
            else:
                # c blocks the thread that would have to read e.
                assert (answer.route, answer.reason) == ("fallback", "sensor-late:c")
    gate.set()
