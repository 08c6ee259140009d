"""Print tables about a bundle, its frontier and its checks.

The commands `inspect`, `frontier`, `train`, `pair` and `verify` print them unless they write JSON.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from gatewise.console import print_table
from gatewise.formats import byte_size, threshold

if TYPE_CHECKING:
    from gatewise.operating_point import OperatingPoint
    from gatewise_export.bundle.manifest import Manifest
    from gatewise_export.bundle.manifest_records import ProbeSpec
from gatewise_signals.signal_input import SignalInput

#: Printed name of an operating point's `accuracy` by task.
ACCURACY_NAMES = {"classify": "accuracy", "regress": "R²", "rank": "AP@5"}
#: Largest number of classes in a line or table. These three limits keep lines and tables readable
#: on a terminal for bundles of many classes or columns.
MAX_CLASSES_SHOWN = 8
#: Largest number of classes with a column of recall in the table of operating points.
MAX_RECALL_COLUMNS = 4
#: Largest number of column names in a line.
MAX_NAMES_SHOWN = 6
#: Below this number of test rows, an accuracy's interval is printed before the accuracy. With 100
#: rows, the interval of 95 % is up to 20 points wide.
MIN_ROWS_FOR_ACCURACY = 100


def print_bundle(manifest: Manifest, absent_files: Sequence[str] = ()) -> None:
    """Print the tables of `gatewise inspect`; `absent_files` lists files that are left out."""
    file_sizes = [
        file_spec.size for name, file_spec in manifest.files.items() if name not in absent_files
    ]
    answers_line = ("answers", f"values ({manifest.task})")
    if not manifest.answers_values:
        answers_line = (
            "classes",
            f"{manifest.n_classes}: {_join_values(manifest.classes, MAX_CLASSES_SHOWN)}",
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
    # stages on windows acquire steps, which have a separate table instead of the last column
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
            (f"columns: {kind}", f"{len(names)}: {_join_names(names)}")
            for kind, names in names_of_kind.items()
        ]
    return lines


def _stage_rows(manifest: Manifest) -> list[Sequence[Any]]:
    """Rows of the table of stages; the last row is the cloud."""
    costs_by_exit = manifest.exit_costs().tolist()
    # A lazy stage may acquire only some of its inputs, so its cost is an upper bound, and so is the
    # cost of every later exit.
    is_upper_bound = list(
        accumulate((stage.kind == "lazy" for stage in manifest.stages), operator.or_)
    )
    new_columns = _new_columns(manifest)
    rows: list[Sequence[Any]] = [
        (
            str(i),
            stage.kind,
            len(stage.inputs),
            f"{'up to ' * is_upper_bound[i]}{costs_by_exit[i]:g}",
            threshold(stop_threshold),
            byte_size(stage.bytes),
            new_columns[i],
        )
        for i, (stage, stop_threshold) in enumerate(
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


def _join_names(names: Sequence[str]) -> str:
    """Join the first names, and count the others."""
    n_others = len(names) - MAX_NAMES_SHOWN
    return ", ".join(names[:MAX_NAMES_SHOWN]) + (f" and {n_others} more" if n_others > 0 else "")


def _join_values(values: Sequence[object], limit: int) -> str:
    """Join the first `limit` values; dots stand for the others."""
    return ", ".join(map(str, values[:limit])) + (", ..." if len(values) > limit else "")


def _new_columns(manifest: Manifest) -> list[str]:
    """Columns of each stage, and last of the cloud, that no earlier stage reads."""
    column_of_feature = dict(
        zip(manifest.feature_names, manifest.feature_column_names, strict=True)
    )
    acquired_columns = set[str]()
    new_columns = []
    for model in (*manifest.stages, manifest.cloud):  # the cloud is None if it is never asked
        columns = dict.fromkeys(column_of_feature[name] for name in (model.inputs if model else ()))
        new_columns.append(_join_names([name for name in columns if name not in acquired_columns]))
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
        classes = _sort_by_recall(point.recall)
        # the others come last, where _join_values replaces them with dots
        shown_classes = [*sorted(classes[:MAX_CLASSES_SHOWN]), *classes[MAX_CLASSES_SHOWN:]]
        class_texts = [
            f"{manifest.classes[class_index]} {_share_text(point.recall, class_index)} "
            f"/ {_share_text(point.precision, class_index)}"
            for class_index in shown_classes
        ]
        lines.append(("recall / precision", _join_values(class_texts, MAX_CLASSES_SHOWN)))
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


def _sort_by_recall(recall: Sequence[float | None]) -> list[int]:
    """Sort class indices by recall; classes without rows, which have no recall, come last."""
    return sorted(
        range(len(recall)),
        key=lambda class_index: (recall[class_index] is None, recall[class_index] or 0.0),
    )


def point_text(manifest: Manifest) -> str:
    """Describe the active operating point's figures in one line."""
    point = manifest.active_point
    accuracy_text = f"{_accuracy_name(manifest)} {point.accuracy:.4f}"
    if point.interval is not None:
        low, high = point.interval
        accuracy_text += f" (95 %: {low:.4f} to {high:.4f})"
    n_groups = point.validation_groups
    rows_kind = "validation" if point.guarantee is None else "calibration"
    rows_text = f"on {rows_kind} rows" + ("" if n_groups is None else f" of {n_groups} groups")
    return f"cost {point.cost:.4g}, {accuracy_text}, offload {point.offload_rate:.3f} ({rows_text})"


