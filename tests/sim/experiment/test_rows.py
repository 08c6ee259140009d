"""Tests of reading rows for a bundle from files and arrays."""

import msgspec
import numpy as np
import pandas as pd
import pytest

from gatewise.columns.cells import UNKNOWN_CLASS
from gatewise.errors import InputError
from gatewise_export import Bundle
from gatewise_export.bundle.manifest import Manifest
from gatewise_sim.experiment.rows import Rows
from tests.support.machine_table import draw_machines, make_raw_bundle
from tests.support.processes import run_python
from tests.support.refused import assert_refused


def write_csv(path, column_names, rows, labels=None, target="label"):
    """Write rows and perhaps their labels into a CSV file; return its path."""
    frame = pd.DataFrame(rows, columns=list(column_names))
    if labels is not None:
        frame[target] = labels
    frame.to_csv(path, index=False)
    return str(path)


@pytest.fixture
def manifest(digits) -> Manifest:
    """Manifest of a bundle of 64 features."""
    return digits.bundle.manifest


@pytest.fixture
def feature_names(manifest):
    """Names of the bundle's features."""
    return manifest.feature_names


@pytest.fixture
def matrix():
    """Five rows of 64 pixels, which have values from 0 to 15."""
    return np.random.default_rng(0).integers(0, 16, (5, 64)).astype(np.float32)


@pytest.mark.slow
def test_csv_file_is_read_without_training_libraries(digits, feature_names, matrix, tmp_path):
    """Importing these libraries would take most of the start-up time of `simulate`."""
    path = write_csv(tmp_path / "rows.csv", feature_names, matrix)
    module_names = run_python(
        "import sys; from gatewise_export import Bundle\n"
        "import gatewise_sim.experiment.simulation\n"
        "from gatewise_sim.experiment.rows import Rows\n"
        f"Rows.load({path!r}, Bundle.open({str(digits.bundle.path)!r}).manifest)\n"
        "print(*sys.modules)"
    )
    assert not {"sklearn", "pandas", "matplotlib"} & set(module_names.split())


def test_columns_are_found_by_name_in_any_order(tmp_path, manifest, feature_names, matrix):
    order = np.random.default_rng(1).permutation(64)
    path = write_csv(
        tmp_path / "rows.csv",
        [feature_names[index] for index in order],
        matrix[:, order],
        [1, 2, 3, 4, 5],
    )
    rows = Rows.load(path, manifest)
    assert rows.name == "rows"
    assert (matrix == rows.X).all()
    assert rows.X.dtype == np.float32
    assert rows.truth.tolist() == [1, 2, 3, 4, 5]
    assert rows.notes == ()


def test_unknown_label_counts_as_wrong_and_is_noted(tmp_path, manifest, feature_names, matrix):
    path = write_csv(tmp_path / "rows.csv", feature_names, matrix, [1, 2, 99, 4, 5], target="digit")
    rows = Rows.load(path, manifest, target="digit")
    assert rows.truth.tolist() == [1, 2, UNKNOWN_CLASS, 4, 5]
    assert rows.notes == (
        "1 of 5 rows have a label that is no class of the bundle, such as 99. Every answer to "
        "these rows counts as wrong.",
    )


def test_ambiguous_label_column_is_not_used(tmp_path, manifest, feature_names, matrix):
    path = tmp_path / "rows.csv"
    assert Rows.load(write_csv(path, feature_names, matrix), manifest).truth is None
    write_csv(
        path, [*feature_names, "class"], np.column_stack([matrix, np.arange(5)]), [0, 0, 0, 0, 0]
    )
    assert Rows.load(str(path), manifest).truth is None
    assert Rows.load(str(path), manifest, target="class").truth.tolist() == [0, 1, 2, 3, 4]


def test_npz_file_gives_its_test_part(tmp_path, manifest, feature_names, matrix):
    path = tmp_path / "set.npz"
    part_of_row = np.array([0, 1, 0, 1, 0])  # 1 is the test part
    np.savez(
        path, X=matrix, y=np.arange(5), feature_names=np.array(feature_names), part=part_of_row
    )
    rows = Rows.load(str(path), manifest)
    assert (matrix[[1, 3]] == rows.X).all()
    assert rows.truth.tolist() == [1, 3]
    assert rows.notes == ("The rows are the test part of set.",)


def test_target_names_the_array_of_labels(tmp_path, manifest, matrix):
    path = tmp_path / "set.npz"
    np.savez(path, X=matrix, y=np.zeros(5, int), digit=np.arange(5))
    assert Rows.load(str(path), manifest).truth.tolist() == [0] * 5
    assert Rows.load(str(path), manifest, target="digit").truth.tolist() == [0, 1, 2, 3, 4]
    message = "has no array 'species'"
    assert_refused(Rows.load, str(path), manifest, target="species", message=message)


def test_target_of_a_bundled_data_set_is_refused(manifest):
    message = "the data set digits has its labels: omit --target"
    assert_refused(Rows.load, "digits", manifest, target="digit", message=message)


