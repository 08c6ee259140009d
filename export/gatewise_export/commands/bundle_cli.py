"""The sub-commands ``frontier``, ``inspect``, ``pack`` and ``verify``, which work on a bundle.

``inspect`` and ``pack`` run on devices; the others need the learning libraries.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from gatewise.console import emit, note
from gatewise.errors import InputError
from gatewise_export.bundle.bundle import Bundle, set_operating_point
from gatewise_export.bundle.repacking import repack
from gatewise_export.commands import options
from gatewise_export.commands.bundle_tables import print_bundle
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
    plot: Annotated[
        Path | None, typer.Option(help="File for a plot of the curve: .png, .svg or .pdf.")
    ] = None,
    sign: options.Sign = None,
    as_json: options.AsJson = False,
) -> None:
    """Show the operating points of a bundle, or switch to another one.

    --budget, --max-loss and --offload-rate switch the bundle to the best point for that goal. This
    changes only the manifest; a signed bundle needs its key. --min-recall and --min-precision
    replace the bundle's bounds on the classes that they name, and 0 removes a bound; they also
    switch the point, with a --max-loss of 0.01 by default. --max-bytes restricts the choice, the
    list and the plot to points within that size; --json lists all points.

    Example:

        gatewise frontier bundle --budget 4 --plot frontier.png
    """
    from gatewise_export.commands.manifest_frontier import (
        choose_point,
        effective_bounds,
        frontier_of_manifest,
        print_frontier,
    )
    from gatewise_training.operating_points.class_figures import ClassBounds

    opened_bundle = Bundle.open(bundle, for_device=True)
    goal = options.chosen_goal(budget=budget, max_loss=max_loss, offload_rate=offload_rate)
    bounds = effective_bounds(
        opened_bundle.manifest,
        options.by_class_option("--min-recall", min_recall),
        options.by_class_option("--min-precision", min_precision),
    )
    if plot is not None and plot.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise InputError(f"--plot {plot}: give a file that ends in .png, .svg or .pdf")
    if (min_recall or min_precision) and not goal:
        goal = {"max_loss": 0.01}  # as in training
    byte_limit = options.bytes_option(max_bytes)
    # switch to the goal's point within the bounds of the options, or else of the bundle
    if goal:
        try:
            point_index = choose_point(opened_bundle.manifest, goal, bounds, byte_limit)
        except InputError as error:
            if not bounds or min_recall or min_precision:
                raise
            # if no point reaches the goal without bounds either, this raises the goal's own error
            no_bounds = ClassBounds.from_mappings(opened_bundle.manifest.classes)
            choose_point(opened_bundle.manifest, goal, no_bounds, byte_limit)
            raise InputError(
                f"{error}: the bundle sets these bounds; remove one with --min-recall LABEL=0 or "
                "--min-precision LABEL=0"
            ) from None
        class_bounds = bounds.min_recall, bounds.min_precision
        opened_bundle = set_operating_point(bundle, point_index, sign=sign, bounds=class_bounds)
    elif sign is not None:
        raise InputError(
            "--sign needs --budget, --max-loss, --offload-rate, --min-recall or --min-precision; "
            "to sign a bundle as it is, use gatewise pack"
        )
    # show the frontier, with the point that is active now
    manifest = opened_bundle.manifest
    curve = frontier_of_manifest(manifest, byte_limit)
    if plot is not None:
        _draw_frontier(curve, manifest.active_point, manifest.title, plot)
    if as_json:
        emit(_frontier_document(curve, manifest) | {"bundle": str(bundle)})
        return
    print_frontier(manifest, hull_only=False, max_bytes=byte_limit)
    if goal:
        note(f"{bundle} is now at operating point {manifest.active}")


def inspect(
    bundle: options.BundlePath,
    public_key: options.PublicKeyFile = None,
    as_json: options.AsJson = False,
) -> None:
    """Show the contents and the signer of a bundle, after checking every hash.

    Example:

        gatewise inspect bundle --public-key fleet.pub
    """
    opened_bundle = Bundle.open(bundle, public_key=public_key, for_device=True)
    manifest = opened_bundle.manifest
    claimed_key_ids = opened_bundle.claimed_key_ids()
    signer_key_id = opened_bundle.signed_by or (claimed_key_ids[0] if claimed_key_ids else None)
    if as_json:
        emit(
            {
                "bundle": str(bundle),
                "bytes": manifest.total_bytes,
                "exit_costs": manifest.exit_costs().tolist(),
                "absent": list(opened_bundle.absent_files()),
                "signed": signer_key_id is not None,
                "key_id": signer_key_id,
                "signature_checked": opened_bundle.signed_by is not None,
                "manifest": json.loads(manifest.to_json()),
            }
        )
        return
    print_bundle(manifest, opened_bundle.absent_files())
    print()
    if signer_key_id is None:
        print("not signed")
    elif opened_bundle.signed_by is not None:
        print(f"signed by key {signer_key_id}: the signature is valid")
    else:
        print(f"signed by key {signer_key_id}, not checked: check it with --public-key NAME.pub")
    for name in opened_bundle.absent_files():
        print(f"{name} is left out: this is a bundle for devices")


def pack(
    bundle: options.BundlePath,
    out: options.Out,
    sign: Annotated[
        Path | None,
        typer.Option(
            help="PEM file of the private key that signs the copy; by default the signature stays."
        ),
    ] = None,
    readers: Annotated[
        str,
        typer.Option(
            "--for",
            metavar="workers|device",
            help="Readers of the copy; a copy for a device has no high-cost model.",
        ),
    ] = "workers",
    as_json: options.AsJson = False,
) -> None:
    """Copy a bundle, for example into one file, with a signature, or for devices.

    The copy has the same manifest, byte for byte. Devices that are started with --public-key accept
    only bundles that the matching private key has signed.

    Example:

        openssl genpkey -algorithm ed25519 -out fleet.key
        openssl pkey -in fleet.key -pubout -out fleet.pub
        gatewise pack bundle --out digits-7.gwb --sign fleet.key --for device
    """
    if readers not in ("workers", "device"):
        raise InputError(f"--for {readers}: give workers or device")
    packed_bundle = repack(bundle, out, sign=sign, for_device=readers == "device")
    key_id = next(iter(packed_bundle.claimed_key_ids()), None)
    absent_files = packed_bundle.absent_files()
    n_bytes = _count_bytes(out)
    if as_json:
        emit(
            {
                "bundle": str(out),
                "bytes": n_bytes,
                "key_id": key_id,
                "left_out": list(absent_files),
            }
        )
        return
    signature_text = "not signed" if key_id is None else f"signed by key {key_id}"
    absent_text = "".join(f", without {name}" for name in absent_files)
    print(f"{out}: {packed_bundle.manifest.title}, {n_bytes} bytes, {signature_text}{absent_text}")


def verify(
    bundle: options.BundlePath,
    data: Annotated[
        str | None, typer.Option(help="File of rows to check: .csv, .parquet or .npz.")
    ] = None,
    target: options.Target = None,
    backend: Annotated[
        str | None,
        typer.Option(
            metavar="python:MODULE:ATTRIBUTE",
            help="Backend of the high-cost model, if the bundle has no file of it.",
        ),
    ] = None,
    block: options.BlockFunctions = None,
    public_key: options.PublicKeyFile = None,
    as_json: options.AsJson = False,
) -> None:
    """Check a bundle's decisions on this machine; exit with 1 if they differ.

    The command runs the graphs on the bundle's sample and compares the outputs with those computed
    in training. With --data it also compares the graphs with the flat arrays on these rows, and
    measures cost and accuracy (R² for a regressor). It lists all comparisons.

    Example:

        gatewise verify bundle --data table.csv --target label
    """
    from dataclasses import asdict

    from gatewise_export.commands.run_verify import (
        backend_function,
        check_data,
        list_comparisons,
        print_checks,
    )
    from gatewise_export.packing.verification import self_test

    opened_bundle = Bundle.open(bundle, public_key=public_key, for_device=True)
    opened_bundle = opened_bundle.with_functions(load_block_functions(block or ()))
    cloud_function = None if backend is None else backend_function(opened_bundle, backend)
    # compare on the bundle's sample, then on the rows of --data
    sample_report = self_test(opened_bundle, cloud_function)
    checks: dict[str, Any] = {"sample": asdict(sample_report)}
    agrees = sample_report.agrees and sample_report.cloud_label_differences == 0
    if data is not None:
        data_report, figures = check_data(opened_bundle, data, target, cloud_function)
        checks["data"] = asdict(data_report) | figures
        agrees = agrees and data_report.agrees
    comparisons = list_comparisons(opened_bundle, with_data=data is not None, backend=backend)
    if as_json:
        summary = {"bundle": str(bundle), "task": opened_bundle.manifest.task, "agrees": agrees}
        emit(summary | checks | {"checked": comparisons})
    else:
        print_checks(checks, comparisons)
        print(
            "the bundle's decisions agree"
            if agrees
            else "the bundle's decisions DIFFER: do not use it"
        )
    if not agrees:
        raise typer.Exit(1)


# -- parts ---------------------------------------------------------------------------------


def _frontier_document(curve: Frontier, manifest: Manifest) -> dict[str, Any]:
    """Build the document of ``frontier --json``."""
    hull_points = set(curve.hull().points)
    curve_points = set(curve.points)
    field_names = (
        "active",
        "reference_accuracy",
        "reference_weighted_accuracy",
        "reference_recall",
        "classes",
        "class_rows",
        "min_recall",
        "min_precision",
    )
    return {name: getattr(manifest, name) for name in field_names} | {
        "points": [
            msgspec.structs.asdict(point)
            | {"hull": point in hull_points, "on_curve": point in curve_points}
            for point in manifest.operating_points
        ]
    }


def _draw_frontier(curve: Frontier, active: OperatingPoint, title: str, path: Path) -> None:
    """Write a plot of the frontier with the active point marked."""
    from gatewise_training.views.frontier_display import FrontierDisplay

    display = FrontierDisplay(curve, name=title).plot(active=active)
    display.figure_.savefig(path)


def _count_bytes(path: Path) -> int:
    """Count the bytes of a bundle, which is one file or a directory without subdirectories."""
    files = path.iterdir() if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files)
