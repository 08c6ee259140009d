"""Readers of tables in CSV and parquet files, and of instances of any shape in arrays."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from gatewise.columns.cells import MISSING_WORDS, read_number
from gatewise.columns.csv_file import csv_rows, plain_csv
from gatewise.columns.kinds import DROP, KINDS, read_kind
from gatewise.errors import InputError
from gatewise.formats import plural
from gatewise_training.data.table_columns import ColumnOptions

if TYPE_CHECKING:
    from pandas import DataFrame

#: Maps the names of a table's columns to the name of the label, or to None.
LabelFinder = Callable[[Sequence[str]], str | None]


#: Smallest number of fractions that hardly ascend or descend by chance: 2 of 6! = 720 orders do.
_MIN_ORDERED_FRACTIONS: Final = 6
#: Words that pandas reads as a missing cell.
_MISSING_LABEL_WORDS: Final = [
    "",
    "#N/A N/A",
    *["#N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN"],
    *["<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"],
]


def read_frame(
    path: Path, options: ColumnOptions, find_label: LabelFinder
) -> tuple[DataFrame, str | None]:
    """Read a table, and find its label column.

    Raises InputError if the file cannot be read or has no rows, if a CSV file has no line of names,
    or if two columns have the same name.
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
    frame.columns = [str(column).strip() for column in frame.columns]
    check_names(path, list(frame.columns))
    if frame.empty:
        raise InputError(f"{path} has no rows")
    return frame, find_label(list(frame.columns))


def label_column(path: Path, columns: Sequence[str], target: str | None) -> str | None:
    """Find the label column: `target`, or else the only column with a usual name, or None."""
    if target is None:
        usual_names = [
            column for column in columns if column.lower() in ("target", "label", "class", "y")
        ]
        return usual_names[0] if len(usual_names) == 1 else None
    if target not in columns:
        raise InputError(f"{path} has no column {target!r}; it has {', '.join(columns)}")
    return target


def read_labels(path: Path, frame: DataFrame, target: str) -> NDArray[Any]:
    """Get labels without spaces around texts; raise InputError if some are missing."""
    labels = frame[target]
    if labels.dtype.kind not in "biufmM":
        labels = labels.map(lambda label: label.strip() if isinstance(label, str) else label)
        labels = labels.mask(labels.isin(_MISSING_LABEL_WORDS))
    if n_missing := int(labels.isna().sum()):
        rows = plural(n_missing, "row")
        raise InputError(
            f"{path}: the label {target!r} is missing (empty, NA, null) in {rows}: leave these "
            "out, or rename a class of such a name"
        )
    return labels.to_numpy()


def _read_csv(path: Path, options: ColumnOptions, find_label: LabelFinder) -> DataFrame:
    """Read numbers, with the rounding of Python, and other columns as text."""
    import pandas as pd

    _, header = next(csv_rows(path))
    _check_first_line(path, header)
    check_names(path, header)
    label_name = find_label(header)
    kinds = {name: read_kind(kind)[0] for name, kind in options.kinds.items()}
    text_columns = {name for name, kind in kinds.items() if kind == DROP or KINDS[kind].is_text}
    missing_words = _list_case_variants([*MISSING_WORDS, *options.normalised_missing_words])
    csv_text = plain_csv(path)  # refuses a row that is cut short, which pandas would fill
    pandas_options: dict[str, Any] = {
        "header": 0,
        "names": header,
        "skipinitialspace": True,
        "low_memory": False,  # a column has one type from the first row to the last
        "keep_default_na": False,
        **_choose_rounding(pd.__version__),
    }

    def read_columns(columns: list[str], **column_options: Any) -> DataFrame:
        if isinstance(csv_text, io.StringIO):
            csv_text.seek(0)
        frame: DataFrame = pd.read_csv(
            csv_text, usecols=columns, **pandas_options, **column_options
        )
        return frame

    # one list of missing words for all features, because pandas would prepare one per column
    frame: DataFrame = pd.DataFrame()
    if header != [label_name]:
        frame = read_columns(
            [name for name in header if name != label_name],
            na_values=missing_words,
            dtype={name: str for name in header if name in text_columns},
        )
    if label_name is None:
        return frame
    # a label may be called "none", which is a missing word in a feature
    labels = read_columns([label_name], na_values=_MISSING_LABEL_WORDS)[label_name]
    if labels.dtype.kind in "iuf":
        label_texts = read_columns([label_name], dtype=str)[label_name].str.strip()
        # 007 is a code and 1.10 a version: they must not become the numbers 7 and 1.1
        is_code = label_texts.str.fullmatch(r"0\d+").any()
        if is_code or label_texts.str.removesuffix(".0").nunique() > labels.nunique():
            labels = label_texts
    table: DataFrame = pd.concat([frame, labels], axis=1)[header]
    return table


