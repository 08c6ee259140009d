"""The stages of a bundle, run one after the other until one stops.

Margins come from a stage's graph, in onnxruntime or in numpy, or from its trees; stop score, label
and probabilities are those of :mod:`gatewise.decision`, by which training chose the thresholds. A
device decides one row at a time, in plain floats: numpy's calls for one row would take several
times as long as the model.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise.decision import StopRule, row_outcome
from gatewise.models.trees import TreeEnsemble
from gatewise_edge.device.walker import Walker
from gatewise_edge.sensors.feature_reader import Reading
from gatewise_export.bundle.flat_models import FlatModel
from gatewise_export.bundle.manifest import StageSpec
from gatewise_export.onnx_writer import MARGINS

Matrix = NDArray[np.float32]


class GraphSession:
    """A stage's graph in onnxruntime."""

    def __init__(self, session: Any, n_inputs: int, n_outputs: int) -> None:
        self._session = session
        self._widths = n_inputs, n_outputs
        self._thread = threading.local()

    def run(self, x: Matrix) -> Matrix:
        """Margins of rows, float32 (n, n_outputs)."""
        margins: Matrix = self._session.run([MARGINS], {"x": x})[0]
        return margins

    def run_row(self, x: NDArray[np.float32]) -> list[float]:
        """Margins of one row (n_inputs,), in buffers bound once a thread: half the time of run."""
        try:
            row, margins, binding = self._thread.bound
        except AttributeError:
            row, margins, binding = self._thread.bound = self._bind()
        row[:] = x
        self._session.run_with_iobinding(binding)
        listed: list[float] = margins.tolist()
        return listed

    def _bind(self) -> tuple[NDArray[np.float32], NDArray[np.float32], Any]:
        row, margins = (np.zeros(width, np.float32) for width in self._widths)
        binding = self._session.io_binding()
        binding.bind_input("x", "cpu", 0, np.float32, (1, len(row)), row.ctypes.data)
        binding.bind_output(MARGINS, "cpu", 0, np.float32, (1, len(margins)), margins.ctypes.data)
        return row, margins, binding


class FlatRunner:
    """A stage's flat model in numpy, with the interface of :class:`GraphSession`."""

    def __init__(self, model: FlatModel) -> None:
        self._model = model
        self._walker = Walker(model) if isinstance(model, TreeEnsemble) else None

    def run(self, x: Matrix) -> Matrix:
        """Margins of rows, float32 (n, n_outputs)."""
        return self._model.run(x)

    def run_row(self, x: NDArray[np.float32]) -> list[float]:
        """Margins of one row (n_inputs,)."""
        margins = self._model.run(x[np.newaxis]) if self._walker is None else self._walked(x)
        listed: list[float] = margins[0].tolist()
        return listed

    def _walked(self, x: NDArray[np.float32]) -> Matrix:
        """Walk in plain Python, which beats numpy's calls for every level of a tree."""
        assert self._walker is not None
        return self._walker.walk(x.tolist().__getitem__)


StageModel = GraphSession | FlatRunner | Walker


class StageOutput:
    """Output of a stage for one instance.

    `outputs` are the float32 values of its graph or trees, `score` is the stop score that the
    stage's `rule` makes of them, `stage` the index of the stage; `link` turns margins into
    probabilities.
    """

    __slots__ = ("link", "outputs", "rule", "score", "stage")

    def __init__(self, stage: DeviceStage, outputs: Sequence[float]) -> None:
        self.stage = stage.index
        self.link = stage.spec.link
        self.rule = stage.rule
        self.outputs = outputs
        self.score = stage.rule.row_score(outputs)

    def stops(self, threshold: float | None) -> bool:
        """Whether the instance stops here, given a float32 threshold; None never stops."""
        return threshold is not None and self.score >= threshold

    @property
    def label(self) -> int | float:
        """Class index, or where the model gives values this."""
        return row_outcome(self.rule, self.outputs, self.link)[0]

    @property
    def probabilities(self) -> NDArray[np.float64]:
        """Class probabilities, shape (n_classes,); (0,) for a value."""
        return row_outcome(self.rule, self.outputs, self.link)[1]


@dataclass(frozen=True, slots=True, eq=False)
class DeviceStage:
    """A stage ready to be run, by several threads.

    A stage of kind ``lazy`` is walked tree after tree and acquires a feature when a node tests it;
    any other acquires all its features and runs its model.

    Attributes
    ----------
    index : int
        Its place among the stages.
    spec : StageSpec
        The manifest's description of it.
    rule : StopRule
        What makes the stop score of its outputs.
    inputs : ndarray of intp, shape (k,)
        Its features, all that it may acquire, in the order of its model's columns.
    threshold : float or None
        The active operating point's, rounded to float32 as scores are; None never stops.
    model : StageModel
        What gives its margins.
    columns : list of int
        The `inputs` as Python's numbers.
    """

    index: int
    spec: StageSpec
    rule: StopRule
    inputs: NDArray[np.intp]
    threshold: float | None
    model: StageModel
    columns: list[int]

    def visit(self, reading: Reading, *, allow_missing: bool) -> StageOutput:
        """Run the stage for one instance; `reading` acquires what it needs.

        `allow_missing` says whether values may be NaN. Raises SensorError if a feature cannot be
        acquired or is refused; what was acquired before it is paid.
        """
        model = self.model
        if not isinstance(model, Walker):
            x = reading.acquire(self.inputs, allow_missing=allow_missing)
            return StageOutput(self, model.run_row(x))
        value_of = reading.one_by_one(self.columns, allow_missing=allow_missing)
        return StageOutput(self, model.walk(value_of)[0].tolist())

    def run(self, x: Matrix) -> Matrix:
        """Run the stage for instances with all inputs at hand; shapes (n, k) to (n, n_outputs)."""
        return self.model.run(x)


def run_stages(
    stages: Sequence[DeviceStage],
    reading: Reading,
    outputs: list[StageOutput],
    *,
    allow_missing: bool,
) -> bool:
    """Run stages on one instance until one stops; return whether one did.

    Each stage's output is appended to `outputs`. Raises SensorError as :meth:`DeviceStage.visit`.
    """
    for stage in stages:
        output = stage.visit(reading, allow_missing=allow_missing)
        outputs.append(output)
        if output.stops(stage.threshold):
            return True
    return False
