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
from gatewise_export.c99.signals.step_timing import price_table_in_c
from gatewise_export.c99.targets import TARGETS
from gatewise_signals.signal_input import SignalInput
from tests.support.needs import needs_compiler
from tests.support.window_system import draw_windows

pytestmark = needs_compiler

WINDOWS = (np.random.default_rng(0).normal(size=(6, 64, 2)) * 3000).astype(np.int16)


def blocks(**options: Any) -> list[Any]:
    channels = sig.Channels("acc", (0, 1), **options)
    spectrum = sig.Spectrum(channels, 50.0, **options)
    return [sig.Mean(channels, **options), sig.SpectralMoments(spectrum, **options)]


def target_param(target: str) -> Any:
    problem = TARGETS[target].missing_program()
    return pytest.param(target, marks=pytest.mark.skipif(problem is not None, reason=str(problem)))


@pytest.mark.parametrize("target", [target_param(name) for name in TARGETS])
def test_each_step_has_a_price_that_grows_with_its_work(target):
    signal = SignalInput.from_windows(blocks(), WINDOWS)
    table = price_table_in_c(signal, WINDOWS, target, mhz=48, watts=0.1)
    assert set(table.microseconds) == {step.label for step in signal.graph.steps}
    assert min(table.microseconds.values()) > 0
    mean, spectrum = (
        next(us for label, us in table.microseconds.items() if label.startswith(name))
        for name in ("mean", "spectrum")
    )
    assert spectrum > 2 * mean
    assert (table.windows, table.watts) == (6, 0.1)
    assert sig.priced(blocks(), table, unit="uj")[0].price > 0


@pytest.mark.parametrize("target", [target_param("cortex-m0plus"), target_param("rv32")])
def test_an_emulator_counts_the_same_instructions_each_time(target):
    signal = SignalInput.from_windows(blocks(), WINDOWS)
    slow, fast = (price_table_in_c(signal, WINDOWS, target, mhz=mhz) for mhz in (16, 64))
    repeated = price_table_in_c(signal, WINDOWS, target, mhz=16)
    assert repeated == slow
    for label, us in fast.microseconds.items():
        assert us == pytest.approx(slow.microseconds[label] / 4)


def test_unknown_targets_and_python_functions_are_refused():
    signal = SignalInput.from_windows(blocks(), WINDOWS)
    with pytest.raises(InputError, match="unknown target 'avr'; choose one of host, cortex-m0plus"):
        price_table_in_c(signal, WINDOWS, "avr")
    with pytest.raises(InputError, match="mhz is 0"):
        price_table_in_c(signal, WINDOWS, mhz=0)
    function = sig.Block.from_function(np.max, names=["largest"], price=1.0)
    python = SignalInput.from_windows([function], WINDOWS)
    with pytest.raises(ConversionError, match="Python functions"):
        price_table_in_c(python, WINDOWS)


@pytest.mark.slow
def test_the_command_writes_a_price_file_for_blocks(tmp_path, capsys):
    x, y = draw_windows(200)
    system = gw.StagedCascade(
        blocks=blocks(price=1.0), n_stages=2, effort="low", families=("linear",), random_state=0,
        high_cost_model=LogisticRegression(max_iter=1000),
    ).fit(x, y)  # fmt: skip
    bundle = tmp_path / "bundle"
    gw.pack(system, bundle, sample=x[:20])
    out = tmp_path / "prices.json"
    assert main(["calibrate", str(bundle), "--c", "--out", str(out), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["machine"].startswith("C on this computer")
    assert all(block.price >= 0 for block in sig.priced(blocks(), out))
    assert main(["calibrate", str(bundle), "--out", str(out)]) == 0
    assert "numpy" in capsys.readouterr().out
    assert main(["calibrate", str(bundle), "--on", "rv32", "--out", str(out)]) == 2
    assert "needs --c" in capsys.readouterr().err
