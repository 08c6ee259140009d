"""Constants in the header of blocks that firmware checks."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import gatewise_signals as sig
from benchmarks.c99.compiled import STRICT_FLAGS, compiler_command
from gatewise_export import write_signals
from tests.support.needs import needs_compiler

FIRMWARE = """\
#include "m_signals.h"
#if M_SIGNALS_MILLIHERTZ != SENSOR_MILLIHERTZ
#error "the windows must have the rate of training"
#endif
int the_rate_is_right;
"""


@needs_compiler
@pytest.mark.parametrize(("rate_hz", "constant"), [(50, 50000), (16.667, 16667), (None, 0)])
def test_firmware_can_check_the_rate_of_training_when_it_compiles(
    tmp_path: Path, rate_hz: float | None, constant: int
) -> None:
    graph = sig.SignalGraph([sig.Mean(sig.Channels("x"))])
    write_signals(graph, (8, 1), "int16", tmp_path, name="m", rate_hz=rate_hz)
    (tmp_path / "firmware.c").write_text(FIRMWARE)
    statuses = []
    for rate in (constant, constant + 1):
        command = [
            *(compiler_command() or ()),
            *STRICT_FLAGS,
            f"-DSENSOR_MILLIHERTZ={rate}",
            "-fsyntax-only",
        ]
        result = subprocess.run(
            [*command, "firmware.c"], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        statuses.append(result.returncode == 0)
    assert statuses == [True, False]
