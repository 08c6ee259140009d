"""The features of a window, each block of which is computed when it is first acquired."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gatewise.errors import InputError
from gatewise_edge.errors import SensorError
from gatewise_edge.sensors.blocking_reader import BlockingReader, ReadTimeoutError
from gatewise_edge.sensors.feature_reader import Mask, Reading, Values
from gatewise_signals.blocks.block import FunctionBlock, OnnxBlock
from gatewise_signals.signal_input import SignalInput


@dataclass(frozen=True, eq=False)
class ChannelLimits:
    """Plausible values of a window's channels.

    Attributes
    ----------
    names : sequence of str
        Names of the channels.
    lowest, highest : ndarray of float32, shape (n_channels,)
        Smallest and largest plausible value.
    is_varying : ndarray of bool, shape (n_channels,)
        Whether the channel varied within every training window.
    """

    names: Sequence[str]
    lowest: Values
    highest: Values
    is_varying: Mask

    def find_implausible_channel(self, window: NDArray[Any]) -> str:
        """Find the name of the first implausible channel; "" if there is none.

        The window has the shape (n_values, n_channels). NaN is ignored.
        """
        smallest = np.fmin.reduce(window, axis=0)
        largest = np.fmax.reduce(window, axis=0)
        is_outside = (
            (smallest < self.lowest)
            | (largest > self.highest)
            | (self.is_varying & (smallest == largest))
        )
        return self.names[is_outside.argmax()] if is_outside.any() else ""


class WindowSource:
    """A :class:`.FeatureSource` with one window; it computes a block when it is first read.

    A block that cannot be computed counts as a failed sensor. A block that is a function or a
    network may take any time. The `reader` therefore runs it, and it counts as a late sensor if it
    does not return in time. Features that are values of the window itself take no time. Raises
    InputError if the window has another shape or type.

    `implausible` is the name of the first channel with values far outside the training range, or
    with constant values although it varied in every training window. It is empty if every channel
    is plausible.
    """

    def __init__(
        self,
        window: ArrayLike,
        signal: SignalInput,
        reader: BlockingReader | None,
        channel_limits: ChannelLimits | None,
    ) -> None:
        self._graph = signal.graph
        self._signal = signal
        self._reader = reader
        windows = window[np.newaxis] if isinstance(window, np.ndarray) else [window]
        try:
            self._window = signal.as_checked_array(windows)  # type: ignore[arg-type]
            self._values = signal.graph.lazy_values(self._window[0])
        except InputError as error:
            raise InputError(f"no instance: {error}") from None
        self.implausible = ""
        if channel_limits is not None:
            self.implausible = channel_limits.find_implausible_channel(
                signal.split_by_channel(self._window)[0]
            )

    def read(
        self, features: NDArray[np.intp], reading: Reading, timeout_s: float, *, allow_failure: bool
    ) -> None:
        """Enter the values of `features`; see :meth:`.FeatureSource.read`."""
        graph = self._graph
        deadline = time.monotonic() + timeout_s
        # The values of the window itself follow the features of the blocks.
        n_computed = len(graph.block_of_feature)
        if len(features) and features.max() >= n_computed:
            reading.enter(slice(n_computed, None), self._signal.window_values(self._window)[0])
            features = features[features < n_computed]
        for block_index in dict.fromkeys(graph.block_of_feature[features].tolist()):
            block_slice = graph.columns(block_index)
            label = graph.blocks[block_index].label
            feature_indices = range(block_slice.start, block_slice.stop)
            try:
                values = self._compute_block(block_index, deadline)[0]
            except ReadTimeoutError:
                message = f"block {label} was not computed in time"
                # The deadline has passed, so no time is left for the other blocks.
                reading.enter_failure(
                    feature_indices,
                    SensorError(label, message, cause="sensor-late"),
                    allow_failure=False,
                )
            except Exception as error:  # a user's function may raise anything
                failure = SensorError(label, f"block {label} cannot be computed: {error}")
                reading.enter_failure(feature_indices, failure, allow_failure=allow_failure)
            else:
                reading.enter(block_slice, values)

    def _compute_block(self, block_index: int, deadline: float) -> NDArray[Any]:
        """Compute the features of a block; ReadTimeoutError if it is a slow function or network."""
        block = self._graph.blocks[block_index]
        reader = self._reader
        may_be_slow = isinstance(block, FunctionBlock | OnnxBlock)
        if reader is None or deadline == math.inf or not may_be_slow:
            return self._values.block_features(block_index)
        return reader.run(
            lambda _: self._values.block_features(block_index), deadline - time.monotonic()
        )
