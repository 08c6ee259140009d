"""Prices of blocks, measured: microseconds, or joules, that each step takes for one window."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from numpy.typing import ArrayLike

from gatewise.errors import InputError
from gatewise.toml_settings import SettingsTable
from gatewise_signals.blocks.block import Block
from gatewise_signals.graph import SignalGraph
from gatewise_signals.steps import PriceOrigin, PriceUnit, Step

KIND: Final = "gatewise-block-prices"
UNITS: Final[dict[str, PriceUnit]] = {"us": "us", "uj": "uj"}
"""Microseconds and microjoules."""
MEASURED_WINDOWS: Final = 100
"""Windows on which blocks are measured where nothing else is said."""
_MODEL_OF_BOARD: Final = Path("/proc/device-tree/model")


@dataclass(frozen=True)
class PriceTable:
    """What each step of some blocks takes for one window, measured on one machine.

    ``gatewise calibrate --device`` writes such a table as a file, and a bundle holds that of its
    blocks.

    Attributes
    ----------
    microseconds : mapping of str to float
        Of each step's own computation, by its label.
    shape : tuple of int
        Of a window.
    machine : str
        Where it was measured.
    windows : int
        How many were.
    watts : float or None
        Power of the processor at work; None: not known.
    unit : {"us", "uj"}
        That of the blocks' prices, microseconds or microjoules.
    """

    microseconds: Mapping[str, float]
    shape: tuple[int, ...]
    machine: str
    windows: int
    watts: float | None = None
    unit: PriceUnit = "us"

    def __post_init__(self) -> None:
        if self.watts is not None and not 0 < self.watts < 1e6:
            raise InputError(f"watts is {self.watts}; give the processor's power")
        if self.unit == "uj" and self.watts is None:
            raise InputError(
                "prices in microjoules need the processor's power: measure with watts (--watts)"
            )

    @classmethod
    def measure(
        cls,
        blocks: Sequence[Block],
        windows: ArrayLike,
        *,
        watts: float | None = None,
        repeats: int = 5,
        clock: Callable[[], float] = time.perf_counter,
    ) -> Self:
        """Measure what each step takes for one window on this machine; see :func:`measured`."""
        graph, x = SignalGraph(blocks), np.asarray(windows)
        if not len(x) or repeats < 1:
            raise InputError("measuring blocks needs at least one window and one run")
        made = cls({}, tuple(map(int, x.shape[1:])), _machine(), len(x), watts)
        times = np.empty((len(x), repeats, len(graph.steps)))
        for w, window in enumerate(x):
            for r in range(repeats):
                values = graph.start(window)
                for s in range(len(graph.steps)):
                    begun = clock()
                    values.at(s)
                    times[w, r, s] = clock() - begun
        found = 1e6 * np.median(times.min(axis=1), axis=0)
        labels = [step.label for step in graph.steps]
        return replace(made, microseconds=dict(zip(labels, found.tolist(), strict=True)))

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Read a file that ``gatewise calibrate --device`` wrote.

        Raises
        ------
        InputError
            If it is no such file.
        """
        known = ("kind", "shape", "machine", "windows", "watts", "steps")
        table = SettingsTable.read(Path(path), "price table", known, parse=json.loads)
        table.choice("kind", {KIND: KIND})
        labels = table.get("steps")
        steps = table.table("steps", labels if isinstance(labels, dict) else ())
        each = {label: steps.table(label, ("us", "uj")) for label in steps.values}
        with table.named_in_errors():
            return cls(
                {label: entry.number("us") for label, entry in each.items()},
                tuple(map(int, table.number_list("shape", None, "axes"))),
                table.text("machine"),
                int(table.number("windows")),
                table.number("watts", positive=True) if "watts" in table.values else None,
            )

    @classmethod
    def of_graph(cls, graph: SignalGraph) -> Self | None:
        """Find the table that the prices of all steps are from; None if there is not one."""
        found = [step.measured for step in graph.steps]
        first = found[0]
        if first is None or any(
            m is None or m.like(first) != first or step.price != m.price
            for m, step in zip(found, graph.steps, strict=True)
        ):
            return None
        each = {s.label: m.microseconds for s, m in zip(graph.steps, found, strict=True) if m}
        return cls(each, first.shape, first.machine, first.windows, first.watts, first.unit)

    def microjoules(self, label: str) -> float | None:
        """What a step takes of the power; None where that is not known."""
        return None if self.watts is None else self.microseconds[label] * self.watts

    def applied(self, blocks: Sequence[Block], unit: PriceUnit | None = None) -> list[Block]:
        """Get the same blocks with these prices, also of the steps that they need.

        Raises
        ------
        InputError
            If the table lacks a step, or the unit needs a power that it has not.
        """
        table, graph = (self if unit is None else replace(self, unit=unit)), SignalGraph(blocks)
        missing = [s.label for s in graph.steps if s.label not in self.microseconds]
        if missing:
            raise InputError(
                f"the price table has no {', '.join(missing[:4])}: measure these blocks "
                "(gatewise calibrate --device)"
            )
        found: dict[Step, PriceOrigin] = {
            step: PriceOrigin(
                table.microseconds[step.label], table.shape, table.machine, table.windows,
                table.watts, table.unit,
            )
            for step in graph.steps
        }  # fmt: skip
        prices = {step: measurement.price for step, measurement in found.items()}
        return [block.with_prices(prices, found) for block in blocks]

    def to_document(self) -> dict[str, Any]:
        """Make the JSON document of the file."""
        power = {} if self.watts is None else {"watts": self.watts}
        return {
            "kind": KIND,
            "machine": self.machine,
            "shape": list(self.shape),
            "windows": self.windows,
            **power,
            "steps": {
                label: {"us": us} | ({} if self.watts is None else {"uj": us * self.watts})
                for label, us in self.microseconds.items()
            },
        }


