"""Refit a bundle on old rows and kept instances, and compare both releases on comparison rows."""

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
from gatewise_export.archive.estimate import TrueFigure, estimate_figure
from gatewise_export.archive.labels import LabelledInstances
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

#: Share of validation rows if the high-cost model stays.
_VALIDATION_SHARE: Final = 0.25

Verdict = Literal["better", "worse", "not shown"]


class RefitSettings(Settings, frozen=True, kw_only=True):
    """Options of ``gatewise refit``."""

    bundle: Annotated[Path, Argument(help="Bundle whose instances were kept.")]
    train: Annotated[
        str, Option(help="File of the bundle's training rows: .csv, .parquet or .npz.")
    ]
    kept: Annotated[
        Path,
        Option(metavar="DIR", help="Folder that `gatewise cloud --keep` writes, with labels."),
    ]
    out: Annotated[Path, Option(help="Bundle to write: a directory or a .gwb file.")]
    target: Annotated[str | None, Option(help="Column of the label in --train.")] = None
    high_cost: Annotated[
        Literal["same", "new"],
        Option(help="Whether to keep the high-cost model or train a new one."),
    ] = "same"
    method: Annotated[str, Option(help="Learning method: a cascade of gatewise train.")] = "staged"
    budget: Annotated[Amount | None, Option(help="Largest mean cost per instance.")] = None
    max_loss: Annotated[
        Share | None,
        Option(help="Largest loss of accuracy against the high-cost model; by default 0.01."),
    ] = None
    offload_rate: Annotated[Share | None, Option(help="Largest share of offloaded instances.")] = (
        None
    )
    guarantee: Annotated[
        Annotated[float, Meta(gt=0, lt=1)] | None,
        Option(help="Confidence of the bound, such as 0.95; certified on calibration rows."),
    ] = None
    held: Annotated[
        Annotated[float, Meta(gt=0, lt=1)],
        Option(help="Share of kept instances that are comparison rows."),
    ] = 0.4
    kept_share: Annotated[
        Annotated[float, Meta(gt=0, lt=1)],
        Option(help="Share of kept instances in the total weight of the fit."),
    ] = 0.5
    cap: Annotated[
        Positive, Option(help="Largest weight of a kept instance, in multiples of the mean.")
    ] = 10.0
    seed: Annotated[int, Meta(ge=0), Option(help="Seed for the split and the models.")] = 0
    version: Annotated[
        str | None,
        Option("--bundle-version", help="Version of the bundle; by default the next number."),
    ] = None
    sign: Annotated[
        Path | None, Option(help="PEM file of the private Ed25519 key that signs the bundle.")
    ] = None
    parameters: Annotated[dict[str, Any], FileOption("Additional parameters of the method.")] = (
        msgspec.field(default_factory=dict)
    )


class ReleaseDifference(msgspec.Struct, frozen=True):
    """Accuracy, or a class's recall, of the new release minus the old one's on comparison rows.

    `part` names the rows: all, a class, or a period. The 95 % interval is valid for one comparison.
    """

    part: str
    n_labels: int
    difference: float | None
    low: float | None
    high: float | None


