"""The sub-commands ``gatewise frontier``, ``inspect`` and ``verify``, which read a bundle.

Only ``verify`` needs the learning libraries; ``inspect`` runs on a device.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gatewise.console import emit, note
from gatewise.errors import InputError
from gatewise_export.bundle.bundle import Bundle, set_operating_point
from gatewise_export.commands import options
from gatewise_export.commands.tables import print_bundle, print_checks, print_frontier
from gatewise_signals.blocks.block import load_block_functions

if TYPE_CHECKING:
    from gatewise.operating_point import OperatingPoint
    from gatewise_export.bundle.manifest import Manifest
    from gatewise_training.operating_points.frontier import Frontier


def frontier(
    bundle: options.BundlePath,
    budget: options.Budget = None,
    max_loss: options.MaxLoss = None,
    offload_rate: options.OffloadRate = None,
    min_recall: options.MinRecall = None,
    min_precision: options.MinPrecision = None,
    max_bytes: options.MaxBytes = None,
    plot: Annotated[Path | None, typer.Option(help="Plot to write: .png, .svg or .pdf.")] = None,
    sign: options.Sign = None,
    as_json: options.AsJson = False,
) -> None:
    """Show the accuracy-cost curve of a bundle's operating points; switch to another one.

    With --budget, --max-loss or --offload-rate the bundle is put at that point: its manifest
    is rewritten, every graph stays as it is. A signed bundle needs its key for that. --min-recall
    and --min-precision add bounds; without a goal, --max-loss is then 0.01. Without them the
    bundle's bounds stay; 0 removes one. With --max-bytes only points within that size are chosen,
    listed and drawn.

    Example:

        gatewise frontier bundle --budget 4 --plot frontier.png
    """
    from gatewise_export.commands.manifest_frontier import (
        bounds_of,
        chosen_point,
        frontier_of,
    )

    opened = Bundle.open(bundle, for_device=True)
    goal = options.chosen_goal(budget=budget, max_loss=max_loss, offload_rate=offload_rate)
    bounds = bounds_of(
        opened.manifest,
        options.by_class_option("--min-recall", min_recall),
        options.by_class_option("--min-precision", min_precision),
    )
    if plot is not None and plot.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise InputError(f"--plot {plot}: the ending must be .png, .svg or .pdf")
    if (min_recall or min_precision) and not goal:
        goal = {"max_loss": 0.01}  # the default of training
    byte_limit = options.bytes_option(max_bytes)
    # Switch to the point that the goal picks, under the bounds of the bundle or of the options.
    if goal:
        try:
            point = chosen_point(opened.manifest, goal, bounds, byte_limit)
        except InputError as error:
            if not bounds or min_recall or min_precision:
                raise
            hint = (
                "these are bounds of the bundle; --min-recall LABEL=0 or --min-precision LABEL=0 "
                "removes one"
            )
            raise InputError(f"{error}: {hint}") from None
        shares = bounds.min_recall, bounds.min_precision
        opened = set_operating_point(bundle, point, sign=sign, bounds=shares)
    elif sign is not None:
        raise InputError(
            "--sign goes with --budget, --max-loss or --offload-rate; see gatewise pack"
        )
    # Show the frontier as it is now.
    manifest = opened.manifest
    curve = frontier_of(manifest, byte_limit)
    points = manifest.operating_points
    if plot is not None:
        _draw(curve, points[manifest.active], manifest.title, plot)
    if as_json:
        emit(_frontier_document(curve, points, manifest) | {"bundle": str(bundle)})
        return
    print_frontier(manifest, hull_only=False, max_bytes=byte_limit)
    if goal:
        note(f"{bundle} is now at operating point {manifest.active}")


def inspect(
    bundle: options.BundlePath,
    public_key: options.PublicKeyFile = None,
    as_json: options.AsJson = False,
) -> None:
    """Show the contents of a bundle and who signed it, after checking every hash.

    Example:

        gatewise inspect bundle --public-key fleet.pub
    """
    opened = Bundle.open(bundle, public_key=public_key, for_device=True)
    manifest = opened.manifest
    claimed_keys = opened.claimed_keys()
    signer = opened.signed_by or (claimed_keys[0] if claimed_keys else None)
    if as_json:
        emit(
            {
                "bundle": str(bundle),
                "bytes": manifest.total_bytes,
                "exit_costs": manifest.exit_costs().tolist(),
                "absent": list(opened.absent()),
                "signed": signer is not None,
                "key_id": signer,
                "signature_checked": opened.signed_by is not None,
                "manifest": json.loads(manifest.to_json()),
            }
        )
        return
    print_bundle(manifest, opened.absent())
    print()
    if signer is None:
        print("not signed")
    elif opened.signed_by is not None:
        print(f"signed by key {signer}: the signature holds")
    else:
        print(f"signed by key {signer}, not checked; --public-key NAME.pub checks it")
    for name in opened.absent():
        print(f"without {name}: for devices")


def verify(
    bundle: options.BundlePath,
    data: Annotated[
        str | None, typer.Option(help="Rows to check on: .csv, .parquet or .npz.")
    ] = None,
    target: options.Target = None,
    backend: Annotated[
        str | None,
        typer.Option(
            metavar="python:MODULE:ATTRIBUTE|URL",
            help="Backend of the high-cost model, as in gatewise cloud, where the bundle has none.",
        ),
    ] = None,
    block: options.BlockFunctions = None,
    public_key: options.PublicKeyFile = None,
    as_json: options.AsJson = False,
) -> None:
    """Check that a bundle decides as it must; exit status 1 if it does not.

    The check runs the bundle's own sample in onnxruntime (in numpy, for a stage that acquires node
    by node). With --data it also compares the graphs with the flat arrays on these rows, and
    reports accuracy (of a regressor R²) and cost. It lists what was compared.

    Example:

        gatewise verify bundle --data table.csv --target label
    """
    from dataclasses import asdict

    from gatewise_export.commands.run_verify import backend_answers, check_data, compared_parts
    from gatewise_export.packing.verification import self_test

    opened = Bundle.open(bundle, public_key=public_key, for_device=True)
    opened = opened.with_functions(load_block_functions(block or ()))
    answers = None if backend is None else backend_answers(opened, backend)
    # The bundle's own sample first, then the rows of --data.
    sample = self_test(opened, answers)
    checks: dict[str, Any] = {"sample": asdict(sample)}
    agrees = sample.agrees and sample.cloud_label_differences == 0
    if data is not None:
        report, figures = check_data(opened, data, target, answers)
        checks["data"] = asdict(report) | figures
        agrees = agrees and report.agrees
    compared = compared_parts(opened, with_data=data is not None, backend=backend)
    if as_json:
        summary = {"bundle": str(bundle), "task": opened.manifest.task, "agrees": agrees}
        emit(summary | checks | {"checked": compared})
    else:
        print_checks(checks, compared)
        print("the bundle's decisions agree" if agrees else "the bundle DIFFERS: do not use it")
    if not agrees:
        raise typer.Exit(1)


commands: dict[str, Callable[..., None]] = {
    "frontier": frontier,
    "inspect": inspect,
    "verify": verify,
}


# -- parts ---------------------------------------------------------------------------------


def _frontier_document(
    curve: Frontier, points: Sequence[OperatingPoint], manifest: Manifest
) -> dict[str, Any]:
    hull = set(curve.hull().points)
    on_curve = set(curve.points)
    figures = (
        "cost",
        "accuracy",
        "offload_rate",
        "thresholds",
        "weighted_accuracy",
        "recall",
        "precision",
        "balanced_accuracy",
        "log_loss",
        "brier_score",
        "bytes",
    )
    return {
        "active": manifest.active,
        "reference_accuracy": manifest.reference_accuracy,
        "reference_weighted_accuracy": manifest.reference_weighted_accuracy,
        "reference_recall": manifest.reference_recall,
        "classes": manifest.classes,
        "class_rows": manifest.class_rows,
        "min_recall": manifest.min_recall,
        "min_precision": manifest.min_precision,
        "points": [
            {name: getattr(p, name) for name in figures}
            | {"hull": p in hull, "on_curve": p in on_curve}
            for p in points
        ],
    }


def _draw(curve: Frontier, active: OperatingPoint, title: str, path: Path) -> None:
    from gatewise_training.views.frontier_display import FrontierDisplay

    display = FrontierDisplay(curve, name=title).plot(active=active)
    display.figure_.savefig(path)
