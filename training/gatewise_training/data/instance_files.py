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
    kind = path.suffix.lower()
    # arrays
    if kind in (".npz", ".npy"):
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
            raise InputError(f"{path}: {target!r} of shape {y.shape} for {len(x)} instances")
        return x, y
    # tables
    if kind not in (".csv", ".parquet"):
        raise InputError(f"{path}: the ending must be .npz, .npy, .csv or .parquet")
    table, label = read_frame(
        path,
        ColumnOptions(),
        lambda columns: None if target is None else label_column(path, columns, target),
    )
    texts = [name for name in table if name != label and table[name].dtype.kind not in "biuf"]
    if texts:
        advice = "; if it is the label, give --target" if target is None else ""
        raise InputError(f"{path}: column {texts[0]!r} holds no numbers{advice}")
    if label is None:
        return table, None
    return table.drop(columns=label), read_labels(path, table, label)


def arrays_of(path: Path) -> dict[str, NDArray[Any]]:
    """Read the arrays of an .npz file, or the array of an .npy file as ``X``."""
    try:
        with path.open("rb") as raw:
            loaded = np.load(raw, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return {"X": loaded}
            return {key: loaded[key] for key in loaded.files}
    except (ValueError, OSError, EOFError, BadZipFile, AttributeError, TypeError) as error:
        advice = "; save texts as array.astype('U')" if "allow_pickle" in str(error) else ""
        raise InputError(f"{path} is not a readable file of arrays: {error}{advice}") from error
