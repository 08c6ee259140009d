"""Self-test of a bundle, which compares this device's results with those recorded at packing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gatewise.imports import CPU, PROVIDER_TOLERANCE
from gatewise_edge.device.stages import DeviceStage, StageOutput, load_stages
from gatewise_edge.errors import SelfTestError
from gatewise_edge.sensors.feature_reader import Meter, Reading
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.bundle.decisions import differing_windows

#: Relative and absolute tolerance for the margins of a given graph on another kind of machine,
#: which may sum float32 values in another order.
MARGIN_TOLERANCE: Final = 1e-3
#: Number of sample rows that a flat model also runs one by one. onnxruntime uses a different
#: method for a single row than for many, and any row reveals a difference.
N_SINGLE_ROWS: Final = 4


def self_test(
    bundle: Bundle,
    stages: Sequence[DeviceStage] | None = None,
    *,
    with_blocks: bool = True,
    provider: str = CPU,
) -> int:
    """Run the sample of `bundle`, compare with the packed outputs, and return the number of rows.

    A flat model runs all rows together, and the first :data:`N_SINGLE_ROWS` also one by one. Graphs
    that the user gave, and trees that acquire node by node, run one row at a time, as on a device.

    Margins must be equal bit for bit, so that exits and labels are equal as well. A stage that
    acquires node by node must acquire the same features. A given graph may sum in another order on
    another kind of machine. Its margins may therefore differ by :data:`MARGIN_TOLERANCE`, and rows
    with such a difference may exit at another stage.

    Parameters
    ----------
    bundle : Bundle
    stages : sequence of DeviceStage, optional
        Stages of the bundle; by default they are loaded.
    with_blocks : bool, default True
        Whether to compute the features of the sample's windows as well.
    provider : str, default "cpu"
        Execution provider of given graphs. On a provider other than the CPU the margins may differ,
        but every row must get the same label, and probabilities within
        :data:`.PROVIDER_TOLERANCE`.

    Raises
    ------
    SelfTestError
        If anything differs. The message states the number of rows.
    BundleError
        If the bundle has no usable sample.
    """
    # Run the stages on the sample, which is read and checked before any graph is opened.
    sample = bundle.sample()
    stages = load_stages(bundle) if stages is None else stages
    X = sample["X"]
    meter = Meter(bundle.manifest.feature_costs())
    stage_runs = [_run_stage(stage, X, meter) for stage in stages]
    outputs_by_row = list(zip(*(stage_run.outputs for stage_run in stage_runs), strict=True))
    last_exit = bundle.manifest.last_exit
    exits_and_labels = [
        _find_exit_and_label(row_outputs, last_exit) for row_outputs in outputs_by_row
    ]
    exits, labels = (np.array(values) for values in zip(*exits_and_labels, strict=True))
    # Compare the features and the outputs of each stage.
    differences: dict[str, int] = {}
    has_equal_margins = np.ones(len(X), np.bool_)
    if with_blocks:
        differences["features"] = int(differing_windows(bundle.manifest, sample).sum())
    for stage_index, (stage, stage_run) in enumerate(zip(stages, stage_runs, strict=True)):
        expected_margins = sample[f"stage_{stage_index}"]
        has_other_bits = _mark_other_bits(stage_run, expected_margins)
        is_refused = has_other_bits
        if stage.spec.kind == "graph":
            has_equal_margins &= ~has_other_bits
            is_refused = ~_mark_tolerable_rows(stage, stage_run.margins, expected_margins, provider)
        differences[f"stage_{stage_index}"] = int(np.count_nonzero(is_refused))
        if f"bought_{stage_index}" in sample:
            has_other_inputs = (stage_run.acquired != sample[f"bought_{stage_index}"]).any(axis=1)
            differences[f"bought_{stage_index}"] = int(np.count_nonzero(has_other_inputs))
    # Compare the decisions, in rows with equal margins.
    differences["exit"] = int(np.count_nonzero((exits != sample["exit"]) & has_equal_margins))
    is_on_device = (exits < len(stages)) & has_equal_margins
    differences["label"] = int(np.count_nonzero((labels != sample["label"]) & is_on_device))
    differences = {name: count for name, count in differences.items() if count}
    if differences:
        listing = ", ".join(
            f"{name} in {count} of {len(X)} rows" for name, count in differences.items()
        )
        raise SelfTestError(
            f"bundle {bundle.path} gives other results here than where it was packed: {listing}",
            differences,
        )
    return len(X)


class _StageRun(NamedTuple):
    """A stage's outputs for the n sample rows.

    `single_row_margins` are the margins of the first rows, which ran one by one, shape
    (n_single_rows, n_outputs). `acquired` marks the inputs that the stage acquires in each row,
    shape (n, n_inputs).
    """

    outputs: list[StageOutput]
    single_row_margins: NDArray[np.float32]
    acquired: NDArray[np.bool_]

    @property
    def margins(self) -> NDArray[np.float32]:
        """Margins of all rows, shape (n, n_outputs)."""
        return np.array([output.outputs for output in self.outputs], np.float32)


def _run_stage(stage: DeviceStage, X: NDArray[np.float32], meter: Meter) -> _StageRun:
    """Run a stage on all sample rows, without the stages before it; see :func:`self_test`."""
    readings = [Reading(row, meter, lambda: math.inf) for row in X]
    is_flat = stage.spec.kind not in ("lazy", "graph")
    outputs = [
        stage.run_instance(reading, allow_missing=True)
        for reading in (readings[:N_SINGLE_ROWS] if is_flat else readings)
    ]
    single_row_margins = np.array([output.outputs for output in outputs], np.float32)
    if is_flat:
        rows = [reading.acquire(stage.inputs, allow_missing=True) for reading in readings]
        outputs = [StageOutput(stage, margins) for margins in stage.run(np.stack(rows)).tolist()]
    acquired = np.stack([reading.acquired[stage.inputs] for reading in readings])
    return _StageRun(outputs, single_row_margins, acquired)


def _find_exit_and_label(outputs: Sequence[StageOutput], last_exit: int) -> tuple[int, int | float]:
    """Exit of one instance, or the number of stages if none stops, and the last stage's label."""
    exit_stage = next(
        (stage_index for stage_index, output in enumerate(outputs) if output.stops), len(outputs)
    )
    exit_stage = min(exit_stage, last_exit)
    output = outputs[min(exit_stage, len(outputs) - 1)]
    return exit_stage, output.stage.rule.row_outcome(output.outputs, output.stage.spec.link)[0]


