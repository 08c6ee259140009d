"""Print what a bundle contains: the tables of `gatewise inspect`."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from gatewise.console import print_table
from gatewise.formats import byte_size, threshold
from gatewise_export.commands.figure_texts import (
    MAX_CLASSES_SHOWN,
    accuracy_label,
    format_class_share,
    join_names,
    join_values,
    sort_by_recall,
)

if TYPE_CHECKING:
    from gatewise_export.bundle.manifest import Manifest
    from gatewise_export.bundle.manifest_records import ProbeSpec
    from gatewise_signals.signal_input import SignalInput


def print_bundle(manifest: Manifest, absent_files: Sequence[str] = ()) -> None:
    """Print the tables of `gatewise inspect`; `absent_files` lists files that are left out."""
    file_sizes = [
        file_spec.size for name, file_spec in manifest.files.items() if name not in absent_files
    ]
    answers_line = ("answers", f"values ({manifest.task})")
    if not manifest.answers_values:
        answers_line = (
            "classes",
            f"{manifest.n_classes}: {join_values(manifest.classes, MAX_CLASSES_SHOWN)}",
        )
    missing_text = f"stages: {manifest.missing.stages}, cloud: {manifest.missing.cloud}"
    groups_text = f", {len(manifest.groups)} groups" if manifest.groups else ""
    features_text = (
        f"{len(manifest.features)}, price {manifest.feature_costs().total:g}{groups_text}"
    )
    point_line = f"{manifest.active} of {len(manifest.operating_points)}: {point_text(manifest)}"
    print_table(
        manifest.title,
        ("", ""),
        [
            ("created", manifest.created),
            answers_line,
            *_input_lines(manifest),
            ("features", features_text),
            ("missing values", missing_text),
            *_cloud_lines(manifest),
            ("operating point", point_line),
            ("files", f"{len(file_sizes)}, {byte_size(sum(file_sizes))}, every hash is correct"),
            *_class_lines(manifest),
        ],
    )
    print()
    header = ("stage", "kind", "inputs", "cost up to here", "stops at", "size", "acquires")
    signal = manifest.signal
    # stages on windows acquire steps, which have a table of their own instead of the last column
    n_columns = len(header) - (signal is not None)
    print_table("stages", header[:n_columns], [row[:n_columns] for row in _stage_rows(manifest)])
    if signal is not None:
        _print_steps(manifest, signal)


def _input_lines(manifest: Manifest) -> list[tuple[str, str]]:
    """Lines about the windows or the raw columns that a bundle reads."""
    lines: list[tuple[str, str]] = []
    if (signal := manifest.signal) is not None:
        shape = " x ".join(map(str, signal.shape))
        rate_text = "" if signal.rate_hz is None else f", {signal.rate_hz:g} samples per second"
        lines = [
            ("windows", f"{shape}, {signal.dtype}{rate_text}; {len(signal.graph.blocks)} blocks")
        ]
        units = dict.fromkeys(
            f"{channel.scale:g} {channel.unit}" for channel in signal.channels if channel.unit
        )
        if units:
            lines.append(("unit of a count", ", ".join(units)))
        if (prices := signal.prices) is not None:
            power_text = "" if prices.watts is None else f", at {prices.watts:g} W"
            unit_name = {"us": "microseconds", "uj": "microjoules"}[prices.unit]
            lines.append(("prices", f"{unit_name}{power_text}, measured on {prices.machine}"))
    if manifest.encoder is not None:
        names_of_kind: dict[str, list[str]] = {}
        for column in manifest.encoder.columns:
            names_of_kind.setdefault(column.kind, []).append(column.name)
        lines = [
            (f"columns: {kind}", f"{len(names)}: {join_names(names)}")
            for kind, names in names_of_kind.items()
        ]
    return lines


def _stage_rows(manifest: Manifest) -> list[Sequence[Any]]:
    """Rows of the table of stages; the last row is the cloud."""
    costs_by_exit = manifest.exit_costs().tolist()
    # A lazy stage may acquire only some of its inputs. Its cost and that of every later exit are
    # therefore upper bounds.
    is_upper_bound = list(
        accumulate((stage.kind == "lazy" for stage in manifest.stages), operator.or_)
    )
    new_columns = _new_columns(manifest)
    rows: list[Sequence[Any]] = [
        (
            str(stage_index),
            stage.kind,
            len(stage.inputs),
            f"{'up to ' * is_upper_bound[stage_index]}{costs_by_exit[stage_index]:g}",
            threshold(stop_threshold),
            byte_size(stage.bytes),
            new_columns[stage_index],
        )
        for stage_index, (stage, stop_threshold) in enumerate(
            zip(manifest.stages, manifest.active_point.thresholds, strict=True)
        )
    ]
    if manifest.cloud is not None:
        cloud = manifest.cloud
        cost_text = f"{'up to ' * is_upper_bound[-1]}{costs_by_exit[-1]:g}"
        size_text = byte_size(manifest.files[cloud.file].size)
        rows.append(
            ("cloud", cloud.kind, len(cloud.inputs), cost_text, "", size_text, new_columns[-1])
        )
    return rows


def _new_columns(manifest: Manifest) -> list[str]:
    """Columns of each stage, and last of the cloud, that no earlier stage reads."""
    column_of_feature = dict(
        zip(manifest.feature_names, manifest.feature_column_names, strict=True)
    )
    acquired_columns = set[str]()
    new_columns = []
    for model in (*manifest.stages, manifest.cloud):  # the cloud is None if it is never asked
        columns = dict.fromkeys(column_of_feature[name] for name in (model.inputs if model else ()))
        new_columns.append(join_names([name for name in columns if name not in acquired_columns]))
        acquired_columns |= columns.keys()
    return new_columns


def _print_steps(manifest: Manifest, signal: SignalInput) -> None:
    """Print the steps on a window with their prices and the first stages that read them."""
    first_stage_of_step: dict[str, str] = {}
    for stage_index, stage in enumerate(manifest.stages):
        for block in signal.graph.with_inputs(signal.graph.block_labels(stage.inputs)):
            first_stage_of_step.setdefault(block, str(stage_index))
    prices = {group.name: group.shared for group in manifest.groups}
    print()
    print_table(
        "computed from a window",
        ("step", "price", "first read by stage"),
        [
            (step.label, f"{prices[step.label]:g}", first_stage_of_step.get(step.label, ""))
            for step in signal.graph.steps
        ],
    )


def _cloud_lines(manifest: Manifest) -> list[tuple[str, str]]:
    """Line about the high-cost model's backend, library file or probed graph."""
    cloud = manifest.cloud
    if cloud is None:
        return []
    if cloud.backend is not None:
        return [("high-cost model", f"{cloud.backend}, which runs as a worker's --backend")]
    if cloud.graph_problem is not None:
        file_text = f"a model file of {cloud.kind}, which workers need, because"
        return [("high-cost model", f"{file_text} {cloud.graph_problem}")]
    return [("high-cost model", _probe_text(cloud.probed))] if cloud.probed else []


