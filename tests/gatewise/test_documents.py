"""Strict reading of JSON and TOML documents into records."""

import json
import math
from pathlib import Path
from typing import Annotated, Literal

import pytest
from msgspec import field
from msgspec.structs import replace

from gatewise.documents import (
    Amount,
    DocumentError,
    FileName,
    Meta,
    Positive,
    Record,
    Share,
    Text,
    convert,
    decode_json,
    encode_json,
    json_schema,
    read_toml,
)
from gatewise.errors import InputError


class Linear(Record, tag="linear", tag_field="kind"):
    weights: tuple[float, ...]


class Trees(Record, tag="trees", tag_field="kind"):
    n_trees: Annotated[int, Meta(gt=3)]


class PricedItem(Record):
    own: Amount
    kind: Literal["a", "b"] = "a"

    def __post_init__(self):
        if self.own == 7:  # stands for a check that a type cannot express
            raise InputError("seven is no price")


class AllTypes(Record):
    """A record with a field of every type and bound."""

    items: Annotated[tuple[PricedItem, ...], Meta(min_length=1, max_length=3)]
    by_name: dict[Text, PricedItem] = field(default_factory=dict)
    count: Annotated[int, Meta(ge=1, le=5)] | None = None
    pair: tuple[int, float] = (1, 1.0)
    model: Linear | Trees | None = None
    share: Share = 0.5
    rate: Positive = 1.0
    file: FileName = "a.npz"
    on: bool = False
    folder: Path = Path("out")


def make_document(**fields):
    return {"items": [{"own": 1}], **fields}


def test_a_document_is_read_back_unchanged():
    record = AllTypes(
        (PricedItem(1.5, "b"), PricedItem(0.0)),
        {"x": PricedItem(2.0)},
        5,
        (3, 0.25),
        Trees(4),
        folder=Path("a/b"),
    )
    json_bytes = encode_json(record, indent=1)
    assert decode_json(json_bytes, AllTypes, "record.json") == record
    assert json.loads(json_bytes)["items"] == [{"own": 1.5, "kind": "b"}, {"own": 0.0}]
    assert encode_json(record) == encode_json(convert(json.loads(json_bytes), AllTypes))
    assert b"share" not in encode_json(replace(record, share=float("0.5")))  # equal, not identical
    assert b'"share":0.25' in encode_json(replace(record, share=0.25))


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (3, "must be an object, not 3"),
        ({}, "lacks 'items'"),
        (make_document(items=[]), "items: must have at least 1 entries, not 0"),
        (make_document(items=[{"own": 1}] * 4), "items: must have at most 3 entries, not 4"),
        (
            make_document(items=[{"own": -1}]),
            "items[0].own: must be a number of at least 0, not -1",
        ),
        (make_document(items=[{"own": 1e301}]), "items[0].own: must be a number of at most 1e+300"),
        (make_document(items=[{"own": 7}]), "items[0]: seven is no price"),
        (make_document(items=[{"own": 1}, {}]), "items[1]: lacks 'own'"),
        (
            make_document(items=[{"own": 1, "z": 2}]),
            "items[0]: has an unknown key 'z'; there are own, k",
        ),
        (
            make_document(items=[{"own": 1, "kind": "c"}]),
            "items[0].kind: must be 'a' or 'b', not \"c\"",
        ),
        (make_document(items=[{"own": "x"}]), 'items[0].own: must be a number, not "x"'),
        (make_document(items=[{"own": True}]), "items[0].own: must be a number, not true"),
        (
            make_document(by_name={"x": {"own": 1}, "y": {"own": []}, "z": {"own": 1}}),
            "by_name.y.own: ",
        ),
        (
            make_document(by_name={"x": {"own": 1}, "": {"own": 1}}),
            "by_name.: its name must have at leas",
        ),
        (make_document(count=6), "count: must be a whole number of at most 5, not 6"),
        (make_document(count=0), "count: must be a whole number of at least 1, not 0"),
        (make_document(count=1.0), "count: must be a whole number or null, not 1.0"),
        (make_document(pair=[1]), "pair: must have 2 entries, not 1"),
        (make_document(model={"kind": "svm"}), "model.kind: must be 'linear' or 'trees', not "),
        (
            make_document(model={"kind": "trees", "n_trees": 3}),
            "model.n_trees: must be a whole number of",
        ),
        (make_document(share=1.01), "share: must be a number of at most 1, not 1.01"),
        (make_document(rate=0), "rate: must be a number above 0, not 0"),
        (
            make_document(file="../a"),
            "file: must be a plain file name: letters, digits, . _ -, not ",
        ),
        (make_document(file="a/b"), "file: must be a plain file name"),
        (make_document(file="a\n"), "file: must be a plain file name"),
        *(
            (make_document(by_name={f"a{character}": {"own": 1}}), "by_name.")
            for character in ("\n", "\0", "\x7f", "\u202e", "\u200b", "\ufeff")
        ),
        (make_document(on=1), "on: must be true or false, not 1"),
        (make_document(folder=3), "folder: must be text, not 3"),
    ],
)
def test_an_error_names_the_field_and_the_allowed_values(document, message):
    json_bytes = json.dumps(document).encode()
    with pytest.raises(DocumentError) as error_info:
        decode_json(json_bytes, AllTypes, "record.json")
    assert str(error_info.value).startswith(f"record.json: {message}")
    assert "\n" not in str(error_info.value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["share", "rate"])
