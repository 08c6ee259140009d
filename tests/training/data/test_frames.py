"""Test that tables of pandas, Arrow and polars give equal results in every package."""

from __future__ import annotations

import datetime

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.base import clone
from sklearn.datasets import load_wine
from sklearn.tree import DecisionTreeClassifier

from gatewise.errors import InputError
from gatewise_edge import Device
from gatewise_export import pack, verify
from gatewise_sim.experiment.rows import Rows
from gatewise_training import StagedCascade, TableEncoder
from gatewise_training.data.frames import as_pandas

pytestmark = pytest.mark.usefixtures("two_folds")  # so that fits take less time


def convert_to_arrow(frame):
    return pa.Table.from_pandas(frame, preserve_index=False)


def convert_to_polars(frame):
    polars = pytest.importorskip("polars", reason="polars is not installed (pip install polars)")
    cells = frame.astype(object).where(frame.notna(), None)
    return polars.DataFrame({name: cells[name].to_list() for name in cells})


def convert_to_nullable(frame):
    """Convert columns to the pandas types that have NA as a value."""
    return frame.convert_dtypes()


def convert_to_arrow_backed(frame):
    return frame.convert_dtypes(dtype_backend="pyarrow")


COLUMNS = {"shade": "category"}
CONVERSIONS = [convert_to_arrow, convert_to_polars, convert_to_nullable, convert_to_arrow_backed]


@pytest.fixture(scope="module")
def wine_table():
    """Frame of numbers, a text and a flag, and its labels."""
    all_columns, y = load_wine(return_X_y=True, as_frame=True)
    frame = all_columns[["alcohol", "hue", "proline"]].copy()
    frame["shade"] = np.where(frame["hue"] > 1, "pale", "deep")
    frame["is_strong"] = frame["alcohol"] > 13
    return frame, np.where(y == 0, "first", "other")


@pytest.fixture(scope="module")
def encoder_and_system(wine_table):
    frame, y = wine_table
    encoder = TableEncoder(columns=COLUMNS).fit(frame)
    system = StagedCascade(
        DecisionTreeClassifier(max_depth=3, random_state=0), n_stages=1, families=("linear",),
        effort="low", random_state=0,
    )  # fmt: skip
    return encoder, system.fit(encoder.transform(frame), y)


@pytest.mark.parametrize("convert", CONVERSIONS)
def test_encoders_of_tables_of_all_libraries_are_equal(convert, wine_table, encoder_and_system):
    frame, _ = wine_table
    encoded_table = encoder_and_system[0].transform(frame)
    table_of_library = TableEncoder(columns=COLUMNS).fit(convert(frame)).transform(convert(frame))
    np.testing.assert_array_equal(table_of_library, encoded_table)
    assert list(table_of_library.columns) == list(encoded_table.columns)


@pytest.mark.slow
@pytest.mark.parametrize("convert", CONVERSIONS)
def test_fits_on_tables_of_all_libraries_are_equal(convert, wine_table, encoder_and_system):
    frame, y = wine_table
    encoder, system = encoder_and_system
    encoded_table = encoder.transform(frame)
    table = convert(encoded_table)
    refitted_system = clone(system).fit(table, y)
    assert refitted_system.frontier_ == system.frontier_
    np.testing.assert_array_equal(refitted_system.predict(table), system.predict(encoded_table))
    first_row = table[:1] if convert in (convert_to_arrow, convert_to_polars) else table.iloc[:1]
    expected_explanation = system.explain(encoded_table[:1])
    assert refitted_system.explain(first_row).label == expected_explanation.label


@pytest.mark.slow
@pytest.mark.parametrize("convert", CONVERSIONS)
def test_bundles_and_answers_from_tables_of_all_libraries_are_equal(
    convert, wine_table, encoder_and_system, tmp_path
):
    frame, y = wine_table
    encoder, system = encoder_and_system
    bundle = pack(system, tmp_path / "bundle", sample=convert(frame), encoder=encoder)
    assert verify(system, bundle, convert(frame)).agrees
    rows = Rows.from_arrays("wine", convert(frame), y, bundle.manifest)
    np.testing.assert_array_equal(rows.X, encoder.transform(frame).to_numpy())
    with Device(bundle) as device:
        answers = device.answer_many(convert(frame[:9]))
        expected_answers = device.answer_many(frame[:9])
    for answer, expected_answer in zip(answers, expected_answers, strict=True):
        assert answer.label == expected_answer.label
        assert answer.acquired == expected_answer.acquired


@pytest.mark.parametrize("convert", [convert_to_arrow, convert_to_polars])
def test_cells_of_every_type_keep_their_values(convert):
    frame = pd.DataFrame({
        "whole": pd.array([1, None, 3], "Int64"),
        "number": [0.5, np.nan, -2.0],
        "flag": pd.array([True, None, False], "boolean"),
        "word": ["007", None, " x"],
        "day": [datetime.datetime(2024, 1, 2), None, datetime.datetime(2024, 1, 3, 4)],
        "full": np.array([1, 2, 3], np.int8),
    })  # fmt: skip
    converted_table = as_pandas(convert(frame))
    assert converted_table["whole"].dtype == "Int64"
    assert converted_table["flag"].dtype == "boolean"
    assert converted_table["full"].dtype.kind == "i"
    for name in frame:
        assert converted_table[name].isna().tolist() == frame[name].isna().tolist()
        is_known = frame[name].notna()
        assert converted_table[name][is_known].tolist() == frame[name][is_known].tolist()


def test_arrays_stay_unchanged_and_encoders_refuse_them(wine_table):
    rows = np.zeros((2, 3))
    assert as_pandas(rows) is rows
    assert as_pandas(wine_table[0]) is wine_table[0]
    with pytest.raises(InputError, match="with named columns, not ndarray"):
        TableEncoder().fit(rows)
