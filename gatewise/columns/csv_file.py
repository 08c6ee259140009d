"""Reader of CSV files with a header, separated by commas, semicolons or tabs."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Final, TextIO

from gatewise.errors import InputError

DECIMAL_COMMA: Final = re.compile(r"[+-]?\d*,\d+([eE][+-]?\d+)?")
"""A number with a decimal comma."""
_SEPARATOR: Final = re.compile(r'"?sep=([,;\t|])"?[\r\n]*')
_THOUSANDS: Final = re.compile(r"[+-]?\d{1,3}(\.\d{3})+(,\d+)?")


def csv_rows(path: str | Path) -> Iterator[tuple[int, list[str]]]:
    """Yield line number and cells of the header and of each row of a CSV file in UTF-8.

    The separator is that of a first line such as ``sep=;``, which Excel writes, or else the most
    frequent one of the header. In files with semicolons, decimal commas become points. Cells are
    stripped, empty lines are skipped, and a column without a name is ``Unnamed: 0``, as in pandas.

    InputError names the file, and the line if possible: the file is missing, empty or not CSV, a
    row differs in length from the header, or a number may have separators of thousands.
    """
    path = Path(path)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            separator, header_line, n_before = _read_head(file)
            if not header_line:
                raise InputError(f"{path} is empty")
            lines = chain([header_line], file)
            reader = csv.reader(lines, delimiter=separator, skipinitialspace=True, strict=True)
            header = [cell.strip() or f"Unnamed: {k}" for k, cell in enumerate(next(reader))]
            if len(header) == 1 and "|" in header[0]:
                raise InputError(
                    f"{path}: its columns are separated by '|'; write them with commas"
                )
            yield n_before + reader.line_num, header
            decimals = _Decimals(path, header) if separator == ";" else None
            for row in reader:
                line = n_before + reader.line_num
                if not row or (len(row) < len(header) and row == [""]):
                    continue
                if len(row) != len(header):
                    cut = "; is the file cut short?" if len(row) < len(header) else ""
                    raise InputError(
                        f"{path}, line {line}: {len(row)} cells under {len(header)} columns{cut}"
                    )
                row = [cell.strip() for cell in row]
                yield line, decimals.pointed(row, line) if decimals else row
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        advice = "" if isinstance(error, csv.Error) else "; write it in UTF-8"
        raise InputError(f"{path} is not a CSV file in UTF-8: {error}{advice}") from None


def plain_csv(path: Path) -> Path | io.StringIO:
    """Check a CSV file; return it, or its rows as text if it is not separated by commas."""
    rows = (row for _, row in csv_rows(path))
    header = next(rows)
    with path.open(newline="", encoding="utf-8-sig") as file:
        separator, _, n_before = _read_head(file)
    if separator == "," and not n_before:
        for _ in rows:
            pass
        return path
    text = io.StringIO(newline="")
    # with these line ends the writer quotes cells with carriage returns
    csv.writer(text, lineterminator="\r\n").writerows(chain([header], rows))
    text.seek(0)
    return text


def _read_head(file: TextIO) -> tuple[str, str, int]:
    """Read the separator, the line of the header, and the number of lines before it."""
    line = file.readline()
    stated = _SEPARATOR.fullmatch(line)
    if stated is not None:
        return stated[1], file.readline(), 1
    without_quotes = re.sub('"[^"]*("|$)', "", line)
    return max(",;\t", key=without_quotes.count), line, 0


class _Decimals:
    """Converter of decimal commas in a file that is separated by semicolons."""

    def __init__(self, path: Path, header: list[str]) -> None:
        self._path = path
        self._header = header
        self._comma = self._thousands = ""

    def pointed(self, row: list[str], line: int) -> list[str]:
        """Replace the decimal commas of a row by points.

        InputError if the file has decimal commas and a number such as 1.234, which may be 1234.
        """
        for k, cell in enumerate(row):
            # 1,5 -> 1.5; 1.234 may be 1234 if another number has a decimal comma
            if "," in cell and DECIMAL_COMMA.fullmatch(cell):
                row[k] = cell.replace(",", ".")
                self._comma = cell
            elif "." in cell and _THOUSANDS.fullmatch(cell):
                location = f"line {line}: {cell!r} in column {self._header[k]!r}"
                self._thousands = self._thousands or location
                self._comma = cell if "," in cell else self._comma
        if self._thousands and self._comma:
            raise InputError(
                f"{self._path}, {self._thousands} is ambiguous: the file has decimal commas "
                f"({self._comma!r}), so its point may separate thousands. Remove separators of "
                "thousands, or write decimals with points"
            )
        return row
