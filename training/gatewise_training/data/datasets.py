"""Data to train on: sets that scikit-learn bundles, and the user's own files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from gatewise.costs import FeatureCosts
from gatewise.errors import InputError

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["Dataset", "load", "names", "read_parquet"]

_BUNDLED = ("breast_cancer", "digits", "iris", "wine")


@dataclass(frozen=True, eq=False)
class Dataset:
    """A table with labels and prices.

    Attributes
    ----------
    name : str
    X : ndarray of float32, shape (n, n_features)
    y : ndarray, shape (n,)
        Labels as the source has them.
    feature_names : tuple of str
    feature_costs : FeatureCosts
        The source's prices, or 1 a feature.
    parts : dict of str to ndarray of intp
        The source's own split (rows of "train", "validation", "test"), where it has one.
    """

    name: str
    X: NDArray[np.float32]
    y: NDArray[Any]
    feature_names: tuple[str, ...]
    feature_costs: FeatureCosts
    parts: Mapping[str, NDArray[np.intp]]


def names() -> tuple[str, ...]:
    """List the bundled sets.

    Examples
    --------
    >>> names()
    ('breast_cancer', 'digits', 'iris', 'wine')
    """
    return _BUNDLED


def load(source: str | Path, *, target: str | None = None) -> Dataset:
    """Load a bundled set by name, or a CSV, parquet or npz file.

    Examples
    --------
    >>> load("digits").X.shape
    (1797, 64)
    """
    if str(source) in _BUNDLED:
        return _bundled(str(source))
    path = Path(source)
    if not path.is_file():
        raise InputError(
            f"{path} is neither a file nor a bundled set; bundled are {', '.join(_BUNDLED)}"
        )
    if path.suffix.lower() == ".npz":
        return _npz(path)
    if path.suffix.lower() in (".csv", ".parquet"):
        return _table(path, target)
    raise InputError(f"{path}: the ending must be .csv, .parquet or .npz")


def _bundled(name: str) -> Dataset:
    from sklearn import datasets

    raw = getattr(datasets, f"load_{name}")()
    x = np.asarray(raw.data, np.float32)
    columns = tuple(str(n).replace(" ", "_") for n in raw.feature_names)
    # the classes' names where they say more than their number
    y = raw.target if name == "digits" else np.asarray(raw.target_names)[raw.target]
    prices = FeatureCosts(np.ones(x.shape[1]), names=columns)
    return Dataset(name, x, np.asarray(y), columns, prices, {})


def _npz(path: Path) -> Dataset:
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
    except (ValueError, OSError, EOFError, BadZipFile, AttributeError, TypeError) as error:
        raise InputError(f"{path} is not a readable npz file: {error}") from error
    for key in ("X", "y"):
        if key not in arrays:
            raise InputError(f"{path} has no array {key!r}")
    x, y = arrays["X"], arrays["y"]
    if x.ndim != 2 or y.ndim != 1 or len(x) != len(y) or not x.size:
        raise InputError(f"{path}: X {x.shape} and y {y.shape} are not a table with labels")
    if x.dtype.kind not in "biuf":
        raise InputError(f"{path}: X holds {x.dtype}, not numbers")
    columns = [f"x{k}" for k in range(x.shape[1])]
    if "feature_names" in arrays:
        columns = [str(n) for n in arrays["feature_names"]]
    _check_names(path, columns)
    x = _float32(path, x, columns)
    parts = {}
    if set(np.unique(arrays.get("part", np.array([-1]))).tolist()) <= {0, 1, 2}:
        part = arrays["part"]
        known = ("train", "test") if part.max() == 1 else ("train", "validation", "test")
        parts = {name: np.flatnonzero(part == i) for i, name in enumerate(known)}
    return Dataset(path.stem, x, y, tuple(columns), _npz_costs(arrays, columns), parts)


def _npz_costs(arrays: Mapping[str, NDArray[Any]], columns: list[str]) -> FeatureCosts:
    """Own and shared prices from cost (the full price), cost_discount (the own) and group."""
    if "cost" not in arrays:
        return FeatureCosts(np.ones(len(columns)), names=columns)
    full = arrays["cost"].astype(float)
    if "group" not in arrays or "cost_discount" not in arrays:
        return FeatureCosts(full, names=columns)
    own, group = arrays["cost_discount"].astype(float), arrays["group"]
    shared = {int(g): float((full - own)[group == g].max()) for g in np.unique(group) if g >= 0}
    return FeatureCosts(own, group=group, shared=shared, names=columns)


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


def _table(path: Path, target: str | None) -> Dataset:
    import pandas as pd

    try:
        if path.suffix.lower() == ".csv":
            # pandas would rename a doubled column in silence
            header = pd.read_csv(path, header=None, nrows=1, dtype=str).iloc[0].tolist()
            _check_names(path, [str(h) for h in header])
            frame = pd.read_csv(path, skipinitialspace=True)
        else:
            frame = read_parquet(path)
    except (pd.errors.EmptyDataError, pd.errors.ParserError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {error}") from error
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    frame.columns = [str(c).strip() for c in frame.columns]
    _check_names(path, list(frame.columns))
    if frame.empty:
        raise InputError(f"{path} has no rows")
    if target is None:
        found = [c for c in frame.columns if c.lower() in ("target", "label", "class", "y")]
        if len(found) != 1:
            raise InputError(f"{path}: say which column is the label (--target NAME)")
        target = found[0]
    if target not in frame.columns:
        raise InputError(f"{path} has no column {target!r}; it has {', '.join(frame.columns)}")
    y = frame.pop(target)
    if y.isna().any():
        raise InputError(f"{path}: the label {target!r} is missing in {int(y.isna().sum())} row(s)")
    words = [c for c in frame.columns if frame[c].dtype.kind not in "biuf"]
    if words:
        raise InputError(f"{path}: column {words[0]!r} is not numbers; encode or drop it")
    columns = list(frame.columns)
    if not columns:
        raise InputError(f"{path} has no column beside the label")
    x = _float32(path, frame.to_numpy(np.float64), columns)
    prices = FeatureCosts(np.ones(len(columns)), names=columns)
    return Dataset(path.stem, x, y.to_numpy(), tuple(columns), prices, {})


def _check_names(path: Path, columns: list[str]) -> None:
    doubled = [c for c in columns if columns.count(c) > 1]
    if doubled:
        raise InputError(f"{path}: column name {doubled[0]!r} stands twice")


def _float32(path: Path, x: NDArray[Any], columns: list[str]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        small = np.ascontiguousarray(x, np.float32)
    infinite = np.isinf(small).any(axis=0)
    if infinite.any():
        name = columns[int(infinite.argmax())]
        raise InputError(f"{path}: column {name!r} has infinite values, or too large for float32")
    return small