def measured(
    blocks: Sequence[Block],
    windows: ArrayLike,
    *,
    watts: float | None = None,
    repeats: int = 5,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Block]:
    """Measure what each step takes for one window on this machine.

    Windows are computed one at a time, as on a device. A step's price is the median over the
    windows of its least time in `repeats` runs, so that other load counts little.

    Parameters
    ----------
    blocks : sequence of Block
    windows : array-like, shape (n, ...)
        Some tens of real ones.
    watts : float, optional
        Power of the processor at work: prices are then in microjoules; else in microseconds.
    repeats : int, default 5
    clock : callable, default time.perf_counter
        Seconds.

    Returns
    -------
    list of Block
        The same blocks with prices, also of the steps that they need.

    Raises
    ------
    InputError
        If there is no window, or a block cannot compute one.
    """
    table = PriceTable.measure(blocks, windows, watts=watts, repeats=repeats, clock=clock)
    return table.applied(blocks, "us" if watts is None else "uj")


def priced(
    blocks: Sequence[Block], prices: PriceTable | str | Path, *, unit: PriceUnit = "us"
) -> list[Block]:
    """Price blocks by a table that was measured before, on the device say.

    Parameters
    ----------
    blocks : sequence of Block
    prices : PriceTable or path
        A file of ``gatewise calibrate --device``, or ``manifest.signal.prices`` of a bundle.
    unit : {"us", "uj"}, default "us"
        Microseconds, or microjoules where the table has the processor's power.

    Returns
    -------
    list of Block
        The same blocks with prices, also of the steps that they need.

    Raises
    ------
    InputError
        If the file is no such table, or lacks a step.
    """
    if unit not in UNITS:
        raise InputError(f"unit is {unit!r}; choose one of {', '.join(UNITS)}")
    table = prices if isinstance(prices, PriceTable) else PriceTable.from_file(prices)
    return table.applied(blocks, unit)


def _machine() -> str:
    """What measures: the board, where it has a name, and what its times depend on beside it."""
    board = ""
    with suppress(OSError):
        board = _MODEL_OF_BOARD.read_text(errors="replace").strip("\0 \n") + ", "
    system = f"{platform.system()} {platform.machine()}"
    return f"{board}{system}, Python {platform.python_version()}, numpy {np.__version__}"
