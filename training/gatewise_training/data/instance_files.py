"""Instances of any shape from a file: arrays in .npz and .npy, tables in .csv and .parquet."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise_training.data.table_columns import ColumnOptions
from gatewise_training.data.table_files import label_column, read_frame, read_labels


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
