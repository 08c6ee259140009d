"""Labels: checks, the file of labels, and reading after a killed write."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from gatewise.columns.cells import UNKNOWN_CLASS
from gatewise.errors import InputError
from gatewise_export.archive.choice import choose, write_choice
from gatewise_export.archive.labels import (
    add_labels,
    checked_labels,
    read_label_csv,
    read_labelled_rows,
    read_labels,
)
from tests.export.archive.archived_rows import FACTS, make_archived_rows
from tests.export.archive.test_folder import NOW, open_folder

pytest.importorskip("pyarrow")


@pytest.fixture
def archive_and_choice(tmp_path):
    """The path of an archive of 100 instances, and a choice of about 40 of them."""
    open_folder(tmp_path).add(make_archived_rows(100), FACTS, NOW)
    choice = choose(tmp_path, 40, np.random.default_rng(0))
    write_choice(tmp_path, choice, "1")
    return tmp_path, choice


def test_labelled_rows_have_the_truth_and_the_probability_of_a_label(archive_and_choice):
    path, choice = archive_and_choice
    ids = choice.rows.ids.tolist()
    labels = {ids[0]: "a", ids[1]: "b", ids[2]: "broken"}
    assert checked_labels(labels, [choice], ["broken"]) == labels
    assert add_labels(path, labels, by="anna", at=5.0) == 3
    assert add_labels(path, labels, by="anna", at=6.0) == 0  # no new label
    assert add_labels(path, {ids[1]: "a"}, by="bert", at=7.0) == 1
    assert (read_labels(path)[ids[1]].by, read_labels(path)[ids[0]].at) == ("bert", 5.0)
    labelled_rows = read_labelled_rows(path, ("tiny", "1"))
    truth_of_instance = dict(zip(labelled_rows.rows.ids, labelled_rows.truth, strict=True))
    assert truth_of_instance == {
        ids[0]: 0,
        ids[1]: 0,
        ids[2]: UNKNOWN_CLASS,
    }  # "broken" is no class
    # Three of the chosen instances have a label.
    label_probability = choice.choice_probability[:3] * 3 / len(ids)
    np.testing.assert_allclose(labelled_rows.label_probability, label_probability)


def test_an_incomplete_line_is_skipped(archive_and_choice):
    path, choice = archive_and_choice
    ids = choice.rows.ids.tolist()
    add_labels(path, {ids[0]: "a", ids[1]: "b"}, by="anna", at=5.0)
    label_file = path / "labels" / "labels.jsonl"
    label_file.write_bytes(label_file.read_bytes()[:-20])  # within the second line
    assert set(read_labels(path)) == {ids[0]}
    # the next label begins on a line of its own
    add_labels(path, {ids[2]: "b"}, by="anna", at=6.0)
    assert set(read_labels(path)) == {ids[0], ids[2]}


def test_wrong_labels_are_refused(archive_and_choice):
    _, choice = archive_and_choice
    chosen_id = choice.rows.ids[0]
    with pytest.raises(InputError, match=r"not chosen.*: 1 id, such as 'elsewhere-0'"):
        checked_labels({"elsewhere-0": "a"}, [choice])
    with pytest.raises(InputError, match=r"unknown labels 'x'; the classes are a, b; --new-class"):
        checked_labels({chosen_id: "x"}, [choice])


def test_a_class_of_another_model_is_refused(archive_and_choice):
    _, choice = archive_and_choice
    other_choice = replace(
        choice,
        rows=make_archived_rows(10, seed=1),
        facts=msgspec.structs.replace(choice.facts, model="other", classes=("cat", "dog")),
    )
    ids = [choice.rows.ids[0], other_choice.rows.ids[0]]
    labels = dict(zip(ids, ["a", "dog"], strict=True))
    assert checked_labels(labels, [choice, other_choice]) == labels
    with pytest.raises(InputError, match="unknown labels 'dog'; the classes are a, b;"):
        checked_labels({ids[0]: "dog"}, [choice, other_choice])


@pytest.mark.parametrize(
    ("classes", "texts", "names"),
    [((False, True), ["TRUE", "false"], ["True", "False"]), ((3, 4), ["3.0", "4"], ["3", "4"])],
)
def test_labels_as_a_spreadsheet_writes_them_are_classes(archive_and_choice, classes, texts, names):
    _, choice = archive_and_choice
    choice = replace(choice, facts=msgspec.structs.replace(choice.facts, classes=classes))
    ids = choice.rows.ids[:2].tolist()
    label_of_id = checked_labels(dict(zip(ids, texts, strict=True)), [choice])
    assert label_of_id == dict(zip(ids, names, strict=True))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"name,label\n1,a\n", "one column named id and one named label"),
        (b"id,label,label\n1,a,b\n", "one column named id and one named label"),
        (b"id,label\n1,a\n1,b\n", "line 3: 1 has the label 'a' already"),
        (b"id,label\n", "has no labels: fill in its column label"),
        (b"id,label\n1,\n2, \n", "has no labels: fill in its column label"),
        (b"id,label,x\n1,a,0\n2,b\n", "line 3: 2 cells under 3 columns; is the file cut short"),
        (b'id,label\n1,"a\n2,b\n3,b\n', "unexpected end of data"),
        ("id,label\n1,ü\n".encode("latin-1"), "write it in UTF-8"),
    ],
)
def test_damaged_csv_of_labels_is_refused(tmp_path, content, message):
    path = tmp_path / "labels.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_label_csv(path)


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_csv_of_labels_from_a_spreadsheet_is_read(tmp_path, separator, encoding):
    path = tmp_path / "labels.csv"
    path.write_text("id,label,x\n1-0, a ,0\n2-0,,0\n".replace(",", separator), encoding)
    assert read_label_csv(path) == {"1-0": "a"}


def test_labelled_rows_without_a_choice_are_none(tmp_path):
    assert read_labelled_rows(tmp_path, ("tiny", "1")) is None
