"""Test that encoders treat cells from CSV, JSON, Parquet, pandas and polars equally."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from gatewise.columns import kinds
from gatewise.columns.cells import is_missing
from gatewise_training import TableEncoder
from gatewise_training.data.datasets import read_rows
from gatewise_training.data.frames import cells_of
from gatewise_training.data.table_columns import ColumnOptions
from gatewise_training.data.table_files import read_frame

try:
    import polars as pl
except ImportError:
    pl = None

INTEGERS = st.integers(-(10**6), 10**6)
NUMBERS = st.floats(-1e6, 1e6, width=64).map(lambda value: round(value, 4))
DAYS = st.dates(datetime.date(1900, 1, 1), datetime.date(2100, 1, 1))
TIMES = st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2100, 1, 1)).map(
    lambda value: value.replace(microsecond=0)
)
WORDS = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), max_size=12)

#: Strategy for the cells of a column, its numpy or pandas dtype, and the kinds that are tested.
#: Each column is also tested as categories, because the text of a cell, such as 7 or 7.0, may
#: differ between sources.
CELLS_OF_COLUMNS: dict[str, tuple[st.SearchStrategy[Any], Any, tuple[str, ...]]] = {
    "whole numbers": (INTEGERS, "int64", ("number", "category", "ordinal")),
    "whole numbers with gaps": (INTEGERS | st.none(), "Int64", ("number", "category")),
    "whole floats": (INTEGERS.map(float), "float64", ("number", "category", "ordinal")),
    "whole floats with gaps": (INTEGERS.map(float) | st.none(), "float64", ("category",)),
    "numbers": (NUMBERS, "float64", ("number", "category")),
    "single precision": (NUMBERS, "float32", ("category",)),
    "large and small": (st.sampled_from([1e20, -0.0, 1e-9, 1e16, 5e15]), "float64", ("category",)),
    "flags": (st.booleans(), "bool", ("boolean", "category")),
    "flags with gaps": (st.booleans() | st.none(), "boolean", ("boolean", "category")),
    "words": (WORDS, "object", ("category", "ordinal")),
    "codes": (st.sampled_from(["007", "7", "7.0", "True", "TRUE", "NA"]), "object", ("category",)),
    "dates": (DAYS.map(pd.Timestamp), "datetime64[ns]", ("time", "category")),
    "dates and times": (TIMES.map(pd.Timestamp), "datetime64[ns]", ("time", "category")),
    "decimals": (st.decimals(-9999, 9999, places=2), "object", ("number", "category")),
    "pandas categories": (st.sampled_from(["pale", "deep", None]), "category", ("category",)),
}  # fmt: skip


def pass_through_source(source: str, frame: pd.DataFrame, folder: Path, kind: str) -> Any:
    """Convert the frame to a table of a library, or write it to a file and read it.

    `kind` is the kind of the column "cell".
    """
    if source == "pandas":
        return frame
    if source == "polars":
        cells = frame["cell"].astype(object).where(frame["cell"].notna(), None).to_list()
        is_decimal = any(isinstance(cell, Decimal) for cell in cells)
        dtype = pl.Float32 if str(frame["cell"].dtype) == "float32" else None
        column = pl.Series("cell", cells, dtype=pl.Decimal(12, 2) if is_decimal else dtype)
        return pl.DataFrame({"cell": column, "number": frame["number"].to_list()})
    path = folder / f"t.{source}"
    if source == "csv":
        frame.to_csv(path, index=False)
    else:
        frame.to_parquet(path)
    options = ColumnOptions(kinds={"cell": kind})
    return read_frame(path, options, lambda columns: None)[0]  # without a check of the columns


def convert_to_json(cell: Any) -> Any:
    """Convert a cell to a JSON value."""
    if pd.isna(cell):
        return None
    if isinstance(cell, Decimal):
        return str(cell)
    if isinstance(cell, datetime.date):
        return cell.isoformat()
    if isinstance(cell, np.floating):
        return float(str(cell))  # the decimal number that a CSV file has for this float32
    return cell.item() if hasattr(cell, "item") else cell


#: Sources of tables. Skipped tests of test_frames.py show if polars is missing.
TABLE_SOURCES = (
    ("pandas", "csv", "parquet") if pl is None else ("pandas", "polars", "csv", "parquet")
)


@st.composite
def draw_frames(draw: st.DrawFn, column_name: str) -> tuple[pd.DataFrame, str]:
    """Draw a table with the column "cell" and a column of numbers, and the kind of "cell"."""
    strategy, dtype, kinds = CELLS_OF_COLUMNS[column_name]
    kind = draw(st.sampled_from(kinds))
    cells = draw(st.lists(strategy, min_size=4, max_size=8))
    assume(not all(map(is_missing, cells)))
    columns = {"cell": pd.Series(cells).astype(dtype), "number": np.arange(len(cells)) / 2}
    return pd.DataFrame(columns), kind


def fit_encoder(table: Any, kind: str) -> TableEncoder:
    """Fit an encoder; with more than four categories a column is not one-hot."""
    with mock.patch.object(kinds, "MAX_ONE_HOT", 4):
        return TableEncoder(columns={"cell": kind}, impute=True).fit(table)


@pytest.mark.slow
@pytest.mark.parametrize("column_name", CELLS_OF_COLUMNS)
@settings(
    # the examples share `tmp_path`, and each overwrites the files of the one before
    max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)  # fmt: skip
@given(data=st.data())
def test_encoders_and_encoded_cells_of_every_source_are_equal(
    column_name: str, tmp_path: Path, data: Any
) -> None:
    frame, kind = data.draw(draw_frames(column_name))
    encoder = fit_encoder(frame, kind)
    expected_rows = encoder.transform(frame).to_numpy()
    for source in TABLE_SOURCES:
        table = pass_through_source(source, frame, tmp_path, kind)
        assert fit_encoder(table, kind).encoder_ == encoder.encoder_, source
        np.testing.assert_array_equal(encoder.transform(table).to_numpy(), expected_rows, source)
    # devices and simulations read files row by row
    for suffix in ("csv", "parquet"):
        rows, _ = read_rows(tmp_path / f"t.{suffix}", tuple(frame.columns), encoder.encoder_)
        np.testing.assert_array_equal(rows, expected_rows, suffix)
    json_lines = [
        json.dumps({"cell": convert_to_json(cell), "number": number})
        for cell, number in zip(cells_of(frame.cell), frame.number, strict=True)
    ]
    rows = encoder.encoder_.rows([json.loads(line) for line in json_lines])
    np.testing.assert_array_equal(rows, expected_rows)
