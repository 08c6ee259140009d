"""Run a stage's graph with numpy alone, where there is no onnxruntime (armv7l has no wheel).

The graphs hold a dozen operators (:mod:`.graph_rules` lets no other pass), and
each adds and multiplies in an order of its own that numpy has, too: margins have the very bits
that onnxruntime and training give. Trees are walked by :mod:`gatewise_edge.device.walker`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gatewise_edge.device.walker import Walker
from gatewise_export.bundle.errors import BundleError
from gatewise_export.onnx_files.graph_rules import INPUT, MARGINS, StageGraph
from gatewise_export.onnx_files.onnx_parts import Node
from gatewise_export.onnx_files.protobuf import Malformed

#: Numbers that the values of one run may hold together; more rows go in several runs
_AT_ONCE: Final = 1 << 22
#: Numbers in the table of leaves by outputs
_MOST_VALUES: Final = 1 << 24

Matrix = NDArray[np.float32]
Values = list[Any]
Step = Callable[[Values], None]


class GraphRunner:
    """A stage's graph, ready to be run by several threads; `file` is its name in errors.

    Raises BundleError if its trees have too many outputs for this runner.
    """

    def __init__(self, graph: StageGraph, file: str) -> None:
        self.n_inputs = graph.n_inputs
        places = {name: i for i, name in enumerate(dict.fromkeys((INPUT, *graph.constants)))}
        self._steps: list[Step] = []
        for node in graph.nodes:
            given = [places[name] for name in node.inputs]
            made = places.setdefault(node.outputs[0], len(places))
            trees = graph.trees.get(node.outputs[0])
            if trees is None:
                self._steps.append(_step(node, given, made))
                continue
            wide = graph.columns[node.inputs[0]]
            try:
                flat = trees.ensemble(wide, most_values=_MOST_VALUES)
            except Malformed as error:
                raise BundleError(
                    f"{file} is too large to be run without onnxruntime: {error}"
                ) from None
            self._steps.append(_tree_step(Walker(flat), given[0], made))
        self._empty: Values = [None] * len(places)
        for name, array in graph.constants.items():
            self._empty[places[name]] = array
        self._margins = places[MARGINS]
        self._rows = max(1, _AT_ONCE // max(1, graph.elements))

    def run(self, x: Matrix) -> Matrix:
        """Margins of rows, float32 (n, n_outputs)."""
        if len(x) <= self._rows:
            return self._run(x)
        parts = range(0, len(x), self._rows)
        return np.concatenate([self._run(x[i : i + self._rows]) for i in parts])

    def run_row(self, x: NDArray[np.float32]) -> list[float]:
        """Margins of one row, shape (n_inputs,)."""
        listed: list[float] = self._run(x[np.newaxis])[0].tolist()
        return listed

    def _run(self, x: Matrix) -> Matrix:
        values = self._empty.copy()
        values[0] = x
        with np.errstate(all="ignore"):  # an infinite sum is the graph's, and is seen by its score
            for step in self._steps:
                step(values)
        margins: Matrix = values[self._margins]
        return margins


def _tree_step(walker: Walker, given: int, made: int) -> Step:
    def run(values: Values) -> None:
        x = values[given]
        if len(x) == 1:  # plain Python beats numpy's calls for every level
            values[made] = walker.walk(x[0].tolist().__getitem__)
        else:
            values[made] = walker.run(x)[0]

    return run


# -- the other operators -------------------------------------------------------------------


def _step(node: Node, given: list[int], made: int) -> Step:
    operator, first, second = _OPERATORS[node.op_type], given[0], given[-1]

    def run(values: Values) -> None:
        values[made] = operator(values[first], values[second])

    return run


def _gather(v: Any, index: NDArray[np.int64]) -> Any:
    i = int(index.flat[0])
    return v[:, i] if index.ndim == 0 else v[:, i : i + 1]


#: What the graph's rules let through; axes are always those of the outputs.
_OPERATORS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Gather": _gather,
    "Unsqueeze": lambda v, axis: v[:, :, np.newaxis],
    # one after another, as CumSum does; numpy's sum would add in pairs
    "CumSum": lambda v, axis: np.cumsum(v, axis=1, dtype=np.float32),
    "ReduceSum": lambda v, axis: v.sum(axis=1, keepdims=True, dtype=np.float32),
}
