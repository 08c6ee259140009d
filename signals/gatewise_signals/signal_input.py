"""Instances that are windows of a signal, or pictures: their shape, and the blocks on them."""

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
from gatewise.models.instances import DTYPES, MOST_WINDOW_VALUES, unlike_type, value_names
from gatewise_signals.blocks.block import Block, Function, FunctionBlock, OnnxBlock
from gatewise_signals.graph import SignalGraph
from gatewise_signals.price_table import PriceTable
from gatewise_signals.pricing import MEASURED_WINDOWS, measured, table_of_steps
from gatewise_signals.steps import Channels, Picture, Values

WINDOW: Final = "window"
"""Name that stands for all values of a window, as a feature and as an input."""


@dataclass(frozen=True)
class ChannelSpec:
    """A channel of a window.

    Attributes
    ----------
    name : str
        Name with its signal's: ``acc_x``; empty where no step reads the channel.
    axis : str
        Name within its signal, ``x``, if it has one.
    scale : float
        Unit of one count.
    unit : str
        Name of the unit; empty if it is not known.
    """

    name: str = ""
    axis: str = ""
    scale: float = 1.0
    unit: str = ""


@dataclass(frozen=True)
class SignalInput:
    """The graph of blocks, and the windows that it takes.

    Attributes
    ----------
    graph : SignalGraph
    shape : tuple of int
        Of a window: (samples,), (samples, channels), (height, width), ...
    dtype : str
        Of its values: float32, float16, int16, int8 or uint8.
    raw : bool
        Whether the window's own values are also columns, behind the blocks' features and free of
        charge: a high-cost model may read them, but no stage does.
    prices : PriceTable or None
        Where the prices of all steps are from, if they were measured together.

    Raises
    ------
    InputError
        If its channels and blocks have several rates, a raw window has too many values for a
        request, or a feature has the name of one.
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
                f"channels and blocks are for {rates} samples per second: all of a window have one "
                "rate_hz"
            )
        if not self.raw:
            return
        if self.n_values > MOST_WINDOW_VALUES:
            raise InputError(
                f"a window of shape {self.shape} has {self.n_values} values; at most "
                f"{MOST_WINDOW_VALUES} can be sent: make it smaller, or send features"
            )
        double = {WINDOW, *self.window_names} & set(self.graph.feature_names)
        if double:
            raise InputError(f"a block's feature is named {min(double)!r}, as the window's values")

    @classmethod
    def from_windows(
        cls,
        blocks: Sequence[Block],
        windows: ArrayLike,
        raw: bool = False,
    ) -> Self:
        """Take shape and type from `windows`, and prices from `blocks`, or measured there.

        `raw` is the attribute of this name.

        Raises
        ------
        InputError
            If the windows are not numbers of shape (n, ...), or the blocks cannot compute them.
        """
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
                "channels; if it is the other way round, give windows.swapaxes(1, 2)",
                UserWarning,
                stacklevel=2,
            )
        shape = tuple(int(d) for d in x.shape[1:])
        unpriced = cls(graph, shape, dtype, raw)
        unpriced.features(x[:1])
        # blocks without prices are measured on evenly spaced windows
        if any(step.price is None for step in unpriced.graph.steps):
            blocks = measured(blocks, x[:: max(1, len(x) // MEASURED_WINDOWS)][:MEASURED_WINDOWS])
        graph = SignalGraph(blocks)
        table = table_of_steps(graph)
        if table is not None and table.shape != unpriced.shape:
            raise InputError(
                f"the blocks were measured on windows of shape {table.shape}, these have "
                f"{unpriced.shape}: measure them on such (gatewise_signals.pricing.price_table)"
            )
        return replace(unpriced, graph=graph, prices=table)

    @property
    def models(self) -> dict[str, bytes]:
        """Networks of blocks by the name of their file in a bundle; empty where not read yet."""
        return {b.file: b.model for b in self.graph.blocks if isinstance(b, OnnxBlock)}

    @property
    def functions(self) -> dict[str, Function]:
        """Functions of the blocks that have theirs, by the block's name."""
        blocks = [b for b in self.graph.blocks if isinstance(b, FunctionBlock)]
        return {b.name: b.function for b in blocks if b.function is not None}

    def with_models(self, models: Mapping[str, bytes]) -> Self:
        """Get the same input with `models`, the networks of its blocks, by name of their file."""
        blocks = [
            replace(b, model=models[b.file]) if isinstance(b, OnnxBlock) else b
            for b in self.graph.blocks
        ]
        return replace(self, graph=SignalGraph(blocks))

    @cached_property
    def _rates(self) -> set[float]:
        """Rates of the channels, and of the steps on channels that are for a rate."""
        rates = (
            float(getattr(step, "rate_hz", 0.0))
            for step in self.graph.steps
            if all(isinstance(i, Channels) for i in step.inputs)
        )
        return {rate for rate in rates if rate}

    @property
    def rate_hz(self) -> float | None:
        """Samples per second of the windows; None where no channel and no block has a rate."""
        return next(iter(self._rates), None)

    @property
    def n_channels(self) -> int:
        """Number of channels of a window, (samples,) or (samples, channels)."""
        return math.prod(self.shape[1:])

    @cached_property
    def range_names(self) -> tuple[str, ...]:
        """Names of the parts of a window that have a range of values: its channels, or a picture.

        A channel without a name has its number.
        """
        if any(isinstance(step, Picture) for step in self.graph.steps):
            return (WINDOW,)
        return tuple(c.name or f"channel {k}" for k, c in enumerate(self.channels))

    def by_channel(self, windows: NDArray[Any]) -> NDArray[Any]:
        """Reshape `windows`, (n, ...), to (n, n_values, parts of :attr:`range_names`)."""
        return windows.reshape(len(windows), -1, len(self.range_names))

    @cached_property
    def channels(self) -> tuple[ChannelSpec, ...]:
        """Channels of a window, in order; without a name where no step reads one."""
        specs = [ChannelSpec()] * self.n_channels
        for step in self.graph.steps:
            if isinstance(step, Channels):
                for index, axis in zip(step.indices, step.channels, strict=True):
                    several = len(step.indices) > 1 or bool(step.axes)
                    name = f"{step.name}_{axis}" if several else step.name
                    specs[index] = ChannelSpec(
                        name, axis if step.axes else "", step.scale, step.unit
                    )
        return tuple(specs)

    @property
    def n_values(self) -> int:
        """Number of a window's values."""
        return math.prod(self.shape)

    @cached_property
    def window_names(self) -> tuple[str, ...]:
        """Names of the columns that are the window's values; none unless `raw`."""
        return tuple(value_names(WINDOW, self.n_values)) if self.raw else ()

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of all columns."""
        return (*self.graph.feature_names, *self.window_names)

    def labels(self, names: Iterable[str]) -> list[str]:
        """Name the blocks that the features `names` belong to, each once, and the window."""
        values = set(self.window_names)
        return self.graph.labels(WINDOW if name in values else name for name in names)

    def costs(self) -> FeatureCosts:
        """Make the prices of all columns; see :meth:`.SignalGraph.costs`."""
        return self.graph.costs(self.window_names)

    def checked(self, windows: ArrayLike) -> NDArray[Any]:
        """Get `windows` as an array of shape (n, ...).

        Raises InputError if they have another shape, or values that the windows' whole numbers
        cannot be: they are of another width or scale.
        """
        x = as_windows(windows)
        if x.shape[1:] != self.shape:
            raise InputError(f"windows have shape {x.shape[1:]}, the blocks are for {self.shape}")
        value = unlike_type(x, np.dtype(self.dtype))
        if value is not None:
            raise InputError(
                f"windows hold {value:g}, the blocks are for {self.dtype}: bring them to the width "
                "and scale of the training windows"
            )
        return x

    def with_functions(self, functions: Mapping[str, Function]) -> Self:
        """Get the same with `functions` for blocks, by the block's name.

        Raises InputError, with all of them, if blocks are left without a function.
        """
        blocks = [
            replace(b, function=functions.get(b.name, b.function))
            if isinstance(b, FunctionBlock)
            else b
            for b in self.graph.blocks
        ]
        left = [b.how_to_give for b in blocks if isinstance(b, FunctionBlock) and not b.function]
        if left:
            raise InputError("; ".join(left))
        return replace(self, graph=SignalGraph(blocks))

    def is_features(self, row: object) -> bool:
        """Whether `row` holds features computed before, float32 (n_features,), and not a window."""
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
        """The values of `windows` as columns, shape (n, n_values)."""
        with np.errstate(over="ignore"):  # what float32 cannot hold is refused as infinite
            return windows.reshape(len(windows), self.n_values).astype(np.float32)


def as_windows(windows: Any) -> NDArray[Any]:
    """Bring windows into one array of numbers, shape (n, ...).

    They may be an array; a list of arrays or DataFrames of equal length; or a DataFrame with an
    index of two levels, (instance, time), and a column for each channel: windows are then in the
    order in which their instances first appear, samples in that of time.

    Raises
    ------
    InputError
        If windows differ in length, or are not numbers.
    """
    is_list = isinstance(windows, list | tuple)
    tables = _is_table(windows) or (is_list and any(map(_is_table, windows)))
    if is_list:
        x = _stacked(windows, tables)
    elif tables:
        has_levels = getattr(windows.index, "nlevels", 1) > 1
        x = _by_instance(windows) if has_levels else windows.to_numpy()
    else:
        x = np.asarray(windows)
    if x.dtype.kind not in "fiub":
        advice = ": give an index (instance, time), or an array" if tables else ""
        raise InputError(f"windows must be numbers, not {x.dtype}{advice}")
    return x


def _is_table(windows: object) -> bool:
    """Whether windows are a DataFrame; pandas itself is not needed."""
    return hasattr(windows, "columns") and hasattr(windows, "to_numpy")


def _stacked(windows: Sequence[Any], tables: bool) -> NDArray[Any]:
    """Windows of a list, all of one length and with the same columns."""
    if tables:
        heads = [list(window.columns) if _is_table(window) else None for window in windows]
        differing = next((k for k, head in enumerate(heads) if head != heads[0]), None)
        if differing is not None:
            raise InputError(
                f"window {differing} has columns {heads[differing]}, the first {heads[0]}: give "
                "all the same, in one order"
            )
    try:
        return np.asarray([w.to_numpy() for w in windows] if tables else windows)
    except ValueError as error:
        lengths = [len(window) if hasattr(window, "__len__") else 0 for window in windows]
        _check_lengths(lengths, range(len(lengths)))
        raise InputError(f"windows must be an array, all of one length: {error}") from None


def _by_instance(table: Any) -> NDArray[Any]:
    """Windows of a DataFrame with an index (instance, time)."""
    if table.index.nlevels != 2:
        raise InputError(f"the index has {table.index.nlevels} levels; give (instance, time)")
    codes, instances = table.index.get_level_values(0).factorize()
    times, _ = table.index.get_level_values(1).factorize(sort=True)
    if not len(codes) or min(codes.min(), times.min()) < 0:
        raise InputError("the index (instance, time) is empty, or has missing values")
    _check_lengths(np.bincount(codes).tolist(), instances.tolist())
    # by instance, then by time
    order = np.lexsort((times, codes))
    codes = codes[order]
    times = times[order]
    twice = np.flatnonzero((np.diff(codes) == 0) & (np.diff(times) == 0))
    if len(twice):
        raise InputError(f"instance {instances[codes[twice[0]]]!r} has two samples of one time")
    windows: NDArray[Any] = table.to_numpy()[order].reshape(len(instances), -1, table.shape[1])
    return windows


def _check_lengths(lengths: Sequence[int], names: Sequence[Any]) -> None:
    differing = next((k for k, length in enumerate(lengths) if length != lengths[0]), None)
    if differing is not None:
        raise InputError(
            f"windows have {min(lengths)} to {max(lengths)} samples ({names[differing]!r} has "
            f"{lengths[differing]}, {names[0]!r} {lengths[0]}): cut or pad them to one length"
        )
