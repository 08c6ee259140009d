"""Measurement of blocks: the price of a step is its time or energy for one window."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, get_args

import numpy as np
from msgspec.structs import replace
from numpy.typing import ArrayLike

from gatewise.errors import InputError
from gatewise_signals.blocks.block import Block
from gatewise_signals.graph import SignalGraph
from gatewise_signals.price_table import PriceTable, PriceUnit

#: Default number of windows in a measurement.
MEASURED_WINDOWS: Final = 100

#: Number of times that each window is computed.
N_RUNS: Final = 5

#: File in which Linux names the board, such as a Raspberry Pi.
_BOARD_FILE: Final = Path("/proc/device-tree/model")


def price_table(
    blocks: Sequence[Block],
    windows: ArrayLike,
    *,
    watts: float | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> PriceTable:
    """Measure the time of each step on this machine; see :func:`measured`."""
    graph = SignalGraph(blocks)
    window_array = np.asarray(windows)
    if not len(window_array):
        raise InputError("measuring blocks needs at least one window")
    empty_table = PriceTable(
        {}, tuple(map(int, window_array.shape[1:])), _describe_machine(), len(window_array), watts
    )
    times = np.empty((len(window_array), N_RUNS, len(graph.steps)))
    for window_index, window in enumerate(window_array):
        for run in range(N_RUNS):
            window_values = graph.lazy_values(window)
            for step_index in range(len(graph.steps)):
                start = clock()
                window_values.result_at(step_index)
                times[window_index, run, step_index] = clock() - start
    # median over the windows of the minimum over the runs, because other load only adds time
    microseconds = 1e6 * np.median(times.min(axis=1), axis=0)
    labels = [step.label for step in graph.steps]
    return replace(empty_table, microseconds=dict(zip(labels, microseconds.tolist(), strict=True)))


def table_of_steps(graph: SignalGraph) -> PriceTable | None:
    """Get the table from which the prices of all steps come, or None if there is no such table."""
    table = graph.steps[0].measurement
    if table is None or any(
        step.measurement != table or step.price != table.price(step.label) for step in graph.steps
    ):
        return None
    return replace(
        table, microseconds={step.label: table.microseconds[step.label] for step in graph.steps}
    )


def measured(
    blocks: Sequence[Block], windows: ArrayLike, *, watts: float | None = None
) -> list[Block]:
    """Measure blocks, and set the prices of their steps to the times for one window.

    Windows are computed one at a time, as on a device. Each window is computed five times. The
    price of a step is the median over the windows of its shortest time.

    Parameters
    ----------
    blocks : sequence of Block
        Blocks to measure.
    windows : array-like, shape (n, ...)
        Real windows; a few dozen are enough.
    watts : float, optional
        Power of the busy processor. With it, prices are in microjoules, otherwise in microseconds.

    Returns
    -------
    list of Block
        Copies of the blocks, with prices for the blocks and for the steps that they need.

    Raises
    ------
    InputError
        If `windows` is empty, or a block cannot compute a window.
    """
    table = price_table(blocks, windows, watts=watts)
    return priced(blocks, table, unit="us" if watts is None else "uj")


def priced(
    blocks: Sequence[Block], prices: PriceTable | str | Path, *, unit: PriceUnit = "us"
) -> list[Block]:
    """Set the prices of blocks from a table, for example one that was measured on a device.

    Parameters
    ----------
    blocks : sequence of Block
    prices : PriceTable or path
        Result of :func:`price_table`, its file, or ``manifest.signal.prices`` of a bundle.
    unit : {"us", "uj"}, default "us"
        Microseconds or, if the table contains the power of the processor, microjoules.

    Returns
    -------
    list of Block
        Copies of the blocks, with prices for the blocks and for the steps that they need.

    Raises
    ------
    InputError
        If the file is not a price table, or the table lacks a step.
    """
    if unit not in get_args(PriceUnit):
        raise InputError(f"unit is {unit!r}; choose one of {', '.join(get_args(PriceUnit))}")
    source_table = prices if isinstance(prices, PriceTable) else PriceTable.from_file(prices)
    table = replace(source_table, unit=unit)
    graph = SignalGraph(blocks)
    missing_labels = [step.label for step in graph.steps if step.label not in table.microseconds]
    if missing_labels:
        raise InputError(
            f"the price table has no {', '.join(missing_labels[:4])}: measure these blocks "
            "(gatewise_signals.pricing.price_table)"
        )
    step_prices = {step: table.price(step.label) for step in graph.steps}
    return [block.with_prices(step_prices, table) for block in blocks]


def _describe_machine() -> str:
    """Describe this machine by its board, if known, its system, Python and numpy."""
    board = ""
    with suppress(OSError):
        board = _BOARD_FILE.read_text(errors="replace").strip("\0 \n") + ", "
    system = f"{platform.system()} {platform.machine()}"
    return f"{board}{system}, Python {platform.python_version()}, numpy {np.__version__}"
