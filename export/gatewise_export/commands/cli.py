"""The sub-commands ``gatewise train``, ``frontier``, ``inspect`` and ``verify``.

Only ``train`` and ``verify`` need the learning libraries; ``inspect`` runs on a device.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gatewise.console import emit, note
from gatewise.errors import InputError
from gatewise_export.bundle.bundle import Bundle, set_operating_point
from gatewise_export.bundle.signing import Signer
from gatewise_export.commands.tables import (
    frontier_of,
    print_bundle,
    print_checks,
    print_frontier,
    print_trained,
)

if TYPE_CHECKING:
    from gatewise_export.bundle.manifest import Manifest
    from gatewise_training.operating_points.frontier import Frontier

__all__ = ["commands", "frontier", "inspect", "train", "verify"]

BundlePath = Annotated[Path, typer.Argument(help="The bundle: a directory or a .gwb file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")]
Budget = Annotated[float | None, typer.Option(help="Mean cost per instance to spend at most.")]
MaxLoss = Annotated[
    float | None, typer.Option(help="Accuracy to give up at most against the high-cost model.")
]
OffloadRate = Annotated[float | None, typer.Option(help="Share of instances to offload at most.")]
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
    costs: Annotated[
        Path | None, typer.Option(help="Prices of the features: a .toml or .csv file.")
    ] = None,
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
    accuracy. The rows held out (or the file's own test part) measure what is printed.

    Example:

        gatewise train table.csv --target label --costs prices.toml --budget 6 --out bundle
    """
    from dataclasses import asdict

    from gatewise_export.training_run import TrainingSettings, train_bundle

    goal = _goal(budget=budget, max_loss=max_loss, offload_rate=offload_rate)
    if sign is not None:
        Signer(sign)  # refuse a key that cannot be used before the training
    settings = TrainingSettings(
        dataset=dataset,
        out=out,
        target=target,
        method=method,
        goal=goal,
        costs=costs,
        allow_missing=allow_missing,
        seed=seed,
        test_size=test_size,
        name=name,
        version=bundle_version,
        sign=sign,
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
        "verify": asdict(run.verification),
    }
    if as_json:
        emit(result)
    else:
        note(f"packed {run.bundle.path}")
        print_trained(result, manifest)
    if run.verification.differing_decisions:
        raise typer.Exit(1)


def frontier(
    bundle: BundlePath,
    budget: Budget = None,
    max_loss: MaxLoss = None,
    offload_rate: OffloadRate = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw it into this .png, .svg or .pdf file.")
    ] = None,
    sign: Sign = None,
    as_json: AsJson = False,
) -> None:
    """Show the accuracy-cost curve of a bundle's operating points; switch to another one.

    With --budget, --max-loss or --offload-rate the bundle is put at that point: its manifest
    is rewritten, every graph stays as it is. A signed bundle needs its key for that.

    Example:

        gatewise frontier bundle --budget 4 --plot frontier.png
    """
    opened = Bundle.open(bundle, for_device=True)
    goal = _goal(budget=budget, max_loss=max_loss, offload_rate=offload_rate)
    curve = frontier_of(opened.manifest)
    if plot is not None and plot.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise InputError(f"--plot {plot}: the ending must be .png, .svg or .pdf")
    if goal:
        from gatewise_training.operating_points.frontier import SLACK

        if "max_loss" in goal and opened.manifest.reference_accuracy is None:
            raise InputError(f"{bundle} does not say its high-cost model's accuracy; use --budget")
        chosen = curve.points.index(curve.at(**goal, slack=SLACK))
        opened = set_operating_point(bundle, chosen, sign=sign)
    elif sign is not None:
        raise InputError(
            "--sign goes with --budget, --max-loss or --offload-rate; see gatewise pack"
        )
    if plot is not None:
        _draw(curve, opened.manifest, plot)
    if as_json:
        emit(_frontier_document(curve, opened.manifest) | {"bundle": str(bundle)})
        return
    print_frontier(curve, opened.manifest, hull_only=False)
    if goal:
        note(f"{bundle} is now at operating point {opened.manifest.active}")


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


def _goal(**options: float | None) -> dict[str, float]:
    given = {name: value for name, value in options.items() if value is not None}
    if len(given) > 1:
        raise InputError("give one of --budget, --max-loss and --offload-rate, not several")
    return given


def _frontier_document(curve: Frontier, manifest: Manifest) -> dict[str, Any]:
    hull = {id(p) for p in curve.hull().points}
    return {
        "active": manifest.active,
        "reference_accuracy": manifest.reference_accuracy,
        "points": [
            {
                "cost": p.cost,
                "accuracy": p.accuracy,
                "offload_rate": p.offload_rate,
                "thresholds": p.thresholds,
                "hull": id(p) in hull,
            }
            for p in curve.points
        ],
    }


def _draw(curve: Frontier, manifest: Manifest, path: Path) -> None:
    from gatewise_training.operating_points.frontier import FrontierDisplay

    title = f"{manifest.name} {manifest.version}"
    display = FrontierDisplay(curve, name=title).plot(active=curve.points[manifest.active])
    display.figure_.savefig(path)
