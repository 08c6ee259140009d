"""Price blocks by timing their generated C on this computer or on an emulated chip."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise_export.c99 import c_text
from gatewise_export.c99.signals.signal_writer import ELEMENT_TYPES, signal_files
from gatewise_export.c99.targets import TARGETS, BuildTarget
from gatewise_signals.price_table import PriceTable
from gatewise_signals.signal_input import SignalInput

#: Prefix of the generated C names.
PREFIX = "m"
#: Largest total size of a program's windows in bytes; the micro:bit has 256 KiB of flash.
MAX_WINDOW_BYTES = 1 << 16
#: Runs of each step on this computer. Other processes disturb the shortest run the least.
HOST_REPEATS = 20
#: Line of the template that runs a step. A call that also counts ticks replaces it.
STEP_CALL_LINE = "            run(signals, step);\n"


def measure_c_prices(
    signal: SignalInput,
    windows: NDArray[Any],
    target: str = "host",
    *,
    mhz: float = 64.0,
    watts: float | None = None,
) -> PriceTable:
    """Measure the time that each step's C takes for one window.

    Parameters
    ----------
    signal : SignalInput
        Blocks, and the shape and type of their windows.
    windows : ndarray of shape (n, ...)
        Windows to compute. The program uses the first 64 KiB of them.
    target : {"host", "cortex-m0plus", "cortex-m4", "rv32"}, default "host"
        The machine. On this computer a step's time is the shortest of 20 runs; an emulator counts
        instructions.
    mhz : float, default 64
        Clock of an emulated chip in MHz. The price assumes one instruction per cycle.
    watts : float, optional
        Power of the busy processor in W.

    Returns
    -------
    PriceTable
        Median time of each step over the windows, in microseconds. A spectrogram that only a mel
        spectrogram reads has the time 0, because the mel spectrogram computes it.

    Raises
    ------
    InputError
        If the target is unknown, or its compiler or emulator is not installed or fails.
    ConversionError
        If C cannot compute a block.
    """
    if target not in TARGETS:
        raise InputError(f"unknown target {target!r}; choose one of {', '.join(TARGETS)}")
    if mhz <= 0:
        raise InputError(f"mhz is {mhz}: give the chip's clock as a positive number")
    machine = TARGETS[target]
    n_windows = max(1, MAX_WINDOW_BYTES // max(windows[:1].nbytes, 1))
    windows = np.ascontiguousarray(windows[:n_windows])
    with tempfile.TemporaryDirectory() as folder:
        step_labels = _write_program(Path(folder), signal, windows, machine)
        output = machine.run(machine.build(Path(folder), ["calibrate.c"]))
    ticks = np.array([line.split() for line in output.splitlines() if line.strip()], np.float64)
    units_per_window = np.median(ticks, axis=0) * machine.units_per_tick
    # an emulator counts instructions, at `mhz` per microsecond; this computer counts nanoseconds
    microseconds = units_per_window / (mhz if machine.counts_instructions else 1000.0)
    microseconds_of_step = dict.fromkeys((step.label for step in signal.graph.steps), 0.0)
    microseconds_of_step |= dict(zip(step_labels, microseconds.tolist(), strict=True))
    return PriceTable(
        microseconds=microseconds_of_step,
        shape=tuple(signal.shape),
        machine=_machine_description(machine, mhz),
        windows=len(windows),
        watts=watts,
    )


def _write_program(
    folder: Path, signal: SignalInput, windows: NDArray[Any], machine: BuildTarget
) -> list[str]:
    """Write the blocks and a program that times them; return the labels of the steps."""
    source, files = signal_files(signal.graph, signal.shape, signal.dtype, PREFIX, windows)
    c_code = files[f"{PREFIX}_signals.c"]
    assert c_code.count(STEP_CALL_LINE) == 1
    (folder / f"{PREFIX}_signals.h").write_text(files[f"{PREFIX}_signals.h"], "ascii")
    (folder / f"{PREFIX}_timed.c").write_text(
        c_code.replace(STEP_CALL_LINE, "            run_step(step);\n")
    )
    element_type = ELEMENT_TYPES[np.dtype(signal.dtype).name]
    tables = c_text.Tables()
    tables.add("feature", np.arange(len(signal.graph.feature_names)), "uint16_t")
    tables.add("windows", windows, element_type)
    program = c_text.fill_template(
        "calibrate.c",
        **c_text.common_placeholders(PREFIX),
        tables=str(tables),
        element=element_type,
        size=windows[0].size,
        n_windows=len(windows),
        n_steps=source.n_steps,
        n_features=source.n_features,
        repeats=1 if machine.counts_instructions else HOST_REPEATS,
    )
    (folder / "calibrate.c").write_text(program, "ascii")
    return list(source.labels)


def _machine_description(machine: BuildTarget, mhz: float) -> str:
    """Describe the machine, its compiler and, for an emulated chip, its clock."""
    compiler_version = subprocess.run(
        [machine.compiler[0], "--version"], capture_output=True, text=True, check=True
    ).stdout.splitlines()[0]
    if not machine.counts_instructions:
        return f"C on this computer, {compiler_version}"
    clock = f"1 instruction per cycle at {mhz:g} MHz"
    return f"C on {machine.name} in {machine.emulator[0]}, {clock}, {compiler_version}"
