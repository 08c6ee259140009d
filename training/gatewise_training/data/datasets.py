"""Training data: data sets that scikit-learn bundles, and the user's files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gatewise.columns.csv_file import csv_rows
from gatewise.columns.encoders import RowEncoder
from gatewise.columns.kinds import NumberColumn
from gatewise.costs import FeatureCosts
from gatewise.errors import InputError
from gatewise.models.instances import InstanceSpec
from gatewise_training.data.input_checks import warn_of_rounding
from gatewise_training.data.instance_files import arrays_of
from gatewise_training.data.misleading_columns import TableRemark, table_remarks
from gatewise_training.data.table_columns import (
    ColumnFacts,
    ColumnOptions,
    column_problems,
    problem_text,
    table_facts,
)
from gatewise_training.data.table_encoder import TableEncoder, encode_frame
from gatewise_training.data.table_files import check_names, label_column, read_frame, read_labels

if TYPE_CHECKING:
    from pandas import DataFrame

_BUNDLED = ("breast_cancer", "digits", "iris", "wine")


@dataclass(frozen=True, eq=False)
class Dataset:
    """A table with labels and prices."""

    name: str
    X: NDArray[np.float32]  # (n, n_features)
    y: NDArray[Any]  # (n,): the labels of the source, unchanged
    feature_names: tuple[str, ...]
    feature_costs: FeatureCosts  # of the source, or 1 per feature
    # rows of the source's own split, if it has one, as "train", "validation" and "test"
    parts: Mapping[str, NDArray[np.intp]]
    raw: RawTable | None = None  # the columns of a file before encoding
    encoder: TableEncoder | None = None  # made `X` from `raw`
    # other arrays with one value per row
    aside: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    # (n,) each: groups and times by which training splits the rows
    groups: NDArray[Any] | None = None
    time: NDArray[Any] | None = None

    def columns(self, names: Sequence[str], source: object) -> NDArray[np.float32]:
        """Get the columns `names` in this order; `source` is named in errors."""
        index_of = {name: k for k, name in enumerate(self.feature_names)}
        for name in names:
            if name not in index_of:
                raise InputError(f"{source} has no column {name!r}, which the bundle needs")
        return self.X[:, [index_of[name] for name in names]]


@dataclass(frozen=True, eq=False)
class RawTable:
    """The columns of a CSV or parquet file before encoding, and the labels `y` of `target`."""

    path: Path
    frame: DataFrame
    y: NDArray[Any]
    target: str
    options: ColumnOptions

    @property
    def used(self) -> DataFrame:
        """The columns that are not dropped."""
        return self.frame.drop(columns=self.options.dropped, errors="ignore")

    @cached_property
    def facts(self) -> dict[str, ColumnFacts]:
        """Facts about the columns."""
        return table_facts(self.frame, self.options.words)

    def remarks(self) -> list[TableRemark]:
        """List the columns that mislead training, such as identifiers."""
        return table_remarks(self.frame, self.y, self.facts, self.options.dropped)

    def check(self) -> None:
        """Raise InputError if columns cannot be used; it names them all, with a remedy for each."""
        if problems := column_problems(self.frame, self.options, self.facts):
            raise InputError(f"{self.path}: {problem_text(problems, style='flags')}")
        if self.used.columns.empty:
            raise InputError(f"{self.path} has no column beside the label")

    @property
    def is_numeric(self) -> bool:
        """Whether the columns are features without encoding, because all are numbers to keep."""
        has_numbers = all(dtype.kind in "iuf" for dtype in self.used.dtypes)
        return (
            has_numbers
            and not self.options.impute
            and not self.options.kinds.keys() - set(self.options.dropped)
        )

    def numbers(self) -> Dataset:
        """Get the columns as features at a price of 1 each; raise InputError for other types."""
        used = self.used
        columns = list(used.columns)
        for name, dtype in zip(columns, used.dtypes, strict=True):
            if dtype.kind not in "biuf":
                raise InputError(f"{self.path}: column {name!r} is not numbers; encode or drop it")
        x = _float32(self.path, used.to_numpy(np.float64), columns)
        prices = FeatureCosts(np.ones(len(columns)), names=columns)
        return Dataset(self.path.stem, x, self.y, tuple(columns), prices, {}, raw=self)

    def encoded(self, training: NDArray[np.intp]) -> Dataset:
        """Encode the columns by an encoder fitted on training rows, at a price of 1 per column."""
        dropped = self.options.dropped
        gaps = {n for n, column in self.facts.items() if column.missing and n not in dropped}
        encoder = TableEncoder.from_options(self.options)
        encoder._learn(self.frame.iloc[training], gaps)
        columns = tuple(encoder.get_feature_names_out().tolist())
        x = _float32(self.path, encode_frame(encoder.encoder_, self.frame), list(columns))
        numbers = [c for c in columns if c in self.frame and self.frame[c].dtype.kind in "iuf"]
        warn_of_rounding(self.frame[numbers], x[:, [columns.index(c) for c in numbers]], numbers)
        prices = encoder.feature_costs()
        name = self.path.stem
        return Dataset(name, x, self.y, columns, prices, {}, raw=self, encoder=encoder)


def names() -> tuple[str, ...]:
    """List the bundled data sets.

    >>> names()
    ('breast_cancer', 'digits', 'iris', 'wine')
    """
    return _BUNDLED


def load(source: str | Path, *, target: str | None = None) -> Dataset:
    """Load a bundled data set by name, or a CSV, parquet or npz file.

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
        return read_table(path, target=target).numbers()
    raise InputError(f"{path}: the ending must be .csv, .parquet or .npz")


