"""Labels that machines send: check them, and store each with a copy of its instance.

A test bench or a repair shop labels the instances that it happens to see, such as the broken
devices. The probability of that is not known, so that these labels are training data, but no
evidence about the accuracy of the system. :func:`.labelled_rows`, which serves the estimates,
leaves them out; :func:`machine_rows` gets them for a refit.
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
"""What became of a label: added; the same one is there already; no such instance is in the archive;
its model has no such class; the instance has another label already."""


@dataclass(frozen=True, slots=True)
class MachineLabel:
    """Label of the instance `id` of a `device`; `by` sent it, and `at` is in Unix seconds."""

    id: str
    device: str
    label: str
    by: str
    at: float


def add_machine_labels(
    folder: ArchiveFolder, labels: Sequence[MachineLabel], shards: Iterable[Path]
) -> list[Outcome]:
    """Add labels of instances that are in `shards`, or in a copy that an earlier label made.

    A copy of the instance is written before its label, so that a label on disk has its instance.
    The result has the outcome of each label.
    """
    # the lock, because a shard that is thinned meanwhile would have other positions
    with folder.locked():
        # Copies come first: an instance that was chosen or labelled before needs no second one.
        copies = _copies(folder.path)
        files = [*copies, *(shard for shard in shards if shard.exists())]
        places = find_instances(files, {label.id for label in labels})
        text_of = {name: label.label for name, label in read_labels(folder.path).items()}
        content_of: dict[Path, tuple[ShardFacts, ArchivedRows]] = {}
        outcomes: list[Outcome] = []
        new_labels: dict[Path, list[MachineLabel]] = {}
        for label in labels:
            if label.id not in places:
                outcomes.append("unknown")
                continue
            file, position = places[label.id]
            if file not in content_of:
                content_of[file] = read_facts(file), read_shard(file)
            facts, rows = content_of[file]
            outcome = _outcome(label, str(rows.device[position]), facts, text_of)
            outcomes.append(outcome)
            if outcome == "added":
                text_of[label.id] = label.label
                new_labels.setdefault(file, []).append(label)
        for file, labels_of_file in new_labels.items():
            if file not in copies:
                facts, rows = content_of[file]
                positions = [places[label.id][1] for label in labels_of_file]
                _copy_rows(folder.path, facts, rows.take(np.array(positions, np.intp)))
            append_labels(folder.path, map(_as_record, labels_of_file))
    return outcomes


def _as_record(label: MachineLabel) -> Label:
    return Label(label.id, label.label, label.by, label.at, is_sampled=False)


def _copies(path: Path) -> list[Path]:
    """List the files of copied instances: those of choices and those of machine labels."""
    return sorted((path / FOLDER).glob("*.parquet"))


def _outcome(
    label: MachineLabel, device: str, facts: ShardFacts, text_of: Mapping[str, str]
) -> Outcome:
    """Check a label of an instance of `device`; `text_of` are the recorded labels by id."""
    # a sender that guesses ids learns nothing about other devices
    if device != label.device:
        return "unknown"
    if label.label not in map(str, facts.classes):
        return "class"
    if label.id not in text_of:
        return "added"
    return "repeated" if text_of[label.id] == label.label else "conflict"


def _copy_rows(path: Path, facts: ShardFacts, rows: ArchivedRows) -> None:
    """Add instances to the copies of their day, model and type."""
    day = time.strftime("%Y%m%d", time.gmtime(float(rows.time[0])))
    # a name may hold characters that a file name must not
    kind = repr((facts.model, facts.version, facts.inputs, rows.X.dtype.name))
    digest = hashlib.blake2b(kind.encode(), digest_size=6).hexdigest()
    file = path / FOLDER / f"machine-{day}-{digest}.parquet"
    file.parent.mkdir(exist_ok=True, mode=0o700)
    if file.exists():
        rows = ArchivedRows.joined([read_shard(file), rows])
    write_shard(file, rows, facts)


def machine_rows(path: Path, model: str, version: str) -> TruthRows | None:
    """Get the instances of a version that machines labelled; None if there are none.

    Their chance is 1, because each stands for no instance without a label.
    """
    labels = {name: label for name, label in read_labels(path).items() if not label.is_sampled}
    parts: list[ArchivedRows] = []
    facts: ShardFacts | None = None
    for file in _copies(path):
        facts_of_file = read_facts(file)
        if (facts_of_file.model, facts_of_file.version) == (model, version):
            rows = read_shard(file)
            is_labelled = [name in labels for name in rows.ids.tolist()]
            parts.append(rows.take(np.array(is_labelled, np.bool_)))
            facts = facts_of_file
    if facts is None:
        return None
    rows = ArchivedRows.joined(parts)
    # a choice and an earlier label may each have a copy of an instance
    _, positions = np.unique(rows.ids, return_index=True)
    rows = rows.take(positions)
    if not len(rows):
        return None
    texts = [labels[name].label for name in rows.ids.tolist()]
    return TruthRows(
        rows=rows,
        truth=class_indices(texts, facts),
        labels=np.array(texts, np.str_),
        chance=np.ones(len(rows)),
        choice=np.full(len(rows), -1),
        n_chosen=0,
    )
