"""Columns of tables are matched by name and checked, and errors name the line and the cell."""

from __future__ import annotations

import numpy as np
import pytest

from gatewise.errors import InputError
from gatewise_edge.sensors.table import read_table

COLUMN_NAMES = ("a", "b")


@pytest.fixture
def write_table(tmp_path):
    def write_content(content: str | bytes):
        path = tmp_path / "rows.csv"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write_content


def test_columns_are_matched_by_name_and_cells_may_be_missing(write_table):
    table_rows = read_table(
        write_table("\ufefftarget, b ,a\nyes,2,1\nno,,-1e3\n\n?,NA,inf\n"), COLUMN_NAMES
    )
    np.testing.assert_array_equal(table_rows.rows, [[1, 2], [-1000, np.nan], [np.inf, np.nan]])
    assert (table_rows.ignored_columns, table_rows.line_numbers) == (("target",), [2, 3, 5])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("a,b\n", "has a header and no rows"),
        ("a,c\n1,2\n", "has no column 'b', which the bundle needs"),
        ("c\n1\n", r"has no column 'a' \(and 1 more\)"),
        ("a,b,a\n1,2,3\n", "has the column 'a' twice"),
        ("a,b\n1,2\n1,warm\n", "line 3: 'warm' in column 'b' is not a number"),
        ("a,b\n1_000,2\n", "line 2: '1_000' in column 'a' is not a number"),
        ("a,b\n1\n", "line 2: 1 cells under 2 columns"),
        ("a,b\n1,2,3\n", "line 2: 3 cells under 2 columns"),
        ('a,b\n1,"2\n', "not a CSV file"),
        (b"\xff\xfe\x00", "not a CSV file in UTF-8"),
    ],
)
def test_malformed_table_is_refused_by_its_line(write_table, content, message):
    with pytest.raises(InputError, match=message):
        read_table(write_table(content), COLUMN_NAMES)


def test_missing_table_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"none\.csv does not exist"):
        read_table(tmp_path / "none.csv", COLUMN_NAMES)
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        read_table(tmp_path, COLUMN_NAMES)


def test_partial_table_may_lack_columns_and_other_columns_are_kept(write_table):
    path = write_table("id,b,when\n7,2,now\n8,,then\n")
    table_rows = read_table(path, COLUMN_NAMES, kept_columns=["when", "id"], allow_incomplete=True)
    np.testing.assert_array_equal(table_rows.rows, [[np.nan, 2], [np.nan, np.nan]])
    assert table_rows.kept_cells == [{"when": "now", "id": "7"}, {"when": "then", "id": "8"}]
    assert (table_rows.ignored_columns, table_rows.absent_columns) == ((), ("a",))
    assert read_table(path, COLUMN_NAMES, allow_incomplete=True).ignored_columns == ("id", "when")
    with pytest.raises(InputError, match=r"--keep x: .* has no such column"):
        read_table(path, COLUMN_NAMES, kept_columns=["x"], allow_incomplete=True)
    with pytest.raises(InputError, match="has no column 'c'"):
        read_table(path, ["c", "d"], allow_incomplete=True)
