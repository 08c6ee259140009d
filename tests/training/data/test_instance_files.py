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


def test_labels_keep_leading_zeros(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("a,b,label\n1,0.1,007\n2,,010\n")
    features, y = load_instances(path, "label")
    assert y.tolist() == ["007", "010"]
    assert list(features) == ["a", "b"]
    # without a target, the column "label" is a feature
    assert list(load_instances(path)[0]) == ["a", "b", "label"]
