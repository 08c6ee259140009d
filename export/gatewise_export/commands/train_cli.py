"""The sub-command ``gatewise train``: a table becomes a bundle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from gatewise.columns.kinds import read_kind
from gatewise.console import emit, note
from gatewise.errors import InputError
from gatewise_export.bundle.signing import Signer
from gatewise_export.commands import options
from gatewise_export.commands.tables import print_trained


def train(
    dataset: Annotated[
        str,
        typer.Argument(help="A .csv, .parquet or .npz file, or digits, wine, iris, breast_cancer."),
    ],
    out: options.Out,
    target: options.Target = None,
    method: Annotated[
        str,
        typer.Option(
            help="A cascade (staged, adapt-gbrt, adapt-lin, adapt-lstsq, l1, "
            "confidence) or a single model without a cloud (cegb, budget-forest, budget-prune, "
            "greedy-miser)."
        ),
    ] = "staged",
    budget: options.Budget = None,
    max_loss: options.MaxLossByClass = None,
    offload_rate: options.OffloadRate = None,
    min_recall: options.MinRecall = None,
    min_precision: options.MinPrecision = None,
    max_bytes: options.MaxBytes = None,
    max_instance_cost: options.MaxInstanceCost = None,
    guarantee: Annotated[
        float | None,
        typer.Option(help="Certify the bounds on rows set aside, with this confidence: 0.95."),
    ] = None,
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
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=KIND",
            help="Kind of a column: category, ordinal (a category as one number), boolean (y and "
            "n, 1 and 0), time, time:FORMAT such as time:%d.%m.%Y or time:unix, drop (no "
            "feature). May be repeated.",
        ),
    ] = None,
    groups: Annotated[
        str | None,
        typer.Option(
            help="The column (of .npz the array) with each row's subject, machine or recording: no "
            "feature; whole groups are held out."
        ),
    ] = None,
    time_split: Annotated[
        str | None,
        typer.Option(
            help="A column of numbers or dates (NAME=FORMAT), no feature: the latest rows are held "
            "out, and later ones validate."
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
    test_size: Annotated[
        float, typer.Option(help="Share of the rows held out, if the file has no test part.")
    ] = 0.25,
    name: options.BundleName = None,
    bundle_version: options.BundleVersion = "1",
    sign: options.Sign = None,
    as_json: options.AsJson = False,
) -> None:
    """Learn a system from a table under a budget, and pack it into a bundle.

    Without a budget: the cheapest operating point within 0.01 of the high-cost model's
    accuracy, or within the losses of recall that --max-loss CLASS=SHARE allows. The rows held
    out (or the file's own test part) measure what is printed; they are kept beside the bundle,
    as bundle-test.csv, for verify, edge and simulate.

    Columns that are not numbers are encoded, and the encoders go into the bundle; say which are
    categories and dates, or have `gatewise init` write a file of kinds and prices.

    Rows of one subject, machine or recording are alike: say with --groups which belong together,
    else figures are those of rows that the models nearly know.

    Example:

        gatewise train table.csv --target label --costs prices.toml --budget 6 --out bundle
        gatewise train log.csv --column id=drop --column supplier=category --impute --out bundle
        gatewise train log.csv --max-loss fault=0.05 --max-loss ok=0.01 --out bundle
        gatewise train windows.csv --target activity --groups subject --out bundle
    """
    from dataclasses import asdict

    from gatewise_export.training_run import TrainingSettings, rows_beside, train_bundle
    from gatewise_training.data.table_columns import ColumnOptions

    weights: Any = class_weight
    if weights is not None and weights != ["balanced"]:
        weights = options.by_class_option("--class-weight", weights)
    total, losses = options.loss_option(max_loss)
    goal = options.chosen_goal(budget=budget, max_loss=total, offload_rate=offload_rate)
    objectives = {
        "min_recall": options.by_class_option("--min-recall", min_recall) or None,
        "min_precision": options.by_class_option("--min-precision", min_precision) or None,
        "class_weight": "balanced" if weights == ["balanced"] else weights,
        "max_bytes": options.bytes_option(max_bytes),
        "max_instance_cost": max_instance_cost,
        "guarantee": guarantee,
    }
    if losses:
        objectives["max_loss"] = losses if total is None else {None: total, **losses}
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
            kinds=_column_kinds(column or ()),
            impute=impute,
            missing_words=tuple(na or ()),
        ),
        groups=groups,
        time_split=None if time_split is None else _with_format(time_split),
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
        "remarks": run.remarks,
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


commands: dict[str, Callable[..., None]] = {"train": train}


def _column_kinds(texts: Sequence[str]) -> dict[str, str]:
    """Read ``NAME=KIND`` of each column."""
    kinds: dict[str, str] = {}
    for text in texts:
        name, equals, kind = text.rpartition("=")
        if not equals or name in kinds:
            why = "is given two kinds" if equals else "write it as NAME=KIND"
            raise InputError(f"--column {text}: {why}")
        read_kind(kind)
        kinds[name] = kind
    return kinds


def _with_format(text: str) -> tuple[str, str]:
    """Take ``NAME`` or ``NAME=FORMAT`` apart."""
    name, equals, form = text.rpartition("=")
    return (name, form) if equals else (text, "iso")
