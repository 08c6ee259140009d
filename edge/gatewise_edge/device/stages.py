"""The stages of a bundle, run one after the other until one stops.

Margins come from a stage's graph, in onnxruntime or in numpy, or from its trees; stop score, label
and probabilities are computed by :mod:`gatewise.decision`, as where training chose thresholds. A
device decides one row at a time, in plain floats: numpy's calls for one row would take several
times as long as the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gatewise.decision import STOP_RULES, StopRule, as_float32, row_answer, row_probabilities
from gatewise_edge.device.stage_models import Runner, StageModel, load_stage_models
from gatewise_edge.device.walker import Walker
from gatewise_edge.sensors.feature_reader import Reading
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.bundle.manifest_records import StageSpec

Matrix = NDArray[np.float32]


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
        return row_answer(self.rule.row_margins(self.outputs), self.link)

    @property
    def probabilities(self) -> NDArray[np.float64]:
        """Class probabilities, shape (n_classes,); (0,) for a value."""
        return row_probabilities(self.rule.row_margins(self.outputs), self.link)


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
        """Run the stage for one instance; `reading` acquires its features.

        `allow_missing` says whether values may be NaN. Raises SensorError if a feature cannot be
        acquired or is refused; features acquired before it are paid.
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


def load_stages(bundle: Bundle, runner: Runner = "auto") -> tuple[DeviceStage, ...]:
    """Load the stages of a bundle's active operating point.

    The `runner` "auto" is onnxruntime, or where that cannot be imported numpy alone, slower on
    large models and with the same bits. BundleError if a file is not fit to be run, or has other
    inputs or outputs than the manifest says; InputError if this machine lacks the runner.
    """
    manifest = bundle.manifest
    models = load_stage_models(bundle, runner)
    thresholds = manifest.active_point.thresholds
    stages = []
    for s, spec in enumerate(manifest.stages):
        inputs = manifest.stage_inputs(s)
        threshold = as_float32(thresholds[s])
        stages.append(
            DeviceStage(
                index=s,
                spec=spec,
                rule=STOP_RULES[spec.score],
                inputs=inputs,
                threshold=threshold,
                model=models[s],
                columns=inputs.tolist(),
            )
        )
    return tuple(stages)


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
