"""The sub-command ``gatewise refit``, which trains a new release on kept instances."""

from __future__ import annotations

import msgspec
import typer

from gatewise.console import emit, note, print_table
from gatewise.formats import percent
from gatewise.settings import with_options
from gatewise_export.commands.options import AsJson
from gatewise_export.refit.refit import RefitReport, RefitSettings, ReleaseLoss, refit_bundle

_VERDICTS = {
    "better": "the comparison rows show that the new release is better",
    "worse": "the comparison rows show that the new release is WORSE",
    "not shown": "the comparison rows do not show that the new release is better",
}


@with_options
def refit(settings: RefitSettings, as_json: AsJson = False) -> None:
    """Train a new release on old training rows and kept instances with labels.

    Kept instances are weighted by the inverse of their probabilities of being kept. With
    --high-cost same the high-cost model stays and labels the instances that have no label; stages
    and thresholds are fitted again. With --high-cost new a high-cost model is trained on old rows
    and labels. Both releases answer a part of the kept instances that is held out from the fit. The
    command exits with 1 unless this comparison shows that the new release is better; the bundle is
    written in either case.

    Examples:

        gatewise refit bundle --train train.npz --kept kept --out bundle2
        gatewise refit bundle --train log.csv --target fault --kept kept --high-cost new --out b2
    """
    bundle, report = refit_bundle(settings)
    if as_json:
        emit(msgspec.to_builtins(report))
    else:
        note(f"packed {bundle.path}")
        _print_report(report)
    if report.verdict != "better":
        raise typer.Exit(1)


def _print_report(report: RefitReport) -> None:
    rows = [
        (
            comparison.part,
            comparison.n_labels,
            percent(comparison.difference),
            f"{percent(comparison.low)} to {percent(comparison.high)}",
        )
        for comparison in report.comparisons
        if comparison.n_labels
    ]
    header = ("comparison rows", "labels", "new minus old", "95 % interval")
    print_table(f"{report.new} compared with {report.old}", header, rows)
    print(
        f"fitted on {report.n_old} old rows and {report.n_kept} kept instances, of which "
        f"{report.n_labels} have a label; weights are capped at {report.cap:g} times the mean"
    )
    old_rate, new_rate = map(percent, report.offload_rates)
    print(f"offloaded: {old_rate} by the old release, {new_rate} by the new one")
    if report.loss.value is not None:
        print(_loss_text(report.loss))
    print(_VERDICTS[report.verdict])


def _loss_text(loss: ReleaseLoss) -> str:
    text = (
        f"loss against the high-cost model: {percent(loss.value)}, and with 95 % confidence at "
        f"most {percent(loss.upper_bound)}"
    )
    if loss.promised is None:
        return text
    shown = "shown" if loss.is_promise_shown else "NOT shown by these rows"
    return f"{text}; promised: at most {percent(loss.promised)}, {shown}"
