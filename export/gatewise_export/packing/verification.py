"""Compare a bundle's decisions with decisions that are computed in other ways.

As on devices and workers, onnxruntime runs the bundle's graphs, and numpy runs lazy trees. The
resulting decisions are compared with

- decisions of the fitted system that the bundle was written from (:func:`verify`);
- decisions of the flat arrays, summed in numpy (:func:`verify_graphs`);
- the outputs stored in ``sample.npz`` (:func:`self_test`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gatewise.decision import Link, class_positions, labels, probabilities
from gatewise.errors import InputError, one_line
from gatewise.imports import open_session
from gatewise.models.booster_files import BoosterFile
from gatewise.models.trees import TreeEnsemble
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.bundle.decisions import (
    CloudAnswers,
    Decisions,
    decide_rows,
    differing_windows,
)
from gatewise_export.bundle.errors import BundleError, VerifyReport
from gatewise_export.bundle.flat_models import MAX_MODEL_BYTES
from gatewise_export.bundle.manifest_records import CloudKind, StageSpec
from gatewise_export.onnx_writer import write_graph

if TYPE_CHECKING:
    import pandas as pd

    from gatewise_training.cascades.base import BudgetedClassifier

#: A high-cost model as a function of rows with all features.
CloudFunction = Callable[[NDArray[np.float32]], CloudAnswers]

#: Number of rows per run. It bounds the memory of a kernel machine's graph, which is proportional
#: to rows times landmarks times features.
BATCH_ROWS = 256


class HighCostAnswers(NamedTuple):
    """The answers of a high-cost model, and of its graph in the bundle, to the same rows.

    Both are None for a system without a high-cost model.
    """

    model: CloudAnswers | None
    graph: CloudAnswers | None

    @classmethod
    def of_system(
        cls, system: BudgetedClassifier, bundle: Bundle, rows: NDArray[np.float32]
    ) -> HighCostAnswers:
        """Compute the answers; an opaque model has no graph, so its answers are used for both."""
        high_cost_model = system.high_cost_model_
        if high_cost_model is None:
            return cls(None, None)
        model_answers = CloudAnswers(*high_cost_model.answers(rows))
        if _has_backend(bundle):
            return cls(model_answers, model_answers)
        return cls(model_answers, _cloud_answers(bundle, rows))


def verify(
    system: BudgetedClassifier,
    bundle: Bundle,
    X: ArrayLike,
    *,
    high_cost: HighCostAnswers | None = None,
) -> VerifyReport:
    """Compare a bundle's graphs with its fitted system, at the bundle's active point.

    Parameters
    ----------
    system : fitted system
    bundle : Bundle
        Bundle of this system, written by :func:`pack`.
    X : array-like of shape (n, n_features)
        Rows to compare on; a DataFrame of raw columns if the bundle has encoders.
    high_cost : HighCostAnswers, optional
        Answers of the high-cost model to these rows, if known.

    Returns
    -------
    VerifyReport

    Raises
    ------
    BundleError
        If a graph cannot be run.
    InputError
        If `bundle` is not a Bundle, or `X` does not hold numbers.
    """
    if not isinstance(bundle, Bundle):
        raise InputError(
            f"verify(system, bundle, X) takes a fitted system and its Bundle, not a "
            f"{type(bundle).__name__}"
        )
    from gatewise_training.data.frames import as_pandas

    table: Any = as_pandas(X)
    if bundle.manifest.encoder is not None:
        from gatewise_training.data.table_encoder import encode_table

        table = encode_table(bundle.manifest.encoder, table)
    if hasattr(system, "signal_input_"):
        table = system.signal_input_.features(table)
        system = on_features(system)
    rows = _float_matrix(table)
    if high_cost is None:
        high_cost = HighCostAnswers.of_system(system, bundle, rows)
    named_rows = table if hasattr(table, "columns") else _with_column_names(system, rows)
    decisions_of_graphs = graph_decisions(bundle, rows, cloud_answers=high_cost.graph)
    return _report_differences(
        decisions_of_graphs, _system_decisions(system, named_rows, rows, high_cost.model)
    )


def _system_decisions(
    system: BudgetedClassifier,
    named_rows: NDArray[np.float32] | pd.DataFrame,
    rows: NDArray[np.float32],
    cloud_answers: CloudAnswers | None,
) -> Decisions:
    """Compute the decisions of a fitted system, given its high-cost model's answers."""
    exits = system.exit_stage(named_rows)
    # predict only the rows that a stage answers, because the high-cost model may be slow
    if cloud_answers is None:
        is_local = np.ones(len(rows), np.bool_)
        decided_labels: NDArray[Any] = np.zeros(len(rows), np.float32)
    else:
        is_local = exits < len(system.stages_)
        decided_labels = cloud_answers.labels.copy()
    if is_local.any():
        local_answers = system.predict(named_rows[is_local])
        if hasattr(system, "classes_"):
            local_answers = class_positions(np.asarray(system.classes_), local_answers)
            decided_labels = decided_labels.astype(np.int64)
        decided_labels[is_local] = local_answers
    return Decisions(
        margins=tuple(stage.margins(rows) for stage in system.stages_),
        exits=exits,
        labels=decided_labels,
        costs=system.cost(named_rows),
        cloud_answers=cloud_answers,
    )


