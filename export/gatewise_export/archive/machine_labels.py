"""Labels that machines send, stored with copies of their instances.

A test bench or a repair shop labels the instances that it happens to see, such as those of broken
devices. The probability that it sees an instance is unknown. Such labels are therefore training
data, but no evidence of the system's accuracy. :func:`machine_rows` reads them for a refit. The
estimates use :func:`.labelled_rows`, which ignores them.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from gatewise_export.archive.choice import FOLDER
from gatewise_export.archive.folder import ArchiveFolder
from gatewise_export.archive.labels import (
    Label,
    TruthRows,
    append_labels,
    class_indices,
    read_labels,
)
from gatewise_export.archive.shard import (
    ArchivedRows,
    ShardFacts,
    find_instances,
    read_facts,
    read_shard,
    write_shard,
)

Outcome = Literal["added", "repeated", "unknown", "class", "conflict"]
"""Result for a label.

``repeated`` means that the instance already has this label, and ``conflict`` that it has another.
``unknown`` means that the archive has no such instance, and ``class`` that the model has no such
class.
"""


@dataclass(frozen=True, slots=True)
class MachineLabel:
    """Label of the instance `id` of a `device`, sent `by` a machine `at` a Unix time."""

    id: str
    device: str
    label: str
    by: str
    at: float


def add_machine_labels(
    folder: ArchiveFolder, labels: Sequence[MachineLabel], shards: Iterable[Path]
) -> list[Outcome]:
    """Add labels of instances, and return the outcome of each label.

    The instances are looked up in the copies from earlier labels and choices, then in `shards`.
    A copy of the instance is written before its label, so that each label on disk has its instance.
    """
    # locked, because thinning a shard changes the positions of its instances
    with folder.locked():
        # copies come first, so that an instance with a copy gets no second one
        copies = _copies(folder.path)
        files = [*copies, *(shard for shard in shards if shard.exists())]
        places = find_instances(files, {label.id for label in labels})
        text_of = {instance: label.label for instance, label in read_labels(folder.path).items()}
        contents_of: dict[Path, tuple[ShardFacts, ArchivedRows]] = {}
        outcomes: list[Outcome] = []
        new_labels: dict[Path, list[MachineLabel]] = {}
        for label in labels:
            if label.id not in places:
                outcomes.append("unknown")
                continue
            file, position = places[label.id]
            if file not in contents_of:
                contents_of[file] = read_facts(file), read_shard(file)
            facts, rows = contents_of[file]
            outcome = _outcome(label, str(rows.device[position]), facts, text_of)
            outcomes.append(outcome)
            if outcome == "added":
                text_of[label.id] = label.label
                new_labels.setdefault(file, []).append(label)
        for file, labels_of_file in new_labels.items():
            if file not in copies:
                facts, rows = contents_of[file]
                positions = [places[label.id][1] for label in labels_of_file]
                _copy_rows(folder.path, facts, rows.take(np.array(positions, np.intp)))
            append_labels(folder.path, map(_as_record, labels_of_file))
    return outcomes


def _as_record(label: MachineLabel) -> Label:
    return Label(label.id, label.label, label.by, label.at, is_sampled=False)


def _copies(path: Path) -> list[Path]:
    """List the files with copies of instances, from choices and from machine labels."""
    return sorted((path / FOLDER).glob("*.parquet"))


def _outcome(
    label: MachineLabel, device: str, facts: ShardFacts, text_of: Mapping[str, str]
) -> Outcome:
    """Check a label of an instance of `device`; `text_of` has the recorded labels by id."""
    # "unknown", so that a sender that guesses ids learns nothing about other devices
    if device != label.device:
        return "unknown"
    if label.label not in map(str, facts.classes):
        return "class"
    if label.id not in text_of:
        return "added"
    return "repeated" if text_of[label.id] == label.label else "conflict"


def _copy_rows(path: Path, facts: ShardFacts, rows: ArchivedRows) -> None:
    """Append instances to the file of copies of their day, model and data type."""
    day = time.strftime("%Y%m%d", time.gmtime(float(rows.time[0])))
    # a digest, because a model name may contain characters that file names cannot
    key = repr((facts.model, facts.version, facts.inputs, rows.X.dtype.name))
    digest = hashlib.blake2b(key.encode(), digest_size=6).hexdigest()
    file = path / FOLDER / f"machine-{day}-{digest}.parquet"
    file.parent.mkdir(exist_ok=True, mode=0o700)
    if file.exists():
        rows = ArchivedRows.joined([read_shard(file), rows])
    write_shard(file, rows, facts)


def machine_rows(path: Path, model: str, version: str) -> TruthRows | None:
    """Read the instances of a version that machines labelled; None if no instance qualifies.

    Their `chance` is 1, because they represent no unlabelled instances.
    """
    labels = {name: label for name, label in read_labels(path).items() if not label.is_sampled}
    parts: list[ArchivedRows] = []
    facts: ShardFacts | None = None
    for file in _copies(path):
        facts_of_file = read_facts(file)
        if (facts_of_file.model, facts_of_file.version) == (model, version):
            rows = read_shard(file)
            is_labelled = [instance in labels for instance in rows.ids.tolist()]
            parts.append(rows.take(np.array(is_labelled, np.bool_)))
            facts = facts_of_file
    if facts is None:
        return None
    rows = ArchivedRows.joined(parts)
    # an instance may have a copy from a choice and another from an earlier label
    _, positions = np.unique(rows.ids, return_index=True)
    rows = rows.take(positions)
    if not len(rows):
        return None
    texts = [labels[instance].label for instance in rows.ids.tolist()]
    return TruthRows(
        rows=rows,
        truth=class_indices(texts, facts),
        labels=np.array(texts, np.str_),
        chance=np.ones(len(rows)),
        choice=np.full(len(rows), -1),
        n_chosen=0,
    )
