"""Conversion of tables of other libraries to pandas DataFrames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pandas import DataFrame, Series


def as_pandas(table: Any) -> Any:
    """Convert a table of polars, Arrow or another eager library to a pandas DataFrame.

    Numbers without gaps keep their dtype, integers and booleans with gaps become nullable, and
    other columns hold Python objects. Any other object is returned unchanged.
    """
    if isinstance(table, np.ndarray | list | tuple):
        return table
    import pandas as pd

    if isinstance(table, pd.DataFrame):
        return table
    import narwhals.stable.v1 as nw

    frame = nw.from_native(table, eager_only=True, pass_through=True)
    if not isinstance(frame, nw.DataFrame):
        return table
    return pd.DataFrame({name: _convert_to_pandas(frame[name]) for name in frame.columns})


def _convert_to_pandas(column: Any) -> Series[Any]:
    """Convert a column of another library; :func:`as_pandas` states the types."""
    import narwhals.stable.v1 as nw
    import pandas as pd

    dtype = column.dtype
    is_boolean = dtype == nw.Boolean
    has_gaps = column.null_count() > 0
    if dtype.is_float() or ((dtype.is_integer() or is_boolean) and not has_gaps):
        return pd.Series(column.to_numpy())
    cells = column.to_list()
    if dtype.is_integer():
        return pd.Series(cells, dtype="Int64")
    if is_boolean:
        return pd.Series(cells, dtype="boolean")
    return pd.Series(cells)


def table_of(table: Any) -> DataFrame:
    """Get a table with named columns as a pandas DataFrame.

    Raises
    ------
    InputError
        If `table` is not a table, or if two columns have the same name.
    """
    import pandas as pd

    from gatewise.errors import InputError

    frame = as_pandas(table)
    if not isinstance(frame, pd.DataFrame):
        type_name = type(table).__name__
        raise InputError(
            f"give a DataFrame (pandas, polars, Arrow) with named columns, not {type_name}"
        )
    if not frame.columns.is_unique:
        raise InputError(
            f"column {frame.columns[frame.columns.duplicated()][0]!r} occurs twice: rename one"
        )
    return frame.rename(columns=str)


def cells_of(column: Series[Any]) -> list[Any]:
    """List the cells of a column; single-precision numbers keep their type and digits."""
    is_single = str(column.dtype).lower() in ("float16", "float32", "float[pyarrow]")
    return list(column.to_numpy()) if is_single else column.tolist()
