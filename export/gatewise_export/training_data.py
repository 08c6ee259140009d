"""Load the data set of a training run and split it into training, validation and test rows."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from gatewise.columns.cells import ISO, UNIX, is_missing, read_number, read_time
from gatewise.columns.kinds import DROP
from gatewise.costs import FeatureCosts
from gatewise.errors import InputError
from gatewise.prices import PriceList
from gatewise_export.training_settings import TrainingSettings
from gatewise_training.data import datasets
from gatewise_training.data.datasets import Dataset
from gatewise_training.data.input_checks import check_classes
from gatewise_training.data.row_splitter import RowSplitter

if TYPE_CHECKING:
    import pandas as pd

Rows = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Split:
    """Indices of training, validation and test rows; validation may be empty."""

    training: Rows
    validation: Rows
    test: Rows


def load_dataset(settings: TrainingSettings) -> Dataset:
    """Load and check the data set and the prices that `settings` names."""
    prices = None if settings.costs is None else PriceList.read(settings.costs)
    path = Path(settings.dataset)
    if path.suffix.lower() in (".csv", ".parquet") and path.is_file():
        return _load_table(path, settings, prices)
    if settings.column or settings.drop or settings.impute or settings.na:
        raise InputError(
            f"{settings.dataset}: --column, --drop, --impute and --na need a .csv or .parquet file"
        )
    dataset = datasets.load(settings.dataset, target=settings.target)
    _check_labels(dataset.y, settings)
    for option, name in settings.split_columns.items():
        if name not in dataset.row_arrays:
            names = ", ".join(dataset.row_arrays) or "none"
            raise InputError(
                f"{option} {name}: {settings.dataset} has no array {name!r} with one value per "
                f"row; its arrays are {names}"
            )
    dataset = _RowKeys.read(dataset.row_arrays, settings).add_to(dataset)
    n_missing = np.isnan(dataset.X).sum(axis=0)
    if n_missing.any() and not settings.allow_missing:
        column = int(n_missing.argmax())
        raise InputError(
            f"column {dataset.feature_names[column]!r} is empty (NaN) in {n_missing[column]} rows: "
            "fill in the values, or give --allow-missing"
        )
    return _with_prices(dataset, prices)


def _load_table(path: Path, settings: TrainingSettings, prices: PriceList | None) -> Dataset:
    """Load a table, and encode its columns as the training rows determine."""
    options = settings.columns
    kinds = dict(options.kinds) | dict.fromkeys(settings.split_columns.values(), DROP)
    options = replace(options, kinds=kinds)
    if prices is not None:
        options = options.with_prices(prices)
        dropped_prices = {
            name: structs.replace(column_price, kind=DROP)
            for name, column_price in prices.features.items()
            if name in options.dropped
        }
        prices = replace(prices, features={**prices.features, **dropped_prices})
    table = datasets.read_table(path, target=settings.target, options=options)
    _check_labels(table.y, settings)
    table.check()
    split_cells = {name: table.frame[name].to_numpy() for name in settings.split_columns.values()}
    # split the rows first, because encoders may learn only from training rows
    row_keys = _RowKeys.read(split_cells, settings)
    if table.is_numeric:
        return _with_prices(row_keys.add_to(table.as_numbers()), prices)
    if prices is not None:  # refuse columns without a price before fitting encoders
        prices.for_columns(table.used_columns.columns)
    training = _split(table.y, {}, settings, row_keys).training
    dataset = row_keys.add_to(table.encoded(training))
    return _with_prices(dataset, prices)


@dataclass(frozen=True, eq=False)
class _RowKeys:
    """Group and time of each row, if rows are split by them."""

    groups: NDArray[Any] | None = None
    time: NDArray[Any] | None = None

    @classmethod
    def read(cls, cells: Mapping[str, NDArray[Any]], settings: TrainingSettings) -> _RowKeys:
        """Read groups and times from columns; raise InputError for an empty or invalid cell."""
        missing_words = settings.columns.normalised_missing_words
        groups = None
        time = None
        for option, column in settings.split_columns.items():
            empty_rows = [
                row
                for row, cell in enumerate(cells[column].tolist())
                if is_missing(cell, missing_words)
            ]
            if empty_rows:
                raise InputError(
                    f"{option} {column}: row {empty_rows[0] + 1} has no value "
                    f"({len(empty_rows)} rows in all)"
                )
        if settings.groups is not None:
            groups = np.array([str(cell).strip() for cell in cells[settings.groups].tolist()])
        if settings.time_split is not None:
            column, time_format = settings.split_time
            time = _read_times(cells[column].tolist(), column, time_format)
        return cls(groups, time)

    def add_to(self, dataset: Dataset) -> Dataset:
        """Return the data set with these groups and times."""
        return replace(dataset, groups=self.groups, time=self.time)


def _read_times(cells: list[Any], column: str, time_format: str) -> NDArray[Any]:
    """Read cells as dates in the given format; without one, as numbers if all cells are numbers."""
    if time_format in (ISO, UNIX):
        with contextlib.suppress(InputError):
            return np.array([read_number(cell) for cell in cells])
    try:
        return np.array([read_time(cell, time_format) for cell in cells], object)
    except InputError as error:
        raise InputError(
            f"--time-split {column}: {error}; give the format of the dates as NAME=FORMAT"
        ) from None


def _check_labels(y: NDArray[Any], settings: TrainingSettings) -> None:
    """Check that labels are classes; raise InputError with the name of the data set."""
    try:
        check_classes(y)
    except InputError as error:
        raise InputError(f"{settings.dataset}: {error}") from None


def _with_prices(dataset: Dataset, prices: PriceList | None) -> Dataset:
    if prices is None:
        return dataset
    if dataset.encoder is not None:
        return replace(dataset, feature_costs=dataset.encoder.feature_costs(prices))
    costs = FeatureCosts.from_prices(prices, names=dataset.feature_names)
    return replace(dataset, feature_costs=costs)


def split_rows(dataset: Dataset, settings: TrainingSettings) -> Split:
    """Use the data set's split, or hold out rows: whole groups, the latest, or by class."""
    split = _split(dataset.y, dataset.parts, settings, _RowKeys(dataset.groups, dataset.time))
    if settings.test_rows is None:
        return split
    if not 1 <= settings.test_rows <= len(split.test):
        raise InputError(
            f"test_rows is {settings.test_rows}, but only {len(split.test)} rows are held out"
        )
    return Split(split.training, split.validation, split.test[: settings.test_rows])