def _bundled(name: str) -> Dataset:
    from sklearn import datasets

    raw = getattr(datasets, f"load_{name}")()
    x = np.asarray(raw.data, np.float32)
    columns = tuple(str(n).replace(" ", "_") for n in raw.feature_names)
    # labels are names of classes, except for digits, whose names are only the numbers as text
    y = raw.target if name == "digits" else np.asarray(raw.target_names)[raw.target]
    prices = FeatureCosts(np.ones(x.shape[1]), names=columns)
    return Dataset(name, x, np.asarray(y), columns, prices, {})


def _npz(path: Path) -> Dataset:
    arrays = arrays_of(path)
    for key in ("X", "y"):
        if key not in arrays:
            raise InputError(f"{path} has no array {key!r}; X holds the rows, y their labels")
    x = arrays["X"]
    y = arrays["y"]
    if x.ndim < 2 or y.ndim != 1 or len(x) != len(y) or not x.size:
        raise InputError(f"{path}: X {x.shape} and y {y.shape} are not a table with labels")
    if x.dtype.kind not in "biuf":
        raise InputError(f"{path}: X holds {x.dtype}, not numbers")
    columns = [f"x{k}" for k in range(x.shape[1])]
    if x.ndim > 2:  # instances are arrays: one feature per value, in row-major order
        columns = InstanceSpec(x.shape[1:]).names
        x = x.reshape(len(x), -1)
    if "feature_names" in arrays:
        columns = [str(n) for n in arrays["feature_names"]]
    check_names(path, columns)
    x = _float32(path, x, columns)
    rows_by_part = {}
    if "part" in arrays and "qid" not in arrays:  # queries of a ranking are in numbered folds
        rows_by_part = _npz_parts(path, arrays["part"], len(y))
    row_arrays = {
        key: array
        for key, array in arrays.items()
        if array.shape == y.shape and key not in ("y", "part")
    }
    costs = _npz_costs(arrays, columns)
    return Dataset(path.stem, x, y, tuple(columns), costs, rows_by_part, aside=row_arrays)


def _npz_parts(path: Path, part: NDArray[Any], n: int) -> dict[str, NDArray[np.intp]]:
    """Get the rows of a published split: 0 training, 1 test, or 1 validation and 2 test."""
    if part.shape != (n,) or part.dtype.kind not in "biuf" or not np.isin(part, (0, 1, 2)).all():
        raise InputError(
            f"{path}: part must hold for each of the {n} rows 0 (training) or 1 (test), or with "
            "validation rows 0, 1 (validation) or 2 (test): mend it, or leave it out"
        )
    part_names = ("train", "test") if part.max() <= 1 else ("train", "validation", "test")
    return {name: np.flatnonzero(part == i) for i, name in enumerate(part_names)}


