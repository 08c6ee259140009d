"""Refit a bundle on old rows and kept instances, and compare both on rows held out from the fit."""

from __future__ import annotations

import tempfile
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray
from typer import Argument, Option

from gatewise.documents import Amount, Positive, Share
from gatewise.errors import InputError, RecallWarning
from gatewise.settings import FileOption, Settings
from gatewise_export.archive.estimate import TrueFigure, estimated
from gatewise_export.archive.labels import TruthRows
from gatewise_export.archive.shard import ArchivedRows
from gatewise_export.archive.true_figures import difference_data
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.bundle.manifest import Manifest
from gatewise_export.bundle.repacking import check_destination
from gatewise_export.commands.options import chosen_goal
from gatewise_export.packing.bundle_writer import pack
from gatewise_export.packing.verification import graph_outcome
from gatewise_export.refit.refit_rows import (
    FitRows,
    KeptParts,
    class_values,
    feature_order,
    fit_rows_of,
    kept_parts,
    old_rows,
)
from gatewise_training import methods
from gatewise_training.cascades.base import BudgetedClassifier
from gatewise_training.learners.given_models.given_graph import OnnxModel

#: Share of the rows with which thresholds are chosen for a high-cost model that stays.
_VALIDATION: Final = 0.25

Verdict = Literal["better", "worse", "not shown"]


class RefitSettings(Settings, frozen=True, kw_only=True):
    """Options of ``gatewise refit``."""

    bundle: Annotated[Path, Argument(help="The bundle whose instances were kept.")]
    train: Annotated[str, Option(help="Its training rows: a .csv, .parquet or .npz file.")]
    kept: Annotated[Path, Option(metavar="DIR", help="Folder of `cloud --keep`, with labels.")]
    out: Annotated[Path, Option(help="Bundle to write.")]
    target: Annotated[str | None, Option(help="Column of the label in --train.")] = None
    high_cost: Annotated[
        Literal["same", "new"],
        Option(help="Keep the high-cost model, or train one on old rows and labels."),
    ] = "same"
    method: Annotated[str, Option(help="A cascade, as for gatewise train.")] = "staged"
    budget: Annotated[Amount | None, Option(help="Largest mean cost per instance.")] = None
    max_loss: Annotated[
        Share | None, Option(help="Largest loss of accuracy against the high-cost model; 0.01.")
    ] = None
    offload_rate: Annotated[
        Share | None, Option(help="Largest share of instances that are offloaded.")
    ] = None
    guarantee: Annotated[
        Annotated[float, Meta(gt=0, lt=1)] | None,
        Option(help="Confidence, as 0.95, of the bound, certified on rows set aside."),
    ] = None
    held: Annotated[
        Annotated[float, Meta(gt=0, lt=1)],
        Option(help="Share of kept instances that only the comparison sees."),
    ] = 0.4
    kept_share: Annotated[
        Annotated[float, Meta(gt=0, lt=1)],
        Option(help="Share of the kept instances in the weight of all rows of the fit."),
    ] = 0.5
    cap: Annotated[
        Positive, Option(help="Largest weight of a kept instance, in multiples of the mean.")
    ] = 10.0
    seed: Annotated[int, Meta(ge=0), Option(help="Seed of the split and the models.")] = 0
    version: Annotated[
        str | None, Option("--bundle-version", help="Version; by default the next number.")
    ] = None
    sign: Annotated[Path | None, Option(help="Private key that signs the bundle.")] = None
    parameters: Annotated[dict[str, Any], FileOption("Further parameters of the method.")] = (
        msgspec.field(default_factory=dict)
    )


class ReleaseDifference(msgspec.Struct, frozen=True):
    """Accuracy (or a class's recall) of the new release less the old one's, on held rows.

    `part` says which rows: all, a class, or a time. The interval is for one look, at 95 %.
    """

    part: str
    n_labels: int
    difference: float | None
    low: float | None
    high: float | None


class RefitReport(msgspec.Struct, frozen=True):
    """The report of a refit: rows of the fit, and old against new on the same held rows.

    Attributes
    ----------
    old, new : str
        Names and versions.
    n_old, n_kept, n_labels : int
        Old rows, kept ones and labels of the fit.
    cap : float
        Largest weight of a kept row, in multiples of the mean.
    comparisons : tuple of ReleaseDifference
        The first is of all rows.
    offload_rates : pair of float
        Old and new, on the held rows.
    verdict : str
        ``better`` or ``worse`` only if the interval of all rows says so.
    """

    old: str
    new: str
    n_old: int
    n_kept: int
    n_labels: int
    cap: float
    comparisons: tuple[ReleaseDifference, ...]
    offload_rates: tuple[float, float]
    verdict: Verdict


