"""Labels from people and machines, in a file with one line per label.

Each line also says who gave the label, and when. The file is only appended to.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise.file_lock import lock_file
from gatewise_export.archive.choice import FOLDER, LabelChoice, read_choices
from gatewise_export.archive.shard import ArchivedRows, ShardFacts

_LABELS_FILE: Final = "labels.jsonl"
_MAX_NAMES: Final = 5


class Label(msgspec.Struct, frozen=True, omit_defaults=True):
    """The true class of the instance `id`, given `by` a person or machine `at` a Unix time.

    `is_sampled` is False for a label that a machine sent, because the probability with which the
    machine labels an instance is unknown. Estimates use sampled labels only.
    """

    id: str
    label: str
    by: str
    at: float
    is_sampled: bool = True


@dataclass(frozen=True, eq=False)
class TruthRows:
    """The m labelled instances of one version.

    Attributes
    ----------
    rows : ArchivedRows
    truth : ndarray of int64, shape (m,)
        Class index, or -1 for a class that the model does not have.
    labels : ndarray of str, shape (m,)
    chance : ndarray of float64, shape (m,)
        Probability with which each instance was chosen and labelled.
    choice : ndarray of int64, shape (m,)
        Index of the choice that each instance belongs to.
    n_chosen : int
        Number of chosen instances, with and without a label.
    """

    rows: ArchivedRows
    truth: NDArray[np.int64]
    labels: NDArray[np.str_]
    chance: NDArray[np.float64]
    choice: NDArray[np.int64]
    n_chosen: int

    def __len__(self) -> int:
        return len(self.truth)

    @property
    def weights(self) -> NDArray[np.float64]:
        """Number of instances that each labelled instance represents, shape (m,)."""
        return self.rows.weights / self.chance

    def take(self, mask: NDArray[np.bool_]) -> TruthRows:
        """Select rows by a mask."""
        return TruthRows(
            rows=self.rows.take(mask),
            truth=self.truth[mask],
            labels=self.labels[mask],
            chance=self.chance[mask],
            choice=self.choice[mask],
            n_chosen=self.n_chosen,
        )

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Concatenate one or more parts."""
        return cls(
            rows=ArchivedRows.joined([part.rows for part in parts]),
            truth=np.concatenate([part.truth for part in parts]),
            labels=np.concatenate([part.labels for part in parts]),
            chance=np.concatenate([part.chance for part in parts]),
            choice=np.concatenate([part.choice for part in parts]),
            n_chosen=sum(part.n_chosen for part in parts),
        )


def read_label_csv(text: str) -> dict[str, str]:
    """Read the columns ``id`` and ``label`` of a CSV, and skip rows with an empty label.

    Raises InputError if a column is missing, or if an instance has two different labels.
    """
    reader = csv.DictReader(io.StringIO(text))
    if not {"id", "label"} <= set(reader.fieldnames or ()):
        raise InputError(
            "a CSV of labels must have columns named id and label, as `labels choose` writes"
        )
    labels: dict[str, str] = {}
    for number, line in enumerate(reader, 2):
        name = (line["id"] or "").strip()
        label = (line["label"] or "").strip()
        if not label:
            continue
        if labels.setdefault(name, label) != label:
            raise InputError(f"line {number}: {name} has the label {labels[name]!r} already")
    return labels


def check_labels(
    labels: Mapping[str, str], choices: Iterable[LabelChoice], new_classes: Iterable[str] = ()
) -> None:
    """Raise InputError for labels of instances that were not chosen, or of unknown classes."""
    known_ids: set[str] = set()
    classes: set[str] = set(new_classes)
    for choice in choices:
        known_ids.update(choice.rows.ids.tolist())
        classes.update(map(str, choice.facts.classes))
    if unknown_ids := [name for name in labels if name not in known_ids]:
        raise InputError(
            f"{len(unknown_ids)} ids were not chosen from this folder: "
            f"{', '.join(unknown_ids[:_MAX_NAMES])}"
        )
    if unknown_labels := sorted({label for label in labels.values() if label not in classes}):
        raise InputError(
            f"unknown labels {', '.join(map(repr, unknown_labels[:_MAX_NAMES]))}; the classes are "
            f"{', '.join(sorted(classes)[:20])}; --new-class NAME adds a class"
        )


def add_labels(path: Path, labels: Mapping[str, str], *, by: str, at: float) -> int:
    """Append checked labels; return the number of labels that are new or changed."""
    current = read_labels(path)
    new_labels = [
        Label(name, label, by, at)
        for name, label in labels.items()
        if name not in current or (current[name].label, current[name].is_sampled) != (label, True)
    ]
    append_labels(path, new_labels)
    return len(new_labels)


def append_labels(path: Path, labels: Iterable[Label]) -> None:
    """Append labels to the file, and flush them to the disk."""
    lines = b"".join(msgspec.json.encode(label) + b"\n" for label in labels)
    with (path / FOLDER / _LABELS_FILE).open("ab") as file:
        lock_file(file.fileno())  # a worker may add labels at the same time
        file.write(lines)
        file.flush()
        os.fsync(file.fileno())


def read_labels(path: Path) -> dict[str, Label]:
    """Read the last label of each instance by its id, and skip incomplete lines."""
    file = path / FOLDER / _LABELS_FILE
    if not file.exists():
        return {}
    labels = {}
    for line in file.read_bytes().split(b"\n"):
        try:
            label = msgspec.json.decode(line, type=Label)
        except msgspec.DecodeError:
            continue  # the writing process was killed
        labels[label.id] = label
    return labels


def labelled_rows(path: Path, version: str) -> tuple[ShardFacts, TruthRows] | None:
    """Read the instances of a version with sampled labels; None if the version has no choice.

    :func:`.machine_rows` reads the labels that machines sent. If people label only some of the
    chosen instances, these are assumed to be a random part. The probability of a label is then that
    of the choice times the labelled share.
    """
    choices = [choice for choice in read_choices(path) if choice.facts.version == version]
    if not choices:
        return None
    labels = {name: label for name, label in read_labels(path).items() if label.is_sampled}
    by_choice = [_labelled_part(choice, number, labels) for number, choice in enumerate(choices)]
    return choices[-1].facts, TruthRows.joined(by_choice)


def _labelled_part(choice: LabelChoice, number: int, labels: Mapping[str, Label]) -> TruthRows:
    is_labelled = np.array([name in labels for name in choice.rows.ids.tolist()], np.bool_)
    rows = choice.rows.take(is_labelled)
    texts = [labels[name].label for name in rows.ids.tolist()]
    # the CSV is in random order, so that its first lines are a random part of the choice
    share = len(rows) / max(len(choice.rows), 1)
    return TruthRows(
        rows=rows,
        truth=class_indices(texts, choice.facts),
        labels=np.array(texts, np.str_),
        chance=choice.chance[is_labelled] * share,
        choice=np.full(len(rows), number),
        n_chosen=len(choice.rows),
    )


def class_indices(texts: Iterable[str], facts: ShardFacts) -> NDArray[np.int64]:
    """Class indices of labels, of shape (m,), with -1 for classes that the model does not have."""
    index_of = {str(label): index for index, label in enumerate(facts.classes)}
    return np.array([index_of.get(text, -1) for text in texts], np.int64)
