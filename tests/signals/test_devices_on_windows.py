"""Devices that answer windows, with functions that fail or hang."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import gatewise as gw
from gatewise.errors import InputError
from gatewise_export.bundle.bundle import Bundle
from tests.support.processes import run_python
from tests.support.waiting import wait_until
from tests.support.window_system import SAMPLES, make_window_bundle, roughness, windows

pytestmark = pytest.mark.slow  # a fit

BLOCKS = {"roughness": roughness}


@pytest.fixture(scope="module")
def bundle(make_once):
    return make_once("window-bundle", make_window_bundle)


@pytest.fixture(scope="module")
def expected(bundle):
    """Windows, and a device's answers to them."""
    x, _ = windows(80, seed=2)
    with gw.Device(bundle, blocks=BLOCKS, policy="edge-only") as device:
        return x, device.answer_many(x)


def second(answers):
    """A window that the second stage answered."""
    return next(i for i, a in enumerate(answers) if a.stage == 1)


def test_a_bundle_names_its_functions_and_imports_none(bundle):
    """In an interpreter that has not made the block, the function must be given."""
    code = f"""
import sys
import numpy as np
import gatewise as gw
from gatewise.errors import InputError
from gatewise_export.bundle.bundle import Bundle
try:
    gw.Device({str(bundle)!r})
except InputError as error:
    print(error)
def rough(x):
    return np.abs(np.diff(x.astype(np.float32), axis=1)).mean(axis=1)
with gw.Device({str(bundle)!r}, blocks={{"roughness": rough}}, policy="edge-only") as device:
    print(device.answer(np.zeros(({SAMPLES}, 2), np.int16)).label in (0, 1, 2))
print("tests" in sys.modules, "sklearn" in sys.modules)
"""
    error, answered, imported = run_python(code).splitlines()
    assert "block 'roughness' is a Python function" in error
    assert "tests.support.window_system:roughness" in error
    assert "--block roughness=module:function" in error
    assert (answered, imported) == ("True", "False False")


def test_a_function_that_hangs_costs_its_own_instance_its_later_stages(bundle, expected):
    x, answers = expected
    i = second(answers)
    may_go, began = threading.Event(), threading.Event()

    def hanging(window):
        if began.is_set():  # after the self-test
            may_go.wait(60)
        return roughness(window)

    with gw.Device(
        bundle, blocks={"roughness": hanging}, policy="edge-only", deadline_ms=150
    ) as device:
        began.set()
        late = device.answer(x[i])
        assert (late.route, late.stage) == ("fallback", 0)
        assert late.reason == "sensor-late:roughness"
        assert late.latency_ms < 5_000  # a loaded machine is late; the function hangs a minute
        assert late.cost < answers[i].cost
        may_go.set()
        after = device.answer(x[i])
        assert (after.stage, after.cost) == (1, answers[i].cost)
        np.testing.assert_array_equal(after.probabilities, answers[i].probabilities)


def test_a_function_called_for_an_audit_keeps_no_instance_waiting(bundle, expected):
    x, answers = expected
    i = second(answers)
    first = next(k for k, a in enumerate(answers) if a.stage == 0)
    may_go, held = threading.Event(), threading.Event()

    def hanging(window):
        if held.is_set():  # the first call after the self-test: that for the audit
            held.clear()
            may_go.wait(60)
        return roughness(window)

    link = gw.InProcessLink(lambda X: ([0] * len(X), [[1.0, 0.0, 0.0]] * len(X)))
    with gw.Device(
        bundle, link=link, blocks={"roughness": hanging}, audit=1.0, deadline_ms=30_000
    ) as device:
        held.set()
        assert device.answer(x[first]).stage == 0
        wait_until(lambda: not held.is_set())
        assert device.answer(x[i]).stage >= 1
        assert device.counters["audits"] == 0
        may_go.set()
        wait_until(lambda: device.counters["audits"] >= 1)


