"""The sub-commands ``gatewise train``, ``frontier``, ``inspect`` and ``verify``.

Only ``train`` and ``verify`` need the learning libraries; ``inspect`` runs on a device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gatewise.console import emit, note
from gatewise.errors import InputError
from gatewise_export.bundle.bundle import Bundle, set_operating_point
from gatewise_export.bundle.signing import Signer
from gatewise_export.commands.tables import (
    print_bundle,
    print_checks,
    print_frontier,
    print_trained,
)

if TYPE_CHECKING:
    from gatewise_export.bundle.manifest import Manifest
    from gatewise_training.operating_points.frontier import Frontier, OperatingPoint

__all__ = ["commands", "frontier", "inspect", "train", "verify"]

BundlePath = Annotated[Path, typer.Argument(help="The bundle: a directory or a .gwb file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")]
Budget = Annotated[float | None, typer.Option(help="Mean cost per instance to spend at most.")]
MaxLoss = Annotated[
    float | None, typer.Option(help="Accuracy to give up at most against the high-cost model.")
]
OffloadRate = Annotated[float | None, typer.Option(help="Share of instances to offload at most.")]
MinRecall = Annotated[
    list[str] | None,
    typer.Option(help="CLASS=SHARE: least recall of a class, as fault=0.9; may be repeated."),
]
MinPrecision = Annotated[
    list[str] | None,
    typer.Option(help="CLASS=SHARE: least precision of a class; may be repeated."),
]
Sign = Annotated[
    Path | None, typer.Option(help="NAME.key as `gatewise keygen` writes it: sign the bundle.")
]
PublicKeyFile = Annotated[
    Path | None, typer.Option("--public-key", help="NAME.pub: refuse what is not signed by it.")
]
Target = Annotated[
    str | None, typer.Option(help="The label's column; target, label, class or y by itself.")
]


def train(
    dataset: Annotated[
        str, typer.Argument(help="A .csv, .parquet or .npz file, or digits, wine, breast_cancer.")
    ],
    out: Annotated[Path, typer.Option(help="Where the bundle goes: a directory or a .gwb file.")],
    target: Target = None,
    method: Annotated[
        str,
        typer.Option(
            help="A cascade (staged, staged-lazy, adapt-gbrt, adapt-lin, adapt-lstsq, l1, "
            "confidence) or a single model without a cloud (cegb, budget-forest, budget-prune, "
            "greedy-miser)."
        ),
    ] = "staged",
    budget: Budget = None,
    max_loss: MaxLoss = None,
    offload_rate: OffloadRate = None,
    min_recall: MinRecall = None,
    min_precision: MinPrecision = None,
    class_weight: Annotated[
        list[str] | None,
        typer.Option(help="balanced, or CLASS=WEIGHT, repeated: what a row of a class counts."),
    ] = None,
    costs: Annotated[
        Path | None, typer.Option(help="Prices of the features: a .toml or .csv file.")
    ] = None,
    default_price: Annotated[
        float | None, typer.Option(help="Price of a column that --costs does not list.")
    ] = None,
    drop: Annotated[
        list[str] | None, typer.Option(help="A column that is no feature; may be repeated.")
    ] = None,
    categorical: Annotated[
        list[str] | None, typer.Option(help="A column of categories; may be repeated.")
    ] = None,
    ordinal: Annotated[
        list[str] | None, typer.Option(help="The same, as one number; may be repeated.")
    ] = None,
    boolean: Annotated[
        list[str] | None, typer.Option(help="A column of y and n, 1 and 0; may be repeated.")
    ] = None,
    time: Annotated[
        list[str] | None,
        typer.Option(
            help="A column of dates; NAME=FORMAT for others than ISO 8601, as %d.%m.%Y, or "
            "unix (seconds). May be repeated."
        ),
    ] = None,
    na: Annotated[
        list[str] | None,
        typer.Option(help="A text that is an empty cell, beside NA, null, ?; may be repeated."),
    ] = None,
    impute: Annotated[
        bool, typer.Option("--impute", help="Fill empty cells; a feature says which were.")
    ] = False,
    allow_missing: Annotated[
        bool, typer.Option("--allow-missing", help="Take empty cells (NaN) as values.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of the split and of the models.")] = 0,
    test_size: Annotated[float, typer.Option(help="Share of the rows held out to measure.")] = 0.25,
    name: Annotated[str | None, typer.Option(help="Of the bundle; the data's by default.")] = None,
    bundle_version: Annotated[str, typer.Option(help="Version of the bundle.")] = "1",
    sign: Sign = None,
    as_json: AsJson = False,
) -> None:
    """Learn a system from a table under a budget, and pack it into a bundle.

    Without a budget: the cheapest operating point within 0.01 of the high-cost model's
    accuracy. The rows held out (or the file's own test part) measure what is printed; they are
    kept beside the bundle, as bundle-test.csv, for verify, edge and simulate.

    Columns that are not numbers are encoded, and the encoders go into the bundle; say which are
    categories and dates, or have `gatewise init` write a file of kinds and prices.

    Example:

        gatewise train table.csv --target label --costs prices.toml --budget 6 --out bundle
        gatewise train log.csv --drop id --categorical supplier --time when --impute --out bundle
    """
    from dataclasses import asdict

    from gatewise_export.commands.manifest_frontier import by_class_option
    from gatewise_export.training_run import TrainingSettings, rows_beside, train_bundle
    from gatewise_training.data.table_columns import ColumnOptions
    from gatewise_training.operating_points.recall_check import recall_remark

    weights: Any = class_weight
    if weights is not None and weights != ["balanced"]:
        weights = by_class_option("--class-weight", weights)
    objectives = {
        "min_recall": by_class_option("--min-recall", min_recall or ()) or None,
        "min_precision": by_class_option("--min-precision", min_precision or ()) or None,
        "class_weight": "balanced" if weights == ["balanced"] else weights,
    }
    goal = _goal(budget=budget, max_loss=max_loss, offload_rate=offload_rate)
    if sign is not None:
        Signer(sign)  # refuse a key that cannot be used before the training
    settings = TrainingSettings(
        dataset=dataset,
        out=out,
        target=target,
        method=method,
        goal=goal,
        parameters={name: value for name, value in objectives.items() if value is not None},
        costs=costs,
        default_price=default_price,
        columns=ColumnOptions(
            categorical=tuple(categorical or ()),
            ordinal=tuple(ordinal or ()),
            boolean=tuple(boolean or ()),
            time=dict(_with_format(text) for text in time or ()),
            drop=tuple(drop or ()),
            impute=impute,
            missing_words=tuple(na or ()),
        ),
        allow_missing=allow_missing,
        seed=seed,
        test_size=test_size,
        name=name,
        version=bundle_version,
        sign=sign,
        rows=rows_beside(out),
    )
    run = train_bundle(settings, quiet=as_json)
    manifest = run.bundle.manifest
    result = {
        "bundle": str(run.bundle.path),
        "bytes": sum(f.size for f in manifest.files.values()),
        "dataset": run.data.name,
        "method": method,
        "operating_point": asdict(manifest.active_point),
        "test": run.measure(),
        "remarks": [remark] if (remark := recall_remark(run.system)) else [],
        "verify": asdict(run.verification),
        "test_rows": str(settings.rows),
        "troubles": run.troubles,
    }
    if as_json:
        emit(result)
    else:
        note(f"packed {run.bundle.path}")
        print_trained(result, manifest)
    for trouble in run.troubles:
        note(f"gatewise: {trouble}")
    if run.troubles or run.verification.differing_decisions:
        raise typer.Exit(1)


def frontier(
    bundle: BundlePath,
    budget: Budget = None,
    max_loss: MaxLoss = None,
    offload_rate: OffloadRate = None,
    min_recall: MinRecall = None,
    min_precision: MinPrecision = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw it into this .png, .svg or .pdf file.")
    ] = None,
    sign: Sign = None,
    as_json: AsJson = False,
) -> None:
    """Show the accuracy-cost curve of a bundle's operating points; switch to another one.

    With --budget, --max-loss or --offload-rate the bundle is put at that point: its manifest
    is rewritten, every graph stays as it is. A signed bundle needs its key for that. --min-recall
    and --min-precision go with any of them, by themselves with --max-loss 0.01; those that the
    bundle was trained with are kept, unless others are given (0 lifts one).

    Example:

        gatewise frontier bundle --budget 4 --plot frontier.png
    """
    from gatewise_export.commands.manifest_frontier import (
        bounds_of,
        by_class_option,
        chosen_point,
        frontier_of,
        points_of,
    )

    opened = Bundle.open(bundle, for_device=True)
    goal = _goal(budget=budget, max_loss=max_loss, offload_rate=offload_rate)
    bounds = bounds_of(
        opened.manifest,
        by_class_option("--min-recall", min_recall or ()),
        by_class_option("--min-precision", min_precision or ()),
    )
    if plot is not None and plot.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise InputError(f"--plot {plot}: the ending must be .png, .svg or .pdf")
    if (min_recall or min_precision) and not goal:
        goal = {"max_loss": 0.01}  # as train
    if goal:
        chosen = chosen_point(opened.manifest, goal, bounds)
        shares = bounds.min_recall, bounds.min_precision
        opened = set_operating_point(bundle, chosen, sign=sign, bounds=shares)
    elif sign is not None:
        raise InputError(
            "--sign goes with --budget, --max-loss or --offload-rate; see gatewise pack"
        )
    manifest = opened.manifest
    curve, points = frontier_of(manifest), points_of(manifest)
    if plot is not None:
        title = f"{manifest.name} {manifest.version}"
        _draw(curve, points[manifest.active], title, plot)
    if as_json:
        emit(_frontier_document(curve, points, manifest) | {"bundle": str(bundle)})
        return
    print_frontier(manifest, hull_only=False)
    if goal:
        note(f"{bundle} is now at operating point {manifest.active}")


def inspect(bundle: BundlePath, public_key: PublicKeyFile = None, as_json: AsJson = False) -> None:
    """Show what is in a bundle, after checking every hash; who signed it.

    Example:

        gatewise inspect bundle --public-key fleet.pub
    """
    opened = Bundle.open(bundle, public_key=public_key, for_device=True)
    manifest, claimed = opened.manifest, opened.claimed_keys()
    signer = opened.signed_by or (claimed[0] if claimed else None)
    if as_json:
        emit(
            {
                "bundle": str(bundle),
                "bytes": sum(f.size for f in manifest.files.values()),
                "exit_costs": manifest.exit_costs().tolist(),
                "absent": list(opened.absent()),
                "signed": signer is not None,
                "key_id": signer,
                "signature_checked": opened.signed_by is not None,
                "manifest": manifest.to_document(),
            }
        )
        return
    print_bundle(manifest)
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
    bundle: BundlePath,
    data: Annotated[
        str | None, typer.Option(help="Rows to check on: a .csv, .parquet or .npz file.")
    ] = None,
    target: Target = None,
    public_key: PublicKeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Check that a bundle decides as it must; exit status 1 if it does not.

    First the bundle's own sample, run in onnxruntime (or walked, where a stage acquires node by
    node). With --data, the same on these rows against the flat arrays, read back and summed as in
    training, with accuracy (of a regressor R²) and cost. What was compared is listed.

    Example:

        gatewise verify bundle --data table.csv --target label
    """
    from dataclasses import asdict

    from gatewise_export.commands.run_verify import check_data, compared_parts
    from gatewise_export.packing.verification import self_test

    opened = Bundle.open(bundle, public_key=public_key, for_device=True)
    sample = self_test(opened)
    checks: dict[str, Any] = {"sample": asdict(sample)}
    good = sample.agrees and sample.cloud_label_differences == 0
    if data is not None:
        report, measured = check_data(opened, data, target)
        checks["data"] = asdict(report) | measured
        good = good and report.agrees
    checked = compared_parts(opened, with_data=data is not None)
    if as_json:
        summary = {"bundle": str(bundle), "task": opened.manifest.task, "agrees": good}
        emit(summary | checks | {"checked": checked})
    else:
        print_checks(checks, checked)
        print("the bundle decides as it must" if good else "the bundle DIFFERS: do not use it")
    if not good:
        raise typer.Exit(1)


commands: dict[str, Callable[..., None]] = {
    "train": train,
    "frontier": frontier,
    "inspect": inspect,
    "verify": verify,
}


# -- parts ---------------------------------------------------------------------------------


def _with_format(text: str) -> tuple[str, str]:
    """Take ``NAME`` or ``NAME=FORMAT`` apart."""
    name, equals, form = text.rpartition("=")
    return (name, form) if equals else (text, "iso")


def _goal(**options: float | None) -> dict[str, float]:
    given = {name: value for name, value in options.items() if value is not None}
    if len(given) > 1:
        raise InputError("give one of --budget, --max-loss and --offload-rate, not several")
    return given


def _frontier_document(
    curve: Frontier, points: Sequence[OperatingPoint], manifest: Manifest
) -> dict[str, Any]:
    hull, on_curve = set(curve.hull().points), set(curve.points)
    figures = (
        "cost", "accuracy", "offload_rate", "thresholds", "weighted_accuracy", "recall",
        "precision", "balanced_accuracy", "log_loss", "brier_score",
    )  # fmt: skip
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
    from gatewise_training.operating_points.frontier import FrontierDisplay

    display = FrontierDisplay(curve, name=title).plot(active=active)
    display.figure_.savefig(path)