def on_features(system: BudgetedClassifier) -> BudgetedClassifier:
    """Copy a system that reads windows; the copy reads the features of its blocks instead."""
    system_copy = copy.copy(system)
    system_copy.__dict__.pop("signal_input_", None)
    return system_copy


def _has_backend(bundle: Bundle) -> bool:
    """Whether the high-cost model is opaque and runs in a backend."""
    cloud = bundle.manifest.cloud
    return cloud is not None and cloud.backend is not None


def _float_matrix(X: ArrayLike) -> NDArray[np.float32]:
    """Convert rows to float32 (n, n_features); arrays are flattened."""
    try:
        rows = np.ascontiguousarray(X, np.float32)
    except (TypeError, ValueError) as error:
        raise InputError(f"rows must hold numbers: {error}") from None
    return rows if rows.ndim <= 2 else rows.reshape(len(rows), -1)


def _with_column_names(
    system: BudgetedClassifier, rows: NDArray[np.float32]
) -> NDArray[np.float32] | pd.DataFrame:
    """Convert rows to a table with column names, if the system was fitted on a table."""
    if not hasattr(system, "feature_names_in_"):
        return rows
    import pandas as pd

    return pd.DataFrame(rows, columns=system.feature_names_in_)


def verify_graphs(bundle: Bundle, X: ArrayLike, decisions: Decisions | None = None) -> VerifyReport:
    """Compare the graphs of a bundle with its flat arrays, summed in numpy.

    Given graphs and the high-cost model have no flat arrays and are not compared.

    Parameters
    ----------
    bundle : Bundle
    X : array-like of shape (n, n_features)
        Rows, in the order of the manifest's features.
    decisions : Decisions, optional
        Result of :func:`graph_decisions` for these rows, if known.

    Returns
    -------
    VerifyReport
    """
    rows = _float_matrix(X)
    decisions_of_graphs = graph_decisions(bundle, rows) if decisions is None else decisions
    manifest = bundle.manifest
    margins = []
    acquired_masks = []
    for stage_index, stage_spec in enumerate(manifest.stages):
        if stage_spec.kind == "graph":  # it has no flat arrays to compare with
            margins.append(decisions_of_graphs.margins[stage_index])
            acquired_masks.append(manifest.acquired_mask(stage_index))
            continue
        stage = bundle.read_stage(stage_index)
        margins.append(stage.margins(rows))
        acquired_masks.append(stage.acquired(rows))
    expected_decisions = decide_rows(
        manifest, margins, acquired_masks, decisions_of_graphs.cloud_answers
    )
    return _report_differences(decisions_of_graphs, expected_decisions)