def test_the_last_finished_stage_answers_where_a_later_block_fails(bundle, expected):
    x, answers = expected
    i = second(answers)
    broken = threading.Event()

    def failing(window):
        if broken.is_set():
            raise OSError("bus error")
        return roughness(window)

    with gw.Device(bundle, blocks={"roughness": failing}, policy="edge-only") as device:
        broken.set()
        result = device.answer(x[i])
        assert (result.route, result.stage, result.reason) == ("fallback", 0, "sensor:roughness")
        assert device.counters["errors"] == 0


def test_a_release_needs_the_window_and_functions_but_no_features(bundle):
    manifest = Bundle.open(bundle).manifest
    assert manifest.acquired_names == (f"window {SAMPLES}x2", "function roughness")


def test_a_new_version_may_compute_other_features(bundle, expected):
    """Windows have no names: another order or number of features is the bundle's own."""
    x, answers = expected
    with gw.Device(bundle, blocks=BLOCKS, row_names=["window"], policy="edge-only") as device:
        device.adopt(Bundle.open(bundle))
        assert device.answer(x[0]).label == answers[0].label


def strange_window(rng):
    """A window as a broken driver may give it, of the right shape or not."""
    x = windows(1, seed=int(rng.integers(10**6)))[0][0].astype(
        rng.choice(["int16", "int8", "uint8", "float16", "float32", "float64", "int64", "bool"])
    )
    kind = rng.integers(12)
    if kind == 0:
        x = np.full_like(x, rng.integers(0, 2))
    elif kind == 1:
        x = np.clip(x, 0, 1)
    elif kind in (2, 3, 4) and x.dtype.kind == "f":
        where = rng.random(x.shape) < rng.choice([0.01, 0.5, 1.0])
        x[where] = rng.choice([np.nan, np.inf, -np.inf, np.finfo(x.dtype).max])
    elif kind == 5:
        x = x[: rng.integers(0, SAMPLES)]
    elif kind == 6:
        x = np.repeat(x, rng.integers(2, 4), axis=0)  # another rate
    elif kind == 7:
        shapes = [(0,), (), (2, SAMPLES), (SAMPLES,), (SAMPLES, 3), (1, SAMPLES, 2)]
        x = np.zeros(shapes[rng.integers(len(shapes))])
    elif kind == 8:
        others = [None, "window", [[1, 2], [3]], {"a": 1}, object(), x.astype(complex), b"\0" * 64]
        return others[rng.integers(len(others))]
    elif kind == 9:
        return x.tolist()
    elif kind == 10:
        x = np.asfortranarray(x)[::-1]
    return x


def test_each_window_gets_an_answer_or_a_clear_error(bundle):
    """Where the second stage's function fails as it likes, the first stage's answer is given."""
    rng = np.random.default_rng(16)
    trouble = [0]

    def fickle(window):
        kind = trouble[0] % 8
        if kind == 1:
            raise ZeroDivisionError
        if kind == 2:
            return "no numbers"
        if kind == 3:
            return np.ones((1, 5))
        if kind == 4:
            return np.full((1, 2), np.nan)
        if kind == 5:
            return np.full((1, 2), 1e300)
        if kind == 6:
            return None
        return roughness(window)

    result = {"answers": 0, "fallback": 0, "InputError": 0, "SensorError": 0}
    with gw.Device(bundle, blocks={"roughness": fickle}, policy="edge-only") as device:
        for i in range(2_500):
            window = strange_window(rng)
            trouble[0] = i
            try:
                answer = device.answer(window)
            except (InputError, gw.SensorError) as error:
                result[type(error).__name__] += 1
                continue
            result["answers"] += 1
            assert answer.label in (0, 1, 2)
            assert np.isfinite(answer.probabilities).all()
            if answer.route == "fallback":
                result["fallback"] += 1
                assert (answer.stage, answer.reason.partition(":")[0]) in {
                    (0, why) for why in ("sensor", "missing", "infinite")
                }
    assert sum(result.values()) - result["fallback"] == 2_500
    assert min(result.values()) > 25, result
