"""Rows of a CSV file with a header, checked as they come."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from gatewise.errors import InputError


def csv_rows(path: str | Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the header and each row of a CSV file in UTF-8, with its line; cells are stripped.

    Empty lines are passed over. Raises InputError, which names the file and perhaps the line, if
    it is missing, empty, no such file, or a row has another length than the header.
    """
    path = Path(path)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, skipinitialspace=True, strict=True)
            header = next(reader, None)
            if header is None:
                raise InputError(f"{path} is empty")
            other = next((c for c in ";\t|" if len(header) == 1 and c in header[0]), None)
            if other is not None:
                raise InputError(
                    f"{path}: its columns are separated by {other!r}; write them with commas, and "
                    "decimals with a point"
                )
            yield reader.line_num, [cell.strip() for cell in header]
            for row in reader:
                if not row or (len(row) < len(header) and row == [""]):
                    continue
                if len(row) != len(header):
                    cut = "; is the file cut short?" if len(row) < len(header) else ""
                    raise InputError(
                        f"{path}, line {reader.line_num}: {len(row)} cells under "
                        f"{len(header)} columns{cut}"
                    )
                yield reader.line_num, [cell.strip() for cell in row]
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        advice = "" if isinstance(error, csv.Error) else "; write it in UTF-8"
        raise InputError(f"{path} is not a CSV file in UTF-8: {error}{advice}") from None
