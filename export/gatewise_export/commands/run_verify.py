"""Check a bundle on the rows of a table, for ``gatewise verify --data``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise.columns.cells import UNKNOWN_CLASS, class_indices
from gatewise.console import print_table
from gatewise.errors import InputError
from gatewise.formats import plural
from gatewise.models.opaque_models import PYTHON_PREFIX
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.bundle.decisions import CloudAnswers, Decisions
from gatewise_export.bundle.errors import VerifyReport
from gatewise_export.bundle.manifest import Manifest
from gatewise_export.packing.verification import CloudFunction, graph_decisions, verify_graphs

#: Share of rows with implausible values above which there is a remark. A few outliers are normal.
MAX_IMPLAUSIBLE_SHARE = 0.01


def backend_function(bundle: Bundle, backend: str) -> CloudFunction:
    """Make a function that answers rows with the high-cost model of a backend."""
    from gatewise_training.learners.high_cost_model import HighCostModel

    manifest = bundle.manifest
    if manifest.cloud is None or manifest.cloud.backend is None:
        raise InputError(f"{bundle.path} contains its high-cost model: leave out --backend")
    if not backend.startswith(PYTHON_PREFIX):
        raise InputError(f"--backend {backend}: give python:module:attribute")
    inputs = manifest.cloud_inputs()
    model = HighCostModel.from_model(backend, np.array(manifest.classes), len(inputs))
    return lambda rows: CloudAnswers(*model.answers(np.ascontiguousarray(rows[:, inputs])))


def check_data(
    bundle: Bundle, source: str, target: str | None, cloud_function: CloudFunction | None = None
) -> tuple[VerifyReport, dict[str, Any]]:
    """Compare a bundle's graphs with its flat arrays on the rows of a table.

    Returns the comparison, and a dict of figures: ``cost``, ``offload_rate``, for labelled rows
    ``accuracy`` (``r2`` for a regressor, nothing for a ranker), and a list ``remarks`` if it is not
    empty.
    """
    manifest = bundle.manifest
    if bundle.absent_files():
        raise InputError(
            f"{bundle.path} is a bundle for devices, without {bundle.absent_files()[0]}: leave out "
            "--data, or verify the full bundle"
        )
    if manifest.cloud is not None and manifest.cloud.backend is not None and cloud_function is None:
        raise InputError(
            f"the high-cost model of {bundle.path} runs in a backend, {manifest.cloud.backend}: "
            "give --backend python:module:attribute, or leave out --data"
        )
    rows, labels = _read_rows(bundle, source, target)
    _check_missing(rows, manifest, source)
    decisions = graph_decisions(
        bundle, rows, cloud_answers=None if cloud_function is None else cloud_function(rows)
    )
    quality_figures = (
        {} if labels is None else _quality_figures(decisions, labels, manifest, source)
    )
    figures: dict[str, Any] = quality_figures | {
        "cost": float(decisions.costs.mean()),
        "offload_rate": float(np.mean(decisions.exits == len(manifest.stages))),
    }
    remarks = _implausibility_remarks(bundle, rows)
    if labels is None and manifest.task != "rank":
        remark = f"{source} has no label, so accuracy is not measured: name it with --target NAME"
        remarks = [remark, *remarks]
    if remarks:
        figures["remarks"] = remarks
    return verify_graphs(bundle, rows, decisions), figures


def _read_rows(
    bundle: Bundle, source: str, target: str | None
) -> tuple[NDArray[np.float32], NDArray[Any] | None]:
    """Read the rows and labels of a table of windows, arrays, features or raw columns."""
    # imported here, because a check without data needs no package of training
    from gatewise_training.data import datasets
    from gatewise_training.data.table_files import load_instances

    manifest = bundle.manifest
    if manifest.signal is not None:
        bundle.read_block_models()
        instances, labels = load_instances(source, target or label_array_name(source))
        return manifest.signal.features(instances), labels
    if manifest.instance is not None:
        instances, labels = load_instances(source, target or label_array_name(source))
        return manifest.instance.flat(instances), labels
    if manifest.encoder is None and Path(source).suffix.lower() not in (".csv", ".parquet"):
        dataset = datasets.load(source, target=target)
        return np.ascontiguousarray(dataset.columns(manifest.feature_names, source)), dataset.y
    return datasets.read_rows(source, manifest.column_names, manifest.encoder, target=target)


def label_array_name(source: str) -> str | None:
    """Name of the label array in an npz file with the arrays X and y; None for other files."""
    from gatewise_training.data.table_files import arrays_of

    if Path(source).suffix.lower() != ".npz" or not Path(source).is_file():
        return None
    return "y" if {"X", "y"} <= arrays_of(Path(source)).keys() else None


def list_comparisons(bundle: Bundle, *, with_data: bool, backend: str | None = None) -> list[str]:
    """List the comparisons that ``gatewise verify`` makes, as lines of text."""
    manifest = bundle.manifest
    answer_noun = "value" if manifest.answers_values else "label"
    n_stages = len(manifest.stages)
    lines = [f"size and SHA-256 of {len(manifest.files)} files"]
    if bundle.signed_by is not None:
        lines.append(f"signature of the manifest by key {bundle.signed_by}")
    lines.append(
        f"sample: every output of {plural(n_stages, 'stage')}, exit, {answer_noun} and cost, "
        "compared with training"
    )
    if with_data:
        files = ", ".join(stage.arrays for stage in manifest.stages if stage.arrays is not None)
        if files:
            lines.append(f"data: the same, compared with the flat arrays in {files}")
        lines += [
            f"data: {stage.graph} runs; it is a given graph without flat arrays to compare with"
            for stage in manifest.stages
            if stage.kind == "graph"
        ]
    # the high-cost model, and the stages of other operating points
    if bundle.absent_files():
        lines.append(f"not run: {bundle.absent_files()[0]}, which is not in a bundle for devices")
    elif backend is not None:
        lines.append(f"high-cost model: label and probabilities of the sample, by {backend}")
    elif manifest.cloud is not None and manifest.cloud.backend is not None:
        lines.append(
            f"not run: the high-cost model, which runs in a worker's backend, "
            f"{manifest.cloud.backend}"
        )
    elif manifest.cloud is not None:
        lines.append("high-cost model: label and probabilities of the sample")
    n_unused = len(manifest.every_stage) - n_stages
    if n_unused:
        lines.append(f"not run: {plural(n_unused, 'stage')} of other operating points")
    return lines


def _quality_figures(
    decisions: Decisions, labels: NDArray[Any], manifest: Manifest, source: str
) -> dict[str, float]:
    """Accuracy or R² of the answers; empty for a ranker, because a table has no queries."""
    if manifest.task == "classify":
        true_classes = _class_indices(labels, manifest, source)
        return {"accuracy": float(np.mean(decisions.labels == true_classes))}
    if manifest.task == "rank":
        return {}
    try:
        true_values = np.asarray(labels, np.float64)
    except ValueError as error:
        raise InputError(
            f"{source}: the bundle predicts values, but a label is not a number"
        ) from error
    # R² = 1 - sum (y - answer)² / sum (y - mean y)²
    sum_of_squared_errors = ((true_values - decisions.labels.astype(np.float64)) ** 2).sum()
    total_sum_of_squares = ((true_values - true_values.mean()) ** 2).sum()
    if total_sum_of_squares == 0:
        return {"r2": float("nan")}
    return {"r2": float(1.0 - sum_of_squared_errors / total_sum_of_squares)}


def _implausibility_remarks(bundle: Bundle, rows: NDArray[np.float32]) -> list[str]:
    """Remark on rows with values far outside the training ranges, if there are many."""
    ranges = bundle.ranges()
    if ranges is None:
        return []
    lowest, highest = ranges.features.limits()
    # values of a raw window come after the features; an array has a single range for all values
    checked_values = rows if len(lowest) == 1 else rows[:, : len(lowest)]
    is_outside = (checked_values < lowest) | (checked_values > highest)
    n_rows = int(is_outside.any(axis=1).sum())
    if n_rows <= MAX_IMPLAUSIBLE_SHARE * len(rows):
        return []
    column = bundle.manifest.feature_column_names[int(is_outside.sum(axis=0).argmax())]
    return [
        f"{n_rows:,} of these {len(rows):,} rows have values far outside the training ranges, most "
        f"often in column {column!r}. Devices treat them as implausible: check the column's unit."
    ]


def _check_missing(rows: NDArray[np.float32], manifest: Manifest, source: str) -> None:
    """Refuse rows without a value that a stage or the high-cost model requires."""
    requires_value = np.zeros(rows.shape[1], bool)
    if manifest.missing.stages == "refused":
        for stage_index in range(len(manifest.stages)):
            requires_value[manifest.stage_inputs(stage_index)] = True
    if manifest.missing.cloud == "refused":
        requires_value[manifest.cloud_inputs()] = True
    refused_columns = np.flatnonzero(np.isnan(rows).any(axis=0) & requires_value)
    if len(refused_columns):
        raise InputError(
            f"{source}: column {manifest.feature_names[refused_columns[0]]!r} is empty (NaN) in "
            "some rows, but the bundle accepts no missing values: leave out these rows"
        )


def _class_indices(labels: NDArray[Any], manifest: Manifest, source: str) -> NDArray[np.int64]:
    indices = class_indices(labels.tolist(), manifest.classes)
    unknown_rows = np.flatnonzero(indices == UNKNOWN_CLASS)
    if len(unknown_rows):
        raise InputError(
            f"{source}: label {labels.tolist()[unknown_rows[0]]!r} is not among the bundle's "
            "classes"
        )
    return indices


def _figure_text(figure: int | float) -> str:
    """Format a count in full, and other figures with six digits."""
    return f"{figure:,}" if isinstance(figure, int) else f"{figure:.6g}"


def print_checks(checks: dict[str, Any], comparisons: Sequence[str]) -> None:
    """Print the figures of `gatewise verify` and the list of its comparisons.

    `checks` has the report of each check by its name. A figure that no report has is omitted.
    """
    text_of_figure = {
        "rows": "rows",
        "differing_decisions": "differing decisions",
        "differing_labels": "differing labels or values",
        "differing_costs": "differing costs",
        "max_margin_difference": "largest difference of a margin",
        "cloud_label_differences": "differing labels of the high-cost model",
        "cloud_probability_max_difference": "largest difference of its probabilities",
        "accuracy": "accuracy",
        "r2": "R²",
        "cost": "mean cost",
        "offload_rate": "offloaded",
    }
    rows = [
        (text, *(_figure_text(report[key]) if key in report else "" for report in checks.values()))
        for key, text in text_of_figure.items()
        if any(key in report for report in checks.values())
    ]
    print_table("verify", ("", *checks), rows)
    print()
    for line in comparisons:
        print(f"checked: {line}")
    for remark in checks.get("data", {}).get("remarks", ()):
        print(f"note: {remark}")
