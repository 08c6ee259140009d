"""Rows of a refit: old training rows, and kept instances for the fit and the comparison."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise_export.archive.folder import read_archive
from gatewise_export.archive.labels import LabelledInstances, read_labelled_rows
from gatewise_export.archive.machine_labels import read_machine_rows
from gatewise_export.archive.shard import ArchivedRows
from gatewise_export.bundle.manifest import Manifest
from gatewise_training.data import datasets
from gatewise_training.data.table_encoder import encode_table

#: Largest number of unlabelled instances in a fit.
MAX_UNLABELLED: Final = 5000
MIN_LABELS: Final = 20

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class FitRows:
    """Rows of a fit: `X` (n, n_features) in the manifest's order, `y` (n,) and `weights` (n,)."""

    X: NDArray[np.float32]
    y: NDArray[Any]
    weights: Floats

    def concatenate(self, other: FitRows) -> FitRows:
        """Return these rows followed by the rows of `other`."""
        return FitRows(
            np.concatenate([self.X, other.X]),
            np.concatenate([self.y, other.y]),
            np.concatenate([self.weights, other.weights]),
        )


@dataclass(frozen=True, eq=False)
class KeptParts:
    """Kept instances of a version, split for the fit and the comparison.

    `fit_rows` and `comparison_rows` are all instances; `fit_labels` and `comparison_labels` are
    those with a label. Labels from machines are only in `fit_labels`.
    """

    fit_rows: ArchivedRows
    fit_labels: LabelledInstances
    comparison_rows: ArchivedRows
    comparison_labels: LabelledInstances


def old_rows(source: str, target: str | None, manifest: Manifest) -> FitRows:
    """Read old training rows with a bundle's features; each row has the weight 1."""
    path = Path(source)
    if manifest.encoder is not None:
        table = datasets.read_table(path, target=target)
        X = np.asarray(encode_table(manifest.encoder, table.frame), np.float32)
        return FitRows(X, table.y, np.ones(len(X)))
    data = datasets.load(source, target=target)
    X = data.columns(manifest.feature_names, source)
    rows = data.parts.get("train", np.arange(len(X)))
    return FitRows(X[rows], data.y[rows], np.ones(len(rows)))


def kept_parts(
    path: Path, manifest: Manifest, *, comparison_share: float, rng: np.random.Generator
) -> KeptParts:
    """Read the kept instances of a bundle's version and split them at random.

    Raises InputError if there are fewer than :data:`MIN_LABELS` labels.
    """
    key = manifest.name, manifest.version
    archives = read_archive(path)
    if key not in archives:
        names = ", ".join(" ".join(names) for names in archives)
        raise InputError(f"{path} has instances of {names}, not of {manifest.title}")
    _, rows = archives[key]
    labelled = read_labelled_rows(path, manifest.version)
    n_labels = 0 if labelled is None else len(labelled)
    if labelled is None or n_labels < MIN_LABELS:
        raise InputError(
            f"{path} has {n_labels} labels of chosen instances for {manifest.title}, but a refit "
            f"needs at least {MIN_LABELS}: choose instances to label with gatewise labels choose "
            f"{path}"
        )
    is_compared = rng.random(len(rows)) < comparison_share
    label_is_compared = rng.random(n_labels) < comparison_share
    # put an instance and its label into the same part
    comparison_ids = labelled.rows.ids[label_is_compared]
    fit_ids = labelled.rows.ids[~label_is_compared]
    is_compared[np.isin(rows.ids, comparison_ids)] = True
    is_compared[np.isin(rows.ids, fit_ids)] = False
    fit_labels = labelled.take(~label_is_compared)
    # Machines do not label at random, so the comparison must not use their labels.
    machine_labelled = read_machine_rows(path, manifest.name, manifest.version)
    if machine_labelled is not None:
        is_available = ~np.isin(machine_labelled.rows.ids, rows.ids[is_compared])
        fit_labels = LabelledInstances.concatenate(
            [fit_labels, machine_labelled.take(is_available)]
        )
    return KeptParts(
        fit_rows=rows.take(~is_compared),
        fit_labels=fit_labels,
        comparison_rows=rows.take(is_compared),
        comparison_labels=labelled.take(label_is_compared),
    )


def feature_order(manifest: Manifest) -> NDArray[np.intp]:
    """Find the features' positions among a request's values; raise InputError if one is missing."""
    assert manifest.cloud is not None
    position = {name: k for k, name in enumerate(manifest.cloud.inputs)}
    missing = [name for name in manifest.feature_names if name not in position]
    if missing:
        raise InputError(
            f"{manifest.title}: kept instances lack {len(missing)} features, such as "
            f"{missing[0]!r}, because its high-cost model does not read them"
        )
    return np.array([position[name] for name in manifest.feature_names])


def class_values(texts: NDArray[np.str_], manifest: Manifest) -> NDArray[Any]:
    """Convert labels from text to the type of the bundle's classes."""
    by_text = {str(label): label for label in manifest.classes}
    class_type = type(manifest.classes[0])
    try:
        values = [by_text[text] if text in by_text else class_type(text) for text in texts.tolist()]
    except ValueError as error:
        raise InputError(
            f"a new class must be a {class_type.__name__} like the others: {error}"
        ) from None
    return np.array(values)


def fit_rows_of(
    parts: KeptParts, manifest: Manifest, *, cap: float, unlabelled: bool, rng: np.random.Generator
) -> FitRows:
    """Make rows for the fit from kept instances, weighted by the inverse of their probabilities.

    With `unlabelled` the high-cost model's answers serve as labels of instances without a label;
    otherwise these instances are left out. Weights are at most `cap` times the mean.
    """
    order = feature_order(manifest)
    labelled = parts.fit_labels
    y = class_values(labelled.labels, manifest)
    X = labelled.rows.X[:, order].astype(np.float32)
    if not unlabelled:
        return FitRows(X, y, capped(labelled.weights, cap))
    unlabelled_rows = parts.fit_rows.take(~np.isin(parts.fit_rows.ids, labelled.rows.ids))
    if len(unlabelled_rows) > MAX_UNLABELLED:
        unlabelled_rows = unlabelled_rows.take(
            np.sort(rng.permutation(len(unlabelled_rows))[:MAX_UNLABELLED])
        )
    cloud_labelled = FitRows(
        unlabelled_rows.X[:, order].astype(np.float32),
        np.array(manifest.classes)[unlabelled_rows.cloud_label],
        unlabelled_rows.weights,
    )
    rows = FitRows(X, y, labelled.rows.weights).concatenate(cloud_labelled)
    return FitRows(rows.X, rows.y, capped(rows.weights, cap))


def capped(weights: Floats, cap: float) -> Floats:
    """Scale weights to a mean of 1, then lower weights above `cap` to `cap`.

    >>> capped(np.array([1.0, 1.0, 1.0, 97.0]), 2.0).tolist()
    [0.04, 0.04, 0.04, 2.0]
    """
    return np.asarray(np.minimum(weights / weights.mean(), cap))