def _npz_costs(arrays: Mapping[str, NDArray[Any]], columns: list[str]) -> FeatureCosts:
    """Get prices from `cost` (own + shared), `cost_discount` (own) and `group`."""
    if "cost" not in arrays:
        return FeatureCosts(np.ones(len(columns)), names=columns)
    full_prices = arrays["cost"].astype(float)
    if "group" not in arrays or "cost_discount" not in arrays:
        return FeatureCosts(full_prices, names=columns)
    own_prices = arrays["cost_discount"].astype(float)
    group = arrays["group"]
    shared = {
        int(g): float((full_prices - own_prices)[group == g].max())
        for g in np.unique(group)
        if g >= 0
    }
    return FeatureCosts(own_prices, group=group, shared=shared, names=columns)


def read_table(
    path: str | Path, *, target: str | None = None, options: ColumnOptions | None = None
) -> RawTable:
    """Read a CSV or parquet file with a label column.

    `target` is the label column. By default it is a column called target, label, class or y. Raises
    InputError if the file cannot be read or is cut short, if it has no such column, or if a label
    is missing.
    """
    path = Path(path)
    options = ColumnOptions() if options is None else options
    frame, target = read_frame(path, options, lambda columns: label_column(path, columns, target))
    if target is None:
        raise InputError(f"{path}: say which column is the label (--target NAME)")
    y = read_labels(path, frame, target)
    frame = frame.drop(columns=target)
    if frame.columns.empty:
        raise InputError(f"{path} has no column beside the label")
    return RawTable(path, frame, y, target, options)


def read_rows(
    path: str | Path, names: Sequence[str], encoder: RowEncoder | None, *, target: str | None = None
) -> tuple[NDArray[np.float32], NDArray[Any] | None]:
    """Read the features, (n, n_features), and labels, (n,), of rows for a bundle.

    `names` are the features, or the raw columns of the `encoder`. By default another column called
    target, label, class or y is the label; without such a column the labels are None. The
    InputError for a cell of the wrong kind names the line of a CSV file.
    """
    path = Path(path)
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise InputError(f"{path}: the bundle takes raw columns: give a .csv or .parquet file")
    options = ColumnOptions(
        kinds={c.name: c.kind for c in (() if encoder is None else encoder.columns)},
        missing_words=() if encoder is None else tuple(encoder.missing_words),
    )
    frame, target = read_frame(
        path,
        options,
        lambda columns: label_column(path, [c for c in columns if c not in names], target),
    )
    missing = [name for name in names if name not in frame.columns]
    if missing:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise InputError(f"{path} has no column {missing[0]!r}{more}, which the bundle needs")
    if encoder is None:
        encoder = RowEncoder(tuple(NumberColumn(name=name, features=(name,)) for name in names))
        frame = frame.astype(dict.fromkeys(frame.columns[frame.dtypes == np.bool_], np.float64))
    try:
        x = encode_frame(encoder, frame)
    except InputError as error:
        raise InputError(_bad_line(path, encoder) or f"{path}: {error}") from None
    y = None if target is None else read_labels(path, frame, target)
    return _float32(path, x, list(encoder.feature_names)), y


def _bad_line(path: Path, encoder: RowEncoder) -> str | None:
    """Describe the first bad cell of a CSV file, with its line."""
    rows = csv_rows(path) if path.suffix.lower() == ".csv" else iter(())
    header: list[str] = []
    for line, row in rows:
        if header:
            cells = [row[header.index(name)] for name in encoder.names]
            for _, error in encoder.bad_cells([cells]):
                return f"{path}, line {line}: {error}"
        header = header or row
    return None


def _float32(path: Path, x: NDArray[Any], columns: list[str]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        rows = np.ascontiguousarray(x, np.float32)
    is_infinite = np.isinf(rows).any(axis=0)
    if is_infinite.any():
        name = columns[int(is_infinite.argmax())]
        raise InputError(
            f"{path}: column {name!r} has infinite values, or values too large for float32"
        )
    warn_of_rounding(x, rows, columns)
    return rows
