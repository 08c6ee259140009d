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

from gatewise.documents import Positive, Share
from gatewise.errors import InputError, RecallWarning
from gatewise.prices import MAX_REQUEST_BYTES
from gatewise.settings import FileOption, Settings
from gatewise_export.archive.estimate import TrueFigure, estimate_figure
from gatewise_export.archive.labels import LabelledInstances
from gatewise_export.archive.shard import ArchivedRows
from gatewise_export.archive.true_figures import difference_data
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.bundle.manifest import Manifest
from gatewise_export.bundle.repacking import check_destination
from gatewise_export.commands import options
from gatewise_export.packing.bundle_writer import pack
from gatewise_export.packing.verification import graph_decisions
from gatewise_export.refit.refit_rows import (
    FitRows,
    KeptRowSplit,
    feature_order,
    fit_rows_of,
    read_old_rows,
    split_kept_rows,
    typed_labels,
)
from gatewise_training import methods
from gatewise_training.cascades.base import BudgetedClassifier
from gatewise_training.cascades.budgeted_model import MAX_LOSS
from gatewise_training.learners.given_models.given_graph import OnnxModel

#: Share of validation rows if the high-cost model stays.
_VALIDATION_SHARE: Final = 0.25

Verdict = Literal["better", "worse", "not shown"]

#: Confidence of the bound on a release's loss.
_LOSS_CONFIDENCE: Final = 0.95