def _mark_other_bits(
    stage_run: _StageRun, expected_margins: NDArray[np.float32]
) -> NDArray[np.bool_]:
    """Mark rows with margins that differ in any bit, in the run of all rows or of single rows."""
    has_other_bits = _mark_different_bits(stage_run.margins, expected_margins)
    single_row_margins = stage_run.single_row_margins
    n_single_rows = len(single_row_margins)
    has_other_bits[:n_single_rows] |= _mark_different_bits(
        single_row_margins, expected_margins[:n_single_rows]
    )
    return has_other_bits


def _mark_tolerable_rows(
    stage: DeviceStage,
    margins: NDArray[np.float32],
    expected_margins: NDArray[np.float32],
    provider: str,
) -> NDArray[np.bool_]:
    """Mark rows on which a given graph's margins, or another provider's answers, are close."""
    if provider != CPU:
        return _mark_equal_answers(stage, margins, expected_margins)
    tolerances = {"rtol": MARGIN_TOLERANCE, "atol": MARGIN_TOLERANCE}
    is_close = np.isclose(margins, expected_margins, equal_nan=True, **tolerances)
    return np.asarray(is_close.all(axis=1))


def _mark_equal_answers(
    stage: DeviceStage, margins: NDArray[np.float32], expected_margins: NDArray[np.float32]
) -> NDArray[np.bool_]:
    """Mark rows with the same label, and with probabilities within the tolerance of a provider."""
    link = stage.spec.link
    row_outcome = stage.rule.row_outcome
    is_equal = np.zeros(len(margins), np.bool_)
    for row, (row_margins, expected_row) in enumerate(
        zip(margins.tolist(), expected_margins.tolist(), strict=True)
    ):
        label, probabilities = row_outcome(row_margins, link)
        expected_label, expected_probabilities = row_outcome(expected_row, link)
        errors = np.abs(probabilities - expected_probabilities)
        is_equal[row] = label == expected_label and (errors <= PROVIDER_TOLERANCE).all()
    return is_equal


def _mark_different_bits(
    margins: NDArray[np.float32], expected_margins: NDArray[np.float32]
) -> NDArray[np.bool_]:
    """Mark rows that differ in any bit; all NaN are equal."""
    is_same = margins.view(np.uint32) == expected_margins.view(np.uint32)
    is_same |= np.isnan(margins) & np.isnan(expected_margins)
    is_different: NDArray[np.bool_] = ~is_same.all(axis=1)
    return is_different
