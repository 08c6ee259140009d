"""Encoders compute the same bits in training, after a file and on a device."""

from __future__ import annotations

import csv
import json
import math
from datetime import datetime
from unittest import mock

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from gatewise.columns import kinds
from gatewise.columns.cells import MISSING_WORDS, check_time_format, read_time
from gatewise.columns.encoders import RowEncoder
from gatewise.columns.kinds import NumberColumn, OrdinalColumn, TimeColumn
from gatewise.documents import DocumentError, convert, decode_json, encode_json
from gatewise.errors import InputError
from gatewise_edge.sensors import table
from gatewise_training.data.datasets import read_table
from gatewise_training.data.table_columns import ColumnOptions
from gatewise_training.data.table_encoder import TableEncoder, encode_frame

MISSING = st.sampled_from(["", "NA", " nan", "?", "None", "ERR"])
TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8)
CELLS = {
    "word": st.one_of(
        TEXTS, st.sampled_from(["ACME", "Bölt ", "1", "1.0", "01", "东", "e\u0301", "é"])
    ),
    "mass": st.one_of(st.floats(-1e38, 1e38).map(repr), st.integers().map(str)),
    "when": st.datetimes().map(str),
    "flag": st.sampled_from(["yes", "No", "TRUE", "off", "1"]),
}
SIGNED_ZEROS = {
    "word": ["a"] * 4, "mass": ["0.0", "0.0", "0.0", "-0.0"],
    "when": ["2000-01-01 00:00:00"] * 4, "flag": ["yes"] * 4,
}  # fmt: skip
OPTIONS = ColumnOptions(
    kinds={"word": "category", "flag": "boolean", "when": "time"}, missing_words=("ERR",)
)


@st.composite
def draw_table(draw):
    """Draw columns of texts, two settings of encoders and the number of training rows."""
    n_rows = draw(st.integers(4, 10))
    columns = {
        name: draw(st.lists(st.one_of(cells, MISSING), min_size=n_rows, max_size=n_rows))
        for name, cells in CELLS.items()
    }
    return columns, draw(st.booleans()), draw(st.sampled_from([0, 3, 12])), n_rows // 2


def view_bits(x: np.ndarray) -> list[list[int]]:
    """View float32 values as integers, which also differ between zeros and between NaN."""
    return np.ascontiguousarray(x, np.float32).view(np.uint32).tolist()


def copy_by_json(encoder: RowEncoder) -> RowEncoder:
    return decode_json(encode_json(encoder), RowEncoder, "encoder")


@pytest.mark.slow
@given(draw_table())
@example((SIGNED_ZEROS, False, 0, 2))
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_device_encodes_as_training_does(tmp_path_factory, drawn_table):
    columns, is_imputed, max_one_hot, n_training = drawn_table
    path = tmp_path_factory.mktemp("table") / "rows.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*columns, "label"])
        writer.writerows(zip(*columns.values(), "ab" * 5, strict=False))
    frame = read_table(path, options=OPTIONS).frame
    encoder = TableEncoder.from_options(OPTIONS).set_params(impute=is_imputed)
    try:
        with mock.patch.object(kinds, "MAX_ONE_HOT", max_one_hot):
            encoder.fit(frame.iloc[:n_training])
    except InputError:  # a column that is empty
        assume(False)
    device_encoder = copy_by_json(encoder.encoder_)
    assert device_encoder == encoder.encoder_
    training_features = encoder.transform(frame)
    assert training_features.columns.tolist() == list(device_encoder.feature_names)
    rows_of_file = table.read_table(path, device_encoder.names, device_encoder)
    assert (view_bits(device_encoder.rows(rows_of_file.rows)), rows_of_file.ignored_columns) == (
        view_bits(training_features),
        ("label",),
    )
    rows_by_name = [dict(zip(device_encoder.names, row, strict=True)) for row in rows_of_file.rows]
    assert view_bits(device_encoder.rows(rows_by_name)) == view_bits(training_features)
    # the same cells with their types, as a program has them
    assert view_bits(encode_frame(device_encoder, frame.astype(object))) == view_bits(
        training_features
    )
    if is_imputed:  # but for columns without a missing cell in training
        incomplete_features = training_features.columns[training_features.isna().any()]
        filled_features = {
            feature
            for column in device_encoder.columns
            if column.fill is not None
            for feature in column.features
        }
        assert filled_features.isdisjoint(incomplete_features)
        assert not np.isnan(training_features[:n_training]).to_numpy().any()


