"""Rows of a refit: old training rows, and kept instances for the fit and the comparison."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise_export.archive.choice import read_choices
from gatewise_export.archive.folder import shards_by_release
from gatewise_export.archive.labels import LabelledInstances, read_labelled_rows
from gatewise_export.archive.machine_labels import read_machine_rows
from gatewise_export.archive.shard import ArchivedRows, RowColumns, read_shard
from gatewise_export.archive.true_figures import corrected_part
from gatewise_export.bundle.manifest import Manifest
from gatewise_training.data import datasets
from gatewise_training.data.table_encoder import encode_table

#: Largest number of unlabelled instances in a fit.
MAX_UNLABELLED: Final = 5000
MIN_LABELS: Final = 20

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class FitRows(RowColumns):
    """Rows of a fit: `X` (n, n_features) in the manifest's order, `y` (n,) and `weights` (n,)."""

    X: NDArray[np.float32]
    y: NDArray[Any]
    weights: Floats


@dataclass(frozen=True, eq=False)
class KeptRowSplit:
    """Kept instances of a version, split for the fit and the comparison.

    `fit_rows` and `comparison_rows` are all instances; `fit_labels` and `comparison_labels` are
    those with a label. Instances that no label corrects, and labels of instances that the archive
    has deleted, are for the fit alone. So are labels from machines, and `earlier_labels`: those of
    other versions of the same model, one item a version.
    """

    fit_rows: ArchivedRows
    fit_labels: LabelledInstances
    comparison_rows: ArchivedRows
    comparison_labels: LabelledInstances
    earlier_labels: tuple[LabelledInstances, ...]


def read_old_rows(source: str, target: str | None, manifest: Manifest) -> FitRows:
    """Read old training rows with a bundle's features; each row has the weight 1."""
    path = Path(source)
    if manifest.encoder is not None:
        table = datasets.read_table(path, target=target)
        X = np.asarray(encode_table(manifest.encoder, table.frame), np.float32)
        return FitRows(X, table.y, np.ones(len(X)))
    dataset = datasets.load(source, target=target)
    X = dataset.columns(manifest.feature_names, source)
    training_indices = dataset.parts.get("train", np.arange(len(X)))
    return FitRows(X[training_indices], dataset.y[training_indices], np.ones(len(training_indices)))


def split_kept_rows(
    path: Path, manifest: Manifest, *, comparison_share: float, rng: np.random.Generator
) -> KeptRowSplit:
    """Read the kept instances of a bundle's version and split them at random.

    Raises InputError if there are fewer than :data:`MIN_LABELS` labels.
    """
    release = manifest.name, manifest.version
    shards_of = shards_by_release(path)
    if release not in shards_of:
        names = ", ".join(map(" ".join, shards_of))
        raise InputError(f"{path} has instances of {names}, not of {manifest.title}")
    shards = shards_of[release]
    rows_of_shards = [read_shard(shard) for shard in shards]
    rows = ArchivedRows.concatenate(rows_of_shards)
    labelled_rows = read_labelled_rows(path, release)
    n_labels = 0 if labelled_rows is None else len(labelled_rows)
    if labelled_rows is None or n_labels < MIN_LABELS:
        raise InputError(
            f"{path} has {n_labels} labels of chosen instances for {manifest.title}, but a refit "
            f"needs at least {MIN_LABELS}: choose instances to label with gatewise labels choose "
            f"{path}"
        )
    compared_shards, start_time = corrected_part(read_choices(path, release), labelled_rows, shards)
    is_in_compared_shard = np.repeat(
        [shard in compared_shards for shard in shards], [*map(len, rows_of_shards)]
    )
    is_compared = rng.random(len(rows)) < comparison_share
    is_compared &= is_in_compared_shard & (rows.time >= start_time)
    label_is_compared = rng.random(n_labels) < comparison_share
    label_is_compared &= labelled_rows.rows.time >= start_time
    # put an instance and its label into the same part
    comparison_ids = labelled_rows.rows.ids[label_is_compared]
    fit_ids = labelled_rows.rows.ids[~label_is_compared]
    is_compared[np.isin(rows.ids, comparison_ids)] = True
    is_compared[np.isin(rows.ids, fit_ids)] = False
    fit_labels = labelled_rows.take(~label_is_compared)
    # Machines do not label at random, so the comparison must not use their labels.
    machine_rows = read_machine_rows(path, release)
    if machine_rows is not None:
        is_available = ~np.isin(machine_rows.rows.ids, rows.ids[is_compared])
        fit_labels = LabelledInstances.concatenate([fit_labels, machine_rows.take(is_available)])
    return KeptRowSplit(
        fit_rows=rows.take(~is_compared),
        fit_labels=fit_labels,
        comparison_rows=rows.take(is_compared),
        comparison_labels=labelled_rows.take(label_is_compared),
        earlier_labels=_read_earlier_labels(path, manifest),
    )