class RefitReport(msgspec.Struct, frozen=True):
    """The report of a refit: its rows, and both releases on the same comparison rows.

    Attributes
    ----------
    old, new : str
        Names and versions of the releases.
    n_old, n_kept, n_labels : int
        Numbers of old rows, kept instances and labels in the fit.
    cap : float
        Largest weight of a kept instance, in multiples of the mean.
    comparisons : tuple of ReleaseDifference
        The first comparison is on all rows.
    offload_rates : pair of float
        Offload rates of the old and the new release on the comparison rows.
    verdict : str
        ``better`` or ``worse`` only if the interval of the first comparison excludes 0.
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
    """Fit and pack a new release, and compare it with the old one, which stays unchanged.

    Raises InputError if rows, labels or features are missing.
    """
    check_destination(settings.out)
    old = Bundle.open(settings.bundle)
    keeps_model = settings.high_cost == "same"
    _check_old(old.manifest, keeps_model=keeps_model)
    rng = np.random.default_rng(settings.seed)
    parts = kept_parts(settings.kept, old.manifest, comparison_share=settings.held, rng=rng)
    if keeps_model and (parts.fit_labels.truth < 0).any():
        raise InputError(
            "labels name a class that the high-cost model does not have: use --high-cost new"
        )
    kept = fit_rows_of(parts, old.manifest, cap=settings.cap, unlabelled=keeps_model, rng=rng)
    training = old_rows(settings.train, settings.target, old.manifest)
    # kept_weight / (old_weight + kept_weight) = kept_share, and every old row has weight 1
    kept_weight = settings.kept_share / (1 - settings.kept_share) * len(training.y)
    weighted = FitRows(kept.X, kept.y, kept.weights * kept_weight / kept.weights.sum())
    with tempfile.TemporaryDirectory(prefix="gatewise-refit-") as folder:
        system = _fit(settings, old, training.concatenate(weighted), Path(folder), rng)
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
        n_old=len(training.y),
        n_kept=len(kept.y),
        n_labels=len(parts.fit_labels),
        cap=settings.cap,
        comparisons=comparisons,
        offload_rates=rates,
        verdict=verdict,
    )
    return new, report


def next_version(version: str) -> str:
    """Increment the last number of a version, or append ``.1`` if it does not end in a number.

    >>> next_version("7"), next_version("a4f"), next_version("2.9")
    ('8', 'a4f.1', '2.10')
    """
    head, dot, last = version.rpartition(".")
    return f"{head}{dot}{int(last) + 1}" if last.isdecimal() else f"{version}.1"


def _check_old(manifest: Manifest, *, keeps_model: bool) -> None:
    if manifest.cloud is None or not manifest.classes:
        raise InputError(f"{manifest.title} has no high-cost model, so no instances were kept")
    if manifest.signal is not None or manifest.instance is not None:
        raise InputError(
            f"{manifest.title} reads windows or arrays: fit it in Python with StagedCascade, on "
            "old instances and on kept ones, which gatewise_export.archive reads"
        )
    order = feature_order(manifest)
    if keeps_model and (order != np.arange(len(order))).any():
        raise InputError(
            f"{manifest.title}: the high-cost model reads the features in another order than the "
            "bundle lists: use --high-cost new"
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
        # Draw validation rows in proportion to their weights, because they all count equally.
        share = np.minimum(_VALIDATION_SHARE * rows.weights / rows.weights.mean(), 0.5)
        training = rng.random(len(rows.y)) >= share
        weights = weights / (1 - share)
        validation = pd.DataFrame(rows.X[~training], columns=names), rows.y[~training]
    system: BudgetedClassifier = methods.cascade(settings.method, **options)
    with warnings.catch_warnings():
        # the report compares the recall of each class
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
    """Compare both releases on all comparison rows, by class, and on the earlier and later half."""
    rows = parts.comparison_rows
    labelled = parts.comparison_labels
    order = feature_order(old.manifest)
    x = np.concatenate([rows.X, labelled.rows.X])[:, order].astype(np.float32)
    index_of = {label: c for c, label in enumerate(old.manifest.classes)}
    n_classes = len(index_of)
    # classes that only the new release has
    new_classes = [c for c in new.manifest.classes if c not in index_of]
    index_of_new = {c: n_classes + i for i, c in enumerate(new_classes)}
    unknown_class = n_classes + len(new_classes)
    truth_values = class_values(labelled.labels, old.manifest)
    truth = np.array(
        [index_of.get(y, index_of_new.get(y, unknown_class)) for y in truth_values.tolist()]
    )
    old_outcome = graph_outcome(old, x)
    new_outcome = graph_outcome(new, x)
    indices = index_of | index_of_new
    to_index = np.array([indices[c] for c in new.manifest.classes])
    answers = old_outcome.labels, to_index[new_outcome.labels]
    # give all rows probabilities of the new classes and of the unknown class
    widened = _with_classes(rows, len(new_classes) + 1)
    widened_labels = _with_truth(labelled, truth, len(new_classes) + 1)
    comparisons = [_comparison("all", widened, widened_labels, answers)]
    for label, c in indices.items():
        comparisons.append(
            _comparison(f"class {label}", widened, widened_labels, answers, of_class=c)
        )
    middle = float(np.median(rows.time))
    for name, is_earlier in (("earlier half", True), ("later half", False)):
        in_part = (rows.time < middle) == is_earlier
        label_in_part = (labelled.rows.time < middle) == is_earlier
        answer_in_part = np.concatenate([in_part, label_in_part])
        part_answers = answers[0][answer_in_part], answers[1][answer_in_part]
        part_labels = widened_labels.take(label_in_part)
        comparisons.append(_comparison(name, widened.take(in_part), part_labels, part_answers))
    rates = []
    for bundle, outcome in ((old, old_outcome), (new, new_outcome)):
        is_offloaded = outcome.exits[: len(rows)] == len(bundle.manifest.stages)
        rates.append(float(np.average(is_offloaded, weights=rows.weights)))
    return tuple(comparisons), (rates[0], rates[1])


def _with_classes(rows: ArchivedRows, n_added: int) -> ArchivedRows:
    """Add `n_added` classes with probability 0 to instances."""
    return replace(rows, probabilities=np.pad(rows.probabilities, ((0, 0), (0, n_added))))


def _with_truth(
    labelled: LabelledInstances, truth: NDArray[Any], n_added: int
) -> LabelledInstances:
    """Replace the class indices of labelled instances, and add `n_added` classes."""
    return replace(labelled, truth=truth, rows=_with_classes(labelled.rows, n_added))


def _comparison(
    part: str,
    rows: ArchivedRows,
    labelled: LabelledInstances,
    answers: tuple[NDArray[Any], NDArray[Any]],
    of_class: int | None = None,
) -> ReleaseDifference:
    data = difference_data(rows, labelled, *answers, of_class=of_class)
    figure = estimate_figure(data, largest_residual=2.0, is_read_once=True)
    return ReleaseDifference(part, figure.n_labels, *_ends(figure))


def _ends(figure: TrueFigure) -> tuple[float | None, float | None, float | None]:
    if not figure.n_labels or np.isnan(figure.value):
        return None, None, None
    return figure.value, max(figure.low, -1.0), min(figure.high, 1.0)