def refit_bundle(settings: RefitSettings) -> tuple[Bundle, RefitReport]:
    """Fit, pack and compare; the old bundle stays as it is.

    Raises InputError if rows, labels or features are missing.
    """
    check_destination(settings.out)
    old = Bundle.open(settings.bundle)
    keeps_model = settings.high_cost == "same"
    _check_old(old.manifest, keeps_model=keeps_model)
    rng = np.random.default_rng(settings.seed)
    parts = kept_parts(settings.kept, old.manifest, held_share=settings.held, rng=rng)
    if keeps_model and (parts.fit_labels.truth < 0).any():
        raise InputError("labels name a class that the high-cost model lacks: --high-cost new")
    kept = fit_rows_of(parts, old.manifest, cap=settings.cap, unlabelled=keeps_model, rng=rng)
    earlier = old_rows(settings.train, settings.target, old.manifest)
    # kept / (old + kept) = kept_share
    mass = settings.kept_share / (1 - settings.kept_share) * len(earlier.y)
    weighted = FitRows(kept.X, kept.y, kept.weights * mass / kept.weights.sum())
    with tempfile.TemporaryDirectory(prefix="gatewise-refit-") as folder:
        system = _fit(settings, old, earlier.joined(weighted), Path(folder), rng)
        new = pack(
            system,
            settings.out,
            sample=weighted.X[:64],
            name=old.manifest.name,
            version=settings.version or next_version(old.manifest.version),
            sign=settings.sign,
            encoder=old.manifest.encoder,
        )
    comparisons, rates = _compared(old, new, parts)
    total = comparisons[0]
    verdict: Verdict = "not shown"
    if total.low is not None and total.high is not None and total.low > 0:
        verdict = "better"
    elif total.high is not None and total.high < 0:
        verdict = "worse"
    report = RefitReport(
        old=old.manifest.title,
        new=new.manifest.title,
        n_old=len(earlier.y),
        n_kept=len(kept.y),
        n_labels=len(parts.fit_labels),
        cap=settings.cap,
        comparisons=comparisons,
        offload_rates=rates,
        verdict=verdict,
    )
    return new, report


def next_version(version: str) -> str:
    """Get the next version: the next number, or the same with ``.1`` behind it.

    >>> next_version("7"), next_version("a4f"), next_version("2.9")
    ('8', 'a4f.1', '2.10')
    """
    head, dot, last = version.rpartition(".")
    return f"{head}{dot}{int(last) + 1}" if last.isdecimal() else f"{version}.1"


def _check_old(manifest: Manifest, *, keeps_model: bool) -> None:
    if manifest.cloud is None or not manifest.classes:
        raise InputError(f"{manifest.title} has no high-cost model: nothing of it was kept")
    if manifest.signal is not None or manifest.instance is not None:
        raise InputError(
            f"{manifest.title} takes windows or arrays: fit it again with StagedCascade in Python "
            "on old and kept ones (gatewise_export.archive reads them)"
        )
    order = feature_order(manifest)
    if keeps_model and (order != np.arange(len(order))).any():
        raise InputError(
            f"{manifest.title}: its high-cost model reads the features in another order than the "
            "bundle lists them: --high-cost new"
        )