class RefitSettings(Settings, frozen=True, kw_only=True):
    """Options of ``gatewise refit``."""

    bundle: Annotated[Path, Argument(help="Bundle that answered the kept instances.")]
    train: Annotated[
        str, Option(help="File of the bundle's training rows: .csv, .parquet or .npz.")
    ]
    kept: Annotated[
        Path, Option(metavar="DIR", help="Folder that `gatewise cloud --keep` writes, with labels.")
    ]
    out: options.Out
    target: Annotated[str | None, Option(help="Column of the label in --train.")] = None
    high_cost: Annotated[
        Literal["same", "new"],
        Option(help="Whether to keep the high-cost model or train a new one."),
    ] = "same"
    method: Annotated[str, Option(help="Learning method: a cascade of gatewise train.")] = "staged"
    budget: options.BudgetSetting = None
    max_loss: Annotated[
        Share | None,
        Option(help="Largest loss of accuracy against the high-cost model; by default 0.01."),
    ] = None
    offload_rate: options.OffloadRateSetting = None
    held: Annotated[
        Annotated[float, Meta(gt=0, lt=1)],
        Option(help="Share of kept instances that are held out for the comparison."),
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


class ReleaseLoss(msgspec.Struct, frozen=True):
    """Accuracy of the high-cost model minus that of the new release on comparison rows.

    With a probability of 95 %, the true loss is at most `upper_bound`. `promised` is the bound that
    the release was fitted for, or None if it was fitted for a budget or an offload rate.
    """

    value: float | None
    upper_bound: float | None
    promised: float | None

    @property
    def is_promise_shown(self) -> bool:
        """Whether the comparison rows show that the loss is as small as promised."""
        if self.upper_bound is None or self.promised is None:
            return False
        return self.upper_bound <= self.promised


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
    loss : ReleaseLoss
        Loss of the new release against the high-cost model.
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
    loss: ReleaseLoss
    verdict: Verdict


def refit_bundle(settings: RefitSettings) -> tuple[Bundle, RefitReport]:
    """Fit and pack a new release, and compare it with the old one, which stays unchanged.

    Raises InputError if rows, labels or features are missing.
    """
    check_destination(settings.out)
    if goals := {"budget", "max_loss", "offload_rate"} & set(settings.parameters):
        raise InputError(f"parameters: give {min(goals)} as a setting of its own")
    old_bundle = Bundle.open(settings.bundle)
    keeps_high_cost_model = settings.high_cost == "same"
    _check_old_manifest(old_bundle.manifest, keeps_high_cost_model=keeps_high_cost_model)
    rng = np.random.default_rng(settings.seed)
    row_split = split_kept_rows(
        settings.kept, old_bundle.manifest, comparison_share=settings.held, rng=rng
    )
    fit_labels = [row_split.fit_labels, *row_split.earlier_labels]
    label_names = set(np.concatenate([part.labels for part in fit_labels]).tolist())
    if keeps_high_cost_model and not label_names <= set(map(str, old_bundle.manifest.classes)):
        raise InputError(
            "labels name a class that the high-cost model does not have: use --high-cost new"
        )
    kept_rows = fit_rows_of(
        row_split,
        old_bundle.manifest,
        cap=settings.cap,
        uses_unlabelled=keeps_high_cost_model,
        rng=rng,
    )
    training_rows = read_old_rows(settings.train, settings.target, old_bundle.manifest)
    # kept_weight / (old_weight + kept_weight) = kept_share, and every old row has weight 1
    kept_weight = settings.kept_share / (1 - settings.kept_share) * len(training_rows.y)
    weighted_rows = FitRows(
        kept_rows.X, kept_rows.y, kept_rows.weights * kept_weight / kept_rows.weights.sum()
    )
    with tempfile.TemporaryDirectory(prefix="gatewise-refit-") as folder:
        system = _fit_release(
            settings,
            old_bundle,
            FitRows.concatenate([training_rows, weighted_rows]),
            Path(folder),
            rng,
        )
        new_bundle = pack(
            system,
            settings.out,
            sample=weighted_rows.X,
            name=old_bundle.manifest.name,
            version=settings.version or next_version(old_bundle.manifest.version),
            encoder=old_bundle.manifest.encoder,
            # the broker takes requests as large as the old ones
            max_message=max(MAX_REQUEST_BYTES, old_bundle.manifest.largest_request),
            loading=old_bundle.manifest.loading if keeps_high_cost_model else None,
        )
    comparisons, offload_rates, loss = _compare_releases(old_bundle, new_bundle, row_split)
    if settings.budget is None and settings.offload_rate is None:
        max_loss = MAX_LOSS if settings.max_loss is None else settings.max_loss
        loss = msgspec.structs.replace(loss, promised=max_loss)
    overall_difference = comparisons[0]
    verdict: Verdict = "not shown"
    if overall_difference.low is not None and overall_difference.low > 0:
        verdict = "better"
    elif overall_difference.high is not None and overall_difference.high < 0:
        verdict = "worse"
    report = RefitReport(
        old=old_bundle.manifest.title,
        new=new_bundle.manifest.title,
        n_old=len(training_rows.y),
        n_kept=len(kept_rows.y),
        n_labels=sum(map(len, fit_labels)),
        cap=settings.cap,
        comparisons=comparisons,
        offload_rates=offload_rates,
        loss=loss,
        verdict=verdict,
    )
    return new_bundle, report


def next_version(version: str) -> str:
    """Increment the last number of a version, or append ``.1`` if its last part is not a number.

    >>> next_version("7"), next_version("a4f"), next_version("2.9")
    ('8', 'a4f.1', '2.10')
    """
    prefix, dot, last_number = version.rpartition(".")
    return f"{prefix}{dot}{int(last_number) + 1}" if last_number.isdecimal() else f"{version}.1"


def _check_old_manifest(manifest: Manifest, *, keeps_high_cost_model: bool) -> None:
    if manifest.cloud is None or not manifest.classes:
        raise InputError(f"{manifest.title} has no high-cost model, so no instances were kept")
    if manifest.signal is not None or manifest.instance is not None:
        raise InputError(
            f"{manifest.title} reads windows or arrays: fit it in Python with StagedCascade, on "
            "old instances and on kept ones, which gatewise_export.archive reads"
        )
    order = feature_order(manifest)
    if keeps_high_cost_model and (order != np.arange(len(order))).any():
        raise InputError(
            f"{manifest.title}: the high-cost model reads the features in another order than the "
            "bundle lists: use --high-cost new"
        )


def _fit_release(
    settings: RefitSettings,
    old_bundle: Bundle,
    rows: FitRows,
    folder: Path,
    rng: np.random.Generator,
) -> BudgetedClassifier:
    import pandas as pd

    manifest = old_bundle.manifest
    assert manifest.cloud is not None
    feature_names = list(manifest.feature_names)
    goal = options.chosen_goal(
        budget=settings.budget, max_loss=settings.max_loss, offload_rate=settings.offload_rate
    )
    method_options: dict[str, Any] = {
        "feature_costs": manifest.feature_costs(),
        "cloud_prices": manifest.cloud_prices(),
        "random_state": settings.seed,
        **goal,
        **settings.parameters,
    }
    if "allowed" in (manifest.missing.stages, manifest.missing.cloud):
        method_options["allow_missing"] = True
    is_training = np.ones(len(rows.y), bool)
    validation = None
    weights = rows.weights
    if settings.high_cost == "same":
        graph_file = folder / manifest.cloud.file
        graph_file.write_bytes(old_bundle.read(manifest.cloud.file))
        method_options["high_cost_model"] = OnnxModel(graph_file, classes=list(manifest.classes))
        # Draw validation rows in proportion to their weights, because they all count equally.
        validation_probability = np.minimum(
            _VALIDATION_SHARE * rows.weights / rows.weights.mean(), 0.5
        )
        is_training = rng.random(len(rows.y)) >= validation_probability
        weights = weights / (1 - validation_probability)
        validation = pd.DataFrame(rows.X[~is_training], columns=feature_names), rows.y[~is_training]
    system: BudgetedClassifier = methods.cascade(settings.method, **method_options)
    with warnings.catch_warnings():
        # the report compares the recall of each class
        warnings.simplefilter("ignore", RecallWarning)
        system.fit(
            pd.DataFrame(rows.X[is_training], columns=feature_names),
            rows.y[is_training],
            sample_weight=weights[is_training],
            validation=validation,
        )
    return system


def _compare_releases(
    old_bundle: Bundle, new_bundle: Bundle, row_split: KeptRowSplit
) -> tuple[tuple[ReleaseDifference, ...], tuple[float, float], ReleaseLoss]:
    """Compare both releases on all comparison rows, by class, and on the earlier and later half.

    Also return their offload rates, and the loss of the new one against its high-cost model.
    """
    rows = row_split.comparison_rows
    labelled_rows = row_split.comparison_labels
    order = feature_order(old_bundle.manifest)
    feature_rows = np.concatenate([rows.X, labelled_rows.rows.X])[:, order].astype(np.float32)
    # the old release's classes, then those that only the new release has
    old_classes, new_classes = old_bundle.manifest.classes, new_bundle.manifest.classes
    classes = dict.fromkeys([*old_classes, *new_classes])
    index_of = {label: class_index for class_index, label in enumerate(classes)}
    unknown_class = len(index_of)
    true_labels = typed_labels(labelled_rows.labels, old_bundle.manifest)
    truth = np.array([index_of.get(label, unknown_class) for label in true_labels.tolist()])
    old_outcome = graph_decisions(old_bundle, feature_rows)
    new_outcome = graph_decisions(new_bundle, feature_rows)
    index_of_new_class = np.array([index_of[label] for label in new_classes])
    answers = old_outcome.labels, index_of_new_class[new_outcome.labels]
    # give all rows probabilities of the new classes and of the unknown class
    n_added = unknown_class + 1 - len(old_classes)
    rows_with_classes = _with_added_classes(rows, n_added)
    labels_with_classes = _with_truth(labelled_rows, truth, n_added)
    comparisons = [_comparison("all", rows_with_classes, labels_with_classes, answers)]
    for label, class_index in index_of.items():
        comparisons.append(
            _comparison(
                f"class {label}",
                rows_with_classes,
                labels_with_classes,
                answers,
                of_class=class_index,
            )
        )
    median_time = float(np.median(rows.time))
    for half_name, is_earlier in (("earlier half", True), ("later half", False)):
        is_in_half = (rows.time < median_time) == is_earlier
        is_label_in_half = (labelled_rows.rows.time < median_time) == is_earlier
        is_answer_in_half = np.concatenate([is_in_half, is_label_in_half])
        half_answers = answers[0][is_answer_in_half], answers[1][is_answer_in_half]
        half_labels = labels_with_classes.take(is_label_in_half)
        comparisons.append(
            _comparison(half_name, rows_with_classes.take(is_in_half), half_labels, half_answers)
        )
    offload_rates = []
    for bundle, outcome in ((old_bundle, old_outcome), (new_bundle, new_outcome)):
        is_offloaded = outcome.exits[: len(rows)] == len(bundle.manifest.stages)
        offload_rates.append(float(np.average(is_offloaded, weights=rows.weights)))
    assert new_outcome.cloud_answers is not None
    cloud_answers = index_of_new_class[new_outcome.cloud_answers.labels]
    loss = estimate_loss(rows_with_classes, labels_with_classes, answers[1], cloud_answers)
    return tuple(comparisons), (offload_rates[0], offload_rates[1]), loss


def estimate_loss(
    rows: ArchivedRows,
    labelled_rows: LabelledInstances,
    answers: NDArray[Any],
    cloud_answers: NDArray[Any],
) -> ReleaseLoss:
    """Bound the loss of `answers` against `cloud_answers`; the rows must not have chosen either."""
    data = difference_data(rows, labelled_rows, answers, cloud_answers)
    # a one-sided bound is the end of a two-sided interval that misses twice as often
    figure = estimate_figure(
        data, level=2 * (1 - _LOSS_CONFIDENCE), largest_residual=2.0, is_read_once=True
    )
    value, _, upper_bound = _difference_and_interval(figure)
    return ReleaseLoss(value, upper_bound, promised=None)


def _with_added_classes(rows: ArchivedRows, n_added: int) -> ArchivedRows:
    """Add `n_added` classes with probability 0 to instances."""
    return replace(rows, probabilities=np.pad(rows.probabilities, ((0, 0), (0, n_added))))


def _with_truth(
    labelled_rows: LabelledInstances, truth: NDArray[Any], n_added: int
) -> LabelledInstances:
    """Replace the class indices of labelled instances, and add `n_added` classes."""
    return replace(
        labelled_rows, truth=truth, rows=_with_added_classes(labelled_rows.rows, n_added)
    )


def _comparison(
    rows_name: str,
    rows: ArchivedRows,
    labelled_rows: LabelledInstances,
    answers: tuple[NDArray[Any], NDArray[Any]],
    of_class: int | None = None,
) -> ReleaseDifference:
    data = difference_data(rows, labelled_rows, *answers, of_class=of_class)
    figure = estimate_figure(data, largest_residual=2.0, is_read_once=True)
    return ReleaseDifference(rows_name, figure.n_labels, *_difference_and_interval(figure))


def _difference_and_interval(figure: TrueFigure) -> tuple[float | None, float | None, float | None]:
    if not figure.n_labels or np.isnan(figure.value):
        return None, None, None
    return figure.value, max(figure.low, -1.0), min(figure.high, 1.0)
