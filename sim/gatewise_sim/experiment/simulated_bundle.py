"""The operating point at which a bundle is simulated."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from gatewise.errors import InputError
from gatewise.operating_point import ByClass, OperatingPoint
from gatewise_export.bundle.bundle import Bundle, set_operating_point
from gatewise_export.commands.manifest_frontier import (
    choose_point,
    effective_bounds,
    frontier_of_manifest,
)
from gatewise_signals.blocks.block import Function
from gatewise_sim.report.document import FrontierPoint, FrontierPoints


def open_complete_bundle(
    source: Bundle | str | Path, functions: Mapping[str, Function] | None = None
) -> Bundle:
    """Open a bundle with its high-cost model and the functions and models of its blocks."""
    bundle = source if isinstance(source, Bundle) else Bundle.open(source, for_device=True)
    if bundle.absent_files():
        raise InputError(
            f"{bundle.path} is a device's bundle, without {bundle.absent_files()[0]}: simulate the "
            "bundle from which it was made"
        )
    bundle.read_block_models()
    return bundle.with_functions(functions or {})


def bundle_at_goal(bundle: Bundle, goal: Mapping[str, float]) -> Bundle:
    """Open the bundle at the operating point that `gatewise frontier` chooses for a goal."""
    if not goal:
        return bundle
    point_index = choose_point(bundle.manifest, goal, effective_bounds(bundle.manifest))
    return bundle if point_index == bundle.manifest.active else bundle.with_active(point_index)


@contextmanager
def bundle_on_disk(bundle: Bundle) -> Iterator[Path]:
    """Yield a path at which processes find the bundle at its operating point.

    It is the bundle's path if the point is active on disk. Otherwise it is the path of a temporary
    copy.
    """
    if Bundle.open(bundle.path, for_device=True).manifest.active == bundle.manifest.active:
        yield bundle.path
        return
    if bundle.claimed_key_ids():
        raise InputError(
            f"bundle {bundle.path} is signed for another operating point: for a live run activate "
            "this one with gatewise frontier --sign, or use --engine virtual"
        )
    with TemporaryDirectory(prefix="gatewise-simulate-") as folder:
        copy_path = Path(folder, bundle.path.name or "bundle")
        if bundle.path.is_dir():
            shutil.copytree(bundle.path, copy_path)
        else:
            shutil.copyfile(bundle.path, copy_path)
        set_operating_point(copy_path, bundle.manifest.active)
        yield copy_path


def frontier_points(bundle: Bundle) -> FrontierPoints:
    """Convert the operating points for a report."""
    frontier = frontier_of_manifest(bundle.manifest)
    active = bundle.manifest.operating_points[bundle.manifest.active]
    points = sorted({*frontier.points, active}, key=lambda point: (point.cost, point.accuracy))
    labels = tuple(map(str, bundle.manifest.classes))

    def by_label(class_shares: ByClass | None) -> dict[str, float | None] | None:
        return None if class_shares is None else dict(zip(labels, class_shares, strict=True))

    def to_report_point(point: OperatingPoint) -> FrontierPoint:
        return FrontierPoint(
            cost=point.cost,
            accuracy=point.accuracy,
            offload_rate=point.offload_rate,
            recall=by_label(point.recall),
            precision=by_label(point.precision),
        )

    return FrontierPoints(
        points=tuple(map(to_report_point, points)),
        hull=tuple(map(to_report_point, frontier.hull().points)),
        active=to_report_point(active),
        reference_accuracy=frontier.reference_accuracy,
        measured=active.measured,
    )
