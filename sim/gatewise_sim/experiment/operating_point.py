"""The operating point at which a bundle is simulated."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from gatewise.errors import InputError
from gatewise.operating_point import OperatingPoint
from gatewise_export.bundle.bundle import Bundle, set_operating_point
from gatewise_export.commands.manifest_frontier import (
    bounds_of,
    chosen_point,
    frontier_of,
)
from gatewise_signals.blocks.block import Function
from gatewise_sim.report.document import FrontierPoint, FrontierPoints


def open_whole(
    given: Bundle | str | Path, functions: Mapping[str, Function] | None = None
) -> Bundle:
    """Open a bundle that has its cloud model, too, with all that its blocks compute with."""
    path = given.path if isinstance(given, Bundle) else given
    bundle = given if isinstance(given, Bundle) else Bundle.open(given, for_device=True)
    if bundle.absent():
        raise InputError(
            f"{path} is for devices, without {bundle.absent()[0]}: simulate the bundle that it "
            "was made of"
        )
    bundle.read_block_models()
    return bundle.with_functions(functions or {})


def at_goal(bundle: Bundle, goal: Mapping[str, float]) -> Bundle:
    """Put a bundle at the operating point that `gatewise frontier` would choose, in memory."""
    if not goal:
        return bundle
    point = chosen_point(bundle.manifest, goal, bounds_of(bundle.manifest))
    return bundle if point == bundle.manifest.active else bundle.with_active(point)


@contextmanager
def on_disk(bundle: Bundle) -> Iterator[Path]:
    """Give a path at which processes find the bundle at its operating point.

    That is its own path if this point is active there, else that of a copy, which is deleted
    at the end.
    """
    if Bundle.open(bundle.path, for_device=True).manifest.active == bundle.manifest.active:
        yield bundle.path
        return
    if bundle.claimed_keys():
        raise InputError(
            f"bundle {bundle.path} is signed for another operating point: for a live run put it "
            "there with gatewise frontier --sign, or use --engine virtual"
        )
    with TemporaryDirectory(prefix="gatewise-simulate-") as folder:
        copy = Path(folder, bundle.path.name or "bundle")
        if bundle.path.is_dir():
            shutil.copytree(bundle.path, copy)
        else:
            shutil.copyfile(bundle.path, copy)
        set_operating_point(copy, bundle.manifest.active)
        yield copy


def frontier_points(bundle: Bundle) -> FrontierPoints:
    """Lay out the operating points for a report."""
    frontier = frontier_of(bundle.manifest)
    active = bundle.manifest.operating_points[bundle.manifest.active]
    shown = sorted({*frontier.points, active}, key=lambda point: (point.cost, point.accuracy))
    return FrontierPoints(
        points=tuple(map(_frontier_point, shown)),
        hull=tuple(map(_frontier_point, frontier.hull().points)),
        active=_frontier_point(active),
        reference_accuracy=frontier.reference_accuracy,
    )


def _frontier_point(point: OperatingPoint) -> FrontierPoint:
    names = FrontierPoint.__struct_fields__
    return FrontierPoint(**{name: getattr(point, name) for name in names})
