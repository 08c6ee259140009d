"""Labels that machines send, stored with copies of their instances.

A test bench or a repair shop labels the instances that it happens to see, such as those of broken
devices. The probability that it sees an instance is unknown. Such labels are therefore training
data, but no evidence of the system's accuracy. A refit reads them with :func:`read_machine_rows`.
Estimates read only other labels, with :func:`.read_labelled_rows`.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from gatewise.columns.cells import class_indices
from gatewise_export.archive.choice import LABELS_FOLDER
from gatewise_export.archive.folder import ArchiveFolder
from gatewise_export.archive.labels import (
    Label,
    LabelledInstances,
    append_labels,
    read_labels,
)
from gatewise_export.archive.shard import (
    ArchivedRows,
    Release,
    ShardFacts,
    find_instances,
    read_facts,
    read_shard,
    write_shard,
)

#: Result of adding a label.
#:
#: ``repeated`` means that the instance already has this label, and ``conflict`` that it has
#: another. ``unknown`` means that the archive has no such instance, and ``class`` that the model
#: has no such class.
Outcome = Literal["added", "repeated", "unknown", "class", "conflict"]


@dataclass(frozen=True, slots=True)
class MachineLabel:
    """Label of the instance `id` of a `device`, sent `by` a machine `at` a Unix time."""

    id: str
    device: str
    label: str
    by: str
    at: float


class _FileContents(NamedTuple):
    """Contents of a shard or of a file of copies."""

    facts: ShardFacts
    rows: ArchivedRows


def add_machine_labels(
    folder: ArchiveFolder, labels: Sequence[MachineLabel], shards: Iterable[Path]
) -> list[Outcome]:
    """Add labels to the archive in `folder`, and return the outcome of each label.

    Instances are looked up first among the copies from earlier labels and choices, then in
    `shards`. A copy of an instance is written before its label, so that the instance of every label
    on disk remains when its shard is deleted.
    """
    # locked, because thinning a shard changes the positions of its instances
    with folder.lock():
        # copies come first, so that an instance with a copy gets no second one
        copy_files = _copy_files(folder.path)
        files = [*copy_files, *(shard for shard in shards if shard.exists())]
        location_of = find_instances(files, {label.id for label in labels})
        contents_of_file = {
            file: _FileContents(read_facts(file), read_shard(file))
            for file in {file for file, _ in location_of.values()}
        }
        label_text_of = {label.id: label.label for label in read_labels(folder.path).values()}
        outcomes = _list_outcomes(labels, location_of, contents_of_file, label_text_of)
        new_labels: dict[Path, list[MachineLabel]] = {}
        for label, outcome in zip(labels, outcomes, strict=True):
            if outcome == "added":
                new_labels.setdefault(location_of[label.id][0], []).append(label)
        for file, labels_of_file in new_labels.items():
            if file not in copy_files:
                facts, rows = contents_of_file[file]
                positions = [location_of[label.id][1] for label in labels_of_file]
                _append_copies(folder.path, facts, rows.take(np.array(positions, np.intp)))
            append_labels(folder.path, map(_as_label_record, labels_of_file))
    return outcomes


def _list_outcomes(
    labels: Sequence[MachineLabel],
    location_of: Mapping[str, tuple[Path, int]],
    contents_of_file: Mapping[Path, _FileContents],
    recorded_text_of: Mapping[str, str],
) -> list[Outcome]:
    """List the outcome of each label; earlier labels of the sequence count as recorded."""
    label_text_of = dict(recorded_text_of)
    outcomes: list[Outcome] = []
    for label in labels:
        if label.id not in location_of:
            outcomes.append("unknown")
            continue
        file, position = location_of[label.id]
        facts, rows = contents_of_file[file]
        outcome = _label_outcome(label, str(rows.device[position]), facts, label_text_of)
        outcomes.append(outcome)
        if outcome == "added":
            label_text_of[label.id] = label.label
    return outcomes


def _as_label_record(label: MachineLabel) -> Label:
    return Label(label.id, label.label, label.by, label.at, is_sampled=False)


def _copy_files(archive_path: Path) -> list[Path]:
    """List the files with copies of instances, from choices and from machine labels."""
    return sorted((archive_path / LABELS_FOLDER).glob("*.parquet"))


def _label_outcome(
    label: MachineLabel, device: str, facts: ShardFacts, label_text_of: Mapping[str, str]
) -> Outcome:
    """Check a label of an instance of `device`; `label_text_of` has the recorded labels by id."""
    # "unknown", so that a sender that guesses ids learns nothing about other devices
    if device != label.device:
        return "unknown"
    if label.label not in map(str, facts.classes):
        return "class"
    if label.id not in label_text_of:
        return "added"
    return "repeated" if label_text_of[label.id] == label.label else "conflict"


def _append_copies(archive_path: Path, facts: ShardFacts, rows: ArchivedRows) -> None:
    """Append instances to the file of copies of their day, model and data type."""
    day = time.strftime("%Y%m%d", time.gmtime(float(rows.time[0])))
    # a digest, because a model name may contain characters that file names cannot
    key = repr((facts.model, facts.version, facts.inputs, rows.X.dtype.name))
    key_digest = hashlib.blake2b(key.encode(), digest_size=6).hexdigest()
    file = archive_path / LABELS_FOLDER / f"machine-{day}-{key_digest}.parquet"
    file.parent.mkdir(exist_ok=True, mode=0o700)
    if file.exists():
        rows = ArchivedRows.concatenate([read_shard(file), rows])
    write_shard(file, rows, facts)


def read_machine_rows(archive_path: Path, release: Release) -> LabelledInstances | None:
    """Read the instances of a release that machines labelled; None if no instance qualifies.

    Their `label_probability` is 1, because they represent no unlabelled instances.
    """
    label_text_of = {
        label.id: label.label
        for label in read_labels(archive_path).values()
        if not label.is_sampled
    }
    files = [file for file in _copy_files(archive_path) if read_facts(file).release == release]
    if not files:
        return None
    rows = ArchivedRows.concatenate([read_shard(file) for file in files])
    rows = rows.take(np.isin(rows.ids, list(label_text_of)))
    # an instance may have a copy from a choice and another from an earlier label
    _, first_positions = np.unique(rows.ids, return_index=True)
    rows = rows.take(first_positions)
    if not len(rows):
        return None
    label_texts = [label_text_of[instance_id] for instance_id in rows.ids.tolist()]
    return LabelledInstances(
        rows=rows,
        truth=class_indices(label_texts, read_facts(files[-1]).classes),
        labels=np.array(label_texts, np.str_),
        label_probability=np.ones(len(rows)),
        choice_index=np.full(len(rows), -1),
    )
