"""Devices that answer windows while functions of blocks fail or hang."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import gatewise as gw
from gatewise.errors import InputError
from gatewise_export.bundle.bundle import Bundle
from tests.support.processes import run_python
from tests.support.waiting import wait_until
from tests.support.window_system import SAMPLES, draw_windows, make_window_bundle, roughness

pytestmark = pytest.mark.slow  # a fit

BLOCKS = {"roughness": roughness}


@pytest.fixture(scope="module")
def bundle(make_once):
    return make_once("window-bundle", make_window_bundle)


@pytest.fixture(scope="module")
def windows_and_answers(bundle):
    """Windows, and the answers of a device to them."""
    x, _ = draw_windows(80, seed=2)
    with gw.Device(bundle, blocks=BLOCKS, policy="edge-only") as device:
        return x, device.answer_many(x)


def find_second_stage_row(answers):
    """Find the index of a window that the second stage answered."""
    return next(row for row, answer in enumerate(answers) if answer.stage == 1)


def test_a_bundle_names_its_functions_but_never_imports_them(bundle):
    """A new interpreter needs the function as an argument."""
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
    error_line, has_answered, imported_packages = run_python(code).splitlines()
    assert "block 'roughness' is a Python function" in error_line
    assert "tests.support.window_system:roughness" in error_line
    assert "--block roughness=module:function" in error_line
    assert (has_answered, imported_packages) == ("True", "False False")


def test_an_instance_whose_function_hangs_gets_the_fallback_answer(bundle, windows_and_answers):
    x, answers = windows_and_answers
    second_stage_row = find_second_stage_row(answers)
    may_return, has_started = threading.Event(), threading.Event()

    def compute_or_hang(window):
        if has_started.is_set():  # after the self-test
            may_return.wait(60)
        return roughness(window)

    with gw.Device(
        bundle, blocks={"roughness": compute_or_hang}, policy="edge-only", deadline_ms=150
    ) as device:
        has_started.set()
        fallback = device.answer(x[second_stage_row])
        assert (fallback.route, fallback.stage) == ("fallback", 0)
        assert fallback.reason == "sensor-late:roughness"
        # far below the 60 s of the function, even on a loaded machine
        assert fallback.latency_ms < 5_000
        assert fallback.cost < answers[second_stage_row].cost
        may_return.set()
        answer = device.answer(x[second_stage_row])
        assert (answer.stage, answer.cost) == (1, answers[second_stage_row].cost)
        np.testing.assert_array_equal(answer.probabilities, answers[second_stage_row].probabilities)


def test_a_function_that_hangs_for_an_audit_delays_no_instance(bundle, windows_and_answers):
    x, answers = windows_and_answers
    second_stage_row = find_second_stage_row(answers)
    first_stage_row = next(row for row, answer in enumerate(answers) if answer.stage == 0)
    may_return, hangs_next_call = threading.Event(), threading.Event()

    def compute_or_hang(window):
        if hangs_next_call.is_set():  # the first call after the self-test is for the audit
            hangs_next_call.clear()
            may_return.wait(60)
        return roughness(window)

    link = gw.InProcessLink(lambda X: ([0] * len(X), [[1.0, 0.0, 0.0]] * len(X)))
    with gw.Device(
        bundle,
        link=link,
        blocks={"roughness": compute_or_hang},
        audit=1.0,
        deadline_ms=30_000,
    ) as device:
        hangs_next_call.set()
        assert device.answer(x[first_stage_row]).stage == 0
        wait_until(lambda: not hangs_next_call.is_set())
        assert device.answer(x[second_stage_row]).stage >= 1
        assert device.counters["audits"] == 0
        may_return.set()
        wait_until(lambda: device.counters["audits"] >= 1)


def test_the_last_finished_stage_answers_if_a_later_block_fails(bundle, windows_and_answers):
    x, answers = windows_and_answers
    second_stage_row = find_second_stage_row(answers)
    is_broken = threading.Event()

    def compute_or_fail(window):
        if is_broken.is_set():
            raise OSError("bus error")
        return roughness(window)

    with gw.Device(bundle, blocks={"roughness": compute_or_fail}, policy="edge-only") as device:
        is_broken.set()
        fallback = device.answer(x[second_stage_row])
        assert (fallback.route, fallback.stage) == ("fallback", 0)
        assert fallback.reason == "sensor:roughness"
        assert device.counters["errors"] == 0


def test_device_input_names_are_the_window_and_the_functions(bundle):
    manifest = Bundle.open(bundle).manifest
    assert manifest.device_input_names == (f"window {SAMPLES}x2", "function roughness")


def test_a_new_version_may_compute_other_features(bundle, windows_and_answers):
    """A window has no feature names, so that each version may compute different features."""
    x, answers = windows_and_answers
    with gw.Device(bundle, blocks=BLOCKS, row_names=["window"], policy="edge-only") as device:
        device.adopt(Bundle.open(bundle))
        assert device.answer(x[0]).label == answers[0].label


def draw_invalid_window(rng):
    """Draw a window with the errors of a broken driver in its type, shape or values."""
    window = draw_windows(1, seed=int(rng.integers(10**6)))[0][0].astype(
        rng.choice(["int16", "int8", "uint8", "float16", "float32", "float64", "int64", "bool"])
    )
    fault = rng.integers(12)
    if fault == 0:
        window = np.full_like(window, rng.integers(0, 2))
    elif fault == 1:
        window = np.clip(window, 0, 1)
    elif fault in (2, 3, 4) and window.dtype.kind == "f":
        is_replaced = rng.random(window.shape) < rng.choice([0.01, 0.5, 1.0])
        window[is_replaced] = rng.choice([np.nan, np.inf, -np.inf, np.finfo(window.dtype).max])
    elif fault == 5:
        window = window[: rng.integers(0, SAMPLES)]
    elif fault == 6:
        window = np.repeat(window, rng.integers(2, 4), axis=0)  # another rate
    elif fault == 7:
        shapes = [(0,), (), (2, SAMPLES), (SAMPLES,), (SAMPLES, 3), (1, SAMPLES, 2)]
        window = np.zeros(shapes[rng.integers(len(shapes))])
    elif fault == 8:
        numbers = window.astype(complex)
        objects = [None, "window", [[1, 2], [3]], {"a": 1}, object(), numbers, b"\0" * 64]
        return objects[rng.integers(len(objects))]
    elif fault == 9:
        return window.tolist()
    elif fault == 10:
        window = np.asfortranarray(window)[::-1]
    return window


def test_each_window_gets_an_answer_or_a_clear_error(bundle):
    """If the function of the second stage fails, the first stage answers."""
    rng = np.random.default_rng(16)
    window_number = 0

    def compute_or_fail(window):
        fault = window_number % 8
        if fault == 1:
            raise ZeroDivisionError
        if fault == 2:
            return "no numbers"
        if fault == 3:
            return np.ones((1, 5))
        if fault == 4:
            return np.full((1, 2), np.nan)
        if fault == 5:
            return np.full((1, 2), 1e300)
        if fault == 6:
            return None
        return roughness(window)

    counts = {"answers": 0, "fallback": 0, "InputError": 0, "SensorError": 0}
    with gw.Device(bundle, blocks={"roughness": compute_or_fail}, policy="edge-only") as device:
        for number in range(2_500):
            window = draw_invalid_window(rng)
            window_number = number
            try:
                answer = device.answer(window)
            except (InputError, gw.SensorError) as error:
                counts[type(error).__name__] += 1
                continue
            counts["answers"] += 1
            assert answer.label in (0, 1, 2)
            assert np.isfinite(answer.probabilities).all()
            if answer.route == "fallback":
                counts["fallback"] += 1
                assert (answer.stage, answer.reason.partition(":")[0]) in {
                    (0, reason) for reason in ("sensor", "missing", "infinite")
                }
    # fallbacks are answers, so they are counted twice
    assert sum(counts.values()) - counts["fallback"] == 2_500
    assert min(counts.values()) > 25, counts  # each outcome occurs often
