"""Signal windows and images as instances: their shape, and the blocks that read them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gatewise.costs import FeatureCosts
from gatewise.errors import InputError, warn_caller
from gatewise.models.instances import DTYPES, MAX_WINDOW_VALUES, find_unrepresentable, value_names
from gatewise_signals.blocks.block import Block, Function, FunctionBlock, OnnxBlock
from gatewise_signals.graph import SignalGraph
from gatewise_signals.price_table import PriceTable
from gatewise_signals.pricing import MEASURED_WINDOWS, measured, table_of_steps
from gatewise_signals.steps import Channels, Picture, Values

#: Name of the feature or input that stands for all values of a window.
WINDOW: Final = "window"


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
    has_window_values : bool
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
    has_window_values: bool = False
    prices: PriceTable | None = None

    def __post_init__(self) -> None:
        if len(self._rates) > 1:
            rates = " and ".join(f"{rate:g}" for rate in sorted(self._rates))
            raise InputError(
                f"channels and blocks are for {rates} samples per second: give one rate_hz for all"
            )
        if not self.has_window_values:
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
        cls, blocks: Sequence[Block], windows: ArrayLike, has_window_values: bool = False
    ) -> Self:
        """Make the input for `windows`, (n, ...), and measure `blocks` if one has no price.

        For `has_window_values` see the attribute. Raises InputError if the windows are not numbers,
        or if the blocks cannot compute them.
        """
        # check the windows
        window_array = as_windows(windows)
        if window_array.ndim < 2 or not window_array.size:
            raise InputError(
                f"windows must be an array of shape (n, samples), (n, samples, channels) or (n, "
                f"height, width), not {window_array.shape}: cut or pad recordings to one length"
            )
        dtype = window_array.dtype.name if window_array.dtype.name in DTYPES else "float32"
        graph = SignalGraph(blocks)
        if (
            window_array.ndim == 3
            and window_array.shape[1] < window_array.shape[2]
            and any(isinstance(step, Channels) for step in graph.steps)
        ):
            warn_caller(
                f"windows of shape {window_array.shape[1:]} are read as {window_array.shape[1]} "
                f"samples of {window_array.shape[2]} channels; if the axes are swapped, give "
                "windows.swapaxes(1, 2)"
            )
        shape = tuple(int(size) for size in window_array.shape[1:])
        unpriced_input = cls(graph, shape, dtype, has_window_values)
        unpriced_input.features(window_array[:1])
        # measure the blocks on evenly spaced windows
        if any(step.price is None for step in unpriced_input.graph.steps):
            blocks = measured(
                blocks,
                window_array[:: max(1, len(window_array) // MEASURED_WINDOWS)][:MEASURED_WINDOWS],
            )
        graph = SignalGraph(blocks)
        table = table_of_steps(graph)
        if table is not None and table.shape != unpriced_input.shape:
            raise InputError(
                f"the blocks were measured on windows of shape {table.shape}, but these have "
                f"{unpriced_input.shape}: measure them on windows of this shape "
                "(gatewise_signals.pricing.price_table)"
            )
        return replace(unpriced_input, graph=graph, prices=table)

    @property
    def models(self) -> dict[str, bytes]:
        """Networks of blocks, by the name of their file in a bundle; empty if not loaded yet."""
        return {
            block.file: block.model for block in self.graph.blocks if isinstance(block, OnnxBlock)
        }

    @property
    def functions(self) -> dict[str, Function]:
        """Python functions of blocks, by the name of the block."""
        blocks = [block for block in self.graph.blocks if isinstance(block, FunctionBlock)]
        return {block.name: block.function for block in blocks if block.function is not None}

    def with_models(self, models: Mapping[str, bytes]) -> Self:
        """Return a copy with the networks of its blocks; `models` maps file names to networks."""
        blocks = [
            replace(block, model=models[block.file]) if isinstance(block, OnnxBlock) else block
            for block in self.graph.blocks
        ]
        return replace(self, graph=SignalGraph(blocks))

    @cached_property
    def _rates(self) -> set[float]:
        """Rates of the channels, and of the steps that read channels or windows."""
        rates = (
            float(getattr(step, "rate_hz", 0.0))
            for step in self.graph.steps
            if all(isinstance(input_step, Channels) for input_step in step.inputs)
        )
        return {rate for rate in rates if rate}

    @property
    def rate_hz(self) -> float | None:
        """Samples per second of the windows, or None if no channel and no block has a rate."""
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
        return tuple(
            channel.name or f"channel {index}" for index, channel in enumerate(self.channels)
        )

    def split_by_channel(self, windows: NDArray[Any]) -> NDArray[Any]:
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
        """Names of the columns with the values of the window; empty unless `has_window_values`."""
        return tuple(value_names(WINDOW, self.n_values)) if self.has_window_values else ()

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of all columns."""
        return (*self.graph.feature_names, *self.window_names)

    def block_labels(self, names: Iterable[str]) -> list[str]:
        """List the labels of the blocks that compute the features `names`, without repetition."""
        window_names = set(self.window_names)
        return self.graph.block_labels(WINDOW if name in window_names else name for name in names)

    def costs(self) -> FeatureCosts:
        """Make the feature costs of all columns; see :meth:`.SignalGraph.costs`."""
        return self.graph.costs(self.window_names)

    def as_checked_array(self, windows: ArrayLike) -> NDArray[Any]:
        """Return `windows` as an array of shape (n, ...).

        Raises InputError if they have another shape, or contain a value that :attr:`dtype` cannot
        represent.
        """
        window_array = as_windows(windows)
        if window_array.shape[1:] != self.shape:
            raise InputError(
                f"windows have shape {window_array.shape[1:]}, but the blocks are for {self.shape}"
            )
        unrepresentable_value = find_unrepresentable(window_array, np.dtype(self.dtype))
        if unrepresentable_value is not None:
            raise InputError(
                f"windows hold {unrepresentable_value:g}, but the blocks are for {self.dtype}: "
                "convert them to the type and scale of the training windows"
            )
        return window_array

    def with_functions(self, functions: Mapping[str, Function]) -> Self:
        """Return a copy with `functions` for its blocks, by the name of the block.

        Raises InputError, which lists all blocks that have no function.
        """
        blocks = [
            replace(block, function=functions.get(block.name, block.function))
            if isinstance(block, FunctionBlock)
            else block
            for block in self.graph.blocks
        ]
        problems = [
            block.missing_function_message
            for block in blocks
            if isinstance(block, FunctionBlock) and not block.function
        ]
        if problems:
            raise InputError("; ".join(problems))
        return replace(self, graph=SignalGraph(blocks))

    def holds_features(self, row: object) -> bool:
        """Whether `row` holds computed features, float32 (n_features,), instead of a window."""
        features_shape = (len(self.feature_names),)
        return (
            isinstance(row, np.ndarray)
            and row.dtype == np.float32
            and row.shape == features_shape
            and features_shape != self.shape
        )

    def features(self, windows: ArrayLike) -> Values:
        """Compute all columns of `windows`, (n, ...), as float32 (n, n_features)."""
        window_array = self.as_checked_array(windows)
        try:
            block_features = self.graph.transform(window_array)
        except (ValueError, IndexError) as error:
            raise InputError(f"blocks on windows of shape {self.shape}: {error}") from error
        if not self.has_window_values:
            return block_features
        return np.concatenate([block_features, self.window_values(window_array)], axis=1)

    def window_values(self, windows: NDArray[Any]) -> Values:
        """Convert the values of `windows` to columns, shape (n, n_values)."""
        with np.errstate(over="ignore"):  # too large values become infinite and are refused later
            return windows.reshape(len(windows), self.n_values).astype(np.float32)


def as_windows(windows: Any) -> NDArray[Any]:
    """Convert windows of equal length to one array of numbers, shape (n, ...)."""
    try:
        window_array = np.asarray(windows)
    except ValueError as error:
        lengths = [len(window) if hasattr(window, "__len__") else 0 for window in windows]
        if min(lengths) == max(lengths):
            raise InputError(
                f"the samples of the windows have different numbers of channels ({error})"
            ) from None
        different_index = next(
            (index for index, length in enumerate(lengths) if length != lengths[0]), 0
        )
        raise InputError(
            f"windows have {min(lengths)} to {max(lengths)} samples (window 0 has {lengths[0]}, "
            f"window {different_index} has {lengths[different_index]}): cut or pad them to one "
            f"length ({error})"
        ) from None
    if window_array.dtype.kind not in "fiub":
        raise InputError(f"windows must be numbers, not {window_array.dtype}")
    return window_array
