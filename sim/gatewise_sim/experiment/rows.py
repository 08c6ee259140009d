"""Rows of a table, converted to the columns and classes of a bundle."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gatewise.columns.cells import UNKNOWN_CLASS, class_indices
from gatewise.columns.csv_file import csv_rows
from gatewise.errors import InputError
from gatewise_edge.sensors.table import read_table
from gatewise_export.bundle.manifest import Manifest
from gatewise_training.data.frames import as_pandas
from gatewise_training.data.table_files import arrays_of, load_instances

#: Names by which a column of labels is recognised without --target.
_USUAL_TARGETS: Final = ("target", "label", "class", "y")


@dataclass(frozen=True, eq=False)
class Rows:
    """A table that fits a bundle.

    Attributes
    ----------
    name : str
        Name of the data set.
    X : ndarray of shape (n, n_features)
        Features in the manifest's order.
    truth : ndarray of shape (n,), or None
        Class indices or UNKNOWN_CLASS; None without labels.
    notes : tuple of str
        Remarks for readers of the report.
    raw_rows : sequence or None
        Raw rows or windows, if the device computes the features from them.
    """

    name: str
    X: NDArray[np.float32]
    truth: NDArray[np.int64] | None
    notes: tuple[str, ...] = ()
    raw_rows: Sequence[Any] | None = None

    @property
    def instances(self) -> list[Any]:
        """The input of a device for each row, as JSON values; a missing value is None."""
        rows = self.X.astype(np.float64).tolist() if self.raw_rows is None else self.raw_rows
        return [_to_json_value(row) for row in rows]

    @classmethod
    def from_arrays(cls, name: str, X: ArrayLike, y: ArrayLike | None, manifest: Manifest) -> Rows:
        """Convert rows `X`, shape (n, n_features), and original labels `y`, shape (n,).

        Named columns of a DataFrame are selected by name, and encoded if the bundle has encoders.
        Rows may also be arrays or windows of the bundle's instance shape.
        """
        if manifest.answers_values:
            raise InputError(
                f"{manifest.title} answers with values instead of classes and uses no cloud, so it "
                "cannot be simulated"
            )
        matrix, raw_rows = _make_feature_matrix(X, manifest)
        with np.errstate(over="ignore"):
            rows = np.ascontiguousarray(matrix, np.float32)
        if y is None:
            return cls(name, rows, None, raw_rows=raw_rows)
        # labels become class indices; a note counts the unknown ones
        labels = np.asarray(y)
        if labels.shape != (len(matrix),):
            raise InputError(
                f"{len(matrix)} rows with labels of shape {labels.shape}: give one label per row"
            )
        truth = class_indices(labels.tolist(), manifest.classes)
        unknown_rows = np.flatnonzero(truth == UNKNOWN_CLASS)
        notes: tuple[str, ...] = ()
        if len(unknown_rows):
            unknown_label = labels[unknown_rows[0]]
            if len(unknown_rows) == len(truth):
                raise InputError(
                    f"no label of {name} is a class of the bundle: {unknown_label!s} is not one of "
                    f"{', '.join(map(str, manifest.classes[:8]))}"
                )
            notes = (
                f"{len(unknown_rows):,} of {len(truth):,} rows have a label that is no class of "
                f"the bundle, such as {unknown_label!s}. Every answer to these rows counts as "
                "wrong.",
            )
        return cls(name, rows, truth, notes, raw_rows)

    @classmethod
    def load(cls, source: str, manifest: Manifest, *, target: str | None = None) -> Rows:
        """Read a file, or a data set of scikit-learn by name."""
        path = Path(source)
        suffix = path.suffix.lower()
        if suffix == ".csv":
            return _read_csv(path, manifest, target)
        from gatewise_training.data import datasets  # slow: it imports scikit-learn

        if source in datasets.bundled_names():
            if target is not None:
                raise InputError(f"the data set {source} has its labels: omit --target")
            data_set = datasets.load(source)
            X = data_set.columns(manifest.feature_names, source)
            return cls.from_arrays(source, X, data_set.y, manifest)
        if suffix == ".parquet" or manifest.encoder is not None:
            X, y = datasets.read_rows(path, manifest.column_names, manifest.encoder, target=target)
            return cls.from_arrays(path.stem, X, y, manifest)
        if suffix in (".npz", ".npy"):
            return _read_arrays(path, manifest, target)
        raise InputError(
            f"{source}: give a .csv, .parquet, .npz (arrays X and y) or .npy file, or one of "
            f"{', '.join(datasets.bundled_names())}"
        )


def _make_feature_matrix(X: ArrayLike, manifest: Manifest) -> tuple[NDArray[Any], Any]:
    """Convert rows to numbers of shape (n, n_features).

    Also returns the raw rows or windows, or None if the rows are features already. Raises
    InputError if the rows do not fit the bundle.
    """
    frame: Any = as_pandas(X)
    raw_rows: Any = None
    # The order matters: encoders read columns by name, and only they make the features that the
    # second step selects by name. An array has no names.
    # raw columns become features
    if manifest.encoder is not None and hasattr(frame, "columns"):
        from gatewise_training.data.table_encoder import encode_table

        raw_rows = _take_raw_rows(frame, manifest)
        frame = encode_table(manifest.encoder, frame)
    column_names = getattr(frame, "columns", ())
    if any(isinstance(name, str) for name in column_names):
        for name in manifest.feature_names:
            if name not in column_names:
                raise InputError(f"the rows have no feature {name!r}, which the bundle needs")
        frame = frame[list(manifest.feature_names)]
    matrix = np.asarray(frame)
    # windows and arrays become rows
    if manifest.signal is not None and matrix.shape[1:] == manifest.signal.shape:
        raw_rows = matrix.tolist()
        matrix = manifest.signal.features(matrix)
    if manifest.instance is not None and matrix.shape[1:] == manifest.instance.shape:
        matrix = matrix.reshape(len(matrix), -1)
    if manifest.signal is not None and matrix.ndim > 2:
        raise InputError(
            f"windows of shape {matrix.shape[1:]}; the bundle has {manifest.signal.shape}"
        )
    # errors for rows that do not fit the bundle
    n_features = len(manifest.features)
    advice = "" if manifest.encoder is None else "; give raw columns in a DataFrame"
    if matrix.ndim != 2 or not len(matrix) or matrix.shape[1] != n_features:
        raise InputError(
            f"rows of shape {matrix.shape}; the bundle has {n_features} features, and at least "
            f"one row is needed{advice}"
        )
    if matrix.dtype.kind not in "biuf":
        raise InputError(f"rows of type {matrix.dtype} are not numbers{advice}")
    return matrix, raw_rows


def _take_raw_rows(frame: Any, manifest: Manifest) -> list[list[Any]] | None:
    """Take the raw columns of a DataFrame in the bundle's order; None if a column is absent."""
    if not set(manifest.column_names) <= set(frame.columns):
        return None
    return [list(row) for row in frame[list(manifest.column_names)].itertuples(index=False)]