def _accuracy_name(manifest: Manifest) -> str:
    """Name of the points' `accuracy`: agreement with the high-cost model, or the task's metric."""
    metric_name = manifest.active_point.measured
    return ACCURACY_NAMES[manifest.task] if metric_name == "accuracy" else metric_name


def print_frontier(manifest: Manifest, *, hull_only: bool, max_bytes: int | None = None) -> None:
    """Print operating points of at most `max_bytes`; mark the hull and the active point.

    The active point is always printed. With `hull_only` the others are those on the hull.
    """
    from gatewise_export.commands.manifest_frontier import frontier_of_manifest

    frontier = frontier_of_manifest(manifest, max_bytes)
    active_figures = _identifying_figures(manifest.active_point)
    hull_figures = set(map(_identifying_figures, frontier.hull().points))
    curve_figures = set(map(_identifying_figures, frontier.points))
    classes = _classes_to_show(manifest)
    # Points off the curve are shown only if classes have bounds or are rare, because such a point
    # may have the better recall.
    shown_figures: set[tuple[float, ...]] | None = curve_figures
    if hull_only:
        shown_figures = hull_figures
    elif classes:
        shown_figures = None  # all points
    rows = []
    is_any_off_curve = False
    for i, point in enumerate(manifest.operating_points):
        figures = _identifying_figures(point)
        is_active = i == manifest.active
        is_hidden = shown_figures is not None and figures not in shown_figures
        # a point with the active point's figures would be a second line of the same point
        if not is_active and (is_hidden or figures == active_figures):
            continue
        is_off_curve = figures not in curve_figures
        is_any_off_curve = is_any_off_curve or is_off_curve
        marks = ["hull"] * (figures in hull_figures) + ["off the curve"] * is_off_curve
        rows.append(
            (
                i,
                f"{point.cost:.4g}",
                f"{point.accuracy:.4f}",
                *(
                    [f"{point.weighted_accuracy:.4f}"]
                    if point.weighted_accuracy is not None
                    else []
                ),
                *(_share_text(point.recall, class_index) for class_index in classes),
                f"{point.offload_rate:.3f}",
                byte_size(point.bytes),
                " ".join(marks + ["<- active"] * is_active),
            )
        )
    title = "hull of the frontier" if hull_only else "frontier"
    header = ["point", "cost", _accuracy_name(manifest)]
    header += ["weighted accuracy"] * frontier.is_weighted
    header += [f"recall {manifest.classes[class_index]}" for class_index in classes]
    has_graph = any(stage.kind == "graph" for stage in manifest.stages)  # has no tables in C
    header += ["offload", "as files" if has_graph else "as C tables", ""]
    print_table(f"{title} (on validation rows)", header, rows)
    if is_any_off_curve:
        print(
            "off the curve: another point costs less at the same accuracy, but offloads more, has "
            "a lower recall or precision of a class, or takes more bytes"
        )


def _identifying_figures(point: OperatingPoint) -> tuple[float, ...]:
    """Figures that identify a point of the manifest on the frontier.

    The frontier's copies of points may lack the stages that never stop, so that whole points
    differ.
    """
    return point.cost, point.accuracy, point.offload_rate, point.bytes


def _classes_to_show(manifest: Manifest) -> list[int]:
    """Classes that get a column of recall: those with a bound, and a rare class."""
    class_rows = manifest.class_rows
    if class_rows is None or manifest.active_point.recall is None:
        return []
    bounds = (manifest.min_recall, manifest.min_precision)
    shown_classes = {
        class_index
        for shares in bounds
        for class_index, share in enumerate(shares or ())
        if share is not None
    }
    rarest_class = min(range(len(class_rows)), key=lambda class_index: class_rows[class_index])
    # a class is rare if it has fewer than half of the mean number of rows per class
    if 2 * len(class_rows) * class_rows[rarest_class] < sum(class_rows):
        shown_classes.add(rarest_class)
    return sorted(shown_classes)[:MAX_RECALL_COLUMNS]


