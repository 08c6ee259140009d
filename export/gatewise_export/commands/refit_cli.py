"""``gatewise refit``: a second release, learned from kept instances."""

from __future__ import annotations

import msgspec
import typer

from gatewise.console import emit, note, table
from gatewise.formats import percent
from gatewise.settings import with_options
from gatewise_export.commands.options import AsJson
from gatewise_export.refit.refit import RefitReport, RefitSettings, refit_bundle

_VERDICTS = {
    "better": "the held rows show that the new release is better",
    "worse": "the held rows show that the new release is WORSE",
    "not shown": "the held rows do not show that the new release is better",
}


@with_options
def refit(settings: RefitSettings, as_json: AsJson = False) -> None:
    """Learn a new release from old training rows and kept instances with labels.

    Kept instances count by the inverse of their chances. With --high-cost same, those without a
    label are taught by the high-cost model, and stages, gate and thresholds are fitted again for
    it; new trains another one on old rows and labels. A part of the kept instances is held out, and
    both releases answer it. Exits 1 unless these rows show that the new one is better; the bundle
    is written all the same.

      gatewise refit bundle --train train.npz --kept kept --out bundle2
      gatewise refit bundle --train log.csv --target fault --kept kept --high-cost new --out b2
    """
    bundle, report = refit_bundle(settings)
    if as_json:
        emit(msgspec.to_builtins(report))
    else:
        note(f"packed {bundle.path}")
        _print(report)
    if report.verdict != "better":
        raise typer.Exit(1)


def _print(report: RefitReport) -> None:
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
    header = ("rows held out", "labels", "new less old", "95 % interval")
    table(f"{report.new} against {report.old}", header, rows)
    print(
        f"fitted on {report.n_old} old rows and {report.n_kept} kept ones, {report.n_labels} with "
        f"a label; no weight above {report.cap:g} times the mean"
    )
    old_rate, new_rate = map(percent, report.offload_rates)
    print(f"offloaded: {old_rate} before, {new_rate} now")
    print(_VERDICTS[report.verdict])


commands = {"refit": refit}
