"""Reader of CSV files that have a header and commas, semicolons or tabs as separators."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple, TextIO

from gatewise.errors import InputError

#: A number with a decimal comma.
DECIMAL_COMMA: Final = re.compile(r"[+-]?\d*,\d+([eE][+-]?\d+)?")
#: First line in which Excel states the separator.
_SEPARATOR: Final = re.compile(r'"?sep=([,;\t|])"?[\r\n]*')
#: A number whose points may separate thousands, such as 1.234 or 1.234,5.
_THOUSANDS: Final = re.compile(r"[+-]?\d{1,3}(\.\d{3})+(,\d+)?")


def csv_rows(path: str | Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number and the cells of the header and of each row of a CSV file in UTF-8.

    A first line such as ``sep=;``, which Excel writes, states the separator. In other files it is
    the separator that occurs most often in the header. In files with semicolons, decimal commas
    become points. Cells are stripped, empty lines are skipped, and a column without a name is
    called ``Unnamed: 0``, as in pandas.

    Raises InputError if the file is missing, empty or not CSV, if the length of a row differs from
    the header's, or if a number may contain thousands separators. The message names the file and,
    if possible, the line.
    """
    path = Path(path)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            head = _read_head(file)
            if not head.header_line:
                raise InputError(f"{path} is empty")
            lines = chain([head.header_line], file)
            reader = csv.reader(lines, delimiter=head.separator, skipinitialspace=True, strict=True)
            header = [
                cell.strip() or f"Unnamed: {column}" for column, cell in enumerate(next(reader))
            ]
            if len(header) == 1 and "|" in header[0]:
                raise InputError(
                    f"{path}: its columns are separated by '|'; separate them by commas"
                )
            yield head.n_lines_before + reader.line_num, header
            decimal_commas = _DecimalCommas(path, header) if head.separator == ";" else None
            for row in reader:
                line_number = head.n_lines_before + reader.line_num
                if not row or (len(row) < len(header) and row == [""]):
                    continue
                if len(row) != len(header):
                    hint = "; is the file cut short?" if len(row) < len(header) else ""
                    raise InputError(
                        f"{path}, line {line_number}: {len(row)} cells under {len(header)} "
                        f"columns{hint}"
                    )
                row = [cell.strip() for cell in row]
                yield (
                    line_number,
                    decimal_commas.with_points(row, line_number) if decimal_commas else row,
                )
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        advice = "" if isinstance(error, csv.Error) else "; write it in UTF-8"
        raise InputError(f"{path} is not a CSV file in UTF-8: {error}{advice}") from None


def plain_csv(path: Path) -> Path | io.StringIO:
    """Check a CSV file, and return a source with commas as separators.

    The source is the file itself if it has commas, and otherwise its rows as text.
    """
    rows = (row for _, row in csv_rows(path))
    header = next(rows)
    with path.open(newline="", encoding="utf-8-sig") as file:
        head = _read_head(file)
    if head.separator == "," and not head.n_lines_before:
        for _ in rows:
            pass
        return path
    comma_separated = io.StringIO(newline="")
    # with "\r\n" as line ends the writer quotes cells that contain carriage returns
    csv.writer(comma_separated, lineterminator="\r\n").writerows(chain([header], rows))
    comma_separated.seek(0)
    return comma_separated


class _Head(NamedTuple):
    """First lines of a file."""

    separator: str
    header_line: str
    n_lines_before: int  # lines before the header


def _read_head(file: TextIO) -> _Head:
    """Read the lines up to the header, which is empty in a file without one."""
    n_lines_before = 0
    stated_separator = None
    for line in iter(file.readline, ""):
        separator_match = _SEPARATOR.fullmatch(line)
        if separator_match is not None and stated_separator is None:
            stated_separator = separator_match[1]
        elif line.strip("\r\n"):
            unquoted_text = re.sub('"[^"]*("|$)', "", line)
            separator = stated_separator or max(",;\t", key=unquoted_text.count)
            return _Head(separator, line, n_lines_before)
        n_lines_before += 1
    return _Head(",", "", n_lines_before)


class _DecimalCommas:
    """Converter of decimal commas in a file with semicolons as separators."""

    def __init__(self, path: Path, header: list[str]) -> None:
        self._path = path
        self._header = header
        self._decimal_example = ""
        self._ambiguous_location = ""

    def with_points(self, row: list[str], line_number: int) -> list[str]:
        """Replace the decimal commas of a row by points.

        Raises InputError if the file has decimal commas and also a number such as 1.234, because
        that number may mean 1234.
        """
        for column, cell in enumerate(row):
            # 1,5 -> 1.5; 1.234 may be 1234 if another number has a decimal comma
            if "," in cell and DECIMAL_COMMA.fullmatch(cell):
                row[column] = cell.replace(",", ".")
                self._decimal_example = cell
            elif "." in cell and _THOUSANDS.fullmatch(cell):
                location = f"line {line_number}: {cell!r} in column {self._header[column]!r}"
                self._ambiguous_location = self._ambiguous_location or location
                self._decimal_example = cell if "," in cell else self._decimal_example
        if self._ambiguous_location and self._decimal_example:
            raise InputError(
                f"{self._path}, {self._ambiguous_location} is ambiguous: the file has decimal "
                f"commas ({self._decimal_example!r}), so its point may separate thousands. Remove "
                "thousands separators, or write decimals with points"
            )
        return row