def _share_text(shares: Sequence[float | None] | None, class_index: int) -> str:
    """Format a recall or precision; it is None if the class has no rows or no answers."""
    share = None if shares is None else shares[class_index]
    return "-" if share is None else f"{share:.3f}"


def print_training(summary: dict[str, Any], manifest: Manifest) -> None:
    """Print the tables of `gatewise train`, then the check of its promise."""
    from gatewise_training.operating_points.promise_check import never_found

    test_figures = summary["test"]
    # without a cloud there are no figures of the policy cloud-only
    policies = [policy for policy in ("system", "cloud_only") if test_figures[policy] is not None]
    classes = manifest.classes
    rows: list[tuple[str, ...]] = []
    for policy in policies:
        figures = test_figures[policy]
        figure_texts = [
            _accuracy_text(figures, test_figures["rows"]),
            f"{figures['balanced_accuracy']:.4f}",
        ]
        if "weighted_accuracy" in figures:
            figure_texts.append(f"{figures['weighted_accuracy']:.4f}")
        figure_texts += [f"{figures[score]:.4g}" for score in ("log_loss", "brier_score")]
        offload_rate = figures.get("offload_rate", 1.0)  # cloud-only has none: it always offloads
        rows.append((policy, *figure_texts, f"{figures['cost']:.4g}", f"{offload_rate:.3f}"))
    majority = test_figures["majority"]
    rows.append((f"always {majority['class']}", f"{majority['share']:.4f}"))
    header = ["", "accuracy", "balanced"]
    header += ["weighted accuracy"] * ("weighted_accuracy" in test_figures["system"])
    header += ["log loss", "Brier", "cost", "offload"]
    groups_text = f" of {test_figures['groups']} groups" if "groups" in test_figures else ""
    # the row of the majority class has only an accuracy
    rows = [(*row, *[""] * (len(header) - len(row))) for row in rows]
    print_table(f"on {test_figures['rows']} test rows{groups_text}", header, rows)
    print()
    _print_classes(test_figures, policies, manifest)
    print_frontier(manifest, hull_only=True)
    print(
        f"\n{summary['bundle']}: {byte_size(summary['bytes'])}; the bundle and Python differ in "
        f"{summary['verify']['differing_decisions']} of {summary['verify']['rows']} decisions"
    )
    print_cloud_lines(manifest)
    print(f"{summary['test_rows']}: the test rows, for verify, edge and simulate")
    for remark in summary["remarks"]:
        print(f"note: {remark}")
    for policy, name in (("system", "the system"), ("cloud_only", "the high-cost model")):
        if policy in policies and (labels := never_found(test_figures[policy]["recall"], classes)):
            print(f"never found by {name}, a recall of 0 on test rows: {', '.join(labels)}")
    print()
    for line in summary["promise"]["lines"]:
        print(line)


def _accuracy_text(figures: dict[str, Any], n_rows: int) -> str:
    """Format an accuracy; with few rows its interval comes first."""
    low, high = figures["accuracy_interval"]
    if n_rows >= MIN_ROWS_FOR_ACCURACY or low is None or high is None:
        return f"{figures['accuracy']:.4f}"
    return f"{low:.2f} to {high:.2f} ({figures['accuracy']:.3f})"


def _print_classes(
    test_figures: dict[str, Any], policies: Sequence[str], manifest: Manifest
) -> None:
    """Print recall and precision on test rows, of the classes with the lowest recall."""
    classes_by_recall = _sort_by_recall(test_figures["system"]["recall"])
    rows = [
        (
            str(manifest.classes[class_index]),
            test_figures["class_rows"][class_index],
            *(
                _share_text(test_figures[policy][figure], class_index)
                for figure in ("recall", "precision")
                for policy in policies
            ),
        )
        for class_index in sorted(classes_by_recall[:MAX_CLASSES_SHOWN])
    ]
    header = [f"{figure} {policy}" for figure in ("recall", "precision") for policy in policies]
    has_hidden_classes = len(classes_by_recall) > MAX_CLASSES_SHOWN
    choice_text = f", the {MAX_CLASSES_SHOWN} of lowest recall" if has_hidden_classes else ""
    print_table(f"by class, on test rows{choice_text}", ("class", "rows", *header), rows)
    print()


def print_checks(checks: dict[str, Any], comparisons: Sequence[str]) -> None:
    """Print the figures of `gatewise verify` and the list of its comparisons.

    `checks` has the report of each check by its name; a figure is printed if any report has it.
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
        (text, *(f"{report[key]:.6g}" if key in report else "" for report in checks.values()))
        for key, text in text_of_figure.items()
        if any(key in report for report in checks.values())
    ]
    print_table("verify", ("", *checks), rows)
    print()
    for line in comparisons:
        print(f"checked: {line}")
    for remark in checks.get("data", {}).get("remarks", ()):
        print(f"note: {remark}")
