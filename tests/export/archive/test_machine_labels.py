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
from tests.export.archive.archived_rows import FACTS, make_archived_rows
from tests.export.archive.test_folder import NOW, open_folder

pytest.importorskip("pyarrow")


@pytest.fixture
def archive_and_rows(tmp_path):
    """An archive of two shards, and their instances."""
    archive_folder = open_folder(tmp_path)
    first_rows = make_archived_rows(60)
    second_rows = make_archived_rows(40, seed=1)
    archive_folder.add(first_rows, FACTS, NOW)
    archive_folder.add(second_rows, FACTS, NOW + 1)
    return archive_folder, first_rows, second_rows


def make_label(rows, row, label_text="a", **changed_fields):
    """Make the label of one of some rows."""
    fields = {"id": str(rows.ids[row]), "device": str(rows.device[row]), "label": label_text}
    return MachineLabel(**fields | {"by": "bench", "at": 5.0} | changed_fields)


def add_labels_of_machines(archive_folder, *labels):
    return add_machine_labels(archive_folder, labels, shards_in(archive_folder.path))


def test_labels_are_recorded_with_sender_time_and_a_copy_of_the_instance(archive_and_rows):
    archive_folder, first_rows, second_rows = archive_and_rows
    labels = [
        make_label(first_rows, 3),
        make_label(second_rows, 7, "b", at=6.0),
        make_label(first_rows, 20, "b"),
    ]
    assert add_labels_of_machines(archive_folder, *labels) == ["added", "added", "added"]
    record = read_labels(archive_folder.path)[labels[1].id]
    assert (record.label, record.by, record.at, record.is_sampled) == ("b", "bench", 6.0, False)
    for shard in shards_in(archive_folder.path):  # the archive deletes old shards
        shard.unlink()
    labelled = read_machine_rows(archive_folder.path, ("tiny", "1"))
    class_of_instance = dict(zip(labelled.rows.ids.tolist(), labelled.truth.tolist(), strict=True))
    assert class_of_instance == {labels[0].id: 0, labels[1].id: 1, labels[2].id: 1}
    position = labelled.rows.ids.tolist().index(labels[1].id)
    np.testing.assert_array_equal(labelled.rows.X[position], second_rows.X[7])
    np.testing.assert_array_equal(labelled.weights, labelled.rows.weights)
    assert read_machine_rows(archive_folder.path, ("tiny", "2")) is None


def test_a_repeated_label_changes_nothing(archive_and_rows):
    archive_folder, first_rows, _ = archive_and_rows
    assert add_labels_of_machines(
        archive_folder, make_label(first_rows, 3), make_label(first_rows, 3)
    ) == ["added", "repeated"]
    file_content = (archive_folder.path / "labels" / "labels.jsonl").read_bytes()
    assert add_labels_of_machines(
        archive_folder, make_label(first_rows, 3, at=9.0, by="other")
    ) == ["repeated"]
    assert (archive_folder.path / "labels" / "labels.jsonl").read_bytes() == file_content
    assert len(read_machine_rows(archive_folder.path, ("tiny", "1"))) == 1


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({"label_text": "b"}, "conflict"),
        ({"label_text": "broken"}, "class"),
        ({"device": "pi-9"}, "unknown"),
        ({"id": f"{'0' * 32}-0"}, "unknown"),
    ],
)
def test_refused_labels_do_not_change_the_archive(archive_and_rows, changes, outcome):
    archive_folder, first_rows, _ = archive_and_rows
    add_labels_of_machines(archive_folder, make_label(first_rows, 3))
    labels_before = read_labels(archive_folder.path)
    assert add_labels_of_machines(archive_folder, make_label(first_rows, 3, **changes)) == [outcome]
    assert read_labels(archive_folder.path) == labels_before


def test_another_row_of_the_request_is_unknown(archive_and_rows):
    archive_folder, first_rows, _ = archive_and_rows
    request_id, row = first_rows.ids[0].split("-")
    label = make_label(first_rows, 0, id=f"{request_id}-{int(row) + 1}")
    assert add_labels_of_machines(archive_folder, label) == ["unknown"]


def test_a_damaged_shard_hides_only_its_own_instances(archive_and_rows):
    archive_folder, first_rows, second_rows = archive_and_rows
    shards_in(archive_folder.path)[0].write_bytes(b"damaged")
    assert add_labels_of_machines(
        archive_folder, make_label(first_rows, 1), make_label(second_rows, 1)
    ) == ["unknown", "added"]


def test_estimates_and_alarms_ignore_labels_of_machines(archive_and_rows):
    """A repair shop labels only instances that were answered wrongly."""
    archive_folder, first_rows, second_rows = archive_and_rows
    facts = msgspec.structs.replace(FACTS, accuracy=0.9)
    archive_folder.add(make_archived_rows(300, seed=2), facts, NOW + 2)
    choice = choose(archive_folder.path, 80, np.random.default_rng(0))
    write_choice(archive_folder.path, choice, "1")
    ids = choice.rows.ids.tolist()
    add_labels(archive_folder.path, dict.fromkeys(ids[:40], "a"), by="anna", at=1.0)
    report_before = monitor(archive_folder.path)
    wrong_labels = [
        make_label(choice.rows, row_index, "ab"[1 - choice.rows.answers[row_index]])
        for row_index in range(40, len(ids))
    ]
    wrong_labels += [
        make_label(rows, row_index, "ab"[1 - rows.answers[row_index]])
        for rows in (first_rows, second_rows)
        for row_index in (0, 1)
    ]
    # The choice may have the first instances, so that some have two labels here.
    label_by_id = {wrong_label.id: wrong_label for wrong_label in wrong_labels}
    outcomes = add_labels_of_machines(archive_folder, *label_by_id.values())
    assert set(outcomes) <= {"added", "repeated", "conflict"}
    assert outcomes.count("added") > 20  # most of the chosen instances had no label
    assert monitor(archive_folder.path) == report_before
    assert len(read_labelled_rows(archive_folder.path, ("tiny", "1"))) == 40


def test_a_person_replaces_the_label_of_a_machine(archive_and_rows):
    archive_folder, _, _ = archive_and_rows
    choice = choose(archive_folder.path, 40, np.random.default_rng(0))
    write_choice(archive_folder.path, choice, "1")
    machine_label = make_label(choice.rows, 0)
    assert add_labels_of_machines(archive_folder, machine_label) == ["added"]
    assert not list(archive_folder.path.glob("labels/machine-*"))  # the choice has the instance
    assert len(read_labelled_rows(archive_folder.path, ("tiny", "1"))) == 0
    assert add_labels(archive_folder.path, {machine_label.id: "a"}, by="anna", at=7.0) == 1
    assert len(read_labelled_rows(archive_folder.path, ("tiny", "1"))) == 1
    assert read_machine_rows(archive_folder.path, ("tiny", "1")) is None
    assert add_labels_of_machines(archive_folder, machine_label) == ["repeated"]
    assert read_labels(archive_folder.path)[machine_label.id].is_sampled
    assert shards_in(archive_folder.path)
