"""Readers of cells that are typed or texts."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from gatewise.columns.cells import class_indices, read_category


@pytest.mark.parametrize(
    "column",
    [
        [1.0, 2.0, -3.0, 0.0],
        [1.0, None],
        [True, False],
        [1, 20],
        ["x", "1.50", "007", "true story", "1.0.0"],
    ],
)
def test_categories_are_the_same_in_a_frame_and_in_its_csv(
    tmp_path: Any, column: list[Any]
) -> None:
    table = pd.DataFrame({"key": range(len(column)), "cell": column})
    table.to_csv(tmp_path / "table.csv", index=False)
    texts = pd.read_csv(tmp_path / "table.csv", dtype=str)["cell"].dropna().tolist()
    assert [*map(read_category, texts)] == [*map(read_category, table["cell"].dropna().tolist())]


@pytest.mark.parametrize(
    ("labels", "classes", "expected_indices"),
    [
        # a label that is not a class has the index -2
        ([3, 7, 8], (3, 7), [0, 1, -2]),
        (["3", "7.0", " 3 ", "x"], (3, 7), [0, 1, 0, -2]),
        ([3.0, 7.5], (3, 7), [0, -2]),
        (["yes", "no", "Yes"], ("no", "yes"), [1, 0, -2]),
        (["1.0", "01"], ("1.0", "1"), [0, -2]),
        ([True, "true", "False", "TRUE", 1, 0.0], (False, True), [1, 1, 0, 1, 1, 0]),
        ([True, "FALSE", 1], (0, 1), [1, 0, 1]),
        ([True, False, "True", 1], (0, 1, 2), [-2, -2, -2, 1]),
        ([float("nan")], (3, 7), [-2]),
    ],
)
def test_labels_are_classes_by_text_or_number(
    labels: list[Any], classes: tuple[Any, ...], expected_indices: list[int]
) -> None:
    assert class_indices(labels, classes).tolist() == expected_indices
