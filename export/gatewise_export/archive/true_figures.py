"""Estimate the true accuracy and recall of a version from an archive and its labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from gatewise_export.archive.alarm import TOLERANCE, LabelBatch, evidence
from gatewise_export.archive.choice import LabelChoice, correct_probability, read_choices
from gatewise_export.archive.estimate import FigureData, Terms, estimate_figure
from gatewise_export.archive.folder import closed_at, find_release, read_rows, shards_by_release
from gatewise_export.archive.labels import LabelledInstances, read_labelled_rows
from gatewise_export.archive.shard import ArchivedRows, ShardFacts, read_facts, read_shard

_SECONDS_A_DAY: Final = 86_400.0
#: Evidence at which the alarm is raised, so that at most 1 in 20 alarms is false at any time.
_ALARM_EVIDENCE: Final = 20.0


class MonitoredFigure(msgspec.Struct, frozen=True):
    """Estimate of a figure with its interval.

    `system` is ``deployed`` or ``high-cost``. `figure` is ``accuracy`` or ``recall``, and `of` is
    the class of a recall. `labels_alone` is the interval without the high-cost model's predictions.
    """

    system: str
    figure: str
    of: str | None
    value: float | None
    low: float | None
    high: float | None
    labels_alone: tuple[float | None, float | None]
    n_labels: int


class MonitorReport(msgspec.Struct, frozen=True):
    """Figures of a version, estimated from an archive.

    Attributes
    ----------
    model, version : str
    n_rows : int
        Archived instances in the estimate. If the version has labels, these are the instances of
        the shards from which labelled instances were chosen.
    n_instances : float
        Number of instances that they represent.
    n_chosen, n_labels : int
        Instances of the same time that were chosen for labelling, and those with a label.
    figures : tuple of MonitoredFigure
    promised : float or None
        Accuracy on validation rows.
    tolerance : float
        Loss of accuracy that raises no alarm.
    evidence : float or None
        Evidence that the accuracy is more than `tolerance` below `promised`.
    alarm : bool
        Whether the evidence is 20 or more.
    """

    model: str
    version: str
    n_rows: int
    n_instances: float
    n_chosen: int
    n_labels: int
    figures: tuple[MonitoredFigure, ...]
    promised: float | None
    tolerance: float
    evidence: float | None
    alarm: bool


def monitor(
    archive_path: Path, *, version: str | None = None, days: float | None = None
) -> MonitorReport:
    """Estimate the true figures of a version or MODEL/VERSION, by default of the newest shard.

    `days` limits the estimate to the last days of the version. Raises InputError if the archive has
    no instances of the version, or if several models have it.
    """
    shards_of = shards_by_release(archive_path)
    release = find_release(archive_path, shards_of, version)
    shards = shards_of[release]
    facts = read_facts(shards[-1])
    choices = read_choices(archive_path, release)
    all_labelled_rows = read_labelled_rows(archive_path, release)
    start_time = -np.inf
    if all_labelled_rows is not None:
        shards, start_time = corrected_part(choices, all_labelled_rows, shards)
    rows = read_rows(shards)
    if all_labelled_rows is None:
        all_labelled_rows = _without_labels(rows)
    if days is not None:
        start_time = max(start_time, rows.time.max() - days * _SECONDS_A_DAY)
    rows = rows.take(rows.time >= start_time)
    labelled_rows = all_labelled_rows.take(all_labelled_rows.rows.time >= start_time)
    tolerated_rate = None if facts.accuracy is None else 1 - facts.accuracy + TOLERANCE
    alarm_evidence = None
    if tolerated_rate is not None and tolerated_rate < 1 and len(labelled_rows):
        batches = _label_batches(archive_path, choices, all_labelled_rows, start_time)
        alarm_evidence = evidence(batches, tolerated_rate)
    return MonitorReport(
        model=facts.model,
        version=facts.version,
        n_rows=len(rows),
        n_instances=float(rows.weights.sum()),
        n_chosen=sum(int((choice.rows.time >= start_time).sum()) for choice in choices),
        n_labels=len(labelled_rows),
        figures=tuple(_estimate_figures(facts, rows, labelled_rows)),
        promised=facts.accuracy,
        tolerance=TOLERANCE,
        evidence=alarm_evidence,
        alarm=alarm_evidence is not None and alarm_evidence >= _ALARM_EVIDENCE,
    )


def corrected_part(
    choices: Sequence[LabelChoice], labelled_rows: LabelledInstances, shards: list[Path]
) -> tuple[list[Path], float]:
    """Find the part of an archive that labels correct: shards, and the time at which it begins.

    The shards are those from which labelled instances were chosen; all shards if there are none.
    Labels correct the high-cost model's predictions for these shards. Predictions for later shards
    would enter an estimate without a correction, because no choice covers them yet. Labels remain
    when the archive deletes the oldest shards, but doubtful instances have more labels than others.
    Labels therefore count only since the last deleted shard was closed, so that all instances with
    which they were chosen are still there.
    """
    labelled_choices = set(labelled_rows.choice_index.tolist())
    covered_names = {
        name
        for choice_index, choice in enumerate(choices)
        if choice_index in labelled_choices
        for name in choice.choice_facts.shards
    }
    deleted_names = [name for name in covered_names if name < shards[0].name]
    start_time = max((closed_at(Path(name)) for name in deleted_names), default=-np.inf)
    return [shard for shard in shards if shard.name in covered_names] or shards, start_time


def _without_labels(rows: ArchivedRows) -> LabelledInstances:
    """Labelled instances of an archive without labels."""
    no_rows = np.zeros(0, np.intp)
    return LabelledInstances(
        rows=rows.take(no_rows),
        truth=no_rows.astype(np.int64),
        labels=no_rows.astype(np.str_),
        label_probability=no_rows.astype(np.float64),
        choice_index=no_rows.astype(np.int64),
    )


def _estimate_figures(
    facts: ShardFacts, rows: ArchivedRows, labelled_rows: LabelledInstances
) -> list[MonitoredFigure]:
    """Estimate the accuracy and the recall of each class, of the system and the high-cost model."""
    figures = []
    for system in ("deployed", "high-cost"):
        for class_index in (None, *range(len(facts.classes))):
            data = figure_data(
                rows, labelled_rows, is_deployed=system == "deployed", of_class=class_index
            )
            figure = estimate_figure(data)
            labels_only_figure = estimate_figure(data, tuning=0.0)
            figures.append(
                MonitoredFigure(
                    system=system,
                    figure="accuracy" if class_index is None else "recall",
                    of=None if class_index is None else str(facts.classes[class_index]),
                    value=_clipped_share(figure.value),
                    low=_clipped_share(figure.low),
                    high=_clipped_share(figure.high),
                    labels_alone=(
                        _clipped_share(labels_only_figure.low),
                        _clipped_share(labels_only_figure.high),
                    ),
                    n_labels=figure.n_labels,
                )
            )
    return figures


def figure_data(
    rows: ArchivedRows, labelled_rows: LabelledInstances, *, is_deployed: bool, of_class: int | None
) -> FigureData:
    """Data for the accuracy or a recall of the deployed system, or else of the high-cost model."""
    answers, label_answers = (
        archived_rows.answers if is_deployed else archived_rows.cloud_label
        for archived_rows in (rows, labelled_rows.rows)
    )
    return _figure_data(rows, labelled_rows, answers, label_answers, of_class)


def difference_data(
    rows: ArchivedRows,
    labelled_rows: LabelledInstances,
    old_answers: NDArray[Any],
    new_answers: NDArray[Any],
    of_class: int | None = None,
) -> FigureData:
    """Data for the difference in accuracy or recall of two systems on the same instances.

    `old_answers` and `new_answers` are their answers to `rows`, and then to the labelled rows.
    """
    old_data, new_data = (
        _figure_data(rows, labelled_rows, answers[: len(rows)], answers[len(rows) :], of_class)
        for answers in (old_answers, new_answers)
    )
    return FigureData(
        *(
            replace(new_terms, numerators=new_terms.numerators - old_terms.numerators)
            for new_terms, old_terms in (
                (new_data.archive_predictions, old_data.archive_predictions),
                (new_data.label_terms, old_data.label_terms),
                (new_data.label_predictions, old_data.label_predictions),
            )
        )
    )


def _figure_data(
    rows: ArchivedRows,
    labelled_rows: LabelledInstances,
    answers: NDArray[Any],
    label_answers: NDArray[Any],
    of_class: int | None,
) -> FigureData:
    truth = labelled_rows.truth
    is_correct = (truth == label_answers).astype(np.float64)
    denominator = (
        np.ones(len(truth)) if of_class is None else (truth == of_class).astype(np.float64)
    )
    return FigureData(
        archive_predictions=_predicted_terms(rows, answers, of_class),
        label_terms=Terms(is_correct * denominator, denominator, labelled_rows.weights),
        label_predictions=_predicted_terms(labelled_rows.rows, label_answers, of_class),
    )


def _predicted_terms(rows: ArchivedRows, answers: NDArray[Any], of_class: int | None) -> Terms:
    """Predict the terms of a figure from the high-cost model's probabilities."""
    probabilities = rows.probabilities.astype(np.float64)
    if of_class is None:
        answer_probability = probabilities[np.arange(len(rows)), answers]
        return Terms(answer_probability, np.ones(len(rows)), rows.weights)
    class_probability = probabilities[:, of_class]
    return Terms(class_probability * (answers == of_class), class_probability, rows.weights)


