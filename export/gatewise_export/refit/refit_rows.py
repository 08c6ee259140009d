"""Rows of a refit: old training rows, and kept instances for the fit and for the comparison."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise_export.archive.folder import read_archive
from gatewise_export.archive.labels import TruthRows, labelled_rows
from gatewise_export.archive.machine_labels import machine_rows
from gatewise_export.archive.shard import ArchivedRows
from gatewise_export.bundle.manifest import Manifest
from gatewise_training.data import datasets
from gatewise_training.data.table_encoder import encode_table

#: Largest number of instances without a label that a fit uses.
MOST_UNLABELLED: Final = 5000
FEWEST_LABELS: Final = 20

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class FitRows:
    """Rows to fit: `X` (n, n_features) in the manifest's order, labels `y` (n,), `weights` (n,)."""

    X: NDArray[np.float32]
    y: NDArray[Any]
    weights: Floats

    def joined(self, other: FitRows) -> FitRows:
        """Append the rows of another set to these."""
        return FitRows(
            np.concatenate([self.X, other.X]),
            np.concatenate([self.y, other.y]),
            np.concatenate([self.weights, other.weights]),
        )


@dataclass(frozen=True, eq=False)
class KeptParts:
    """Kept instances of a version, for the fit and for the comparison.

    `fit_rows` and `held_rows` are all of them; `fit_labels` and `held_labels` those with a label.
    Labels that machines sent are among `fit_labels` alone.
    """

    fit_rows: ArchivedRows
    fit_labels: TruthRows
    held_rows: ArchivedRows
    held_labels: TruthRows


def old_rows(source: str, target: str | None, manifest: Manifest) -> FitRows:
    """Read the old training rows with the features of a bundle, each with a weight of 1."""
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
    path: Path, manifest: Manifest, *, held_share: float, rng: np.random.Generator
) -> KeptParts:
    """Read the kept instances of a bundle's version, and split them at random.

    Raises InputError if there are fewer than :data:`FEWEST_LABELS` labels.
    """
    key = manifest.name, manifest.version
    archives = read_archive(path)
    if key not in archives:
        names = ", ".join(" ".join(names) for names in archives)
        raise InputError(f"{path} has instances of {names}, not of {manifest.title}")
    _, rows = archives[key]
    truth = labelled_rows(path, manifest.version)
    n_labels = 0 if truth is None else len(truth[1])
    if truth is None or n_labels < FEWEST_LABELS:
        raise InputError(
            f"{path} has {n_labels} labels of chosen instances for {manifest.title}; a refit takes "
            f"at least {FEWEST_LABELS}: gatewise labels choose {path}"
        )
    labelled = truth[1]
    is_held = rng.random(len(rows)) < held_share
    label_is_held = rng.random(n_labels) < held_share
    # an instance and its label are in the same part
    held_ids = labelled.rows.ids[label_is_held]
    fit_ids = labelled.rows.ids[~label_is_held]
    is_held[np.isin(rows.ids, held_ids)] = True
    is_held[np.isin(rows.ids, fit_ids)] = False
    fit_labels = labelled.take(~label_is_held)
    # Machines do not label at random, so that no comparison may use their labels.
    machine = machine_rows(path, manifest.name, manifest.version)
    if machine is not None:
        is_free = ~np.isin(machine.rows.ids, rows.ids[is_held])
        fit_labels = TruthRows.joined([fit_labels, machine.take(is_free)])
    return KeptParts(
        fit_rows=rows.take(~is_held),
        fit_labels=fit_labels,
        held_rows=rows.take(is_held),
        held_labels=labelled.take(label_is_held),
    )


def feature_order(manifest: Manifest) -> NDArray[np.intp]:
    """Positions of the features among the values of a request; InputError if one is not there."""
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
    """Turn labels in text into the type of the bundle's classes."""
    by_text = {str(label): label for label in manifest.classes}
    kind = type(manifest.classes[0])
    try:
        values = [by_text[text] if text in by_text else kind(text) for text in texts.tolist()]
    except ValueError as error:
        raise InputError(
            f"a new class is not a {kind.__name__} as the others are: {error}"
        ) from None
    return np.array(values)


def fit_rows_of(
    parts: KeptParts, manifest: Manifest, *, cap: float, unlabelled: bool, rng: np.random.Generator
) -> FitRows:
    """Rows of the kept instances for the fit, weighted by the inverse of their chances.

    With `unlabelled`, the high-cost model's answer is the label of instances that have none;
    without it, these are left out. Weights above `cap` times the mean are lowered to it.
    """
    order = feature_order(manifest)
    labelled = parts.fit_labels
    y = class_values(labelled.labels, manifest)
    X = labelled.rows.X[:, order].astype(np.float32)
    if not unlabelled:
        return FitRows(X, y, capped(labelled.weights, cap))
    others = parts.fit_rows.take(~np.isin(parts.fit_rows.ids, labelled.rows.ids))
    if len(others) > MOST_UNLABELLED:
        others = others.take(np.sort(rng.permutation(len(others))[:MOST_UNLABELLED]))
    taught = FitRows(
        others.X[:, order].astype(np.float32),
        np.array(manifest.classes)[others.cloud_label],
        others.weights,
    )
    joined = FitRows(X, y, labelled.rows.weights).joined(taught)
    return FitRows(joined.X, joined.y, capped(joined.weights, cap))


def capped(weights: Floats, cap: float) -> Floats:
    """Scale weights to a mean of 1, then lower those above `cap` to it.

    >>> capped(np.array([1.0, 1.0, 1.0, 97.0]), 2.0).tolist()
    [0.04, 0.04, 0.04, 2.0]
    """
    return np.asarray(np.minimum(weights / weights.mean(), cap))
