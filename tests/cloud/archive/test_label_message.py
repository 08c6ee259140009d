"""Label messages in CBOR and JSON, with the checks of each field."""

import json
from contextlib import suppress
from pathlib import Path

import cbor2
import fastjsonschema
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gatewise_cloud.archive.label_message import MAX_LABEL_BYTES, decode_label, encode_label
from gatewise_edge.errors import WireError
from gatewise_edge.link import wire
from gatewise_edge.link.encoding import write_map
from gatewise_export.archive.machine_labels import MachineLabel

#: Any id of a request; it has 16 bytes.
ID = bytes(range(16))
TOPIC = wire.labels_topic("bench-1")
SCHEMA = json.loads((Path(__file__).parents[3] / "docs/wire.schema.json").read_text())
validate_document = fastjsonschema.compile(SCHEMA)


def encode_as_json(**changes):
    """Encode a valid label with some changes; the value None removes an entry."""
    entries = {"id": ID.hex(), "dev": "pi-1", "l": "worn"} | changes
    return json.dumps({key: value for key, value in entries.items() if value is not None}).encode()


def encode_as_cbor(**changes):
    """Encode a valid label with some changes; the value None removes an entry."""
    entries = {"v": 1, "id": ID, "dev": "pi-1", "l": "worn"} | changes
    return write_map({key: value for key, value in entries.items() if value is not None})


def test_a_label_in_json_equals_the_same_label_in_cbor():
    # The time 99 at which it is received is not used, because the label has its own time.
    expected_label = MachineLabel(f"{ID.hex()}-3", "pi-1", "worn", "bench-1", 7.0)
    payload = encode_as_json(i=3, at=7, v=1)
    validate_document(json.loads(payload))
    assert decode_label(f"{TOPIC}/json", payload, 99.0) == expected_label
    payload = encode_label(id=ID, device="pi-1", label="worn", row=3, at=7)
    assert decode_label(TOPIC, payload, 99.0) == expected_label


def test_row_and_time_have_defaults():
    expected_label = MachineLabel(f"{ID.hex()}-0", "pi-1", "worn", "bench-1", 99.0)
    validate_document(json.loads(encode_as_json()))
    assert decode_label(f"{TOPIC}/json", encode_as_json(), 99.0) == expected_label
    assert decode_label(TOPIC, encode_as_cbor(), 99.0) == expected_label


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dev": "pi/1"}, "name"),
        ({"dev": "model"}, "name"),
        ({"dev": None}, "type"),
        ({"dev": 3}, "type"),
        ({"l": ""}, "range"),
        ({"l": "x" * (MAX_LABEL_BYTES + 1)}, "range"),
        ({"l": 1}, "type"),
        ({"i": -1}, "range"),
        ({"i": 4096}, "range"),
        ({"i": 0.5}, "type"),
        ({"at": -1}, "range"),
        ({"at": 2**63}, "range"),
        ({"at": "now"}, "type"),
        ({"v": 2}, "version"),
    ],
)
def test_wrong_fields_are_refused_in_both_forms(changes, reason):
    for topic, payload in (
        (TOPIC, encode_as_cbor(**changes)),
        (f"{TOPIC}/json", encode_as_json(**changes)),
    ):
        with pytest.raises(WireError) as error_info:
            decode_label(topic, payload, 0.0)
        assert error_info.value.reason == reason
    if changes.get("dev") != "model":  # the schema does not list reserved names
        with pytest.raises(fastjsonschema.JsonSchemaException):
            validate_document(json.loads(encode_as_json(**changes)))


@pytest.mark.parametrize(
    ("topic", "payload", "reason"),
    [
        (TOPIC, b"", "cbor"),
        (TOPIC, cbor2.dumps({"v": 1, "id": ID, "dev": "pi-1", "l": "a"}), "checksum"),
        (TOPIC, encode_as_cbor(id=b"short"), "id"),
        (f"{TOPIC}/json", b"", "json"),
        (f"{TOPIC}/json", b"[]", "type"),
        (f"{TOPIC}/json", encode_as_json(id=ID.hex().upper().replace("0", "A")), "type"),
        (f"{TOPIC}/json", encode_as_json(id=f"{ID.hex()}\n"), "type"),
        (f"{TOPIC}/json", encode_as_json(extra=1), "type"),
        (f"{TOPIC}/json", encode_as_json()[:-1] + b', "l": "fine"}', "json"),
        (f"{TOPIC}/json", b'"' + b"x" * wire.MAX_PAYLOAD, "size"),
        ("gw/v1/dead/labels", encode_as_cbor(), "name"),
    ],
)
def test_malformed_messages_are_refused(topic, payload, reason):
    with pytest.raises(WireError) as error_info:
        decode_label(topic, payload, 0.0)
    assert error_info.value.reason == reason


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
@example(b"[" * 100_000)  # deeper than the recursion limit
@example(b'{"id":' * 10_000)
def test_decoding_any_bytes_gives_a_label_or_a_wire_error(payload):
    for topic in (TOPIC, f"{TOPIC}/json"):
        with suppress(WireError):
            decode_label(topic, payload, 0.0)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "id": st.just(ID.hex()) | st.text(max_size=40),
            "dev": st.text(max_size=70) | st.none(),
            "l": st.text(max_size=210) | st.integers(),
            "i": st.integers() | st.floats(),
            "at": st.integers() | st.text(),
        },
    )
)
def test_a_decoded_label_conforms_to_the_schema(document):
    try:
        decode_label(f"{TOPIC}/json", json.dumps(document).encode(), 0.0)
    except WireError:
        return
    validate_document(document)
