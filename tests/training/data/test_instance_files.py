"""Test the loading of instances and labels from files."""

from __future__ import annotations

from pathlib import Path

import pytest

from gatewise.errors import InputError
from gatewise_training.data.table_files import load_instances


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,a,y\n1,2,x\n3,4,z\n", "column 'a' occurs twice"),
        ("a,b,y\n1_0,2,x\n3,4,z\n", "column 'a' holds no numbers"),
        ("a,b,y\n1,2,x\n3,4,\n", "the label 'y' is missing"),
        ("a,b\n1,2\n", "has no column 'y'; it has a, b"),
    ],
)
def test_invalid_tables_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "table.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        load_instances(path, "y")


@pytest.mark.parametrize(
    ("first_line", "is_values"),
    [
        ("5.1,3.5,1.4,0.2,Iris-setosa", True),  # few numbers that descend by chance
        ("39,State-gov,77516,Bachelors,13,40,<=50K", True),
        ("T,2,8,3,5,1,8,13", True),
        ("0,0.64,0.64,0,0.32,1", True),  # equal numbers are no doubled name
        ("-1,3", False),
        ("0,1,2,3,label", False),  # a frame without names
        ("label,2019,2020,2021", False),
        ("400,400.5,401,401.5,402,402.5,y", False),  # wavelengths
        ("4000.5,3998,3996.5,3994,3992,3990,y", False),
        ("age,30,y", False),
        ("1e3,2.5,3,y", True),
    ],
)
def test_first_lines_of_values_are_refused(
    tmp_path: Path, first_line: str, is_values: bool
) -> None:
    path = tmp_path / "table.csv"
    row = ",".join("1" for _ in first_line.split(","))
    path.write_text(f"{first_line}\n{row}\n")
    if is_values:
        with pytest.raises(InputError, match="instead of names: add a line with the"):
            load_instances(path)
    else:
        assert list(load_instances(path)[0]) == first_line.split(",")


def test_labels_keep_leading_zeros(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("a,b,label\n1,0.1,007\n2,,010\n")
    features, y = load_instances(path, "label")
    assert y.tolist() == ["007", "010"]
    assert list(features) == ["a", "b"]
    # without a target, the column "label" is a feature
    assert list(load_instances(path)[0]) == ["a", "b", "label"]