def _to_json_value(nested_values: Any) -> Any:
    """Convert nested values to JSON values: NaN to None, numpy scalars to numbers of Python."""
    if isinstance(nested_values, list | tuple):
        return [_to_json_value(value) for value in nested_values]
    value = nested_values.item() if isinstance(nested_values, np.generic) else nested_values
    return None if isinstance(value, float) and math.isnan(value) else value


def _choose_target(path: Path, other_columns: Sequence[str], target: str | None) -> str | None:
    if target is not None:
        if target not in other_columns:
            present_text = ", ".join(other_columns) or "none"
            raise InputError(
                f"{path} has no column {target!r} besides the bundle's features; it has "
                f"{present_text}"
            )
        return target
    usual_columns = [name for name in other_columns if name.lower() in _USUAL_TARGETS]
    return usual_columns[0] if len(usual_columns) == 1 else None


def _read_csv(path: Path, manifest: Manifest, target: str | None) -> Rows:
    """Read a CSV file as devices do; an encoder encodes its cells."""
    encoder = manifest.encoder
    column_names = manifest.column_names
    _, header = next(csv_rows(path))
    target_column = _choose_target(
        path, [name for name in header if name not in column_names], target
    )
    table = read_table(
        path, column_names, encoder, kept_columns=[] if target_column is None else [target_column]
    )
    labels = None
    if target_column is not None:
        labels = np.array([cells[target_column] for cells in table.kept_cells])
        for line, label in zip(table.line_numbers, labels, strict=True):
            if not label:
                raise InputError(
                    f"{path}, line {line}: the label {target_column!r} is missing; fill it in, or "
                    "remove the column"
                )
    if encoder is None:
        return Rows.from_arrays(path.stem, table.rows, labels, manifest)
    cells = [*table.rows]
    rows = Rows.from_arrays(path.stem, encoder.rows(cells), labels, manifest)
    return replace(rows, raw_rows=cells)


def _read_arrays(path: Path, manifest: Manifest, target: str | None) -> Rows:
    """Read an .npz file, or an .npy file, which has no labels."""
    if not path.is_file():
        raise InputError(f"{path} does not exist")
    if path.suffix.lower() == ".npy" or manifest.signal is not None:
        if target is None:
            target = next((name for name in _USUAL_TARGETS if name in arrays_of(path)), None)
        instances, y = load_instances(path, target)
        return Rows.from_arrays(path.stem, instances, y, manifest)
    from gatewise_training.data import datasets

    data_set = datasets.load(path)
    X = data_set.columns(manifest.feature_names, path)
    y = data_set.y if target is None else load_instances(path, target)[1]
    test_rows = data_set.parts.get("test")
    if test_rows is not None:
        X = X[test_rows]
        y = y[test_rows]
    rows = Rows.from_arrays(path.stem, X, y, manifest)
    if test_rows is None:
        return rows
    note = f"The rows are the test part of {path.stem}."
    return replace(rows, notes=(note, *rows.notes))
