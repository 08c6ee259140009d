"""Labels that machines send: checks, copies of instances, and their absence from estimates."""

import msgspec
import numpy as np
import pytest

from gatewise_export.archive.choice import choose, write_choice
from gatewise_export.archive.folder import shards_in
from gatewise_export.archive.labels import add_labels, read_labelled_rows, read_labels
from gatewise_export.archive.machine_labels import (
    MachineLabel,
    add_machine_labels,
    read_machine_rows,
)
from gatewise_export.archive.true_figures import monitor
from tests.export.archive.archived_rows import FACTS, archived
from tests.export.archive.test_folder import NOW, folder

pytest.importorskip("pyarrow")


@pytest.fixture
def archive(tmp_path):
    """An archive of two shards, and their instances."""
    archive_folder = folder(tmp_path)
    first = archived(60)
    second = archived(40, seed=1)
    archive_folder.add(first, FACTS, NOW)
    archive_folder.add(second, FACTS, NOW + 1)
    return archive_folder, first, second


def label(rows, i, text="a", **changes):
    fields = {"id": str(rows.ids[i]), "device": str(rows.device[i]), "label": text}
    return MachineLabel(**fields | {"by": "bench", "at": 5.0} | changes)


def add(archive_folder, *labels):
    return add_machine_labels(archive_folder, labels, shards_in(archive_folder.path))


def test_labels_are_recorded_with_sender_time_and_a_copy_of_the_instance(archive):
    archive_folder, first, second = archive
    labels = [label(first, 3), label(second, 7, "b", at=6.0), label(first, 20, "b")]
    assert add(archive_folder, *labels) == ["added", "added", "added"]
    recorded = read_labels(archive_folder.path)
    record = recorded[labels[1].id]
    assert (record.label, record.by, record.at, record.is_sampled) == ("b", "bench", 6.0, False)
    for shard in shards_in(archive_folder.path):  # the archive deletes old shards
        shard.unlink()
    rows = read_machine_rows(archive_folder.path, "tiny", "1")
    truth = dict(zip(rows.rows.ids.tolist(), rows.truth.tolist(), strict=True))
    assert truth == {labels[0].id: 0, labels[1].id: 1, labels[2].id: 1}
    position = rows.rows.ids.tolist().index(labels[1].id)
    np.testing.assert_array_equal(rows.rows.X[position], second.X[7])
    np.testing.assert_array_equal(rows.weights, rows.rows.weights)
    assert read_machine_rows(archive_folder.path, "tiny", "2") is None


def test_a_repeated_label_changes_nothing(archive):
    archive_folder, first, _ = archive
    assert add(archive_folder, label(first, 3), label(first, 3)) == ["added", "repeated"]
    written = (archive_folder.path / "labels" / "labels.jsonl").read_bytes()
    assert add(archive_folder, label(first, 3, at=9.0, by="other")) == ["repeated"]
    assert (archive_folder.path / "labels" / "labels.jsonl").read_bytes() == written
    assert len(read_machine_rows(archive_folder.path, "tiny", "1")) == 1


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({"text": "b"}, "conflict"),
        ({"text": "broken"}, "class"),
        ({"device": "pi-9"}, "unknown"),
        ({"id": f"{'0' * 32}-0"}, "unknown"),
    ],
)
def test_refused_labels_do_not_change_the_archive(archive, changes, outcome):
    archive_folder, first, _ = archive
    add(archive_folder, label(first, 3))
    before = read_labels(archive_folder.path)
    assert add(archive_folder, label(first, 3, **changes)) == [outcome]
    assert read_labels(archive_folder.path) == before


def test_another_row_of_the_request_is_unknown(archive):
    archive_folder, first, _ = archive
    request, row = first.ids[0].split("-")
    assert add(archive_folder, label(first, 0, id=f"{request}-{int(row) + 1}")) == ["unknown"]


def test_a_damaged_shard_hides_only_its_own_instances(archive):
    archive_folder, first, second = archive
    shards_in(archive_folder.path)[0].write_bytes(b"damaged")
    assert add(archive_folder, label(first, 1), label(second, 1)) == ["unknown", "added"]


def test_estimates_and_alarms_ignore_labels_of_machines(archive):
    """A repair shop labels only instances that were answered wrongly."""
    archive_folder, first, second = archive
    facts = msgspec.structs.replace(FACTS, accuracy=0.9)
    archive_folder.add(archived(300, seed=2), facts, NOW + 2)
    choice = choose(archive_folder.path, 80, np.random.default_rng(0))
    write_choice(archive_folder.path, choice, "1")
    ids = choice.rows.ids.tolist()
    add_labels(archive_folder.path, dict.fromkeys(ids[:40], "a"), by="anna", at=1.0)
    before = monitor(archive_folder.path)
    wrong_labels = [
        label(choice.rows, i, "ab"[1 - choice.rows.answers[i]]) for i in range(40, len(ids))
    ]
    wrong_labels += [
        label(rows, i, "ab"[1 - rows.answers[i]]) for rows in (first, second) for i in (0, 1)
    ]
    outcomes = add(archive_folder, *{wrong.id: wrong for wrong in wrong_labels}.values())
    assert set(outcomes) <= {"added", "repeated", "conflict"}
    assert outcomes.count("added") > 20
    assert monitor(archive_folder.path) == before
    assert len(read_labelled_rows(archive_folder.path, "1")) == 40


def test_a_person_replaces_the_label_of_a_machine(archive):
    archive_folder, _, _ = archive
    choice = choose(archive_folder.path, 40, np.random.default_rng(0))
    write_choice(archive_folder.path, choice, "1")
    machine_label = label(choice.rows, 0)
    assert add(archive_folder, machine_label) == ["added"]
    assert not list(archive_folder.path.glob("labels/machine-*"))  # the choice has the instance
    assert len(read_labelled_rows(archive_folder.path, "1")) == 0
    assert add_labels(archive_folder.path, {machine_label.id: "a"}, by="anna", at=7.0) == 1
    assert len(read_labelled_rows(archive_folder.path, "1")) == 1
    assert read_machine_rows(archive_folder.path, "tiny", "1") is None
    assert add(archive_folder, machine_label) == ["repeated"]
    assert read_labels(archive_folder.path)[machine_label.id].is_sampled
    assert shards_in(archive_folder.path)
