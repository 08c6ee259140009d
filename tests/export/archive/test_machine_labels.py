"""Labels that machines send: looked up, checked, recorded once, and left out of estimates."""

import msgspec
import numpy as np
import pytest

from gatewise_export.archive.choice import choose, write_choice
from gatewise_export.archive.folder import shards_in
from gatewise_export.archive.labels import add_labels, labelled_rows, read_labels
from gatewise_export.archive.machine_labels import MachineLabel, add_machine_labels, machine_rows
from gatewise_export.archive.true_figures import monitor
from tests.export.archive.archived_rows import FACTS, archived
from tests.export.archive.test_folder import NOW, folder

pytest.importorskip("pyarrow")


@pytest.fixture
def archive(tmp_path):
    """An archive of two shards, and their instances."""
    opened = folder(tmp_path)
    first = archived(60)
    second = archived(40, seed=1)
    opened.add(first, FACTS, NOW)
    opened.add(second, FACTS, NOW + 1)
    return opened, first, second


def label(rows, i, text="a", **changes):
    fields = {"id": str(rows.ids[i]), "device": str(rows.device[i]), "label": text}
    return MachineLabel(**fields | {"by": "bench", "at": 5.0} | changes)


def add(opened, *labels):
    return add_machine_labels(opened, labels, opened.shards)


def test_labels_are_recorded_with_sender_time_and_a_copy_of_the_instance(archive):
    opened, first, second = archive
    labels = [label(first, 3), label(second, 7, "b", at=6.0), label(first, 20, "b")]
    assert add(opened, *labels) == ["added", "added", "added"]
    recorded = read_labels(opened.path)
    one = recorded[labels[1].id]
    assert (one.label, one.by, one.at, one.is_sampled) == ("b", "bench", 6.0, False)
    for shard in opened.shards:  # the archive deletes its shards in time
        shard.unlink()
    rows = machine_rows(opened.path, "tiny", "1")
    truth = dict(zip(rows.rows.ids.tolist(), rows.truth.tolist(), strict=True))
    assert truth == {labels[0].id: 0, labels[1].id: 1, labels[2].id: 1}
    position = rows.rows.ids.tolist().index(labels[1].id)
    np.testing.assert_array_equal(rows.rows.X[position], second.X[7])
    np.testing.assert_array_equal(rows.weights, rows.rows.weights)
    assert machine_rows(opened.path, "tiny", "2") is None


def test_a_repeated_label_changes_nothing(archive):
    opened, first, _ = archive
    assert add(opened, label(first, 3), label(first, 3)) == ["added", "repeated"]
    written = (opened.path / "labels" / "labels.jsonl").read_bytes()
    assert add(opened, label(first, 3, at=9.0, by="other")) == ["repeated"]
    assert (opened.path / "labels" / "labels.jsonl").read_bytes() == written
    assert len(machine_rows(opened.path, "tiny", "1")) == 1


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({"text": "b"}, "conflict"),
        ({"text": "broken"}, "class"),
        ({"device": "pi-9"}, "unknown"),
        ({"id": f"{'0' * 32}-0"}, "unknown"),
    ],
)
def test_refused_labels_leave_the_archive_as_it_was(archive, changes, outcome):
    opened, first, _ = archive
    add(opened, label(first, 3))
    before = read_labels(opened.path)
    assert add(opened, label(first, 3, **changes)) == [outcome]
    assert read_labels(opened.path) == before


def test_a_row_of_another_request_is_not_taken_for_the_instance(archive):
    opened, first, _ = archive
    request, row = first.ids[0].split("-")
    assert add(opened, label(first, 0, id=f"{request}-{int(row) + 1}")) == ["unknown"]


def test_a_damaged_shard_hides_only_its_own_instances(archive):
    opened, first, second = archive
    opened.shards[0].write_bytes(b"damaged")
    assert add(opened, label(first, 1), label(second, 1)) == ["unknown", "added"]


def test_estimates_and_alarms_leave_labels_of_machines_out(archive):
    """A repair shop sees the instances that were answered wrongly, and says nothing of others."""
    opened, first, second = archive
    facts = msgspec.structs.replace(FACTS, accuracy=0.9)
    opened.add(archived(300, seed=2), facts, NOW + 2)
    choice = choose(opened.path, 80, np.random.default_rng(0))
    write_choice(opened.path, choice, "1")
    ids = choice.rows.ids.tolist()
    add_labels(opened.path, dict.fromkeys(ids[:40], "a"), by="anna", at=1.0)
    before = monitor(opened.path)
    wrong = [label(choice.rows, i, "ab"[1 - choice.rows.answers[i]]) for i in range(40, len(ids))]
    wrong += [label(rows, i, "ab"[1 - rows.answers[i]]) for rows in (first, second) for i in (0, 1)]
    outcomes = add(opened, *{one.id: one for one in wrong}.values())
    assert set(outcomes) <= {"added", "repeated", "conflict"}
    assert outcomes.count("added") > 20
    assert monitor(opened.path) == before
    assert len(labelled_rows(opened.path, "1")[1]) == 40


def test_a_label_by_a_person_of_a_chosen_instance_replaces_the_one_of_a_machine(archive):
    opened, _, _ = archive
    choice = choose(opened.path, 40, np.random.default_rng(0))
    write_choice(opened.path, choice, "1")
    one = label(choice.rows, 0)
    assert add(opened, one) == ["added"]
    assert not list(opened.path.glob("labels/machine-*"))  # the choice has the instance
    assert len(labelled_rows(opened.path, "1")[1]) == 0
    assert add_labels(opened.path, {one.id: "a"}, by="anna", at=7.0) == 1
    assert len(labelled_rows(opened.path, "1")[1]) == 1
    assert machine_rows(opened.path, "tiny", "1") is None
    assert add(opened, one) == ["repeated"]
    assert read_labels(opened.path)[one.id].is_sampled
    assert shards_in(opened.path)
