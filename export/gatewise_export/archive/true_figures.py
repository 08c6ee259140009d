"""Estimate the true accuracy and recall of a version from an archive and its labels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise_export.archive.alarm import TOLERANCE, LabelBatch, evidence
from gatewise_export.archive.choice import read_choices
from gatewise_export.archive.estimate import FigureData, Terms, estimate_figure
from gatewise_export.archive.folder import read_archive, shards_in
from gatewise_export.archive.labels import TruthRows, labelled_rows
from gatewise_export.archive.shard import ArchivedRows, ShardFacts, read_facts, read_shard

_SECONDS_A_DAY: Final = 86_400.0
#: Evidence at which the alarm is raised, which makes false alarms rarer than 1 in 20.
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

    `n_rows` instances of the archive represent `n_instances`. If the version has labels, only the
    shards that labelled instances were chosen from count. `n_labels` of the `n_chosen` instances
    have a label. `promised` is the accuracy on validation rows. `evidence` of 20 or more that the
    true accuracy is more than `tolerance` lower raises the `alarm`.
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
    path: Path, *, version: str | None = None, days: float | None = None, level: float = 0.05
) -> MonitorReport:
    """Estimate the true figures of a version, by default of the newest.

    `days` limits the estimate to the last days of the version. Raises InputError if the archive has
    no instances of the version.
    """
    shards_of = _shards_by_version(path)
    chosen_version = list(shards_of)[-1] if version is None else version
    if chosen_version not in shards_of:
        raise InputError(f"{path} has versions {', '.join(shards_of)}, not {version}")
    facts = read_facts(shards_of[chosen_version][-1])
    truth = labelled_rows(path, chosen_version)
    shards = shards_of[chosen_version]
    if truth is not None:
        shards = _shards_with_labels(path, chosen_version, truth[1], shards)
    rows = ArchivedRows.joined([read_shard(shard) for shard in shards])
    labelled = _no_labels(rows) if truth is None else truth[1]
    if days is not None:
        since = rows.time.max() - days * _SECONDS_A_DAY
        rows = rows.take(rows.time >= since)
        labelled = labelled.take(labelled.rows.time >= since)
    bound = None if facts.accuracy is None else facts.accuracy - TOLERANCE
    alarm_evidence = None
    if bound is not None and 0 < bound < 1 and len(labelled):
        alarm_evidence = evidence(_batches(path, chosen_version, labelled), bound)
    return MonitorReport(
        model=facts.model,
        version=facts.version,
        n_rows=len(rows),
        n_instances=float(rows.weights.sum()),
        n_chosen=labelled.n_chosen,
        n_labels=len(labelled),
        figures=tuple(_figures(facts, rows, labelled, level)),
        promised=facts.accuracy,
        tolerance=TOLERANCE,
        evidence=alarm_evidence,
        alarm=alarm_evidence is not None and alarm_evidence >= _ALARM_EVIDENCE,
    )


def _shards_by_version(path: Path) -> dict[str, list[Path]]:
    """Shards of each version, oldest first; the latest model counts if two share a version."""
    shards_of: dict[tuple[str, str], list[Path]] = {}
    for shard in shards_in(path):
        facts = read_facts(shard)
        shards_of.setdefault((facts.model, facts.version), []).append(shard)
    if not shards_of:
        read_archive(path)  # its error says how to fill the archive
    return {version: shards for (_, version), shards in shards_of.items()}


def _shards_with_labels(
    path: Path, version: str, labelled: TruthRows, shards: list[Path]
) -> list[Path]:
    """Shards that labelled instances were chosen from, or all shards if no instance has a label.

    Labels correct the high-cost model's predictions for these shards. The predictions for later
    shards, which no choice covers yet, would enter the estimate without a correction.
    """
    choices = [choice for choice in read_choices(path) if choice.facts.version == version]
    labelled_choices = set(labelled.choice.tolist())
    covered_shards = {
        name
        for number, choice in enumerate(choices)
        if number in labelled_choices
        for name in choice.offered.shards
    }
    return [shard for shard in shards if shard.name in covered_shards] or shards


def _no_labels(rows: ArchivedRows) -> TruthRows:
    no_rows = np.zeros(0, np.intp)
    return TruthRows(
        rows=rows.take(no_rows),
        truth=no_rows.astype(np.int64),
        labels=no_rows.astype(np.str_),
        chance=no_rows.astype(np.float64),
        choice=no_rows.astype(np.int64),
        n_chosen=0,
    )


def _figures(
    facts: ShardFacts, rows: ArchivedRows, labelled: TruthRows, level: float
) -> list[MonitoredFigure]:
    figures = []
    for system in ("deployed", "high-cost"):
        for index in (None, *range(len(facts.classes))):
            data = figure_data(rows, labelled, deployed=system == "deployed", of_class=index)
            figure = estimate_figure(data, level=level)
            from_labels = estimate_figure(data, level=level, tuning=0.0)
            figures.append(
                MonitoredFigure(
                    system=system,
                    figure="accuracy" if index is None else "recall",
                    of=None if index is None else str(facts.classes[index]),
                    value=_share(figure.value),
                    low=_share(figure.low),
                    high=_share(figure.high),
                    labels_alone=(_share(from_labels.low), _share(from_labels.high)),
                    n_labels=figure.n_labels,
                )
            )
    return figures


def figure_data(
    rows: ArchivedRows, labelled: TruthRows, *, deployed: bool, of_class: int | None
) -> FigureData:
    """Data for the accuracy or a recall of the deployed system, or else of the high-cost model."""
    answers, labelled_answers = (
        part.answers if deployed else part.cloud_label for part in (rows, labelled.rows)
    )
    truth = labelled.truth
    right = (truth == labelled_answers).astype(np.float64)
    denominator = (
        np.ones(len(truth)) if of_class is None else (truth == of_class).astype(np.float64)
    )
    predicted = predictions(labelled.rows, labelled_answers, of_class)
    return FigureData(
        archive=predictions(rows, answers, of_class),
        labelled=Terms(right * denominator, denominator, labelled.weights),
        predicted=replace(predicted, weights=labelled.rows.weights),
    )


def predictions(rows: ArchivedRows, answers: NDArray[Any], of_class: int | None) -> Terms:
    """Predict the terms of a figure from the high-cost model's probabilities."""
    p = rows.probabilities.astype(np.float64)
    if of_class is None:
        return Terms(p[np.arange(len(rows)), answers], np.ones(len(rows)), rows.weights)
    class_probability = p[:, of_class]
    return Terms(class_probability * (answers == of_class), class_probability, rows.weights)


