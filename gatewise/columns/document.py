"""Reader of the encoders in a manifest, as strict as the reader of the rest of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NoReturn, Protocol, Self, TypeVar

from gatewise.columns import encoders
from gatewise.columns.cells import TIME_PARTS
from gatewise.errors import InputError

MOST_COLUMNS: Final = 65535
MOST_CATEGORIES: Final = 10_000
"""Of a column."""
MOST_WORDS: Final = 1000
MOST_CELL_BYTES: Final = 256
"""A category's name, in UTF-8."""
LARGEST: Final = 3.4e38
_Word = TypeVar("_Word", bound=str)

FORMS: Final[tuple[encoders.CategoryForm, ...]] = ("one-hot", "ordinal")


class DocumentField(Protocol):
    """Value of a JSON document; its methods refuse what is not as they say."""

    @property
    def value(self) -> Any: ...

    def fail(self, why: str) -> NoReturn: ...

    def keys(self, needed: Sequence[str], optional: Sequence[str] = ()) -> None: ...

    def __getitem__(self, key: str) -> Self: ...

    def get(self, key: str) -> Self | None: ...

    def items(self, least: int, most: int) -> Sequence[Self]: ...

    def text(self, longest: int = 256) -> str: ...

    def choice(self, allowed: Sequence[_Word]) -> _Word: ...

    def integer(self, least: int, most: int) -> int: ...

    def number(self, least: float, most: float) -> float: ...


def read_encoder(field: DocumentField, feature_names: tuple[str, ...]) -> encoders.RowEncoder:
    """Read the encoders that make the manifest's features of raw columns."""
    field.keys(("missing_words", "columns"))
    words = [w.text(MOST_CELL_BYTES) for w in field["missing_words"].items(0, MOST_WORDS)]
    columns = field["columns"]
    made = tuple(_column(item) for item in columns.items(1, MOST_COLUMNS))
    names = [column.name for column in made]
    if len(set(names)) != len(names):
        columns.fail(f"column {next(n for n in names if names.count(n) > 1)!r} stands twice")
    encoder = encoders.RowEncoder(made, frozenset(words))
    if encoder.feature_names != feature_names:
        columns.fail("their features are not those of the manifest, in its order")
    return encoder


def _column(field: DocumentField) -> encoders.Column:
    kind = field["kind"].choice(tuple(encoders.KINDS))
    more = {"category": ("form", "categories"), "time": ("parts", "format")}.get(kind, ())
    field.keys(("name", "kind", "features", "fill", *more))
    fill = field.get("fill")
    given: dict[str, Any] = {
        "name": field["name"].text(),
        "features": tuple(f.text() for f in field["features"].items(1, MOST_CATEGORIES + 1)),
        "fill": None
        if fill is None
        else tuple(v.number(-LARGEST, LARGEST) for v in fill.items(1, MOST_CATEGORIES)),
    }
    try:
        if kind == "number":
            return encoders.NumberColumn(**given)
        if kind == "boolean":
            return encoders.BooleanColumn(**given)
        if kind == "time":
            parts = tuple(p.choice(TIME_PARTS) for p in field["parts"].items(1, len(TIME_PARTS)))
            return encoders.TimeColumn(**given, parts=parts, format=field["format"].text(64))
        items = field["categories"].items(1, MOST_CATEGORIES)
        categories = tuple(_category(item) for item in items)
        if len(set(categories)) != len(categories):
            field["categories"].fail("a category stands twice")
        form = field["form"].choice(FORMS)
        return encoders.CategoryColumn(**given, categories=categories, form=form)
    except InputError as error:
        field.fail(str(error))


def _category(field: DocumentField) -> str:
    """Text of any characters, unlike names."""
    value = field.value
    if not isinstance(value, str) or value != value.strip() or not value:
        field.fail("must be text that neither begins nor ends with a space")
    try:
        if len(value.encode()) > MOST_CELL_BYTES:
            field.fail(f"has more than {MOST_CELL_BYTES} bytes")
    except UnicodeEncodeError:
        field.fail("is not valid Unicode")
    return value
