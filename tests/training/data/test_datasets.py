"""Test the loading of bundled data sets and of tables from files."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from gatewise.errors import InputError
from gatewise_training.data import datasets
from gatewise_training.data.table_columns import ColumnOptions
from tests.support.shared_data import find_shared_file


@pytest.mark.parametrize("name", datasets.bundled_names())
def test_bundled_data_sets_are_loaded(name):
    dataset = datasets.load(name)
    assert dataset.X.dtype == np.float32
    assert dataset.X.shape == (len(dataset.y), len(dataset.feature_names))
    assert dataset.feature_costs.names == dataset.feature_names


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_csv_and_parquet_tables_are_loaded(tmp_path, suffix):
    numbers = np.random.default_rng(0).normal(size=9)
    table = pd.DataFrame({"a": numbers, "b": range(9), "kind": list("xyxyxyxyz")})
    path = tmp_path / f"t{suffix}"
    table.to_csv(path, index=False) if suffix == ".csv" else table.to_parquet(path)
    dataset = datasets.load(path, target="kind")
    assert dataset.feature_names == ("a", "b")
    np.testing.assert_array_equal(dataset.X, table[["a", "b"]].to_numpy(np.float32))
    assert dataset.y.tolist() == list("xyxyxyxyz")
    with pytest.raises(InputError, match="no column 'nope'; it has a, b, kind"):
        datasets.load(path, target="nope")
    with pytest.raises(InputError, match="say which column"):
        datasets.load(path)


def test_empty_cells_are_imputed_in_columns_with_empty_training_cells(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("seen,late,whole,y\n,1,1,a\n2,1,1,b\n2,1,1,a\n2,,1,b\n")
    table = datasets.read_table(path, options=ColumnOptions(impute=True))
    dataset = table.encoded(np.arange(3))
    assert dataset.feature_names == ("seen", "seen_missing", "late", "whole")
    assert dataset.X.tolist() == [[2, 1, 1, 1], [2, 0, 1, 1], [2, 0, 1, 1], [2, 0, 1, 1]]
    # the training rows of the last column have no empty cell
    assert str(dataset.encoder.encoder_.row(["", "", ""]).tolist()) == "[2.0, 1.0, 1.0, nan]"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "No columns|empty"),
        ("a,y\nword,0\n", "'a' is not numbers"),
        ("a,y\n1,\n2,1\n", r"label 'y' is missing \(empty, NA, null\) in 1 row"),
        ("a,y\n1e300,0\n1,1\n", "'a' has infinite"),  # as float32
    ],
)
def test_invalid_tables_are_refused(tmp_path, text, message):
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        datasets.load(path)


def test_columns_without_a_name_are_named_by_their_position(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(",a,y,\n5,1,0,\n5,3,1,\n6,4,1,\n")
    table = datasets.read_table(path, options=ColumnOptions(kinds={"Unnamed: 3": "drop"}))
    dataset = table.encoded(np.arange(3))
    assert dataset.feature_names == ("Unnamed: 0", "a")
    assert dataset.X.tolist() == [[5, 1], [5, 3], [6, 4]]
    path.write_text(",a,y\n0,1,0\n1,3,1\n")  # the file includes the index
    with pytest.raises(
        InputError, match=r"'Unnamed: 0' has no name and numbers the rows \(columns"
    ):
        datasets.read_table(path).encoded(np.arange(2))


def test_missing_and_unreadable_files_are_refused(tmp_path):
    (tmp_path / "sheet.xls").write_text("")
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 broken")
    np.savez(tmp_path / "unlabelled.npz", X=np.zeros((2, 2)))
    np.savez(tmp_path / "objects.npz", X=np.array([[object()]]), y=np.zeros(1))
    for name, message in (
        ("no-such-set", "neither a file nor a bundled set"),
        ("sheet.xls", "extension must be"),
        ("broken.npz", "not a readable file of arrays"),
        ("unlabelled.npz", "no array 'y'"),
        ("objects.npz", "not a readable file of arrays"),
    ):
        with pytest.raises(InputError, match=message):
            datasets.load(tmp_path / name)


def test_published_feature_costs_are_loaded():
    heart_dataset = datasets.load(find_shared_file("statlog_heart.npz"))
    cholesterol, blood_sugar = (heart_dataset.feature_names.index(name) for name in ("chol", "fbs"))
    # Turney: 7.27 for cholesterol and 3.10 more for blood sugar from the same sample
    assert heart_dataset.feature_costs.price([cholesterol]) == pytest.approx(7.27)
    assert heart_dataset.feature_costs.price([cholesterol, blood_sugar]) == pytest.approx(
        7.27 + 3.10
    )
    tiny_dataset = datasets.load(find_shared_file("mbne_tiny.npz"))
    assert {name: len(rows) for name, rows in tiny_dataset.parts.items()} == {
        "train": 2000, "validation": 1000, "test": 2000,
    }  # fmt: skip


@pytest.mark.parametrize(
    "part_of_row",
    [["train", "test"] * 2, ["0", "1"] * 2, [0, 1, 3, 0], [0, 1, np.nan, 0], [0, 1, 0]],
)
def test_an_array_of_parts_must_split_the_rows(tmp_path, part_of_row):
    arrays = {"X": np.eye(4), "y": [0, 1, 0, 1], "part": np.array(part_of_row)}
    np.savez(tmp_path / "t.npz", **arrays)
    with pytest.raises(InputError, match="part must hold for each of the 4 rows 0"):
        datasets.load(tmp_path / "t.npz")


def test_prices_of_an_npz_file_are_those_of_its_groups(tmp_path):
    arrays = {"X": np.eye(4)[:, :3], "y": [0, 1, 0, 1], "cost": [5.0, 4.0, 7.0]}
    np.savez(tmp_path / "t.npz", **arrays, cost_discount=[2.0, 1.0, 3.0], group=[0, 0, -1])
    costs = datasets.load(tmp_path / "t.npz").feature_costs
    # a feature without a group has no discount
    assert [costs.price([0]), costs.price([0, 1]), costs.price([2])] == [5.0, 6.0, 7.0]
    for bad_array, message in (
        ({"cost": [1.0, 2.0]}, "cost must hold one number for each of the 3 features"),
        ({"cost_discount": [0.0] * 3, "group": ["a", "a", "b"]}, "group must hold one number"),
        ({"feature_names": ["a", "b"]}, "2 feature_names for 3 features"),
    ):
        np.savez(tmp_path / "bad.npz", **(arrays | bad_array))
        with pytest.raises(InputError, match=message):
            datasets.load(tmp_path / "bad.npz")


@pytest.mark.parametrize("delimiter", [",", ";"])
@pytest.mark.parametrize(
    ("cells", "labels"),
    [
        (["007", "010", "1"], ["007", "010", "1"]),
        (["7", "10", "0"], [7, 10, 0]),
        (["1.1", "1.10", "1.0"], ["1.1", "1.10", "1.0"]),
        (["1.5", "1", "1.0"], [1.5, 1.0, 1.0]),
        (["ok ", "ok", " bad"], ["ok", "ok", "bad"]),
    ],
)
def test_labels_keep_zeros_that_tell_them_apart_and_lose_outer_spaces(
    tmp_path, delimiter, cells, labels
):
    path = tmp_path / "table.csv"
    path.write_text(
        "\n".join([f"a{delimiter}label", *(f"1{delimiter}{cell}" for cell in cells)]) + "\n"
    )
    assert datasets.read_table(path).y.tolist() == labels


@pytest.mark.parametrize("delimiter", [",", ";"])
def test_a_label_of_spaces_is_missing(tmp_path, delimiter):
    (tmp_path / "table.csv").write_text(f"a{delimiter}label\n1{delimiter}x\n2{delimiter}NA \n")
    with pytest.raises(InputError, match=r"'label' is missing .* in 1 row"):
        datasets.read_table(tmp_path / "table.csv")
