"""Signal windows and images as instances: their shape, and the blocks that read them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gatewise.costs import FeatureCosts
from gatewise.errors import InputError
from gatewise.models.instances import DTYPES, MAX_WINDOW_VALUES, find_unrepresentable, value_names
from gatewise_signals.blocks.block import Block, Function, FunctionBlock, OnnxBlock
from gatewise_signals.graph import SignalGraph
from gatewise_signals.price_table import PriceTable
from gatewise_signals.pricing import MEASURED_WINDOWS, measured, table_of_steps
from gatewise_signals.steps import Channels, Picture, Values

WINDOW: Final = "window"
"""Name of the feature or input that stands for all values of a window."""


@dataclass(frozen=True)
class ChannelSpec:
    """Channel of a window."""

    name: str = ""  # full name, such as ``acc_x``; empty if no step reads the channel
    axis: str = ""  # name within the signal, such as ``x``; may be empty
    scale: float = 1.0  # value of one count, in the unit
    unit: str = ""  # empty if it is not known


@dataclass(frozen=True)
class SignalInput:
    """Graph of blocks, with the shape and type of the windows that it reads.

    Attributes
    ----------
    graph : SignalGraph
    shape : tuple of int
        Shape of a window: (samples,), (samples, channels), (height, width), ...
    dtype : str
        Type of the values: float32, float16, int16, int8 or uint8.
    raw : bool
        Whether the values of the window are additional columns after the features of the blocks.
        They cost nothing. A high-cost model may read them, but stages do not.
    prices : PriceTable or None
        Table of the prices of all steps, if these were measured together.

    Raises
    ------
    InputError
        If channels and blocks have several rates, if a raw window has too many values for a
        request, or if a feature of a block has the same name as a value of a raw window.
    """

    graph: SignalGraph
    shape: tuple[int, ...]
    dtype: str = "float32"
    raw: bool = False
    prices: PriceTable | None = None

    def __post_init__(self) -> None:
        if len(self._rates) > 1:
            rates = " and ".join(f"{rate:g}" for rate in sorted(self._rates))
            raise InputError(
                f"channels and blocks are for {rates} samples per second: give one rate_hz for all"
            )
        if not self.raw:
            return
        if self.n_values > MAX_WINDOW_VALUES:
            raise InputError(
                f"a window of shape {self.shape} has {self.n_values} values; at most "
                f"{MAX_WINDOW_VALUES} can be sent: make it smaller, or send features"
            )
        duplicates = {WINDOW, *self.window_names} & set(self.graph.feature_names)
        if duplicates:
            raise InputError(
                f"a feature of a block is named {min(duplicates)!r}, like values of the window"
            )

    @classmethod
    def from_windows(
        cls,
        blocks: Sequence[Block],
        windows: ArrayLike,
        raw: bool = False,
    ) -> Self:
        """Make the input for `windows`, (n, ...), and measure `blocks` if one has no price.

        For `raw` see the attribute. Raises InputError if the windows are not numbers, or if the
        blocks cannot compute them.
        """
        # check the windows
        x = as_windows(windows)
        if x.ndim < 2 or not x.size:
            raise InputError(
                f"windows must be an array of shape (n, samples), (n, samples, channels) or (n, "
                f"height, width), not {x.shape}: cut or pad recordings to one length"
            )
        dtype = x.dtype.name if x.dtype.name in DTYPES else "float32"
        graph = SignalGraph(blocks)
        if (
            x.ndim == 3
            and x.shape[1] < x.shape[2]
            and any(isinstance(step, Channels) for step in graph.steps)
        ):
            warnings.warn(
                f"windows of shape {x.shape[1:]} are read as {x.shape[1]} samples of {x.shape[2]} "
                "channels; if the axes are swapped, give windows.swapaxes(1, 2)",
                UserWarning,
                stacklevel=2,
            )
        shape = tuple(int(d) for d in x.shape[1:])
        unpriced = cls(graph, shape, dtype, raw)
        unpriced.features(x[:1])
        # measure the blocks on evenly spaced windows
        if any(step.price is None for step in unpriced.graph.steps):
            blocks = measured(blocks, x[:: max(1, len(x) // MEASURED_WINDOWS)][:MEASURED_WINDOWS])
        graph = SignalGraph(blocks)
        table = table_of_steps(graph)
        if table is not None and table.shape != unpriced.shape:
            raise InputError(
                f"the blocks were measured on windows of shape {table.shape}, but these have "
                f"{unpriced.shape}: measure them on windows of this shape "
                "(gatewise_signals.pricing.price_table)"
            )
        return replace(unpriced, graph=graph, prices=table)

    @property
    def models(self) -> dict[str, bytes]:
        """Networks of blocks, by the name of their file in a bundle; empty if not loaded yet."""
        return {b.file: b.model for b in self.graph.blocks if isinstance(b, OnnxBlock)}

    @property
    def functions(self) -> dict[str, Function]:
        """Python functions of blocks, by the name of the block."""
        blocks = [b for b in self.graph.blocks if isinstance(b, FunctionBlock)]
        return {b.name: b.function for b in blocks if b.function is not None}

    def with_models(self, models: Mapping[str, bytes]) -> Self:
        """Return a copy with the networks of its blocks; `models` maps file names to networks."""
        blocks = [
            replace(b, model=models[b.file]) if isinstance(b, OnnxBlock) else b
            for b in self.graph.blocks
        ]
        return replace(self, graph=SignalGraph(blocks))

    @cached_property
    def _rates(self) -> set[float]:
        """Rates of the channels, and of the steps that read channels or windows."""
        rates = (
            float(getattr(step, "rate_hz", 0.0))
            for step in self.graph.steps
            if all(isinstance(i, Channels) for i in step.inputs)
        )
        return {rate for rate in rates if rate}

    @property
    def rate_hz(self) -> float | None:
        """Samples per second of the windows; None if neither a channel nor a block has a rate."""
        return next(iter(self._rates), None)

    @property
    def n_channels(self) -> int:
        """Number of channels of a window."""
        return math.prod(self.shape[1:])

    @cached_property
    def range_names(self) -> tuple[str, ...]:
        """Names of the parts of a window with a range of values: its channels, or the image."""
        if any(isinstance(step, Picture) for step in self.graph.steps):
            return (WINDOW,)
        return tuple(c.name or f"channel {k}" for k, c in enumerate(self.channels))

    def by_channel(self, windows: NDArray[Any]) -> NDArray[Any]:
        """Reshape `windows`, (n, ...), to (n, n_values, parts of :attr:`range_names`)."""
        return windows.reshape(len(windows), -1, len(self.range_names))

    @cached_property
    def channels(self) -> tuple[ChannelSpec, ...]:
        """Channels of a window, in order."""
        specs = [ChannelSpec()] * self.n_channels
        for step in self.graph.steps:
            if isinstance(step, Channels):
                for index, axis in zip(step.indices, step.channels, strict=True):
                    has_axes = len(step.indices) > 1 or bool(step.axes)
                    name = f"{step.name}_{axis}" if has_axes else step.name
                    specs[index] = ChannelSpec(
                        name, axis if step.axes else "", step.scale, step.unit
                    )
        return tuple(specs)

    @property
    def n_values(self) -> int:
        """Number of values of a window."""
        return math.prod(self.shape)

    @cached_property
    def window_names(self) -> tuple[str, ...]:
        """Names of the columns with the values of the window; empty unless `raw`."""
        return tuple(value_names(WINDOW, self.n_values)) if self.raw else ()

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of all columns."""
        return (*self.graph.feature_names, *self.window_names)

    def labels(self, names: Iterable[str]) -> list[str]:
        """List the labels of the blocks that compute the features `names`, without repetition."""
        values = set(self.window_names)
        return self.graph.labels(WINDOW if name in values else name for name in names)

    def costs(self) -> FeatureCosts:
        """Make the feature costs of all columns; see :meth:`.SignalGraph.costs`."""
        return self.graph.costs(self.window_names)

    def checked(self, windows: ArrayLike) -> NDArray[Any]:
        """Return `windows` as an array of shape (n, ...).

        Raises InputError if they have another shape, or contain a value that :attr:`dtype` cannot
        represent.
        """
        x = as_windows(windows)
        if x.shape[1:] != self.shape:
            raise InputError(
                f"windows have shape {x.shape[1:]}, but the blocks are for {self.shape}"
            )
        value = find_unrepresentable(x, np.dtype(self.dtype))
        if value is not None:
            raise InputError(
                f"windows hold {value:g}, but the blocks are for {self.dtype}: convert them to the "
                "type and scale of the training windows"
            )
        return x

    def with_functions(self, functions: Mapping[str, Function]) -> Self:
        """Return a copy with `functions` for its blocks, by the name of the block.

        Raises InputError, which lists all blocks that have no function.
        """
        blocks = [
            replace(b, function=functions.get(b.name, b.function))
            if isinstance(b, FunctionBlock)
            else b
            for b in self.graph.blocks
        ]
        problems = [b.advice for b in blocks if isinstance(b, FunctionBlock) and not b.function]
        if problems:
            raise InputError("; ".join(problems))
        return replace(self, graph=SignalGraph(blocks))

    def is_features(self, row: object) -> bool:
        """Whether `row` holds computed features, float32 (n_features,), instead of a window."""
        return (
            isinstance(row, np.ndarray)
            and row.dtype == np.float32
            and row.shape == (len(self.graph.block_of) + len(self.window_names),) != self.shape
        )

    def features(self, windows: ArrayLike) -> Values:
        """Compute all columns of `windows`, (n, ...), as float32 (n, n_features)."""
        x = self.checked(windows)
        try:
            computed = self.graph.transform(x)
        except (ValueError, IndexError) as error:
            raise InputError(f"blocks on windows of shape {self.shape}: {error}") from error
        return np.concatenate([computed, self.values(x)], axis=1) if self.raw else computed

    def values(self, windows: NDArray[Any]) -> Values:
        """Convert the values of `windows` to columns, shape (n, n_values)."""
        with np.errstate(over="ignore"):  # too large values become infinite and are refused later
            return windows.reshape(len(windows), self.n_values).astype(np.float32)


def as_windows(windows: Any) -> NDArray[Any]:
    """Convert windows of equal length to one array of numbers, shape (n, ...)."""
    try:
        x = np.asarray(windows)
    except ValueError as error:
        lengths = [len(window) if hasattr(window, "__len__") else 0 for window in windows]
        different = next((k for k, n in enumerate(lengths) if n != lengths[0]), 0)
        raise InputError(
            f"windows have {min(lengths)} to {max(lengths)} samples (window 0 has {lengths[0]}, "
            f"window {different} has {lengths[different]}): cut or pad them to one length ({error})"
        ) from None
    if x.dtype.kind not in "fiub":
        raise InputError(f"windows must be numbers, not {x.dtype}")
    return x