def _read_earlier_labels(path: Path, manifest: Manifest) -> tuple[LabelledInstances, ...]:
    """Read the labels of other versions of the model with the same features in requests."""
    assert manifest.cloud is not None
    versions = {
        choice.facts.version
        for choice in read_choices(path)
        if (choice.facts.model, choice.facts.inputs) == (manifest.name, manifest.cloud.inputs)
    }
    rows_of_versions = (
        read_labelled_rows(path, (manifest.name, version))
        for version in sorted(versions - {manifest.version})
    )
    return tuple(labelled_rows for labelled_rows in rows_of_versions if labelled_rows is not None)


def feature_order(manifest: Manifest) -> NDArray[np.intp]:
    """Find the features' positions among a request's values; raise InputError if one is missing."""
    assert manifest.cloud is not None
    position_of_name = {name: position for position, name in enumerate(manifest.cloud.inputs)}
    missing_names = [name for name in manifest.feature_names if name not in position_of_name]
    if missing_names:
        raise InputError(
            f"{manifest.title}: kept instances lack {len(missing_names)} features, such as "
            f"{missing_names[0]!r}, because its high-cost model does not read them"
        )
    return np.array([position_of_name[name] for name in manifest.feature_names])


def typed_labels(label_texts: NDArray[np.str_], manifest: Manifest) -> NDArray[Any]:
    """Convert labels from text to the type of the bundle's classes."""
    label_of_text = {str(label): label for label in manifest.classes}
    class_type = type(manifest.classes[0])
    new_labels = set(label_texts.tolist()) - label_of_text.keys()
    if class_type is bool and new_labels:
        raise InputError(f"the classes are False and True, and {new_labels.pop()!r} is a third one")
    try:
        labels = [
            label_of_text[label_text] if label_text in label_of_text else class_type(label_text)
            for label_text in label_texts.tolist()
        ]
    except ValueError as error:
        raise InputError(
            f"a new class must be a {class_type.__name__} like the others: {error}"
        ) from None
    return np.array(labels)


def fit_rows_of(
    row_split: KeptRowSplit,
    manifest: Manifest,
    *,
    cap: float,
    uses_unlabelled: bool,
    rng: np.random.Generator,
) -> FitRows:
    """Make rows for the fit from kept instances, weighted by the inverse of their probabilities.

    With `uses_unlabelled` the high-cost model's answers serve as labels of instances without a
    label; otherwise these instances are left out. Weights are at most `cap` times the mean.
    """
    order = feature_order(manifest)
    labelled_parts = [row_split.fit_labels, *row_split.earlier_labels]
    fit_row_parts = [
        FitRows(
            part.rows.X[:, order].astype(np.float32),
            typed_labels(part.labels, manifest),
            part.rows.weights if uses_unlabelled else part.weights,
        )
        for part in labelled_parts
    ]
    if uses_unlabelled:
        fit_row_parts.append(_cloud_labelled_rows(row_split, manifest, order, rng))
    rows = FitRows.concatenate(fit_row_parts)
    return FitRows(rows.X, rows.y, cap_weights(rows.weights, cap))


def _cloud_labelled_rows(
    row_split: KeptRowSplit, manifest: Manifest, order: NDArray[np.intp], rng: np.random.Generator
) -> FitRows:
    """Instances without a label, with the high-cost model's answers as labels."""
    labelled_ids = row_split.fit_labels.rows.ids
    rows = row_split.fit_rows.take(~np.isin(row_split.fit_rows.ids, labelled_ids))
    represented_rows = max(len(rows) / MAX_UNLABELLED, 1.0)
    if len(rows) > MAX_UNLABELLED:
        rows = rows.take(np.sort(rng.permutation(len(rows))[:MAX_UNLABELLED]))
    return FitRows(
        rows.X[:, order].astype(np.float32),
        np.array(manifest.classes)[rows.cloud_label],
        represented_rows * rows.weights,
    )


def cap_weights(weights: Floats, cap: float) -> Floats:
    """Scale weights to a mean of 1, then lower weights above `cap` to `cap`.

    >>> cap_weights(np.array([1.0, 1.0, 1.0, 97.0]), 2.0).tolist()
    [0.04, 0.04, 0.04, 2.0]
    """
    return np.asarray(np.minimum(weights / weights.mean(), cap))
