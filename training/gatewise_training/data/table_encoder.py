"""Encoder of raw tables as a transformer of scikit-learn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from gatewise.columns.cells import is_missing
from gatewise.columns.encoders import RowEncoder
from gatewise.columns.kinds import KINDS, Column, LearningOptions, NumberColumn, read_kind
from gatewise.costs import CostsLike, FeatureCosts
from gatewise.errors import InputError
from gatewise.prices import PriceList
from gatewise_training.data.frames import as_pandas, cells_of, table_of
from gatewise_training.data.input_checks import check_costs
from gatewise_training.data.table_columns import (
    ColumnOptions,
    column_facts,
    numeric_values,
)
from gatewise_training.data.table_problems import column_problems, problem_text

if TYPE_CHECKING:
    from pandas import DataFrame, Series

    from gatewise.columns.kinds import AnyColumn


@dataclass(eq=False, repr=False, kw_only=True)
class TableEncoder(TransformerMixin, BaseEstimator):
    """Encode the columns of a table: numbers, booleans, categories, dates, missing cells.

    Columns of numbers and booleans are recognised automatically. Any other column needs a kind;
    :meth:`fit` lists all columns without one. A bundle can contain the fitted encoder
    (``gw.pack(system, ..., encoder=encoder)``). A device then encodes raw rows to the same bits.

    Parameters
    ----------
    columns : mapping of str to str, optional
        Kinds of columns by name. ``"category"`` gives one feature per category or, with more than
        12 categories, one feature with the index. ``"ordinal"`` gives one feature with the index of
        the category. ``"boolean"`` reads words such as y, n, 0 and 1. ``"time"`` reads
        dates in ISO 8601, ``"time:unix"`` seconds, and ``"time:%d.%m.%Y %H:%M"`` a format of
        strptime. ``"drop"`` gives no feature. An unknown category is encoded as all 0, or as the
        index -1.
    impute : bool, default False
        Whether missing cells are filled in columns that have some in the rows of :meth:`fit`.
        Numbers and dates get the median, and booleans the most frequent value. An additional
        feature marks the filled cells. Other missing cells become NaN, for estimators with
        ``allow_missing=True``. A missing category is a separate category.
    missing_words : sequence of str, default ()
        Texts of a missing cell, in addition to ``NA``, ``NaN``, ``null``, ``?`` and others.

    Attributes
    ----------
    encoder_ : RowEncoder
        The learned columns and their features.

    Examples
    --------
    >>> import pandas as pd
    >>> frame = pd.DataFrame({"supplier": ["ACME", "Bolt", None], "mass": ["1.5", "2", "3"]})
    >>> encoder = TableEncoder(columns={"supplier": "category"}).fit(frame)
    >>> encoder.transform(frame).iloc[1].to_dict()
    {'supplier=ACME': 0.0, 'supplier=Bolt': 1.0, 'supplier_missing': 0.0, 'mass': 2.0}
    >>> encoder.feature_costs({"supplier": 5.0, "mass": 1.0}).total
    6.0
    """

    columns: Mapping[str, str] | None = None
    impute: bool = False
    missing_words: Sequence[str] = ()
    encoder_: RowEncoder = field(init=False)

    @classmethod
    def from_options(cls, options: ColumnOptions) -> TableEncoder:
        """Make an encoder from the options of a command.

        Parameters
        ----------
        options : ColumnOptions

        Returns
        -------
        TableEncoder
        """
        return cls(
            columns=options.kinds, impute=options.impute, missing_words=options.missing_words
        )

    def fit(self, X: DataFrame, y: Any = None) -> Self:
        """Learn categories, medians and the parts of dates that vary.

        Parameters
        ----------
        X : DataFrame
        y : ignored

        Returns
        -------
        self

        Raises
        ------
        InputError
            If columns cannot be used. The message names all of them, with a remedy for each.
        """
        return self._learn(table_of(X), frozenset())

    def _learn(self, frame: DataFrame, columns_with_gaps: Set[str]) -> Self:
        """Learn from training rows.

        `columns_with_gaps` have missing cells in any row of the table.
        """
        options = ColumnOptions(
            kinds={} if self.columns is None else self.columns,
            impute=self.impute,
            allow_missing=True,
            missing_words=tuple(self.missing_words),
        )
        if problems := column_problems(frame, options):
            raise InputError(problem_text(problems, style="python"))
        columns = [
            self._learn_column(
                str(name), frame[name], options, has_gaps=str(name) in columns_with_gaps
            )
            for name in frame.columns
            if str(name) not in options.dropped
        ]
        if not columns:
            raise InputError("no column is left to learn from: drop fewer")
        encoder = RowEncoder(
            cast("tuple[AnyColumn, ...]", tuple(columns)), options.normalised_missing_words
        )
        doubled_names = [
            name for name, n_columns in Counter(encoder.feature_names).items() if n_columns > 1
        ]
        if doubled_names:
            raise InputError(f"two columns make a feature {doubled_names[0]!r}: rename one of them")
        self.encoder_ = encoder
        self.feature_names_in_ = np.array(
            [str(column_name) for column_name in frame.columns], object
        )
        self.n_features_in_ = len(frame.columns)
        return self

    def _learn_column(
        self, name: str, cells: Series, options: ColumnOptions, *, has_gaps: bool
    ) -> Column:
        """Learn a column; `has_gaps` says whether rows outside `cells` have missing cells."""
        kind_text = (
            options.kinds.get(name) or column_facts(cells, options.normalised_missing_words).kind
        )
        kind, kind_format = read_kind(kind_text)
        present_cells = [
            cell
            for cell in cells_of(cells)
            if not is_missing(cell, options.normalised_missing_words)
        ]
        has_missing = len(present_cells) < len(cells)
        learning_options = LearningOptions(
            format=kind_format,
            has_missing=has_missing,
            fill_missing=self.impute and (has_missing or has_gaps),
        )
        return KINDS[kind].learn(name, present_cells, learning_options)

    def transform(self, X: DataFrame) -> DataFrame:
        """Encode rows as numbers.

        Parameters
        ----------
        X : DataFrame
            Table with the columns of :meth:`fit` in any order; other columns are ignored.

        Returns
        -------
        DataFrame of float32, shape (n, n_features_out)

        Raises
        ------
        InputError
            If a column is missing, or a cell is not of its column's kind.
        """
        import pandas as pd

        check_is_fitted(self, "encoder_")
        encoded_rows = encode_frame(self.encoder_, X)
        index = getattr(X, "index", None)
        return pd.DataFrame(encoded_rows, columns=list(self.encoder_.feature_names), index=index)

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """Get the names of the features.

        Parameters
        ----------
        input_features : ignored

        Returns
        -------
        ndarray of object, shape (n_features_out,)
        """
        check_is_fitted(self, "encoder_")
        return np.array(self.encoder_.feature_names, object)

    def feature_costs(
        self, prices: CostsLike | PriceList | None = None, *, default: float | None = None
    ) -> FeatureCosts:
        """Make feature costs from prices of columns; the features of a column share one price.

        Parameters
        ----------
        prices : FeatureCosts, dict or Series by column, list, or PriceList, optional
            By default 1 per column. Prices of columns that the encoder drops are ignored.
        default : float, optional
            Price of columns that `prices` does not name.

        Returns
        -------
        FeatureCosts

        Raises
        ------
        InputError
            If a column has no price.
        """
        check_is_fitted(self, "encoder_")
        column_costs = self._column_costs(prices, default)
        # each column's price becomes the shared price of its features
        own_prices = []
        groups = []
        shared = dict(zip(column_costs.group_names, column_costs.shared.tolist(), strict=True))
        requires: dict[str, tuple[str, ...]] = column_costs.prerequisites
        for column_index, column in enumerate(self.encoder_.columns):
            n_features = len(column.features)
            price = float(column_costs.own[column_index])
            group_name = column_costs.group_of_feature[column_index]
            if n_features > 1 and (group_name is None or price):
                # a group of the column's features: the first one acquired pays the price
                own_group = column.name if column.name not in shared else f"column {column.name}"
                if group_name is not None:
                    requires[own_group] = (group_name,)
                group_name = own_group
                shared[own_group] = price
                price = 0.0
            own_prices += [price] * n_features
            groups += [group_name] * n_features
        return FeatureCosts(
            own_prices,
            group=groups,
            shared=shared,
            requires=requires,
            names=self.encoder_.feature_names,
        )

    def _column_costs(
        self, prices: CostsLike | PriceList | None, default: float | None
    ) -> FeatureCosts:
        """Get the prices of the columns that are not dropped."""
        names = self.encoder_.names
        if prices is None:
            return FeatureCosts([1.0 if default is None else default] * len(names), names=names)
        if isinstance(prices, PriceList):
            return FeatureCosts.from_prices(prices, names=names, default=default)
        if isinstance(prices, Mapping) or hasattr(prices, "items"):  # a dict or Series
            dropped_names = set(self.feature_names_in_) - set(names)
            prices = {name: price for name, price in prices.items() if name not in dropped_names}
            if default is not None:
                prices = dict.fromkeys(names, default) | prices
        return check_costs(prices, names, has_names=True)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "encoder_")


def encode_frame(encoder: RowEncoder, frame: Any) -> NDArray[np.float32]:
    """Encode the rows of a DataFrame as a device does: float32, shape (n, n_features)."""
    frame = table_of(frame)
    missing_names = [name for name in encoder.names if name not in frame.columns]
    if missing_names:
        raise InputError(
            f"the table has no column {', '.join(map(repr, missing_names[:8]))}, which is a feature"
        )
    x = np.empty((len(frame), encoder.first_features[-1]), np.float32)
    with np.errstate(over="ignore"):  # values too large for float32 are refused later
        for column_index, name in enumerate(encoder.names):
            start, stop = encoder.first_features[column_index : column_index + 2]
            numbers = (
                numeric_values(frame[name])
                if isinstance(encoder.columns[column_index], NumberColumn)
                else None
            )
            if numbers is None or frame[name].dtype.kind == "b":
                x[:, start:stop] = _encode_cells(encoder, column_index, cells_of(frame[name]))
            else:
                x[:, start] = numbers
                x[:, start + 1 : stop] = 0.0
                x[np.isnan(numbers), start:stop] = encoder.cell(column_index, None)
    return x


def encode_table(encoder: RowEncoder, rows: Any) -> Any:
    """Encode a DataFrame of raw columns; return rows of features unchanged.

    A table of features has the features of the encoder as columns. If these have the same names as
    the raw columns, a table of floats is a table of features. Raises InputError if a column is
    missing.
    """
    rows = as_pandas(rows)
    columns = [str(name) for name in getattr(rows, "columns", ())]
    is_raw = set(encoder.names) <= set(columns)
    if is_raw and columns == list(encoder.feature_names):
        is_raw = any(
            rows.iloc[:, column_index].dtype.kind != "f" for column_index in range(len(columns))
        )
    if not columns or (set(encoder.feature_names) <= set(columns) and not is_raw):
        return rows
    return encode_frame(encoder, rows)


def _encode_cells(encoder: RowEncoder, column_index: int, cells: list[Any]) -> NDArray[np.float64]:
    """Encode the cells of a column, each distinct cell once."""
    code_of_cell: dict[Any, int] = {}
    encodings: list[tuple[float, ...]] = []
    code_of_row = np.empty(len(cells), np.intp)
    for row, cell in enumerate(cells):
        # cells that are equal, but have other encodings: 0.0 and -0.0, one instant in two time
        # zones, decimal numbers with another number of digits
        mark: Any = None
        if isinstance(cell, float | np.floating):
            mark = bool(np.signbit(cell))
        elif isinstance(cell, datetime | Decimal):
            mark = str(cell)
        key = (type(cell), cell, mark)
        if key not in code_of_cell:
            code_of_cell[key] = len(encodings)
            encodings.append(encoder.cell(column_index, cell))
        code_of_row[row] = code_of_cell[key]
    n_features = len(encoder.columns[column_index].features)
    return np.array(encodings, np.float64).reshape(-1, n_features)[code_of_row]