def test_npy_file_has_no_labels(tmp_path, manifest, matrix):
    np.save(tmp_path / "rows.npy", matrix)
    rows = Rows.load(str(tmp_path / "rows.npy"), manifest)
    assert (matrix == rows.X).all()
    assert rows.truth is None


@pytest.mark.slow
def test_parquet_file_is_read_like_csv(tmp_path, manifest, feature_names, matrix):
    frame = pd.DataFrame(matrix, columns=list(feature_names))
    frame["y"] = [5, 4, 3, 2, 1]
    frame.to_parquet(tmp_path / "rows.parquet")
    rows = Rows.load(str(tmp_path / "rows.parquet"), manifest)
    assert (matrix == rows.X).all()
    assert rows.truth.tolist() == [5, 4, 3, 2, 1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"names": lambda names: [*names[:-1], "other"]}, "has no column 'x63', which the bundle"),
        ({"target": "species"}, "has no column 'species' besides the bundle's features; it has"),
        ({"labels": [1, "", 2, 3, 4]}, "line 3: the label 'label' is missing; fill it"),
        ({"labels": ["a", "b", "c", "d", "e"]}, "no label of rows is a class of the bundle: a is"),
    ],
    ids=["column", "target", "missing-label", "classes"],
)
def test_a_malformed_table_gives_a_one_line_message(
    tmp_path, manifest, feature_names, matrix, change, message
):
    column_names = change.get("names", list)(list(feature_names))
    path = write_csv(
        tmp_path / "rows.csv", column_names, matrix, change.get("labels", [1, 2, 3, 4, 5])
    )
    assert_refused(Rows.load, path, manifest, target=change.get("target"), message=message)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("rows.txt", "give a .csv, .parquet, .npz (arrays X and y) or .npy file, or one of breast"),
        ("missing.csv", "missing.csv does not exist"),
        ("missing.npz", "missing.npz does not exist"),
        ("missing.parquet", "missing.parquet does not exist"),
        ("iris", "iris has no column 'x0'"),
    ],
)
def test_unknown_source_of_rows_is_refused(tmp_path, manifest, monkeypatch, source, message):
    monkeypatch.chdir(tmp_path)
    assert_refused(Rows.load, source, manifest, message=message)


@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        (np.zeros((3, 5)), None, "the bundle has 64 features"),
        (np.zeros((0, 64)), None, "at least one row"),
        (np.full((2, 64), "a"), None, "not numbers"),
        (np.zeros((2, 64)), [1], "2 rows with labels of shape (1,)"),
    ],
)
def test_arrays_of_wrong_shape_are_refused(manifest, X, y, message):
    assert_refused(Rows.from_arrays, "rows", X, y, manifest, message=message)


def test_a_regression_bundle_is_refused(manifest):
    regression = msgspec.structs.replace(manifest, task="regress", classes=())
    assert_refused(Rows.from_arrays, "rows", np.zeros((2, 64)), [0.5, 1.5], regression,
                   message="answers with values instead of classes")  # fmt: skip


@pytest.mark.slow
def test_raw_columns_are_encoded_as_devices_encode_them(make_once, tmp_path):
    _, encoder, path = make_once("raw-bundle", make_raw_bundle)
    manifest = Bundle.open(path).manifest
    frame, y = draw_machines(30, seed=2)
    X = encoder.transform(frame).to_numpy()
    frame.assign(state=y).to_csv(tmp_path / "rows.csv", index=False)
    frame.assign(state=y).to_parquet(tmp_path / "rows.parquet")
    for name in ("rows.csv", "rows.parquet"):
        rows = Rows.load(str(tmp_path / name), manifest, target="state")
        assert np.array_equal(rows.X, X)
        assert [manifest.classes[index] for index in rows.truth] == y.tolist()
    with pytest.raises(InputError, match="the bundle takes raw columns"):  # for any such suffix
        Rows.load(str(tmp_path / "rows.npz"), manifest)
    for table in (frame, encoder.transform(frame), X):
        assert np.array_equal(Rows.from_arrays("rows", table, y, manifest).X, X)
    with pytest.raises(InputError, match="has no column 'mass', which is a feature"):
        Rows.from_arrays("rows", frame.drop(columns="mass"), y, manifest)
    with pytest.raises(InputError, match="give raw columns in a DataFrame"):
        Rows.from_arrays("rows", frame.to_numpy()[:, [0] * X.shape[1]], y, manifest)


def test_columns_of_a_frame_are_found_by_name(manifest, feature_names, matrix):
    frame = pd.DataFrame(matrix, columns=list(feature_names)).assign(y=1)
    rows = Rows.from_arrays("rows", frame[frame.columns[::-1]], None, manifest)
    assert np.array_equal(rows.X, matrix)


def test_frame_without_a_feature_is_refused(manifest, feature_names, matrix):
    frame = pd.DataFrame(matrix, columns=list(feature_names))
    message = "the rows have no feature 'x63', which the bundle needs"
    misnamed = frame.rename(columns={"x63": "x63 "})
    assert_refused(Rows.from_arrays, "rows", misnamed, None, manifest, message=message)
    unnamed = frame.set_axis(range(64), axis=1)
    assert np.array_equal(Rows.from_arrays("rows", unnamed, None, manifest).X, matrix)
