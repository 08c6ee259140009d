"""Tables in CSV and parquet files as DataFrames, numbers as numbers and codes as text."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from numpy.typing import NDArray

from gatewise.columns.cells import MISSING_WORDS
from gatewise.columns.csv_file import csv_rows, plain_csv
from gatewise.columns.kinds import DROP, KINDS, read_kind
from gatewise.errors import InputError
from gatewise.formats import plural
from gatewise_training.data.table_columns import ColumnOptions

if TYPE_CHECKING:
    from pandas import DataFrame

FindLabel = Callable[[Sequence[str]], str | None]
"""Finds the label among the names of a table's columns; None where there is none."""


def read_frame(
    path: Path, options: ColumnOptions, find_label: FindLabel
) -> tuple[DataFrame, str | None]:
    """Read a table, and find its label.

    InputError if the file cannot be read, has no rows, or a column twice.
    """
    try:
        if path.suffix.lower() == ".csv":
            frame = _read_csv(path, options, find_label)
        else:
            frame = read_parquet(path)
    except InputError:
        raise
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    frame.columns = [str(c).strip() for c in frame.columns]
    check_names(path, list(frame.columns))
    if frame.empty:
        raise InputError(f"{path} has no rows")
    return frame, find_label(list(frame.columns))


def label_column(path: Path, columns: Sequence[str], target: str | None) -> str | None:
    """Find the label among columns by its name, or by a usual one; None if none has that."""
    if target is None:
        usual = [c for c in columns if c.lower() in ("target", "label", "class", "y")]
        return usual[0] if len(usual) == 1 else None
    if target not in columns:
        raise InputError(f"{path} has no column {target!r}; it has {', '.join(columns)}")
    return target


def read_labels(path: Path, frame: DataFrame, target: str) -> NDArray[Any]:
    """Get the labels of a table, texts without surrounding spaces, as cells are read.

    InputError if some are missing.
    """
    labels = frame[target]
    if labels.dtype.kind not in "biufmM":
        labels = labels.map(lambda label: label.strip() if isinstance(label, str) else label)
        labels = labels.mask(labels.isin(_NO_LABEL))
    if absent := int(labels.isna().sum()):
        raise InputError(
            f"{path}: the label {target!r} is missing in {plural(absent, 'row')}: leave these out"
        )
    return labels.to_numpy()


def _read_csv(path: Path, options: ColumnOptions, find_label: FindLabel) -> DataFrame:
    """Read columns of numbers as numbers, rounded as Python rounds, and all others as text."""
    import pandas as pd

    _, header = next(csv_rows(path))
    check_names(path, header)
    label = find_label(header)
    kinds = {name: read_kind(kind)[0] for name, kind in options.kinds.items()}
    texts = {name for name, kind in kinds.items() if kind == DROP or KINDS[kind].is_text}
    missing = _cases([*MISSING_WORDS, *options.words])
    source = plain_csv(path)  # pandas would fill a row that is cut short
    options_of_pandas: dict[str, Any] = {
        "header": 0,
        "names": header,
        "skipinitialspace": True,
        "low_memory": False,  # a column has one type from the first row to the last
        "keep_default_na": False,
        **_exact(pd.__version__),
    }

    def read(columns: list[str], **further: Any) -> DataFrame:
        if isinstance(source, io.StringIO):
            source.seek(0)
        frame: DataFrame = pd.read_csv(source, usecols=columns, **options_of_pandas, **further)
        return frame

    # one list of missing words for all features: pandas would prepare one for each column
    frame: DataFrame = pd.DataFrame()
    if header != [label]:
        frame = read(
            [name for name in header if name != label],
            na_values=missing,
            dtype={name: str for name in header if name in texts},
        )
    if label is None:
        return frame
    # A label may well be called "none".
    labels = read([label], na_values=_NO_LABEL)[label]
    if labels.dtype.kind in "iu":
        codes = read([label], dtype=str)[label]
        # 007 is a code: as a number it would be answered as 7
        labels = codes if codes.str.fullmatch(r"0\d+").any() else labels
    whole: DataFrame = pd.concat([frame, labels], axis=1)[header]
    return whole


def _exact(version: str) -> dict[str, Any]:
    """Options for numbers rounded as Python rounds them: pandas 3.1 does so by default."""
    newer = tuple(map(int, version.split(".")[:2])) >= (3, 1)
    return {} if newer else {"float_precision": "round_trip"}


#: What pandas takes as missing.
_NO_LABEL: Final = [
    "",
    "#N/A N/A",
    *["#N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN"],
    *["<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"],
]


def _cases(words: Iterable[str]) -> list[str]:
    """Every word in all of its cases: pandas compares them as they are."""
    return sorted(
        "".join(letters)
        for word in words
        for letters in product(*({c.lower(), c.upper()} for c in word))
        if len(word) <= 10
    )


def check_names(path: Path, columns: list[str]) -> None:
    """Refuse a column name that stands twice."""
    doubled = [name for name, count in Counter(columns).items() if count > 1]
    if doubled:
        raise InputError(f"{path}: column name {doubled[0]!r} stands twice")


def read_parquet(path: Path) -> DataFrame:
    """Read a parquet file; pyarrow, which pandas needs for it, comes with an extra."""
    import pandas as pd

    try:
        return pd.read_parquet(path)
    except ImportError:
        raise InputError(
            f"{path}: parquet files need pyarrow: pip install 'gatewise[parquet]'"
        ) from None
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
