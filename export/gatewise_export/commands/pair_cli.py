"""The sub-command ``gatewise pair``, which packs two trained models into a bundle."""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from numpy.typing import NDArray

from gatewise.console import emit, note
from gatewise.documents import Meta, Share, plain_values
from gatewise.formats import byte_size
from gatewise.prices import MAX_REQUEST_BYTES
from gatewise.settings import Settings, with_options
from gatewise_export.bundle.repacking import check_destination
from gatewise_export.bundle.topic_levels import check_topic_level, topic_level
from gatewise_export.commands import options
from gatewise_export.commands.bundle_tables import point_text, print_cloud_lines

if TYPE_CHECKING:
    from gatewise_export.bundle.bundle import Bundle
    from gatewise_export.bundle.errors import VerifyReport
    from gatewise_training.cascades.pair import PairCascade

#: Number of rows that the bundle's self-test runs.
SAMPLE_ROWS = 64


class PairSettings(Settings, frozen=True, kw_only=True):
    """Options of ``gatewise pair``."""

    low_cost_model: Annotated[
        Path, typer.Argument(help="Low-cost model: an ONNX file or a booster's file.")
    ]
    high_cost_model: Annotated[
        Path, typer.Argument(help="High-cost model: an ONNX file or a booster's file.")
    ]
    data: Annotated[
        Path,
        typer.Option(help="Rows that neither model was trained on: .npz, .npy, .csv or .parquet."),
    ]
    out: options.Out
    target: Annotated[
        str | None,
        typer.Option(help="Array or column of labels; by default agreement is measured."),
    ] = None
    budget: options.BudgetSetting = None
    max_loss: Annotated[
        Share | None, typer.Option(help="Largest loss of accuracy, or of agreement.")
    ] = None
    offload_rate: options.OffloadRateSetting = None
    classes: Annotated[
        str | None, typer.Option(help="Labels in the order of the scores, comma-separated.")
    ] = None
    seed: Annotated[
        int, Meta(ge=0), typer.Option(help="Seed for drawing the rows that choose thresholds.")
    ] = 0
    max_message: Annotated[
        int,
        Meta(ge=1),
        typer.Option(help="Largest message of the broker in bytes; requests must fit."),
    ] = MAX_REQUEST_BYTES
    name: options.BundleName = None
    bundle_version: options.BundleVersion = "1"

    @property
    def goal(self) -> dict[str, float]:
        """The goal option that is set, by name; empty if none is set."""
        return options.chosen_goal(
            budget=self.budget, max_loss=self.max_loss, offload_rate=self.offload_rate
        )


@with_options
def pair(settings: PairSettings, as_json: options.AsJson = False) -> None:
    """Choose a threshold between two trained models and pack them into a bundle.

    The models are not trained again. An instance is offloaded if the low-cost model's margin is
    below the threshold. Half of the rows choose thresholds, and the other half measure them.
    Without --target, agreement with the high-cost model replaces accuracy. An instance costs 1, and
    a request costs 1 more.

    How the inputs and outputs of a graph are read is printed on standard error.

    Examples:

        gatewise pair small.onnx big.onnx --data rows.npz --out bundle
        gatewise pair small.onnx big.onnx --data rows.npz --target y --offload-rate 0.2 --out bundle
    """
    from gatewise_export.commands.run_verify import label_array_name
    from gatewise_export.packing.bundle_writer import pack
    from gatewise_export.packing.verification import verify
    from gatewise_training.cascades.pair import PairCascade
    from gatewise_training.data.table_files import load_instances

    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    logging.getLogger("gatewise_training").setLevel(logging.INFO)
    # check options and paths before any work
    goal: dict[str, Any] = settings.goal
    check_destination(settings.out)
    name = topic_level(settings.data.stem) if settings.name is None else settings.name
    check_topic_level("--name", name)
    check_topic_level("--bundle-version", settings.bundle_version)
    instances, labels = load_instances(settings.data, settings.target)
    if labels is None and (label_name := label_array_name(str(settings.data))) is not None:
        note(
            f"note: {settings.data} has an array {label_name!r}, which is not read: with --target "
            f"{label_name} accuracy is measured, and not agreement"
        )
    system = PairCascade(
        low_cost_model=settings.low_cost_model,
        high_cost_model=settings.high_cost_model,
        classes=None if settings.classes is None else _parse_labels(settings.classes, labels),
        random_state=settings.seed,
        **goal,
    ).fit(instances, labels)
    # `pack` drops rows whose two largest probabilities are close, then uses SAMPLE_ROWS
    sample = instances[: 2 * SAMPLE_ROWS]
    bundle = pack(
        system,
        settings.out,
        sample=sample,
        name=name,
        version=settings.bundle_version,
        max_message=settings.max_message,
    )
    report = verify(system, bundle, sample)
    if as_json:
        emit(_document(system, bundle, report, len(instances)))
    else:
        _print_pair(system, bundle, report)
    if not report.agrees:
        raise typer.Exit(1)


def _document(
    system: PairCascade, bundle: Bundle, report: VerifyReport, n_instances: int
) -> dict[str, Any]:
    """Build the document of ``--json``."""
    point = bundle.manifest.active_point
    return {
        "bundle": str(bundle.path),
        "bytes": bundle.manifest.total_bytes,
        "low_cost_bytes": system.low_cost_bytes_,
        "request_bytes": system.request_bytes_,
        "instance": plain_values(system.instance_),
        "instances": n_instances,
        "measured": point.measured,
        "reference_accuracy": system.frontier_.reference_accuracy,
        "operating_point": msgspec.to_builtins(point),
        "verify": asdict(report),
    }


def _print_pair(system: PairCascade, bundle: Bundle, report: VerifyReport) -> None:
    """Print the frontier, the active point and the sizes."""
    # imported here, because the command's help must not load the learning libraries
    from gatewise_export.commands.manifest_frontier import print_frontier

    manifest = bundle.manifest
    note(f"packed {bundle.path}")
    print_frontier(manifest, hull_only=True)
    print(f"\n{point_text(manifest)}")
    print(
        f"{bundle.path}: {byte_size(manifest.total_bytes)}, "
        f"{byte_size(system.low_cost_bytes_)} of it on the device; a request takes "
        f"{byte_size(system.request_bytes_)}; the bundle and Python differ in "
        f"{report.differing_decisions} of {report.rows} decisions"
    )
    print_cloud_lines(manifest)


def _parse_labels(classes_option: str, labels: NDArray[Any] | None) -> list[int] | list[str]:
    """Parse --classes, as integers if the words are integers and the data's labels numbers."""
    label_texts = [label_text.strip() for label_text in classes_option.split(",")]
    if labels is not None and labels.dtype.kind not in "biuf":
        return label_texts
    try:
        return [int(label_text) for label_text in label_texts]
    except ValueError:
        return label_texts
