"""Measured prices of blocks: time or energy of each step for one window."""

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

MEASURED_WINDOWS: Final = 100
"""Number of windows on which blocks are measured by default."""
_MODEL_OF_BOARD: Final = Path("/proc/device-tree/model")


def price_table(
    blocks: Sequence[Block],
    windows: ArrayLike,
    *,
    watts: float | None = None,
    repeats: int = 5,
    clock: Callable[[], float] = time.perf_counter,
) -> PriceTable:
    """Measure the time of each step on this machine; see :func:`measured`."""
    graph = SignalGraph(blocks)
    x = np.asarray(windows)
    if not len(x) or repeats < 1:
        raise InputError("measuring blocks needs at least one window and one run")
    empty_table = PriceTable({}, tuple(map(int, x.shape[1:])), _machine(), len(x), watts)
    times = np.empty((len(x), repeats, len(graph.steps)))
    for w, window in enumerate(x):
        for r in range(repeats):
            values = graph.start(window)
            for s in range(len(graph.steps)):
                begun = clock()
                values.at(s)
                times[w, r, s] = clock() - begun
    # minimum over the runs, because other load only adds time; median over the windows
    microseconds = 1e6 * np.median(times.min(axis=1), axis=0)
    labels = [step.label for step in graph.steps]
    return replace(empty_table, microseconds=dict(zip(labels, microseconds.tolist(), strict=True)))


def table_of_steps(graph: SignalGraph) -> PriceTable | None:
    """Get the table of the prices of all steps; None if they are not from one table."""
    table = graph.steps[0].measured
    if table is None or any(
        step.measured != table or step.price != table.price(step.label) for step in graph.steps
    ):
        return None
    return replace(table, microseconds={s.label: table.microseconds[s.label] for s in graph.steps})


def measured(
    blocks: Sequence[Block],
    windows: ArrayLike,
    *,
    watts: float | None = None,
    repeats: int = 5,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Block]:
    """Price blocks by the time that each step takes for one window on this machine.

    Windows are computed one at a time, as on a device. The price of a step is the median over the
    windows of the shortest time in `repeats` runs.

    Parameters
    ----------
    blocks : sequence of Block
        Blocks to price.
    windows : array-like, shape (n, ...)
        Real windows; some tens are enough.
    watts : float, optional
        Power of the busy processor. With it prices are in microjoules, otherwise in microseconds.
    repeats : int, default 5
        Number of runs of each window.
    clock : callable, default time.perf_counter
        Function that returns the time in seconds.

    Returns
    -------
    list of Block
        Copies of the blocks with prices for them and the steps that they need.

    Raises
    ------
    InputError
        If there is no window, or a block cannot compute one.
    """
    table = price_table(blocks, windows, watts=watts, repeats=repeats, clock=clock)
    return priced(blocks, table, unit="us" if watts is None else "uj")


def priced(
    blocks: Sequence[Block], prices: PriceTable | str | Path, *, unit: PriceUnit = "us"
) -> list[Block]:
    """Price blocks by a table, for example one that was measured on the device.

    Parameters
    ----------
    blocks : sequence of Block
    prices : PriceTable or path
        A table of :func:`price_table`, its file, or ``manifest.signal.prices`` of a bundle.
    unit : {"us", "uj"}, default "us"
        Microseconds or, if the table has the power of the processor, microjoules.

    Returns
    -------
    list of Block
        Copies of the blocks with prices for them and the steps that they need.

    Raises
    ------
    InputError
        If the file is not a price table, or lacks a step.
    """
    if unit not in get_args(PriceUnit):
        raise InputError(f"unit is {unit!r}; choose one of {', '.join(get_args(PriceUnit))}")
    source = prices if isinstance(prices, PriceTable) else PriceTable.from_file(prices)
    table = replace(source, unit=unit)
    graph = SignalGraph(blocks)
    missing = [s.label for s in graph.steps if s.label not in table.microseconds]
    if missing:
        raise InputError(
            f"the price table has no {', '.join(missing[:4])}: measure these blocks "
            "(gatewise_signals.pricing.price_table)"
        )
    step_prices = {step: table.price(step.label) for step in graph.steps}
    return [block.with_prices(step_prices, table) for block in blocks]


def _machine() -> str:
    """Describe this machine: board (if it has a name), system, Python and numpy."""
    board = ""
    with suppress(OSError):
        board = _MODEL_OF_BOARD.read_text(errors="replace").strip("\0 \n") + ", "
    system = f"{platform.system()} {platform.machine()}"
    return f"{board}{system}, Python {platform.python_version()}, numpy {np.__version__}"