def test_cells_of_all_types_are_encoded_or_refused():
    moment = datetime(2025, 3, 1, 12)
    encoder = RowEncoder(
        (
            OrdinalColumn(name="c", features=("c",), categories=("1", "2.5")),
            NumberColumn(name="n", features=("n", "n_missing"), fill=(7.0,)),
            TimeColumn(name="t", features=("t_hour", "t_days"), parts=("hour", "days")),
        )
    )
    # the first category; a number that is not missing; hour; days since 1970
    expected_features = [0.0, 3.0, 0.0, 12.0, (moment - datetime(1970, 1, 1)).days + 0.5]
    for row in (
        [1, 3, moment],
        ["1", "3", moment.isoformat()],
        [1.0, np.float32(3), "2025-03-01T12"],
        {"t": pd.Timestamp(moment), "n": 3, "c": np.int8(1)},
        [" 1 ", " 3", np.datetime64(moment)],
    ):
        assert encoder.row(row).tolist() == np.float32(expected_features).tolist()
    row_without_values = encoder.row([pd.NA, None, pd.NaT]).tolist()
    assert math.isnan(row_without_values[0])
    assert row_without_values[1:3] == [7.0, 1.0]  # the fill, and that the number is missing
    assert encoder.row([2.5, 1e300, moment])[1] == np.inf  # beyond float32
    for invalid_row, message in (
        ([1, "warm", moment], "column 'n': 'warm' is not a number"),
        ([1, True, moment], "column 'n': 'True' is not a number"),
        ([1, "1_000", moment], "column 'n'"),
        ([1, [2], moment], "column 'n'"),
        ([[1], 2, moment], "column 'c'"),
        ([1, 1, "soon"], "column 't': 'soon' is not a date in ISO 8601"),
        ([1, 1, 20250301], "column 't'"),
        ([1, 1], "a list of 3 cells"),
        ({"c": 1}, "no column 'n', 't'"),
        ("abc", "a mapping by column"),
    ):
        with pytest.raises(InputError, match=message):
            encoder.row(invalid_row)
    assert {"", "nan", "?"} <= MISSING_WORDS


def test_formats_of_times():
    assert read_time("1.3.2025 08:30", "%d.%m.%Y %H:%M") == datetime(2025, 3, 1, 8, 30)
    assert read_time("1740818096", "unix") == datetime(2025, 3, 1, 8, 34, 56)
    # names of days and months depend on the locale
    for time_format in ("%A", "%b %Y", "2025", "%"):
        with pytest.raises(InputError, match="not a format of a time"):
            check_time_format(time_format)


DOCUMENT = {
    "missing_words": [],
    "columns": [
        {"name": "a", "kind": "number", "features": ["a"], "fill": None},
        {"name": "c", "kind": "category", "features": ["c=x", "c=y", "c_missing"],
         "fill": [0, 0], "categories": ["x", "y"]},
        {"name": "t", "kind": "time", "features": ["t_hour"], "fill": None,
         "parts": ["hour"], "format": "iso"},
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("location", "value", "message"),
    [
        ((0, "kind"), "pickle", r"columns\[0\].kind: must be 'number' or 'boolean'"),
        ((0, "code"), "x", "unknown key 'code'"),
        ((0, "fill"), [1.0, 2.0], "fill has 2 values"),
        ((0, "fill"), [1e39], r"columns\[0\].fill\[0\]"),
        ((0, "features"), ["a", "b"], "cannot have 2 features"),
        ((0, "name"), "c", "column 'c' is repeated"),
        ((1, "categories"), ["x", "x"], "repeats a category"),
        ((1, "categories"), ["x"], "cannot have 3 features"),
        ((1, "categories"), ["x", " y"], "or not in its canonical form"),
        ((1, "categories"), ["x", "y" * 300], "more than 256 bytes"),
        ((1, "categories"), ["x", "\ud800"], "not valid Unicode"),
        ((1, "categories"), [str(i) for i in range(10_001)], "must have at most 10000 entries"),
        ((1, "kind"), "ordinal", "cannot have 3 features"),
        ((2, "parts"), ["century"], "'century' is not one of year"),
        ((2, "format"), "%A", "not a format of a time"),
    ],
)
def test_invalid_encoders_in_a_manifest_are_refused(location, value, message):
    names = ("a", "c=x", "c=y", "c_missing", "t_hour")
    assert convert(DOCUMENT, RowEncoder).feature_names == names
    document = json.loads(json.dumps(DOCUMENT))
    document["columns"][location[0]][location[1]] = value
    with pytest.raises(DocumentError, match=message):
        convert(document, RowEncoder)
