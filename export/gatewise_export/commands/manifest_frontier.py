"""Build the frontier of a bundle's operating points, and choose a point on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gatewise.errors import InputError
from gatewise_export.bundle.manifest import Manifest
from gatewise_training.operating_points.class_figures import ClassBounds
from gatewise_training.operating_points.frontier import DEFAULT_SLACK, Frontier


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
    on_curve = set(curve.points)
    frontier = replace(
        curve, off_curve_points=tuple(point for point in points if point not in on_curve)
    )
    return frontier if max_bytes is None else frontier.within_bytes(max_bytes)


def effective_bounds(
    manifest: Manifest,
    min_recall: Mapping[Any, float] | None = None,
    min_precision: Mapping[Any, float] | None = None,
) -> ClassBounds:
    """Get the bounds by class from the arguments, or else from the manifest."""
    bounds = ClassBounds.from_mappings(manifest.classes, min_recall, min_precision)
    if not min_recall:
        bounds = replace(bounds, min_recall=manifest.min_recall or bounds.min_recall)
    if not min_precision:
        bounds = replace(bounds, min_precision=manifest.min_precision or bounds.min_precision)
    return bounds


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
