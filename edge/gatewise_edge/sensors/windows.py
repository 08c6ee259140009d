"""A window as the source of an instance's features: blocks are computed when a stage reads them."""

from __future__ import annotations

import time
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gatewise.errors import InputError
from gatewise_edge.errors import SensorError
from gatewise_edge.sensors.blocking_reader import BlockingReader, StillReading
from gatewise_edge.sensors.feature_reader import Reading
from gatewise_signals.blocks.block import FunctionBlock
from gatewise_signals.signal_input import SignalInput
from gatewise_signals.steps import Values


class WindowSource:
    """A source with one window at hand, each block of which is computed once, when it is read.

    The window's own values, where they are columns, cost nothing. A block that cannot be computed
    is a failed sensor, and one that is a function, run by the `reader`, a late one if it is not
    done in time. InputError if it is no such window.
    """

    def __init__(
        self, window: ArrayLike, signal: SignalInput, reader: BlockingReader | None = None
    ) -> None:
        self._graph, self._signal = signal.graph, signal
        self._reader = reader
        one = window[np.newaxis] if isinstance(window, np.ndarray) else [window]
        try:
            self._window = signal.checked(one)  # type: ignore[arg-type]
            self._values = signal.graph.start(self._window[0])
        except InputError as error:
            raise InputError(f"no instance: {error}") from None

    def read(
        self, features: NDArray[np.intp], known: Reading, timeout: float, *, spare: bool
    ) -> None:
        """See :class:`.FeatureSource`."""
        graph, until = self._graph, time.monotonic() + timeout
        computed = len(graph.block_of)
        if len(features) and features.max() >= computed:
            known.enter(slice(computed, None), self._signal.values(self._window)[0])
            features = features[features < computed]
        for number in dict.fromkeys(graph.block_of[features].tolist()):
            columns, label = graph.columns(number), graph.blocks[number].label
            members = range(columns.start, columns.stop)
            try:
                found = self._computed(number, until)[0]
            except StillReading:
                text = f"block {label} was not computed in time"
                known.fail(members, SensorError(label, text, why="sensor-late"), spare=False)
            except Exception as error:  # a user's function may raise anything
                failure = SensorError(label, f"block {label} cannot be computed: {error}")
                known.fail(members, failure, spare=spare)
            else:
                known.enter(columns, found)

    def _computed(self, number: int, until: float) -> Values:
        """Features of a block; StillReading if it is a function that is not done in time."""
        if self._reader is None or not isinstance(self._graph.blocks[number], FunctionBlock):
            return self._values.of_block(number)
        return self._reader.run(partial(self._values.of_block, number), until - time.monotonic())