def self_test(bundle: Bundle, cloud_function: CloudFunction | None = None) -> VerifyReport:
    """Compare the graphs of a bundle on this machine with the outputs stored in its sample.

    Parameters
    ----------
    bundle : Bundle
    cloud_function : CloudFunction, optional
        High-cost model of a backend.

    Returns
    -------
    VerifyReport

    Raises
    ------
    BundleError
        If a graph cannot be run, or the blocks compute other features than at packing.
    """
    sample = bundle.sample()
    bundle.read_block_models()
    if n_differing := int(differing_windows(bundle.manifest, sample).sum()):
        raise BundleError(
            f"{bundle}: for {n_differing} sample windows the blocks compute other features on this "
            "machine than at packing"
        )
    expected_cloud_answers = None
    if bundle.manifest.cloud is not None:
        expected_cloud_answers = CloudAnswers(sample["cloud_label"], sample["cloud_probabilities"])
    expected_decisions = Decisions(
        margins=tuple(
            sample[f"stage_{stage_index}"] for stage_index in range(len(bundle.manifest.stages))
        ),
        exits=sample["exit"],
        labels=sample["label"],
        costs=sample["cost"],
        cloud_answers=expected_cloud_answers,
    )
    cloud_answers: CloudAnswers | None = None
    if cloud_function is not None:
        cloud_answers = cloud_function(sample["X"])
    elif bundle.absent_files() or _has_backend(bundle):
        # the high-cost model cannot run, so use its expected answers
        cloud_answers = expected_cloud_answers
    return _report_differences(
        graph_decisions(bundle, sample["X"], cloud_answers=cloud_answers), expected_decisions
    )


def graph_decisions(
    bundle: Bundle, rows: NDArray[np.float32], *, cloud_answers: CloudAnswers | None = None
) -> Decisions:
    """Run every graph of a bundle on all rows; skip the cloud's if `cloud_answers` are known."""
    manifest = bundle.manifest
    margins = []
    acquired_masks = []
    for stage_index, stage_spec in enumerate(manifest.stages):
        stage_rows = rows[:, manifest.stage_inputs(stage_index)]
        outputs, acquired_inputs = _stage_outputs(bundle, stage_spec, stage_rows)
        if outputs.shape != (len(rows), stage_spec.outputs) or outputs.dtype != np.float32:
            raise BundleError(
                f"{bundle}: stage {stage_index} outputs {outputs.dtype} of shape {outputs.shape}, "
                f"not float32 of shape {(len(rows), stage_spec.outputs)}"
            )
        margins.append(outputs)
        acquired_masks.append(manifest.acquired_mask(stage_index, acquired_inputs))
    if cloud_answers is None:
        cloud_answers = _cloud_answers(bundle, rows)
    return decide_rows(manifest, margins, acquired_masks, cloud_answers)


def _stage_outputs(
    bundle: Bundle, stage_spec: StageSpec, rows: NDArray[np.float32]
) -> tuple[NDArray[np.float32], NDArray[np.bool_] | None]:
    """Run a stage on rows of its inputs; also return the inputs that a lazy stage acquires."""
    model = None if stage_spec.kind == "graph" else bundle.read_model(stage_spec)
    if isinstance(model, TreeEnsemble) and stage_spec.kind == "lazy":
        return model.run_and_visit(rows)
    assert stage_spec.graph is not None  # only lazy stages have no graph
    content = bundle.read(stage_spec.graph, max_bytes=MAX_MODEL_BYTES)
    if model is not None and content != write_graph(model):
        raise BundleError(
            f"{bundle}: {stage_spec.graph} differs from the graph of {stage_spec.arrays}"
        )
    # run a given graph one row at a time, as on devices; many rows may be summed in another order
    batch_rows = 1 if model is None else BATCH_ROWS
    return run_graph(content, rows, stage_spec.graph, batch_rows)[0], None


def run_graph(
    content: bytes, rows: NDArray[np.float32], name: str, batch_rows: int = BATCH_ROWS
) -> list[NDArray[Any]]:
    """Run an ONNX file with onnxruntime and return its outputs in order.

    Raises BundleError if onnxruntime cannot run the file.
    """
    try:
        session = open_session(content)
        input_name = session.get_inputs()[0].name
        batches = [
            session.run(None, {input_name: np.ascontiguousarray(rows[start : start + batch_rows])})
            for start in range(0, max(len(rows), 1), batch_rows)
        ]
    except Exception as error:  # onnxruntime's errors have no common base class
        raise BundleError(f"onnxruntime cannot run {name}: {one_line(error)}") from error
    return [np.concatenate(outputs) for outputs in zip(*batches, strict=True)]