def _batches(path: Path, version: str, labelled: TruthRows) -> list[LabelBatch]:
    """Labelled instances of each choice, and its instances that are still in the archive."""
    batches = []
    choices = [choice for choice in read_choices(path) if choice.facts.version == version]
    for number, choice in enumerate(choices):
        labelled_in_choice = labelled.take(labelled.choice == number)
        n_labels = len(labelled_in_choice)
        if not n_labels:
            continue
        shards = [path / name for name in choice.offered.shards if (path / name).exists()]
        # a labelled instance counts once, although its shard may also have it
        labelled_ids = labelled_in_choice.rows.ids
        unlabelled_parts = [
            rows.take(~np.isin(rows.ids, labelled_ids)) for rows in map(read_shard, shards)
        ]
        joined = ArchivedRows.joined([labelled_in_choice.rows, *unlabelled_parts])
        # the labelled instances come first in `joined`
        label_weights = np.zeros(len(joined))
        label_weights[:n_labels] = labelled_in_choice.weights
        right = np.zeros(len(joined))
        right[:n_labels] = labelled_in_choice.truth == labelled_in_choice.rows.answers
        batches.append(
            LabelBatch(
                weights=joined.weights,
                label_weights=label_weights,
                predicted=predictions(joined, joined.answers, None).a,
                right=right,
                largest_weight=choice.offered.largest_weight * len(choice.rows) / n_labels,
            )
        )
    return batches


def _share(value: float) -> float | None:
    return None if np.isnan(value) else min(max(value, 0.0), 1.0)


def metrics_text(report: MonitorReport) -> str:
    """Format a report for Prometheus, to be read by the node exporter's textfile collector."""
    lines = []
    labels = f'model="{report.model}",version="{report.version}"'
    for bound, name in (("value", ""), ("low", "_low"), ("high", "_high")):
        lines.append(f"# TYPE gatewise_true_accuracy{name} gauge")
        for figure in report.figures:
            value = getattr(figure, bound)
            if figure.figure == "accuracy" and value is not None:
                lines.append(
                    f'gatewise_true_accuracy{name}{{{labels},system="{figure.system}"}} {value:.6f}'
                )
    lines += [
        "# TYPE gatewise_true_labels gauge",
        f"gatewise_true_labels{{{labels}}} {report.n_labels}",
        "# TYPE gatewise_true_accuracy_alarm gauge",
        f"gatewise_true_accuracy_alarm{{{labels}}} {int(report.alarm)}",
    ]
    return "\n".join([*lines, ""])


def difference_data(
    rows: ArchivedRows,
    labelled: TruthRows,
    old: NDArray[Any],
    new: NDArray[Any],
    of_class: int | None = None,
) -> FigureData:
    """Data for the difference in accuracy or recall of two systems on the same instances.

    `old` and `new` are their answers to `rows`, followed by their answers to the labelled rows.
    """
    n = len(rows)
    denominator = (
        np.ones(len(labelled)) if of_class is None else (labelled.truth == of_class).astype(float)
    )
    right = (new[n:] == labelled.truth).astype(np.float64) - (old[n:] == labelled.truth)
    new_terms, new_label_terms, old_terms, old_label_terms = (
        predictions(part, answers, of_class)
        for part, answers in (
            (rows, new[:n]),
            (labelled.rows, new[n:]),
            (rows, old[:n]),
            (labelled.rows, old[n:]),
        )
    )
    return FigureData(
        archive=replace(new_terms, a=new_terms.a - old_terms.a),
        labelled=Terms(right * denominator, denominator, labelled.weights),
        predicted=replace(new_label_terms, a=new_label_terms.a - old_label_terms.a),
    )
