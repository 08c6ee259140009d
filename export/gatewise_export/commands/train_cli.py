"""The sub-command ``gatewise train``, which trains a system on a table and packs it."""

from __future__ import annotations

import msgspec
import typer

from gatewise.console import emit, note
from gatewise.settings import with_options
from gatewise_export.commands.options import AsJson
from gatewise_export.training_settings import TrainingSettings


@with_options
def train(settings: TrainingSettings, as_json: AsJson = False) -> None:
    """Train a system on a table under a budget and pack it into a bundle.

    Without a budget the bundle gets the cheapest operating point whose accuracy is within 0.01 of
    the high-cost model's, or whose losses of recall are within --max-loss CLASS=SHARE. Figures are
    measured on test rows. They are written to bundle-test.csv for verify, edge and simulate.

    Columns of categories and dates are encoded, and the bundle contains the encoder. Name the kinds
    of columns with --column, or let `gatewise init` write a file of kinds and prices.

    Rows of one subject, machine or recording are similar. Name the column of their ids with
    --groups; otherwise similar rows are in both training and test, and figures are too optimistic.

    Examples:

        gatewise train table.csv --target label --costs prices.toml --budget 6 --out bundle
        gatewise train log.csv --drop id --column supplier=category --impute --out bundle
        gatewise train log.csv --max-loss fault=0.05 --max-loss ok=0.01 --out bundle
        gatewise train windows.csv --target activity --groups subject --out bundle
    """
    from gatewise_export.commands.training_tables import print_training
    from gatewise_export.training_run import neighbour_path, train_bundle

    settings = msgspec.structs.replace(settings, rows=neighbour_path(settings.out, "test.csv"))
    run = train_bundle(settings, quiet=as_json)
    summary = run.summary()
    if as_json:
        emit(summary)
    else:
        note(f"packed {run.bundle.path}")
        print_training(summary, run.bundle.manifest)
    for trouble in run.troubles:
        note(f"gatewise: {trouble}")
    if run.troubles or not run.verification.agrees:
        raise typer.Exit(1)