def _split(
    y: NDArray[Any], parts: Mapping[str, Rows], settings: TrainingSettings, row_keys: _RowKeys
) -> Split:
    """Use the split of the data set, or hold out test rows by groups, by time or at random."""
    from sklearn.model_selection import train_test_split

    no_rows = np.zeros(0, np.intp)  # the method draws its own validation rows
    if "train" in parts and "test" in parts:
        split = Split(parts["train"], parts.get("validation", no_rows), parts["test"])
        _check_split_of_data(split, settings, row_keys)
        return split
    if not 0 < settings.test_size < 1:
        raise InputError(f"test_size must be between 0 and 1, not {settings.test_size}")
    # each class needs a training row and a test row
    classes, counts = np.unique(y, return_counts=True)
    if len(classes) < 2:
        only_class = classes.tolist()[0]
        raise InputError(f"{settings.dataset} has only one class, {only_class!r}; two are needed")
    if counts.min() < 2:
        rare_class = classes.tolist()[int(counts.argmin())]
        raise InputError(f"class {rare_class!r} has only one row: add rows of it, or remove it")
    # hold out whole groups or the latest rows; otherwise, random rows of each class
    if row_keys.groups is not None or row_keys.time is not None:
        splitter = RowSplitter.from_arrays(len(y), row_keys.groups, row_keys.time)
        class_indices = np.unique(y, return_inverse=True)[1]
        return Split(*_hold_out_groups_or_latest(splitter, class_indices, settings))
    try:
        training_rows, test_rows = train_test_split(
            np.arange(len(y)), test_size=settings.test_size, random_state=settings.seed, stratify=y
        )
    except ValueError as error:
        raise InputError(f"test_size {settings.test_size}: {error}") from error
    # A fit needs two training rows of each class. Move them from the test rows for classes with so
    # few rows that the rounded share of training rows may be below two.
    for class_index in np.flatnonzero(counts < 2 / (1 - settings.test_size) + 1):
        is_class = y[test_rows] == classes[class_index]
        n_short = 2 - int(np.sum(y[training_rows] == classes[class_index]))
        moved_rows = test_rows[is_class][: max(n_short, 0)]
        training_rows = np.concatenate([training_rows, moved_rows])
        test_rows = np.setdiff1d(test_rows, moved_rows)
    return Split(np.sort(training_rows), no_rows, np.sort(test_rows))