def print_cloud_lines(manifest: Manifest) -> None:
    """Print the line about the high-cost model."""
    for name, text in _cloud_lines(manifest):
        print(f"{name}: {text}")


def _probe_text(probe: ProbeSpec) -> str:
    """Describe the rows that a conversion was probed on."""
    text = f"its graph answers {probe.rows} adversarial rows as the model does"
    if probe.undecided:
        text += f", except {probe.undecided} rows whose label depends on rounding"
    return text


def _class_lines(manifest: Manifest) -> list[tuple[str, str]]:
    """Lines about the active point's figures by class, if it has them."""
    point = manifest.active_point
    lines = []
    if point.recall is not None and point.precision is not None:
        indices_by_recall = sort_by_recall(point.recall)
        # put the other classes last, where join_values replaces them with dots
        class_indices = [
            *sorted(indices_by_recall[:MAX_CLASSES_SHOWN]),
            *indices_by_recall[MAX_CLASSES_SHOWN:],
        ]
        class_texts = [
            f"{manifest.classes[class_index]} {format_class_share(point.recall, class_index)} "
            f"/ {format_class_share(point.precision, class_index)}"
            for class_index in class_indices
        ]
        lines.append(("recall / precision", join_values(class_texts, MAX_CLASSES_SHOWN)))
    bounds = {"recall": manifest.min_recall, "precision": manifest.min_precision}
    bound_texts = [
        f"{kind} of {manifest.classes[class_index]} at least {share:g}"
        for kind, shares in bounds.items()
        for class_index, share in enumerate(shares or ())
        if share is not None
    ]
    if bound_texts:
        lines.append(("bounds", ", ".join(bound_texts)))
    return lines


def point_text(manifest: Manifest) -> str:
    """Describe the active operating point's figures in one line."""
    point = manifest.active_point
    accuracy_text = f"{accuracy_label(manifest)} {point.accuracy:.4f}"
    if point.interval is not None:
        low, high = point.interval
        accuracy_text += f" (95 %: {low:.4f} to {high:.4f})"
    n_groups = point.validation_groups
    rows_kind = "validation" if point.guarantee is None else "calibration"
    rows_text = f"on {rows_kind} rows" + ("" if n_groups is None else f" of {n_groups} groups")
    return f"cost {point.cost:.4g}, {accuracy_text}, offload {point.offload_rate:.3f} ({rows_text})"
