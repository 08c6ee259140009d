"""CSV files with commas, semicolons or tabs as separators, and with decimal commas."""

from __future__ import annotations

import pandas as pd
import pytest

from gatewise.columns.csv_file import csv_rows, plain_csv
from gatewise.costs import FeatureCosts
from gatewise.errors import InputError


@pytest.mark.parametrize(
    ("file_text", "expected_rows"),
    [
        # the most frequent separator of the header wins, and without one the comma
        ("a,b;c\n1,2\n", [["a", "b;c"], ["1", "2"]]),
        ("a\n1;2\n", [["a"], ["1;2"]]),
        # separators in quotes do not count, and decimal commas stay in a file with commas
        ('"a;b;c",d\n"1,5",2\n', [["a;b;c", "d"], ["1,5", "2"]]),
        # with semicolons, only cells that are numbers get points; spaces and BOM are removed
        ('\ufeffa ; "b,c,d";e\n-3,5;x 1,5;1,2e-3\n', [["a", "b,c,d", "e"],
                                                     ["-3.5", "x 1,5", "1.2e-3"]]),
        ('a;b\n",5";1.5\n1,2,3;"4\n5"\n', [["a", "b"], [".5", "1.5"], ["1,2,3", "4\n5"]]),
        # 1.234 is ambiguous only beside a decimal comma
        ("a;b\n1.234;5\n", [["a", "b"], ["1.234", "5"]]),
        # tabs, with which decimal commas stay
        ("a\tb\n1\t3,5\n", [["a", "b"], ["1", "3,5"]]),
        # a first line that states the separator, as Excel writes it
        ("sep=;\na;b\n1,5;2\n", [["a", "b"], ["1.5", "2"]]),
        ("\ufeffsep=\t\r\na,b\tc\r\n1,5\t2\r\n", [["a,b", "c"], ["1,5", "2"]]),
        ('"sep=,"\na,b\n1,2\n', [["a", "b"], ["1", "2"]]),
        # empty lines before the header
        ("\n\r\na,b\n\n1,2\n", [["a", "b"], ["1", "2"]]),
        ("sep=;\n\na;b\n1;2\n", [["a", "b"], ["1", "2"]]),
        # line ends in quotes are part of a cell
        ('a;b\n"x\ry";1\n"p\r\nq";2\n', [["a", "b"], ["x\ry", "1"], ["p\r\nq", "2"]]),
        # columns without a name get one, as in pandas
        (";a;\n0;1;\n", [["Unnamed: 0", "a", "Unnamed: 2"], ["0", "1", ""]]),
    ],
)  # fmt: skip
def test_separators_and_decimal_commas_are_recognised(tmp_path, file_text, expected_rows):
    path = tmp_path / "table.csv"
    path.write_text(file_text, newline="")  # without conversion of line ends
    assert [row for _, row in csv_rows(path)] == expected_rows
    # pandas must read the same cells from the plain form
    table = pd.read_csv(plain_csv(path), header=None, dtype=str, keep_default_na=False)
    assert table.to_numpy().tolist() == expected_rows


@pytest.mark.parametrize(
    ("file_text", "message_pattern"),
    [
        ("a;b\n1;2\n3;1.234,5\n", r"line 3: '1.234,5' in column 'b' is ambiguous"),
        (
            "a;b\n1.234;2\n3;4,5\n",
            r"line 2: '1.234' in column 'a' .*commas \('4,5'\), so its point",
        ),
        ("a;b\n1.234;2\n3;1.234,5\n", "line 2: '1.234' in column 'a'"),
        ("a;b\n1,5;2,5;3\n", "line 2: 3 cells under 2 columns"),
        ("sep=;\na;b\n1;2\n3\n", "line 4: 1 cells under 2 columns"),
        ("\n\na,b\n1,2,3\n", "line 4: 3 cells under 2 columns"),
        ("\n\n", "is empty"),
        ("a|b\n1|2\n", r"separated by '\|'"),
        ("", "is empty"),
    ],
)
def test_invalid_files_are_refused_with_the_line(tmp_path, file_text, message_pattern):
    path = tmp_path / "table.csv"
    path.write_text(file_text)
    with pytest.raises(InputError, match=message_pattern):
        list(csv_rows(path))  # it yields rows before the error
    with pytest.raises(InputError, match=message_pattern):
        plain_csv(path)


def test_prices_may_be_separated_by_semicolons(tmp_path):
    (tmp_path / "prices.csv").write_text("feature;own;group;shared\na;1,5;imu;2\nb;0,25;imu;\n")
    costs = FeatureCosts.from_file(tmp_path / "prices.csv")
    assert costs.total == 1.5 + 0.25 + 2  # own prices and the shared price
