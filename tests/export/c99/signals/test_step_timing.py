"""Prices of blocks that are measured in C, on this computer and on emulated chips."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

import gatewise as gw
import gatewise_signals as sig
from gatewise.cli import main
from gatewise.errors import InputError
from gatewise_export.bundle.errors import ConversionError
from gatewise_export.c99.signals.step_timing import measure_c_prices
from gatewise_export.c99.targets import TARGETS
from gatewise_signals.signal_input import SignalInput
from tests.support.needs import needs_compiler
from tests.support.window_system import draw_windows

pytestmark = needs_compiler

WINDOWS = (np.random.default_rng(0).normal(size=(6, 64, 2)) * 3000).astype(np.int16)


def make_blocks(**options: Any) -> list[Any]:
    """Make a cheap block and one that needs a spectrum."""
    channels = sig.Channels("acc", (0, 1), **options)
    spectrum = sig.Spectrum(channels, 50.0, **options)
    return [sig.Mean(channels, **options), sig.SpectralMoments(spectrum, **options)]


def make_target_parameter(target: str) -> Any:
    """Make a test parameter that is skipped if a program for the target is missing."""
    problem = TARGETS[target].missing_program()
    return pytest.param(target, marks=pytest.mark.skipif(problem is not None, reason=str(problem)))


@pytest.mark.slow
@pytest.mark.parametrize("target", [make_target_parameter(name) for name in TARGETS])
def test_each_step_has_a_price_that_grows_with_its_work(target):
    signal = SignalInput.from_windows(make_blocks(), WINDOWS)
    table = measure_c_prices(signal, WINDOWS, target, mhz=48, watts=0.1)
    assert set(table.microseconds) == {step.label for step in signal.graph.steps}
    assert min(table.microseconds.values()) > 0
    mean_us, spectrum_us = (
        next(us for label, us in table.microseconds.items() if label.startswith(name))
        for name in ("mean", "spectrum")
    )
    assert spectrum_us > 2 * mean_us
    assert (table.windows, table.watts) == (6, 0.1)
    assert sig.priced(make_blocks(), table, unit="uj")[0].price > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "target", [make_target_parameter("cortex-m0plus"), make_target_parameter("rv32")]
)
def test_an_emulator_counts_the_same_instructions_each_time(target):
    signal = SignalInput.from_windows(make_blocks(), WINDOWS)
    slow_table = measure_c_prices(signal, WINDOWS, target, mhz=16)
    fast_table = measure_c_prices(signal, WINDOWS, target, mhz=64)
    assert measure_c_prices(signal, WINDOWS, target, mhz=16) == slow_table
    for label, us in fast_table.microseconds.items():
        assert us == pytest.approx(slow_table.microseconds[label] * 16 / 64)


@pytest.mark.slow
@pytest.mark.parametrize(("target", "n_samples"), [("cortex-m0plus", 1024), ("cortex-m4", 8192)])
def test_a_step_may_take_longer_than_the_timer_of_the_chip(target, n_samples):
    """The timer has 24 bits, which are less than a second."""
    problem = TARGETS[target].missing_program()
    if problem is not None:
        pytest.skip(problem)
    windows = np.ones((1, n_samples), np.int16)
    prices_us = []
    for n_lags in (20, 200):
        channel = sig.Channels("x", (0,))
        blocks = [sig.Autocorrelation(channel, lags=tuple(range(1, n_lags + 1)))]
        table = measure_c_prices(SignalInput.from_windows(blocks, windows), windows, target)
        prices_us.append(max(table.microseconds.values()))
    assert prices_us[1] == pytest.approx(10 * prices_us[0], rel=0.2)


def test_unknown_targets_and_python_functions_are_refused():
    signal = SignalInput.from_windows(make_blocks(), WINDOWS)
    with pytest.raises(InputError, match="unknown target 'avr'; choose one of host, cortex-m0plus"):
        measure_c_prices(signal, WINDOWS, "avr")
    with pytest.raises(InputError, match="mhz is 0"):
        measure_c_prices(signal, WINDOWS, mhz=0)
    function_block = sig.Block.from_function(np.max, names=["largest"], price=1.0)
    signal_of_function = SignalInput.from_windows([function_block], WINDOWS)
    with pytest.raises(ConversionError, match="Python functions"):
        measure_c_prices(signal_of_function, WINDOWS)


@pytest.mark.slow
def test_the_command_writes_a_price_file_for_blocks(tmp_path, capsys):
    X, y = draw_windows(200)
    system = gw.StagedCascade(
        blocks=make_blocks(price=1.0), n_stages=2, effort="low", families=("linear",),
        random_state=0, high_cost_model=LogisticRegression(max_iter=1000),
    ).fit(X, y)  # fmt: skip
    bundle_path = tmp_path / "bundle"
    gw.pack(system, bundle_path, sample=X[:20])
    price_file = tmp_path / "prices.json"
    command = ["calibrate", str(bundle_path), "--out", str(price_file)]
    assert main([*command, "--c", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["machine"].startswith("C on this computer")
    assert all(block.price >= 0 for block in sig.priced(make_blocks(), price_file))
    assert main(command) == 0
    assert "numpy" in capsys.readouterr().out
    assert main([*command, "--on", "rv32"]) == 2
    assert "needs --c" in capsys.readouterr().err
