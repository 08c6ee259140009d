"""Tests of the C code of blocks: the rate in its header, and blocks that it leaves out."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

import gatewise_signals as sig
from benchmarks.c99.compiled import STRICT_FLAGS, compiler_command
from gatewise.errors import InputError
from gatewise_export import write_signals
from tests.support.needs import needs_compiler

#: Firmware that compiles only if its sensor has the rate of training.
FIRMWARE = """\
#include "m_signals.h"
#if M_SIGNALS_MILLIHERTZ != SENSOR_MILLIHERTZ
#error "the windows must have the rate of training"
#endif
int the_rate_is_right;
"""


@needs_compiler
@pytest.mark.parametrize(("rate_hz", "millihertz"), [(50, 50000), (16.667, 16667), (None, 0)])
def test_firmware_can_check_the_rate_of_training_when_it_compiles(
    tmp_path: Path, rate_hz: float | None, millihertz: int
) -> None:
    graph = sig.SignalGraph([sig.Mean(sig.Channels("x"))])
    write_signals(graph, (8, 1), "int16", tmp_path, name="m", rate_hz=rate_hz)
    (tmp_path / "firmware.c").write_text(FIRMWARE)
    command = [*(compiler_command() or ()), *STRICT_FLAGS, "-fsyntax-only", "firmware.c"]
    for sensor_millihertz, compiles in ((millihertz, True), (millihertz + 1, False)):
        process = subprocess.run(
            [*command, f"-DSENSOR_MILLIHERTZ={sensor_millihertz}"],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (process.returncode == 0) == compiles, process.stderr


def test_a_sample_without_windows_is_refused(tmp_path: Path) -> None:
    graph = sig.SignalGraph([sig.Mean(sig.Channels("x"))])
    with pytest.raises(InputError, match="sample has no windows"):
        write_signals(graph, (8, 1), "int16", tmp_path, sample=np.zeros((0, 8, 1), np.int16))


def test_blocks_without_their_function_need_not_run_if_no_feature_is_theirs(tmp_path: Path) -> None:
    function_block = sig.FunctionBlock("largest", ("largest",))  # as in a bundle
    graph = sig.SignalGraph([function_block, sig.Mean(sig.Channels("x"))])
    source = write_signals(graph, (8, 1), "int16", tmp_path, name="m", features=[1])
    assert source.n_features == 1
    assert "largest" not in (tmp_path / "m_signals.c").read_text()
