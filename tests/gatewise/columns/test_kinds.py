"""Tests that each kind of column must pass: learning, encoding, reading back."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gatewise.columns.encoders import RowEncoder
from gatewise.columns.kinds import KINDS, CategoryColumn, LearningOptions, OrdinalColumn, read_kind
from gatewise.documents import decode_json, encode_json
from gatewise.errors import InputError

#: Cells of training, a cell that is not of the kind, and the features of the last cell.
EXAMPLES = {
    "number": (["1", "3", "2.5"], "warm", [2.5]),
    "boolean": (["yes", "no", "yes"], "perhaps", [1.0]),
    "category": (["b", "a", "b"], "x" * 300, [0.0, 1.0]),
    "ordinal": (["10", "9", "10"], "x" * 300, [1.0]),
    "time": (["2025-01-01T05", "2025-02-01T07", "2025-01-03T05"], "soon", [1.0, 3.0, 4.0, 5.0]),
}


def test_every_kind_has_an_example():
    assert EXAMPLES.keys() == KINDS.keys()


@pytest.mark.parametrize("has_missing", [False, True])
@pytest.mark.parametrize("fill_missing", [False, True])
@pytest.mark.parametrize("kind", EXAMPLES)
def test_a_kind_learns_encodes_and_survives_a_document(kind, fill_missing, has_missing):
    cells, invalid_cell, features = EXAMPLES[kind]
    options = LearningOptions(has_missing=has_missing, fill_missing=fill_missing)
    column = KINDS[kind].learn("c", cells, options)
    assert column.kind == kind
    is_filled = fill_missing or (has_missing and column.takes_missing)
    n_indicators = int(has_missing and is_filled)
    assert len(column.features) == column.width + n_indicators
    encoder = RowEncoder((column,))
    assert decode_json(encode_json(encoder), RowEncoder, "encoder") == encoder
    assert encoder.row([cells[-1]]).tolist() == features + [0.0] * n_indicators
    features_of_missing = encoder.row([None])
    assert np.isnan(features_of_missing).any() != is_filled
    assert features_of_missing.tolist()[column.width :] == [1.0] * n_indicators
    for cell in cells:
        KINDS[kind].check_cell(cell, "")
    with pytest.raises(InputError):
        KINDS[kind].check_cell(invalid_cell, "")


def test_missing_cells_are_filled_with_the_median_or_mode():
    def learn_fill(kind, cells):
        return KINDS[kind].learn("c", cells, LearningOptions(fill_missing=True)).fill

    assert learn_fill("number", ["1", "2", "9"]) == (2.0,)
    assert learn_fill("boolean", ["yes", "no"]) == (1.0,)
    assert learn_fill("boolean", ["yes", "no", "no"]) == (0.0,)
    assert learn_fill("category", ["a", "b"]) == (0.0, 0.0)
    assert learn_fill("ordinal", ["a", "b"]) == (-1.0,)
    # month and weekday of the median day, a Saturday
    assert learn_fill("time", ["2025-03-01", "2025-01-01", "2025-02-01"]) == (2.0, 5.0)


def test_a_column_with_many_categories_becomes_ordinal():
    cells = [str(i) for i in range(13)]  # more than the 12 that become features of their own
    assert type(KINDS["category"].learn("c", cells[:12], LearningOptions())) is CategoryColumn
    ordinal_column = KINDS["category"].learn("c", cells, LearningOptions())
    assert type(ordinal_column) is OrdinalColumn
    assert ordinal_column.categories == tuple(cells)
    assert ordinal_column.read("new") == (-1.0,)
    assert not any(map(math.isnan, ordinal_column.read("12")))


@pytest.mark.parametrize("text", ["colour", "", "categories"])
def test_an_unknown_kind_is_refused(text):
    with pytest.raises(InputError, match="choose one of number, boolean, category, ordinal, time"):
        read_kind(text)
