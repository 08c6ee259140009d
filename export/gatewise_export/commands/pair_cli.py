"""The sub-command ``gatewise pair``: two given models and rows become a bundle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import typer

from gatewise.console import emit, note
from gatewise.documents import plain_values
from gatewise.formats import byte_size
from gatewise.prices import LARGEST_REQUEST
from gatewise_export.bundle.repacking import check_destination
from gatewise_export.bundle.signing import Signer
from gatewise_export.commands import options
from gatewise_export.commands.tables import point_text, print_frontier, probe_text

SAMPLE_ROWS = 64


def pair(
    low_cost_model: Annotated[
        Path, typer.Argument(help="Low-cost model: ONNX, or a booster's file.")
    ],
    high_cost_model: Annotated[
        Path, typer.Argument(help="High-cost model: ONNX, or a booster's file.")
    ],
    data: Annotated[
        Path, typer.Option(help="Rows that neither was trained on: .npz, .npy, .csv or .parquet.")
    ],
    out: options.Out,
    target: Annotated[
        str | None,
        typer.Option(help="Array or column of labels; without it, agreement is measured."),
    ] = None,
    budget: options.Budget = None,
    max_loss: Annotated[
        float | None, typer.Option(help="Loss of accuracy or agreement, at most.")
    ] = None,
    offload_rate: options.OffloadRate = None,
    classes: Annotated[
        str | None, typer.Option(help="Labels in the order of the scores, separated by commas.")
    ] = None,
    gate: Annotated[
        str, typer.Option(help="threshold; or learned, for a few thousand rows and more.")
    ] = "threshold",
    jpeg: Annotated[
        bool, typer.Option("--jpeg", help="Images may be given and sent as JPEG files.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the rows that choose thresholds.")] = 0,
    max_message: Annotated[
        int,
        typer.Option(min=1, help="Bytes of a broker's message, at most: a request must fit."),
    ] = LARGEST_REQUEST,
    name: options.BundleName = None,
    bundle_version: options.BundleVersion = "1",
    sign: options.Sign = None,
    as_json: options.AsJson = False,
) -> None:
    """Put a threshold between two given models, and pack them into a bundle.

    Nothing is refitted. An instance whose low-cost margin is narrow is offloaded. Half of the rows
    choose thresholds, the other half measure them. Without --target no label is needed: the
    agreement with the high-cost model is measured. An instance costs 1, a request 1 more.

    Example:

        gatewise pair small.onnx big.onnx --data rows.npz --out bundle

        gatewise pair small.onnx big.onnx --data rows.npz --target y --offload-rate 0.2 --out bundle
    """
    from gatewise_export.packing.bundle_writer import pack
    from gatewise_export.packing.verification import verify
    from gatewise_training.cascades.pair import PairCascade
    from gatewise_training.data.instance_files import load_instances

    goal: dict[str, Any] = options.chosen_goal(
        budget=budget, max_loss=max_loss, offload_rate=offload_rate
    )
    # Refuse bad places and keys before the work.
    check_destination(out)
    if sign is not None:
        Signer(sign)  # refuse a key that cannot be used before the work
    x, y = load_instances(data, target)
    names = None if classes is None else _labels(classes, y)
    system = PairCascade(
        low_cost_model=low_cost_model,
        high_cost_model=high_cost_model,
        classes=names,
        gate=gate,
        encoding="jpeg" if jpeg else None,
        random_state=seed,
        **goal,
    ).fit(x, y)
    # pack keeps SAMPLE_ROWS of these: rows whose best classes are nearly tied are left out
    rows = x[: 2 * SAMPLE_ROWS]
    bundle = pack(
        system,
        out,
        sample=rows,
        name=name or data.stem,
        version=bundle_version,
        sign=sign,
        max_message=max_message,
    )
    # Compare the bundle with the fitted pair, and report.
    report = verify(system, bundle, rows)
    point = bundle.manifest.active_point
    total = sum(f.size for f in bundle.manifest.files.values())
    result: dict[str, Any] = {
        "bundle": str(bundle.path),
        "bytes": total,
        "low_cost_bytes": system.low_cost_bytes_,
        "request_bytes": system.request_bytes_,
        "instance": plain_values(system.instance_),
        "instances": len(x),
        "measured": point.measured,
        "reference_accuracy": system.frontier_.reference_accuracy,
        "operating_point": msgspec.to_builtins(point),
        "verify": asdict(report),
    }
    if as_json:
        emit(result)
    else:
        note(f"packed {bundle.path}")
        print_frontier(bundle.manifest, hull_only=True)
        print(f"\n{point_text(bundle.manifest)}")
        print(
            f"{result['bundle']}: {byte_size(total)}, of it {byte_size(system.low_cost_bytes_)} on "
            f"the device; a request takes {byte_size(system.request_bytes_)}; the bundle and "
            f"Python differ in {report.differing_decisions} of {report.rows} decisions"
        )
        cloud = bundle.manifest.cloud
        if cloud is not None and cloud.probed is not None:
            print(f"high-cost model: {probe_text(cloud.probed)}")
    if report.differing_decisions:
        raise typer.Exit(1)


def _labels(text: str, y: Any) -> list[Any]:
    """Labels of --classes, as whole numbers if the labels of the data, or all words, are."""
    words = [word.strip() for word in text.split(",")]
    if y is not None and np.asarray(y).dtype.kind not in "biu":
        return words
    try:
        return [int(word) for word in words]
    except ValueError:
        return list(words)


commands: dict[str, Callable[..., None]] = {"pair": pair}