def _choose_rounding(version: str) -> dict[str, Any]:
    """Get the option of pandas for Python's rounding, which is the default from pandas 3.1."""
    is_default = tuple(map(int, version.split(".")[:2])) >= (3, 1)
    return {} if is_default else {"float_precision": "round_trip"}


def _list_case_variants(words: Iterable[str]) -> list[str]:
    """List words in all mixtures of upper and lower case, because pandas compares exactly."""
    return sorted(
        "".join(letters)
        for word in words
        for letters in product(*({letter.lower(), letter.upper()} for letter in word))
        if len(word) <= 10  # a word of n letters has up to 2^n variants
    )


def _check_first_line(path: Path, names: Sequence[str]) -> None:
    """Raise InputError if the first line of a CSV file seems to have values instead of names.

    Names may be numbers if these ascend or descend, like years, wavelengths and the columns of a
    frame without names. Few numbers with fractions ascend or descend by chance.
    """
    numbers = []
    for name in names:
        with suppress(InputError):
            numbers.append(read_number(name))
    numbers = [number for number in numbers if np.isfinite(number)]  # nan and inf may be names
    steps = np.diff(numbers)
    is_ordered = bool((steps > 0).all() or (steps < 0).all())
    has_fractions = any(number % 1 for number in numbers)
    may_be_chance = has_fractions and len(numbers) < _MIN_ORDERED_FRACTIONS
    if len(numbers) < 2 or (is_ordered and not may_be_chance):
        return
    first_names = ", ".join(names[:3])
    raise InputError(
        f"{path}: the first line seems to have values ({first_names}, ...) instead of names: add a "
        "line with the names of the columns"
    )


def check_names(path: Path, columns: list[str]) -> None:
    """Raise InputError if two columns have the same name."""
    doubled_names = [name for name, count in Counter(columns).items() if count > 1]
    if doubled_names:
        raise InputError(f"{path}: column {doubled_names[0]!r} occurs twice: rename one")


def read_parquet(path: Path) -> DataFrame:
    """Read a parquet file, for which pandas needs pyarrow (``gatewise[parquet]``)."""
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


def load_instances(source: str | Path, target: str | None = None) -> tuple[Any, Any]:
    """Load instances, shape (n, ...), and their labels, which are None without `target`.

    The instances are the array ``X`` of an npz file, or its only array except `target`, or a
    DataFrame of the columns of a table except `target`. Raises InputError if the file cannot be
    read, or lacks an array or column.
    """
    path = Path(source)
    if not path.is_file():
        raise InputError(f"{path} does not exist")
    suffix = path.suffix.lower()
    # arrays
    if suffix in (".npz", ".npy"):
        arrays = arrays_of(path)
        y = None
        if target is not None:
            if target not in arrays:
                raise InputError(f"{path} has no array {target!r}; it has {sorted(arrays)}")
            y = arrays.pop(target)
        if "X" not in arrays and len(arrays) != 1:
            raise InputError(f"{path} has no array 'X'; it has {sorted(arrays)}")
        x = arrays["X"] if "X" in arrays else next(iter(arrays.values()))
        if y is not None and y.shape != (len(x),):
            raise InputError(
                f"{path}: {target!r} has shape {y.shape}; {len(x)} instances need ({len(x)},)"
            )
        return x, y
    # tables
    if suffix not in (".csv", ".parquet"):
        raise InputError(f"{path}: the file extension must be .npz, .npy, .csv or .parquet")
    frame, label_name = read_frame(
        path,
        ColumnOptions(),
        lambda columns: None if target is None else label_column(path, columns, target),
    )
    text_columns = [
        name for name in frame if name != label_name and frame[name].dtype.kind not in "biuf"
    ]
    if text_columns:
        advice = "; if it is the label, give --target" if target is None else ""
        raise InputError(f"{path}: column {text_columns[0]!r} holds no numbers{advice}")
    if label_name is None:
        return frame, None
    return frame.drop(columns=label_name), read_labels(path, frame, label_name)


def arrays_of(path: Path) -> dict[str, NDArray[Any]]:
    """Read the arrays of an .npz file, or the array of an .npy file as ``X``."""
    try:
        with path.open("rb") as file:
            arrays = np.load(file, allow_pickle=False)
            if isinstance(arrays, np.ndarray):
                return {"X": arrays}
            return {key: arrays[key] for key in arrays.files}
    except (ValueError, OSError, EOFError, BadZipFile, AttributeError, TypeError) as error:
        advice = "; save texts as array.astype('U')" if "allow_pickle" in str(error) else ""
        raise InputError(f"{path} is not a readable file of arrays: {error}{advice}") from error
