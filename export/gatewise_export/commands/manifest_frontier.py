"""Build the frontier of a bundle's operating points, choose a point on it, and print it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gatewise.console import print_table
from gatewise.errors import InputError
from gatewise.formats import byte_size
from gatewise.operating_point import OperatingPoint
from gatewise_export.bundle.manifest import Manifest
from gatewise_export.commands.figure_texts import accuracy_label, format_class_share
from gatewise_training.operating_points.class_figures import ClassBounds, Shares, values_by_class
from gatewise_training.operating_points.frontier import DEFAULT_SLACK, Frontier

#: Largest number of classes with a column of recall in the table of operating points.
MAX_RECALL_COLUMNS = 4


def frontier_of_manifest(manifest: Manifest, max_bytes: int | None = None) -> Frontier:
    """Build the frontier of a manifest's operating points of at most `max_bytes`."""
    points = manifest.operating_points
    reference_accuracy = manifest.reference_accuracy
    curve = Frontier.from_points(
        points,
        reference_accuracy=max(point.accuracy for point in points)
        if reference_accuracy is None
        else reference_accuracy,
        classes=tuple(manifest.classes),
        class_rows=manifest.class_rows or (),
        reference_weighted_accuracy=manifest.reference_weighted_accuracy,
        reference_recall=manifest.reference_recall,
    )
    curve_points = set(curve.points)
    frontier = replace(
        curve, off_curve_points=tuple(point for point in points if point not in curve_points)
    )
    return frontier if max_bytes is None else frontier.within_bytes(max_bytes)


def effective_bounds(
    manifest: Manifest,
    min_recall: Mapping[Any, float] | None = None,
    min_precision: Mapping[Any, float] | None = None,
) -> ClassBounds:
    """Replace the manifest's bounds on the classes that the arguments name; 0 removes a bound."""
    no_bounds: Shares = (None,) * len(manifest.classes)

    def replace_named(
        name: str, new_bounds: Mapping[Any, float] | None, old_bounds: Shares | None
    ) -> Shares:
        named_bounds = values_by_class(name, new_bounds, manifest.classes, 0.0, 1.0)
        return tuple(
            old_bound if named_bound is None else named_bound or None
            for named_bound, old_bound in zip(named_bounds, old_bounds or no_bounds, strict=True)
        )

    return ClassBounds(
        tuple(manifest.classes),
        replace_named("min_recall", min_recall, manifest.min_recall),
        replace_named("min_precision", min_precision, manifest.min_precision),
    )


def choose_point(
    manifest: Manifest, goal: Mapping[str, float], bounds: ClassBounds, max_bytes: int | None = None
) -> int:
    """Choose the point for a goal as training does; return its index."""
    if "max_loss" in goal and manifest.reference_accuracy is None:
        raise InputError(
            f"{manifest.name} does not state its high-cost model's accuracy, which --max-loss "
            "needs: use --budget"
        )
    point = (
        frontier_of_manifest(manifest, max_bytes).choose(bounds, slack=DEFAULT_SLACK, **goal).point
    )
    return manifest.operating_points.index(point)


def print_frontier(manifest: Manifest, *, hull_only: bool, max_bytes: int | None = None) -> None:
    """Print operating points of at most `max_bytes`; mark the hull and the active point.

    The active point is always printed. With `hull_only` the others are those on the hull.
    """
    frontier = frontier_of_manifest(manifest, max_bytes)
    active_figures = _identifying_figures(manifest.active_point)
    hull_figures = set(map(_identifying_figures, frontier.hull().points))
    curve_figures = set(map(_identifying_figures, frontier.points))
    classes = _classes_to_show(manifest)
    # Show points off the curve only if classes have bounds or are rare, because such a point may
    # have a better recall of these classes.
    shown_figures: set[tuple[float, ...]] | None = curve_figures
    if hull_only:
        shown_figures = hull_figures
    elif classes:
        shown_figures = None  # all points
    rows = []
    is_any_off_curve = False
    for point_index, point in enumerate(manifest.operating_points):
        figures = _identifying_figures(point)
        is_active = point_index == manifest.active
        is_too_large = max_bytes is not None and point.bytes > max_bytes
        is_hidden = is_too_large or (shown_figures is not None and figures not in shown_figures)
        # omit other points with the figures of the active point
        if not is_active and (is_hidden or figures == active_figures):
            continue
        is_off_curve = figures not in curve_figures and not is_too_large
        is_any_off_curve = is_any_off_curve or is_off_curve
        marks = ["hull"] * (figures in hull_figures) + ["off the curve"] * is_off_curve
        marks += ["too large"] * is_too_large
        rows.append(
            (
                point_index,
                f"{point.cost:.4g}",
                f"{point.accuracy:.4f}",
                *(
                    [f"{point.weighted_accuracy:.4f}"]
                    if point.weighted_accuracy is not None
                    else []
                ),
                *(format_class_share(point.recall, class_index) for class_index in classes),
                f"{point.offload_rate:.3f}",
                # systems that answer with values are never written in C
                "" if manifest.answers_values else byte_size(point.bytes),
                " ".join(marks + ["<- active"] * is_active),
            )
        )
    title = "hull of the frontier" if hull_only else "frontier"
    header = ["point", "cost", accuracy_label(manifest)]
    header += ["weighted accuracy"] * frontier.is_weighted
    header += [f"recall {manifest.classes[class_index]}" for class_index in classes]
    # a graph has no tables in C, so its file is counted
    has_graph = any(stage.kind == "graph" for stage in manifest.stages)
    header += ["offload", "as files" if has_graph else "as C tables", ""]
    print_table(f"{title} (on validation rows)", header, rows)
    if is_any_off_curve:
        print(
            "off the curve: another point costs less at the same accuracy, but offloads more, has "
            "a lower recall or precision of a class, or takes more bytes"
        )


def _identifying_figures(point: OperatingPoint) -> tuple[float, ...]:
    """Figures that identify a point of the manifest on the frontier.

    Whole points may differ, because the frontier's copies may lack the stages that never stop.
    """
    return point.cost, point.accuracy, point.offload_rate, point.bytes


def _classes_to_show(manifest: Manifest) -> list[int]:
    """Classes with a column of recall: classes with a bound, and a rare class."""
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