def _fit(
    settings: RefitSettings, old: Bundle, rows: FitRows, folder: Path, rng: np.random.Generator
) -> BudgetedClassifier:
    import pandas as pd

    manifest = old.manifest
    assert manifest.cloud is not None
    names = list(manifest.feature_names)
    goal = chosen_goal(
        budget=settings.budget, max_loss=settings.max_loss, offload_rate=settings.offload_rate
    )
    options: dict[str, Any] = {
        "feature_costs": manifest.feature_costs(),
        "cloud_prices": manifest.cloud_prices(),
        "random_state": settings.seed,
        **goal,
        **settings.parameters,
    }
    if settings.guarantee is not None:
        options["guarantee"] = settings.guarantee
    if "allowed" in (manifest.missing.stages, manifest.missing.cloud):
        options["allow_missing"] = True
    training = np.ones(len(rows.y), bool)
    validation = None
    weights = rows.weights
    if settings.high_cost == "same":
        graph = folder / manifest.cloud.file
        graph.write_bytes(old.read(manifest.cloud.file))
        options["high_cost_model"] = OnnxModel(graph, classes=list(manifest.classes))
        # Drawn by weight, because validation rows count alike.
        share = np.minimum(_VALIDATION * rows.weights / rows.weights.mean(), 0.5)
        training = rng.random(len(rows.y)) >= share
        weights = weights / (1 - share)
        validation = pd.DataFrame(rows.X[~training], columns=names), rows.y[~training]
    system: BudgetedClassifier = methods.cascade(settings.method, **options)
    with warnings.catch_warnings():
        # the report compares recalls class by class
        warnings.simplefilter("ignore", RecallWarning)
        system.fit(
            pd.DataFrame(rows.X[training], columns=names),
            rows.y[training],
            sample_weight=weights[training],
            validation=validation,
        )
    return system


def _compared(
    old: Bundle, new: Bundle, parts: KeptParts
) -> tuple[tuple[ReleaseDifference, ...], tuple[float, float]]:
    """Compare both releases on the held rows: all, by class, and the earlier and later half."""
    rows = parts.held_rows
    labelled = parts.held_labels
    order = feature_order(old.manifest)
    x = np.concatenate([rows.X, labelled.rows.X])[:, order].astype(np.float32)
    index_of = {label: c for c, label in enumerate(old.manifest.classes)}
    n_classes = len(index_of)
    # a class that only the new release has
    extra = {c: i for i, c in enumerate(c for c in new.manifest.classes if c not in index_of)}
    truth_values = class_values(labelled.labels, old.manifest)
    truth = np.array(
        [index_of.get(y, n_classes + extra.get(y, len(extra))) for y in truth_values.tolist()]
    )
    old_outcome = graph_outcome(old, x)
    new_outcome = graph_outcome(new, x)
    to_index = np.array(
        [index_of.get(c, n_classes + extra.get(c, 0)) for c in new.manifest.classes]
    )
    answers = old_outcome.labels, to_index[new_outcome.labels]
    widened = _with_classes(rows, len(extra) + 1)
    held = _with_truth(labelled, truth, len(extra) + 1)
    comparisons = [_comparison("all", widened, held, answers)]
    for label, c in (index_of | {y: n_classes + i for y, i in extra.items()}).items():
        comparisons.append(_comparison(f"class {label}", widened, held, answers, of_class=c))
    middle = float(np.median(rows.time))
    for name, early in (("earlier half", True), ("later half", False)):
        in_part = (rows.time < middle) == early
        label_in_part = (labelled.rows.time < middle) == early
        both = np.concatenate([in_part, label_in_part])
        part_answers = answers[0][both], answers[1][both]
        comparisons.append(
            _comparison(name, widened.take(in_part), held.take(label_in_part), part_answers)
        )
    rates = []
    for bundle, outcome in ((old, old_outcome), (new, new_outcome)):
        is_offloaded = outcome.exits[: len(rows)] == len(bundle.manifest.stages)
        rates.append(float(np.average(is_offloaded, weights=rows.weights)))
    return tuple(comparisons), (rates[0], rates[1])


def _with_classes(rows: ArchivedRows, n_more: int) -> ArchivedRows:
    """Give instances a probability of 0 for classes that the high-cost model lacks."""
    return replace(rows, probabilities=np.pad(rows.probabilities, ((0, 0), (0, n_more))))


def _with_truth(labelled: TruthRows, truth: NDArray[Any], n_more: int) -> TruthRows:
    """Give labelled instances other class indices, and probabilities of `n_more` classes."""
    return replace(labelled, truth=truth, rows=_with_classes(labelled.rows, n_more))


def _comparison(
    part: str,
    rows: ArchivedRows,
    labelled: TruthRows,
    answers: tuple[NDArray[Any], NDArray[Any]],
    of_class: int | None = None,
) -> ReleaseDifference:
    data = difference_data(rows, labelled, *answers, of_class=of_class)
    figure = estimated(data, span=2.0, one_look=True)
    return ReleaseDifference(part, figure.n_labels, *_ends(figure))


def _ends(figure: TrueFigure) -> tuple[float | None, float | None, float | None]:
    if not figure.n_labels or np.isnan(figure.value):
        return None, None, None
    return figure.value, max(figure.low, -1.0), min(figure.high, 1.0)