def test_nan_and_infinity_are_refused_for_bounded_numbers(name, value):
    with pytest.raises(DocumentError, match=f"{name}: must be a number"):
        convert(make_document(**{name: value}), AllTypes)


@pytest.mark.parametrize(
    ("json_bytes", "message"),
    [
        (b"", "truncated"),
        (b"\xff", "invalid character"),
        (b'{"share": NaN}', "invalid character"),
        (b'{"items": [{"own": 1e999}]}', "items[0].own: must be within the range"),
        (b'{"items": [{"own": 1}], "share": 1, "share": 1}', "key 'share' is repeated"),
        (b'{"items": [{"own": 1, "own": 1}]}', "key 'own' is repeated"),
        (b'{"items": [{"own": 1}], "file": "\\ud800"}', "truncated"),
        (b"[" * 100_000, "recursion"),
        (b"[" * 100_000 + b"{" * 100_001, "more than 200000"),
        (b'{"count": ' + b"1" * 5000 + b"}", "not readable JSON"),
    ],
)
def test_malformed_json_is_refused(json_bytes, message):
    with pytest.raises(DocumentError) as error_info:
        decode_json(json_bytes, AllTypes, "record.json")
    assert str(error_info.value).startswith("record.json: ")
    assert message in str(error_info.value)


def test_a_toml_file_is_read_into_a_record(tmp_path):
    path = tmp_path / "settings.toml"
    path.write_text('rate = 2\nfolder = "x"\n[[items]]\nown = 3\n[by_name]\nq = {own = 1.5}\n')
    record = read_toml(path, AllTypes, "prices")
    assert record == AllTypes(
        (PricedItem(3.0),), {"q": PricedItem(1.5)}, rate=2.0, folder=Path("x")
    )
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())  # a byte order mark
    assert read_toml(path, AllTypes, "prices") == record


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rate = nan\nitems = []", "rate: must be a number above 0, not NaN"),
        ("rate = inf\nitems = [{own = 1}]", "rate: must be a number of at most 1e+300, not Inf"),
        ("rate = ", "Invalid value"),
        ("rate = 1\nrate = 1", "Cannot overwrite a value"),
        ("[x]", "has an unknown key 'x'"),
    ],
)
def test_an_invalid_toml_file_is_refused_by_name(tmp_path, text, message):
    path = tmp_path / "settings.toml"
    path.write_text(text)
    with pytest.raises(DocumentError) as error_info:
        read_toml(path, AllTypes, "prices")
    assert str(error_info.value).startswith(f"prices file {path}: ")
    assert message in str(error_info.value)


def test_a_missing_toml_file_is_refused_by_name(tmp_path):
    with pytest.raises(InputError, match=r"none\.toml: No such file"):
        read_toml(tmp_path / "none.toml", AllTypes)


def test_a_schema_has_the_bounds_of_the_types():
    class Small(Record):
        share: Share
        kind: Literal["a", "b"] = "a"

    schema = json.loads(json_schema(Small, "Small things"))
    definition = schema["$defs"]["Small"]
    assert schema["title"] == "Small things"
    assert definition["properties"]["share"] == {"type": "number", "minimum": 0.0, "maximum": 1.0}
    assert definition["required"] == ["share"]
    assert definition["additionalProperties"] is False
