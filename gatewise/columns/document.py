"""Reader of the encoders in a manifest, as strict as the reader of the rest of it."""

from __future__ import annotations

from gatewise.columns.encoders import KINDS, CategoryColumn, Column, RowEncoder
from gatewise.documents.json_reader import JsonField
from gatewise.errors import InputError

MOST_COLUMNS = 65535
MOST_WORDS = 1000
MOST_WORD_BYTES = 256


def read_encoder(field: JsonField, feature_names: tuple[str, ...]) -> RowEncoder:
    """Read the encoders that make the manifest's features of raw columns."""
    field.keys(("missing_words", "columns"))
    words = [w.text(MOST_WORD_BYTES) for w in field["missing_words"].items(0, MOST_WORDS)]
    columns = field["columns"]
    made = tuple(_column(item) for item in columns.items(1, MOST_COLUMNS))
    columns.unique([column.name for column in made], "column")
    encoder = RowEncoder(made, frozenset(words))
    if encoder.feature_names != feature_names:
        columns.fail("their features are not those of the manifest, in its order")
    return encoder


def _column(field: JsonField) -> Column:
    kind = KINDS[field["kind"].choice(tuple(KINDS))]
    try:
        column = field.record(kind, "kind")
    except InputError as error:
        field.fail(str(error))
    if isinstance(column, CategoryColumn) and len(set(column.categories)) < len(column.categories):
        field["categories"].fail("a category stands twice")
    return column
