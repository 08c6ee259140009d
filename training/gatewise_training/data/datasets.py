"""Training data: data sets that scikit-learn bundles, and the user's files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import compress
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
from gatewise_training.data.misleading_columns import TableRemark, table_remarks
from gatewise_training.data.table_columns import (
    ColumnFacts,
    ColumnOptions,
    table_facts,
)
from gatewise_training.data.table_encoder import TableEncoder, encode_frame
from gatewise_training.data.table_files import (
    arrays_of,
    check_names,
    label_column,
    read_frame,
    read_labels,
)
from gatewise_training.data.table_problems import column_problems, problem_text

if TYPE_CHECKING:
    from pandas import DataFrame

#: Data sets of classes that scikit-learn bundles.
_BUNDLED_NAMES = ("breast_cancer", "digits", "iris", "wine")


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
    raw_table: RawTable | None = None  # the columns of a file before encoding
    encoder: TableEncoder | None = None  # made `X` from `raw_table`
    # other arrays with one value per row
    row_arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    # (n,) each: groups and times by which training splits the rows
    groups: NDArray[Any] | None = None
    time: NDArray[Any] | None = None

    def columns(self, names: Sequence[str], source: object) -> NDArray[np.float32]:
        """Get the columns `names` in this order; errors contain `source`."""
        index_of_name = {name: index for index, name in enumerate(self.feature_names)}
        for name in names:
            if name not in index_of_name:
                raise InputError(f"{source} has no column {name!r}, which the bundle needs")
        return self.X[:, [index_of_name[name] for name in names]]


@dataclass(frozen=True, eq=False)
class RawTable:
    """The columns of a CSV or parquet file before encoding, and the labels `y` of `target`."""

    path: Path
    frame: DataFrame
    y: NDArray[Any]
    target: str
    options: ColumnOptions

    @property
    def used_columns(self) -> DataFrame:
        """The columns that are not dropped."""
        return self.frame.drop(columns=self.options.dropped, errors="ignore")

    @cached_property
    def facts(self) -> dict[str, ColumnFacts]:
        """Facts about the columns."""
        return table_facts(self.frame, self.options.normalised_missing_words)

    def remarks(self) -> list[TableRemark]:
        """List the columns that mislead training, such as identifiers."""
        return table_remarks(self.frame, self.y, self.facts, self.options.dropped)

    def check(self) -> None:
        """Raise InputError if columns cannot be used; it names them all, with a remedy for each."""
        if problems := column_problems(self.frame, self.options, self.facts):
            raise InputError(f"{self.path}: {problem_text(problems, style='flags')}")
        if self.used_columns.columns.empty:
            raise InputError(f"{self.path} has no column besides the label: add features")

    @property
    def is_numeric(self) -> bool:
        """Whether the columns are features without encoding, because all used ones are numbers."""
        has_numbers = all(dtype.kind in "iuf" for dtype in self.used_columns.dtypes)
        return (
            has_numbers
            and not self.options.impute
            and not self.options.kinds.keys() - set(self.options.dropped)
        )

    def as_numbers(self) -> Dataset:
        """Get the columns as features at a price of 1 each; raise InputError for texts."""
        used_columns = self.used_columns
        columns = list(used_columns.columns)
        for name, dtype in zip(columns, used_columns.dtypes, strict=True):
            if dtype.kind not in "biuf":
                raise InputError(f"{self.path}: column {name!r} is not numbers; encode or drop it")
        x = _round_to_float32(self.path, used_columns.to_numpy(np.float64), columns)
        prices = FeatureCosts(np.ones(len(columns)), names=columns)
        return Dataset(self.path.stem, x, self.y, tuple(columns), prices, {}, raw_table=self)

    def encoded(self, training_rows: NDArray[np.intp]) -> Dataset:
        """Encode the columns by an encoder fitted on training rows, at a price of 1 per column."""
        dropped_names = self.options.dropped
        columns_with_gaps = {
            name
            for name, column in self.facts.items()
            if column.n_missing and name not in dropped_names
        }
        encoder = TableEncoder.from_options(self.options)
        encoder._learn(self.frame.iloc[training_rows], columns_with_gaps)
        features = tuple(encoder.get_feature_names_out().tolist())
        x = _round_to_float32(self.path, encode_frame(encoder.encoder_, self.frame), list(features))
        is_number = [
            feature in self.frame and self.frame[feature].dtype.kind in "iuf"
            for feature in features
        ]
        number_columns = list(compress(features, is_number))
        warn_of_rounding(self.frame[number_columns], x[:, is_number], number_columns)
        prices = encoder.feature_costs()
        name = self.path.stem
        return Dataset(name, x, self.y, features, prices, {}, raw_table=self, encoder=encoder)


def bundled_names() -> tuple[str, ...]:
    """List the bundled data sets.

    >>> bundled_names()
    ('breast_cancer', 'digits', 'iris', 'wine')
    """
    return _BUNDLED_NAMES


def load(source: str | Path, *, target: str | None = None) -> Dataset:
    """Load a bundled data set by name, or a CSV, parquet or npz file.

    >>> load("digits").X.shape
    (1797, 64)
    """
    if str(source) in _BUNDLED_NAMES:
        return _load_bundled(str(source))
    path = Path(source)
    if not path.is_file():
        raise InputError(
            f"{path} is neither a file nor a bundled set; bundled are {', '.join(_BUNDLED_NAMES)}"
        )
    if path.suffix.lower() == ".npz":
        return _load_npz(path)
    if path.suffix.lower() in (".csv", ".parquet"):
        return read_table(path, target=target).as_numbers()
    raise InputError(f"{path}: the file extension must be .csv, .parquet or .npz")


def _load_bundled(name: str) -> Dataset:
    from sklearn import datasets

    bunch = getattr(datasets, f"load_{name}")()
    x = np.asarray(bunch.data, np.float32)
    columns = tuple(str(name).replace(" ", "_") for name in bunch.feature_names)
    # labels are names of classes, except for digits, whose names are only the numbers as text
    y = bunch.target if name == "digits" else np.asarray(bunch.target_names)[bunch.target]
    prices = FeatureCosts(np.ones(x.shape[1]), names=columns)
    return Dataset(name, x, np.asarray(y), columns, prices, {})


def _load_npz(path: Path) -> Dataset:
    """Load the arrays X and y and, if they exist, names, a published split and prices."""
    arrays = arrays_of(path)
    for array_name in ("X", "y"):
        if array_name not in arrays:
            raise InputError(
                f"{path} has no array {array_name!r}; X holds the rows, y their labels"
            )
    x = arrays["X"]
    y = arrays["y"]
    if x.ndim < 2 or y.ndim != 1 or len(x) != len(y) or not x.size:
        raise InputError(f"{path}: X {x.shape} and y {y.shape} are not a table with labels")
    if x.dtype.kind not in "biuf":
        raise InputError(f"{path}: X holds {x.dtype}, not numbers")
    names = [f"x{k}" for k in range(x.shape[1])]
    if x.ndim > 2:  # instances are arrays: one feature per value, in row-major order
        names = InstanceSpec(x.shape[1:]).names
        x = x.reshape(len(x), -1)
    if "feature_names" in arrays:
        names = [str(name) for name in arrays["feature_names"].ravel()]
        if len(names) != x.shape[1]:
            raise InputError(f"{path}: {len(names)} feature_names for {x.shape[1]} features of X")
    check_names(path, names)
    x = _round_to_float32(path, x, names)
    rows_by_part = {}
    if "part" in arrays and "qid" not in arrays:  # queries of a ranking are in numbered folds
        rows_by_part = _split_npz_rows(path, arrays["part"], len(y))
    row_arrays = {
        array_name: array
        for array_name, array in arrays.items()
        if array.shape == y.shape and array_name not in ("y", "part")
    }
    costs = _make_npz_costs(path, arrays, names)
    return Dataset(path.stem, x, y, tuple(names), costs, rows_by_part, row_arrays=row_arrays)


def _split_npz_rows(
    path: Path, part_of_row: NDArray[Any], n_rows: int
) -> dict[str, NDArray[np.intp]]:
    """Get the rows of a published split: 0 training, 1 test, or 1 validation and 2 test."""
    if (
        part_of_row.shape != (n_rows,)
        or part_of_row.dtype.kind not in "biuf"
        or not np.isin(part_of_row, (0, 1, 2)).all()
    ):
        raise InputError(
            f"{path}: part must hold for each of the {n_rows} rows 0 (training) or 1 (test), or "
            "with validation rows 0, 1 (validation) or 2 (test): mend it, or leave it out"
        )
    part_names = ("train", "test") if part_of_row.max() <= 1 else ("train", "validation", "test")
    return {name: np.flatnonzero(part_of_row == part) for part, name in enumerate(part_names)}


def _make_npz_costs(
    path: Path, arrays: Mapping[str, NDArray[Any]], columns: list[str]
) -> FeatureCosts:
    """Get prices from `cost` (own + shared), `cost_discount` (own) and `group` (-1: none).

    The shared price of a group is the largest difference of the two costs of its features.
    """
    if "cost" not in arrays:
        return FeatureCosts(np.ones(len(columns)), names=columns)
    has_groups = "group" in arrays and "cost_discount" in arrays
    for array_name in ("cost", "cost_discount", "group") if has_groups else ("cost",):
        array = arrays[array_name]
        if array.shape != (len(columns),) or array.dtype.kind not in "biuf":
            raise InputError(
                f"{path}: {array_name} must hold one number for each of the {len(columns)} "
                f"features, not {array.dtype} of shape {array.shape}"
            )
    full_prices = arrays["cost"].astype(float)
    if not has_groups:
        return FeatureCosts(full_prices, names=columns)
    group = arrays["group"]
    own_prices = np.where(group >= 0, arrays["cost_discount"], full_prices)
    shared = {
        int(group_number): float((full_prices - own_prices)[group == group_number].max())
        for group_number in np.unique(group)
        if group_number >= 0
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
        raise InputError(f"{path} has no column besides the label: add features")
    return RawTable(path, frame, y, target, options)


def read_rows(
    path: str | Path, names: Sequence[str], encoder: RowEncoder | None, *, target: str | None = None
) -> tuple[NDArray[np.float32], NDArray[Any] | None]:
    """Read the features, (n, n_features), and labels, (n,), of rows for a bundle.

    `names` are the features, or the raw columns of the `encoder`. By default another column
    called target, label, class or y is the label; without such a column the labels are None. The
    InputError for a cell of the wrong kind names the line of a CSV file.
    """
    path = Path(path)
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise InputError(f"{path}: the bundle takes raw columns: give a .csv or .parquet file")
    options = ColumnOptions(
        kinds={column.name: column.kind for column in (() if encoder is None else encoder.columns)},
        missing_words=() if encoder is None else tuple(encoder.missing_words),
    )
    frame, target = read_frame(
        path,
        options,
        lambda columns: label_column(
            path, [column for column in columns if column not in names], target
        ),
    )
    missing_names = [name for name in names if name not in frame.columns]
    if missing_names:
        others_text = f" (and {len(missing_names) - 1} more)" if len(missing_names) > 1 else ""
        raise InputError(
            f"{path} has no column {missing_names[0]!r}{others_text}, which the bundle needs"
        )
    if encoder is None:
        encoder = RowEncoder(tuple(NumberColumn(name=name, features=(name,)) for name in names))
        frame = frame.astype(dict.fromkeys(frame.columns[frame.dtypes == np.bool_], np.float64))
    try:
        x = encode_frame(encoder, frame)
    except InputError as error:
        raise InputError(_describe_bad_line(path, encoder) or f"{path}: {error}") from None
    y = None if target is None else read_labels(path, frame, target)
    return _round_to_float32(path, x, list(encoder.feature_names)), y


def _describe_bad_line(path: Path, encoder: RowEncoder) -> str | None:
    """Describe the first bad cell of a CSV file, with its line."""
    rows = csv_rows(path) if path.suffix.lower() == ".csv" else iter(())
    header: list[str] = []
    for line_number, row in rows:
        if header:
            cells = [row[header.index(name)] for name in encoder.names]
            for _, error in encoder.invalid_cells([cells]):
                return f"{path}, line {line_number}: {error}"
        header = header or row
    return None


def _round_to_float32(path: Path, x: NDArray[Any], columns: list[str]) -> NDArray[np.float32]:
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