def run_cloud(
    content: bytes, rows: NDArray[np.float32], kind: CloudKind, link: Link, n_classes: int
) -> CloudAnswers:
    """Compute the answers of a high-cost model's file."""
    if kind == "margins":
        (margins,) = run_graph(content, rows, "cloud.onnx")
        return CloudAnswers(labels(margins), probabilities(margins, link))
    if kind == "classifier":
        return CloudAnswers(*run_graph(content, rows, "cloud.onnx"))
    try:
        class_probabilities = BoosterFile(kind, content, n_classes).predict_proba(rows)
    except InputError as error:
        raise BundleError(f"high-cost model: {error}") from None
    class_indices = np.asarray(class_probabilities.argmax(axis=1), np.int64)
    return CloudAnswers(class_indices, class_probabilities)


def _cloud_answers(bundle: Bundle, rows: NDArray[np.float32]) -> CloudAnswers | None:
    """Run the high-cost model's file, and check the shapes of its outputs."""
    cloud = bundle.manifest.cloud
    if cloud is None:
        return None
    if cloud.backend is not None:
        raise BundleError(
            f"{bundle}: the high-cost model is not in the bundle: it runs in the backend "
            f"{cloud.backend}"
        )
    content = bundle.read(cloud.file)
    inputs = rows[:, bundle.manifest.cloud_inputs()]
    n_classes = bundle.manifest.n_classes
    answers = run_cloud(content, inputs, cloud.kind, cloud.link, n_classes)
    shape = (len(rows), n_classes)
    if (
        answers.labels.shape != shape[:1]
        or answers.labels.dtype != np.int64
        or answers.probabilities.shape != shape
    ):
        raise BundleError(
            f"{bundle}: {cloud.file} outputs labels of {answers.labels.dtype} and shape "
            f"{answers.labels.shape}, and probabilities of shape {answers.probabilities.shape}; "
            f"expected int64 {shape[:1]} and {shape}"
        )
    return answers


def _report_differences(decisions: Decisions, expected_decisions: Decisions) -> VerifyReport:
    """Count the rows with different decisions, and measure the differences of outputs."""
    cloud_label_differences = 0
    cloud_probability_difference = 0.0
    if decisions.cloud_answers is not None and expected_decisions.cloud_answers is not None:
        cloud_label_differences = _count_differing(
            decisions.cloud_answers.labels, expected_decisions.cloud_answers.labels
        )
        cloud_probability_difference = _largest_difference(
            decisions.cloud_answers.probabilities, expected_decisions.cloud_answers.probabilities
        )
    return VerifyReport(
        rows=len(expected_decisions.exits),
        differing_decisions=_count_differing(decisions.exits, expected_decisions.exits),
        differing_labels=_count_differing(decisions.labels, expected_decisions.labels),
        differing_costs=_count_differing(decisions.costs, expected_decisions.costs),
        max_margin_difference=max(
            map(_largest_difference, decisions.margins, expected_decisions.margins)
        ),
        cloud_label_differences=cloud_label_differences,
        cloud_probability_max_difference=cloud_probability_difference,
    )


def _count_differing(values: NDArray[Any], expected_values: NDArray[Any]) -> int:
    return int(np.count_nonzero(values != expected_values))


def _largest_difference(values: NDArray[Any], expected_values: NDArray[Any]) -> float:
    """Largest difference of two arrays; NaN equals NaN and is infinitely far from numbers."""
    if not values.size:
        return 0.0
    differences = np.abs(values.astype(np.float64) - expected_values.astype(np.float64))
    is_same = (values == expected_values) | (np.isnan(values) & np.isnan(expected_values))
    return float(np.where(is_same, 0.0, np.nan_to_num(differences, nan=np.inf)).max())