def _label_batches(
    archive_path: Path,
    choices: Sequence[LabelChoice],
    labelled_rows: LabelledInstances,
    start_time: float,
) -> list[LabelBatch]:
    """Instances of each choice since `start_time`, for the alarm."""
    batches = []
    for choice_index, choice in enumerate(choices):
        labelled_in_choice = labelled_rows.take(labelled_rows.choice_index == choice_index)
        labelled_share = len(labelled_in_choice) / max(len(choice.rows), 1)
        labelled_in_choice = labelled_in_choice.take(labelled_in_choice.rows.time >= start_time)
        n_labels = len(labelled_in_choice)
        if not n_labels:
            continue
        shards = [archive_path / name for name in choice.choice_facts.shards]
        # a labelled instance counts once, although its shard may also have it
        labelled_ids = labelled_in_choice.rows.ids
        unlabelled_parts = [
            rows.take((rows.time >= start_time) & ~np.isin(rows.ids, labelled_ids))
            for rows in map(read_shard, filter(Path.exists, shards))
        ]
        rows_of_choice = ArchivedRows.concatenate([labelled_in_choice.rows, *unlabelled_parts])
        # the labelled instances come first in `rows_of_choice`
        label_weights = np.zeros(len(rows_of_choice))
        label_weights[:n_labels] = labelled_in_choice.weights
        is_wrong = np.zeros(len(rows_of_choice))
        is_wrong[:n_labels] = labelled_in_choice.truth != labelled_in_choice.rows.answers
        # With W = w / (c s) for the labelled share s, and q at most 1,
        #     q (W - w) = (q (w / c - w) + q w (1 - s)) / s  <=  (largest + w (1 - s)) / s.
        unlabelled_weight = float(rows_of_choice.weights.max()) * (1 - labelled_share)
        largest_correction = choice.choice_facts.largest_correction + unlabelled_weight
        time_order = np.argsort(rows_of_choice.time, kind="stable")
        batches.append(
            LabelBatch(
                weights=rows_of_choice.weights[time_order],
                label_weights=label_weights[time_order],
                wrong_probability=1 - correct_probability(rows_of_choice)[time_order],
                is_wrong=is_wrong[time_order],
                largest_correction=largest_correction / labelled_share,
            )
        )
    return batches


def _clipped_share(value: float) -> float | None:
    return None if np.isnan(value) else min(max(value, 0.0), 1.0)


def metrics_text(report: MonitorReport) -> str:
    """Format a report for the textfile collector of Prometheus's node exporter."""
    lines = []
    labels = f'model="{_escaped(report.model)}",version="{_escaped(report.version)}"'
    for field, suffix in (("value", ""), ("low", "_low"), ("high", "_high")):
        metric = f"gatewise_true_accuracy{suffix}"
        lines.append(f"# TYPE {metric} gauge")
        for figure in report.figures:
            value = getattr(figure, field)
            if figure.figure == "accuracy" and value is not None:
                lines.append(f'{metric}{{{labels},system="{figure.system}"}} {value:.6f}')
    lines += [
        "# TYPE gatewise_true_labels gauge",
        f"gatewise_true_labels{{{labels}}} {report.n_labels}",
        "# TYPE gatewise_true_accuracy_alarm gauge",
        f"gatewise_true_accuracy_alarm{{{labels}}} {int(report.alarm)}",
    ]
    return "\n".join([*lines, ""])


def _escaped(label_value: str) -> str:
    """Escape a label's value for Prometheus."""
    escapes = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
    return label_value.translate(escapes)