def _check_split_of_data(split: Split, settings: TrainingSettings, row_keys: _RowKeys) -> None:
    """Check that a data set's split has rows, divides no group and is ordered by time."""
    for part_name, rows in (("training", split.training), ("test", split.test)):
        if not len(rows):
            raise InputError(f"{settings.dataset}: the array 'part' marks no {part_name} rows")
    row_sets = [rows for rows in (split.training, split.validation, split.test) if len(rows)]
    splitter = RowSplitter.from_arrays(sum(map(len, row_sets)), row_keys.groups, row_keys.time)
    problems = {}
    if (groups := splitter.groups) is not None and any(
        np.isin(groups[rows], groups[other_rows]).any()
        for rows, other_rows in combinations(row_sets, 2)
    ):
        problems["--groups"] = "has rows of one group in two parts"
    if (time := splitter.time) is not None and len(split.validation):
        problems["--time-split"] = "already has validation rows"
    elif time is not None and time[split.training].max() >= time[split.test].min():
        problems["--time-split"] = "has training rows that are later than test rows"
    for option, problem in problems.items():
        column = settings.split_columns[option]
        raise InputError(
            f"{option} {column}: the split of {settings.dataset}, its array 'part', {problem}: "
            "leave out the option or the array"
        )


def _hold_out_groups_or_latest(
    splitter: RowSplitter, y: NDArray[np.int64], settings: TrainingSettings
) -> tuple[Rows, Rows, Rows]:
    """Hold out the latest rows if rows have times, or else whole groups."""
    test_share = settings.test_size
    if splitter.time is None:
        test_rows = _whole_groups(splitter, y, test_share, settings.seed)
        training_rows = np.setdiff1d(np.arange(splitter.n_rows), test_rows)
    else:
        n_training = round((1 - test_share) * splitter.n_rows)
        training_rows, test_rows = (
            np.sort(rows_of_part)
            for rows_of_part in splitter.cut(splitter.order(None), n_training, splitter.n_rows)
        )
    return training_rows, np.zeros(0, np.intp), test_rows


def _whole_groups(
    splitter: RowSplitter, y: NDArray[np.int64], test_share: float, seed: int
) -> Rows:
    """Hold out one or more folds of whole groups, with about a `test_share` of the rows.

    Every class keeps training rows if any fold allows it.
    """

    def n_classes(held_out_rows: Rows) -> int:
        """Count the classes among the remaining training rows."""
        return len(np.unique(np.delete(y, held_out_rows)))

    # use few large folds, which have similar class shares, such as 2 of 5 for a share of 0.4
    n_folds = Fraction(test_share).limit_denominator(20).denominator
    n_folds = max(n_folds, round(1 / min(test_share, 1 - test_share)))
    folds = [fold for _, fold in splitter.folds(y, n_folds, seed)]
    np.random.default_rng(seed).shuffle(folds)  # the largest groups are in the first folds
    first_fold, *other_folds = sorted(folds, key=n_classes, reverse=True)
    test_rows = first_fold
    for fold in other_folds:
        larger_test_rows = np.concatenate([test_rows, fold])
        n_test_rows = test_share * splitter.n_rows
        is_nearer = abs(len(larger_test_rows) - n_test_rows) < abs(len(test_rows) - n_test_rows)
        if is_nearer and n_classes(larger_test_rows) == n_classes(first_fold):
            test_rows = larger_test_rows
    return np.sort(test_rows)


def feature_table(dataset: Dataset, rows: Rows) -> pd.DataFrame:
    """Make a data frame of rows with the features' names."""
    import pandas as pd

    return pd.DataFrame(dataset.X[rows], columns=list(dataset.feature_names))
