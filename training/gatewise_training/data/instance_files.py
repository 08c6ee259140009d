"""Instances of any shape from a file: arrays in .npz and .npy, tables in .csv and .parquet."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from gatewise.columns.csv_file import plain_csv
from gatewise.errors import InputError


def load_instances(source: str | Path, target: str | None = None) -> tuple[Any, Any]:
    """Load instances, shape (n, ...), and their labels; None without `target`.

    The instances are the array ``X`` of an npz file, or its only one besides `target`, or all
    columns of a table but `target`, as a DataFrame. Raises InputError if the file cannot be read,
    or lacks one of them.
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
    import pandas as pd

    source_file = plain_csv(path) if kind == ".csv" else path
    try:
        table = pd.read_csv(source_file) if kind == ".csv" else pd.read_parquet(path)
    except (ValueError, OSError, ImportError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    if target is None:
        texts = list(table.select_dtypes(exclude=["number", "bool"]).columns)
        if texts:
            raise InputError(
                f"{path}: column {texts[0]!r} holds no numbers; if it is the label, give --target"
            )
        return table, None
    if target not in table.columns:
        raise InputError(f"{path} has no column {target!r}; it has {list(table.columns)[:12]}")
    return table.drop(columns=target), table[target].to_numpy()


def arrays_of(path: Path) -> dict[str, NDArray[Any]]:
    """Read the arrays of an .npz file, or the one of an .npy file as ``X``."""
    try:
        with path.open("rb") as raw:
            loaded = np.load(raw, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return {"X": loaded}
            return {key: loaded[key] for key in loaded.files}
    except (ValueError, OSError, EOFError, BadZipFile, AttributeError, TypeError) as error:
        advice = "; save texts as array.astype('U')" if "allow_pickle" in str(error) else ""
        raise InputError(f"{path} is not a readable file of arrays: {error}{advice}") from error
