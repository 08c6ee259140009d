"""Labels from people and machines, in a file with one line per label.

Each line also says who gave the label, and when. The file is only appended to.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from gatewise.columns.cells import UNKNOWN_CLASS, class_indices
from gatewise.columns.csv_file import csv_rows
from gatewise.errors import InputError
from gatewise.file_lock import lock_file
from gatewise.formats import plural
from gatewise_export.archive.choice import LABELS_FOLDER, LabelChoice, read_choices
from gatewise_export.archive.shard import ArchivedRows, Release, RowColumns

_LABELS_FILE: Final = "labels.jsonl"
#: Largest number of ids or labels that an error lists.
_MAX_SHOWN: Final = 5


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
class LabelledInstances(RowColumns):
    """The m labelled instances of one version.

    Attributes
    ----------
    rows : ArchivedRows
        The instances.
    truth : ndarray of int64, shape (m,)
        Class index of the label, or UNKNOWN_CLASS for a class that the model does not have.
    labels : ndarray of str, shape (m,)
        Labels as text.
    label_probability : ndarray of float64, shape (m,)
        Probability with which each instance was chosen and labelled.
    choice_index : ndarray of int64, shape (m,)
        Index of the choice that each instance belongs to.
    """

    rows: ArchivedRows
    truth: NDArray[np.int64]
    labels: NDArray[np.str_]
    label_probability: NDArray[np.float64]
    choice_index: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.truth)

    @property
    def weights(self) -> NDArray[np.float64]:
        """Number of instances that each labelled instance represents, shape (m,)."""
        return self.rows.weights / self.label_probability


def read_label_csv(path: Path) -> dict[str, str]:
    """Read the columns ``id`` and ``label`` of a CSV file, and skip rows with an empty label.

    Raises InputError if :func:`.csv_rows` cannot read the file, if it does not have each column
    once, if no row has a label, or if an instance has two different labels.
    """
    rows = csv_rows(path)
    _, header = next(rows)
    if header.count("id") != 1 or header.count("label") != 1:
        raise InputError(
            f"{path} must have one column named id and one named label, as `labels choose` writes"
        )
    id_column = header.index("id")
    label_column = header.index("label")
    labels: dict[str, str] = {}
    for line_number, row in rows:
        instance_id = row[id_column]
        label = row[label_column]
        if not label:
            continue
        if labels.setdefault(instance_id, label) != label:
            raise InputError(
                f"{path}, line {line_number}: {instance_id} has the label "
                f"{labels[instance_id]!r} already: keep one of the lines"
            )
    if not labels:
        raise InputError(f"{path} has no labels: fill in its column label")
    return labels


def checked_labels(
    labels: Mapping[str, str], choices: Iterable[LabelChoice], new_classes: Iterable[str] = ()
) -> dict[str, str]:
    """Check labels by instance id, and return them as the bundle writes its classes (3 for 3.0).

    Raises InputError for labels of instances that were not chosen, or of classes that are neither
    of the model that answered the instance nor among `new_classes`.
    """
    new_classes = list(new_classes)
    name_of_id: dict[str, str] = {}
    for choice in choices:
        ids = [instance_id for instance_id in choice.rows.ids.tolist() if instance_id in labels]
        label_texts = [labels[instance_id] for instance_id in ids]
        names = list(dict.fromkeys([*map(str, choice.facts.classes), *new_classes]))
        classes = [*choice.facts.classes, *names[len(choice.facts.classes) :]]
        indices = class_indices(label_texts, classes)
        if unknown_labels := sorted(set(compress(label_texts, indices == UNKNOWN_CLASS))):
            raise InputError(
                f"unknown labels {', '.join(map(repr, unknown_labels[:_MAX_SHOWN]))}; the classes "
                f"are {', '.join(sorted(names)[:20])}; --new-class NAME adds a class"
            )
        name_of_id |= {
            instance_id: names[index] for instance_id, index in zip(ids, indices, strict=True)
        }
    if unknown_ids := [instance_id for instance_id in labels if instance_id not in name_of_id]:
        raise InputError(
            f"not chosen from this folder: {plural(len(unknown_ids), 'id')}, such as "
            f"{', '.join(map(repr, unknown_ids[:_MAX_SHOWN]))}"
        )
    return {instance_id: name_of_id[instance_id] for instance_id in labels}


def add_labels(archive_path: Path, labels: Mapping[str, str], *, by: str, at: float) -> int:
    """Append the checked labels that are new or changed, and return their number."""
    recorded_labels = read_labels(archive_path)
    new_labels = [
        Label(instance_id, label, by, at)
        for instance_id, label in labels.items()
        if (recorded_label := recorded_labels.get(instance_id)) is None
        or not recorded_label.is_sampled
        or recorded_label.label != label
    ]
    append_labels(archive_path, new_labels)
    return len(new_labels)


def append_labels(archive_path: Path, labels: Iterable[Label]) -> None:
    """Append labels to the file, and flush them to the disk."""
    lines = b"".join(msgspec.json.encode(label) + b"\n" for label in labels)
    with (archive_path / LABELS_FOLDER / _LABELS_FILE).open("a+b") as file:
        lock_file(file.fileno())  # a worker may add labels at the same time
        # end the line of a writer that was killed, so that it does not spoil the next label
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                lines = b"\n" + lines
        file.write(lines)
        file.flush()
        os.fsync(file.fileno())


def read_labels(archive_path: Path) -> dict[str, Label]:
    """Read the last label of each instance by its id, and skip incomplete lines."""
    file = archive_path / LABELS_FOLDER / _LABELS_FILE
    if not file.exists():
        return {}
    labels = {}
    for line in file.read_bytes().split(b"\n"):
        try:
            label = msgspec.json.decode(line, type=Label)
        except msgspec.DecodeError:
            continue  # a writer was killed, or the line is empty
        labels[label.id] = label
    return labels


def read_labelled_rows(archive_path: Path, release: Release) -> LabelledInstances | None:
    """Read the instances of a release with sampled labels; None if the release has no choice.

    :func:`.read_machine_rows` reads the labels that machines sent. If people label only some of the
    chosen instances, the labelled ones are assumed to be a random part. The probability of a label
    is then the probability of the choice times the labelled share.
    """
    choices = read_choices(archive_path, release)
    if not choices:
        return None
    labels = {label.id: label for label in read_labels(archive_path).values() if label.is_sampled}
    return LabelledInstances.concatenate(
        [
            _labelled_rows_of_choice(choice, choice_index, labels)
            for choice_index, choice in enumerate(choices)
        ]
    )


def _labelled_rows_of_choice(
    choice: LabelChoice, choice_index: int, labels: Mapping[str, Label]
) -> LabelledInstances:
    is_labelled = np.array(
        [instance_id in labels for instance_id in choice.rows.ids.tolist()], np.bool_
    )
    rows = choice.rows.take(is_labelled)
    label_texts = [labels[instance_id].label for instance_id in rows.ids.tolist()]
    # the CSV is in random order, so that its first lines are a random part of the choice
    labelled_share = len(rows) / max(len(choice.rows), 1)
    return LabelledInstances(
        rows=rows,
        truth=class_indices(label_texts, choice.facts.classes),
        labels=np.array(label_texts, np.str_),
        label_probability=choice.choice_probability[is_labelled] * labelled_share,
        choice_index=np.full(len(rows), choice_index),
    )
