"""Graph of blocks and the steps that they need, with its costs and its evaluation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gatewise.costs import FeatureCosts
from gatewise.errors import InputError
from gatewise_signals.blocks.block import Block
from gatewise_signals.steps import Step, Values

#: Largest number of windows computed together, so that intermediate results fit into a cache.
MAX_WINDOWS = 256


class SignalGraph:
    """Graph of blocks and the steps that they need.

    Parameters
    ----------
    blocks : sequence of Block

    Attributes
    ----------
    blocks : tuple of Block
    steps : tuple of Step
        All steps including the blocks, each after its inputs.
    feature_names : tuple of str
        Names of the features of all blocks, in order.
    block_of_feature : ndarray of intp, shape (n_features,)
        Index of each feature's block.
    index_of_step : dict of Step to int
        Index of each step in :attr:`steps`.
    inputs : list of tuple of int
        Indices of the inputs of each step.
    step_of_block : list of int
        Index of each block in :attr:`steps`.

    Raises
    ------
    InputError
        If `blocks` is empty, a block occurs twice, or two different steps have the same label.

    Examples
    --------
    >>> import numpy as np
    >>> from gatewise_signals import Channels, Mean, Statistics
    >>> graph = SignalGraph([Mean(Channels()), Statistics(Channels())])
    >>> [step.label for step in graph.steps]
    ['x', 'mean(x)', 'statistics(x)']
    >>> graph.transform(np.ones((3, 64))).shape
    (3, 7)
    """

    def __init__(self, blocks: Sequence[Block]) -> None:
        self.blocks = tuple(blocks)
        problems = [
            f"{block!r} is not a block" for block in self.blocks if not isinstance(block, Block)
        ]
        if problems or not self.blocks:
            raise InputError("; ".join(problems) or "blocks: give at least one")
        self.steps = tuple(_sort_topologically(self.blocks))
        self.index_of_step = {step: index for index, step in enumerate(self.steps)}
        self.inputs = [
            tuple(self.index_of_step[step] for step in step.inputs) for step in self.steps
        ]
        labels = [step.label for step in self.steps]
        duplicate = next((label for label in labels if labels.count(label) > 1), None)
        if duplicate is not None or len(set(self.blocks)) != len(self.blocks):
            raise InputError(
                f"blocks: {duplicate or 'one'} occurs twice; list each block once, with distinct "
                "names of channels and functions, and equal prices of equal steps"
            )
        self.feature_names = tuple(name for block in self.blocks for name in block.names)
        # the features of a block are consecutive columns
        n_features_by_block = [len(block.names) for block in self.blocks]
        self.block_of_feature = np.repeat(np.arange(len(n_features_by_block)), n_features_by_block)
        stops = np.cumsum(n_features_by_block).tolist()
        self.step_of_block = [self.index_of_step[block] for block in self.blocks]
        self._columns = [
            slice(stop - n_features, stop)
            for stop, n_features in zip(stops, n_features_by_block, strict=True)
        ]

    def __eq__(self, other: object) -> bool:
        """Compare the blocks, including their order."""
        return isinstance(other, SignalGraph) and self.blocks == other.blocks

    def __hash__(self) -> int:
        return hash(self.blocks)

    def columns(self, block: int) -> slice:
        """Return the columns of the features of the block with index `block`."""
        return self._columns[block]

    def block_labels(self, names: Iterable[str]) -> list[str]:
        """List the labels of the blocks of the features `names`, each label once.

        A name that is not a feature of a block is listed as it is.
        """
        block_of_name = dict(zip(self.feature_names, self.block_of_feature.tolist(), strict=True))
        return list(
            dict.fromkeys(
                self.blocks[block_of_name[name]].label if name in block_of_name else name
                for name in names
            )
        )

    def with_inputs(self, block_labels: Iterable[str]) -> list[str]:
        """List the `block_labels` of steps and of all steps that they need, inputs first."""
        needed_labels = set(block_labels)
        for step in reversed(self.steps):
            if step.label in needed_labels:
                needed_labels |= {input_step.label for input_step in step.inputs}
        return [step.label for step in self.steps if step.label in needed_labels]

    def costs(self, free_names: Sequence[str] = ()) -> FeatureCosts:
        """Make feature costs with a group for each step, which requires the groups of its inputs.

        The features `free_names` follow the features of the blocks and cost nothing. Raises
        InputError if a step has no price.
        """
        unpriced_labels = [step.label for step in self.steps if step.price is None]
        if unpriced_labels:
            raise InputError(
                f"no price of {', '.join(unpriced_labels[:4])}: measure the blocks "
                "(gatewise_signals.measured) or give prices"
            )
        groups = [
            *(self.blocks[block].label for block in self.block_of_feature),
            *(None for _ in free_names),
        ]
        return FeatureCosts(
            np.zeros(len(groups)),
            group=groups,
            shared={step.label: step.price or 0.0 for step in self.steps},
            requires={
                step.label: [input_step.label for input_step in step.inputs]
                for step in self.steps
                if step.inputs
            },
            names=(*self.feature_names, *free_names),
        )

    def transform(self, windows: ArrayLike) -> Values:
        """Compute all features of `windows`, (n, ...), as float32 (n, n_features)."""
        window_array = np.asarray(windows)
        features = np.empty((len(window_array), len(self.feature_names)), np.float32)
        for start in range(0, len(window_array), MAX_WINDOWS):
            rows = slice(start, start + MAX_WINDOWS)
            window_values = WindowValues(self, window_array[rows])
            for block, columns in enumerate(self._columns):
                features[rows, columns] = window_values.block_features(block)
        return features

    def lazy_values(self, window: ArrayLike) -> WindowValues:
        """Return the values of one `window`, which are computed when they are first read."""
        return WindowValues(self, np.asarray(window)[np.newaxis])


class WindowValues:
    """Results of the steps for some windows, computed when they are first read."""

    def __init__(self, graph: SignalGraph, windows: NDArray[Any]) -> None:
        self._graph = graph
        self._windows = windows
        self._results: dict[int, Values] = {}  # by index, because hashing a step is slow

    def block_features(self, block: int) -> Values:
        """Compute the features of a block, shape (n, n_features)."""
        return self.result_at(self._graph.step_of_block[block])

    def step_result(self, step: Step) -> Values:
        """Compute the result of a step, shape (n, ...)."""
        return self.result_at(self._graph.index_of_step[step])

    def result_at(self, index: int) -> Values:
        """Compute the result of the step with this index in the graph, shape (n, ...)."""
        step_values = self._results.get(index)
        if step_values is None:
            inputs = [self.result_at(input_index) for input_index in self._graph.inputs[index]]
            # steps may divide by zero if a signal is clipped, constant or empty; the values are NaN
            with np.errstate(all="ignore"):
                step_values = self._graph.steps[index].run(*(inputs or [self._windows]))
            self._results[index] = step_values
        return step_values


def _sort_topologically(steps: Iterable[Step]) -> dict[Step, None]:
    """List steps and all steps that they need, each once and after its inputs."""
    order: dict[Step, None] = {}
    for step in steps:
        order |= _sort_topologically(step.inputs)
        order[step] = None
    return order
