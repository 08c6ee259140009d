"""Label messages in CBOR and JSON, with the checks of each field."""

import json
from contextlib import suppress
from pathlib import Path

import cbor2
import fastjsonschema
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gatewise_cloud.archive.label_message import (
    MAX_LABEL_BYTES,
    MAX_TIME,
    decode_label,
)
from gatewise_edge.errors import WireError
from gatewise_edge.link import wire
from gatewise_edge.link.encoding import write_map
from gatewise_edge.link.messages import MAX_ROWS
from gatewise_export.archive.machine_labels import MachineLabel

#: Any id of a request; it has 16 bytes.
REQUEST_ID = bytes(range(16))
CBOR_TOPIC = "gw/v1/bench-1/labels"
JSON_TOPIC = f"{CBOR_TOPIC}/json"
#: Unix time at which a label is received; the default for the time of the label.
RECEIVED_AT = 99.0
#: The schema of label messages in JSON, for other implementations.
SCHEMA = json.loads((Path(__file__).parents[3] / "docs/wire.schema.json").read_text())
validate_document = fastjsonschema.compile(SCHEMA)


def encode_as_json(**changes):
    """Encode a valid label with some changes; the value None removes an entry."""
    entries = {"id": REQUEST_ID.hex(), "dev": "pi-1", "l": "worn"} | changes
    return json.dumps({key: value for key, value in entries.items() if value is not None}).encode()


def encode_as_cbor(**changes):
    """Encode a valid label with some changes; the value None removes an entry."""
    entries = {"v": 1, "id": REQUEST_ID, "dev": "pi-1", "l": "worn"} | changes
    return write_map({key: value for key, value in entries.items() if value is not None})


def test_a_label_in_json_equals_the_same_label_in_cbor():
    # The label has its own time, 7, so that the time at which it is received is not used.
    expected_label = MachineLabel(f"{REQUEST_ID.hex()}-3", "pi-1", "worn", "bench-1", 7.0)
    json_payload = encode_as_json(i=3, at=7, v=1)
    validate_document(json.loads(json_payload))
    assert decode_label(JSON_TOPIC, json_payload, RECEIVED_AT) == expected_label
    cbor_payload = encode_as_cbor(i=3, at=7)
    assert decode_label(CBOR_TOPIC, cbor_payload, RECEIVED_AT) == expected_label


def test_row_and_time_have_defaults():
    expected_label = MachineLabel(f"{REQUEST_ID.hex()}-0", "pi-1", "worn", "bench-1", RECEIVED_AT)
    validate_document(json.loads(encode_as_json()))
    assert decode_label(JSON_TOPIC, encode_as_json(), RECEIVED_AT) == expected_label
    assert decode_label(CBOR_TOPIC, encode_as_cbor(), RECEIVED_AT) == expected_label


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dev": "pi/1"}, "name"),
        ({"dev": "model"}, "name"),  # reserved, because of the topics gw/v1/model/...
        ({"dev": None}, "type"),
        ({"dev": 3}, "type"),
        ({"l": ""}, "range"),
        ({"l": "x" * (MAX_LABEL_BYTES + 1)}, "range"),
        ({"l": 1}, "type"),
        ({"i": -1}, "range"),
        ({"i": MAX_ROWS}, "range"),
        ({"i": 0.5}, "type"),
        ({"at": -1}, "range"),
        ({"at": MAX_TIME + 1}, "range"),
        ({"at": 2**63}, "range"),  # more than a signed integer of 64 bits
        ({"at": "now"}, "type"),
        ({"v": 2}, "version"),
    ],
)
def test_wrong_fields_are_refused_in_both_forms(changes, reason):
    for topic, payload in (
        (CBOR_TOPIC, encode_as_cbor(**changes)),
        (JSON_TOPIC, encode_as_json(**changes)),
    ):
        with pytest.raises(WireError) as error_info:
            decode_label(topic, payload, RECEIVED_AT)
        assert error_info.value.reason == reason
    if changes.get("dev") != "model":  # the schema does not list reserved names
        with pytest.raises(fastjsonschema.JsonSchemaException):
            validate_document(json.loads(encode_as_json(**changes)))


@pytest.mark.parametrize(
    ("topic", "payload", "reason"),
    [
        (CBOR_TOPIC, b"", "cbor"),
        # a CBOR map without the entry for the checksum
        (CBOR_TOPIC, cbor2.dumps({"v": 1, "id": REQUEST_ID, "dev": "pi-1", "l": "a"}), "checksum"),
        (CBOR_TOPIC, encode_as_cbor(id=b"short"), "id"),
        (JSON_TOPIC, b"", "json"),
        (JSON_TOPIC, b"[]", "type"),
        # ids with upper-case digits, and with a line break that `$` in the pattern may accept
        (JSON_TOPIC, encode_as_json(id=REQUEST_ID.hex().upper()), "type"),
        (JSON_TOPIC, encode_as_json(id=f"{REQUEST_ID.hex()}\n"), "type"),
        (JSON_TOPIC, encode_as_json(extra=1), "type"),
        # the key "l" twice
        (JSON_TOPIC, encode_as_json()[:-1] + b', "l": "fine"}', "json"),
        (JSON_TOPIC, b'"' + b"x" * wire.MAX_PAYLOAD, "size"),
        # a sender with a reserved name
        ("gw/v1/dead/labels", encode_as_cbor(), "name"),
    ],
)
def test_malformed_messages_are_refused(topic, payload, reason):
    with pytest.raises(WireError) as error_info:
        decode_label(topic, payload, RECEIVED_AT)
    assert error_info.value.reason == reason


@pytest.mark.slow
@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
@example(b"[" * 100_000)  # deeper than the recursion limit
@example(b'{"id":' * 10_000)  # the same with maps
def test_decoding_any_bytes_gives_a_label_or_a_wire_error(payload):
    for topic in (CBOR_TOPIC, JSON_TOPIC):
        with suppress(WireError):
            decode_label(topic, payload, RECEIVED_AT)


@pytest.mark.slow
@given(
    st.fixed_dictionaries(
        {},
        # Valid and invalid entries, with texts slightly longer than their bounds.
        optional={
            "id": st.just(REQUEST_ID.hex()) | st.text(max_size=40),
            "dev": st.text(max_size=70) | st.none(),
            "l": st.text(max_size=210) | st.integers(),
            "i": st.integers() | st.floats(),
            "at": st.integers() | st.text(),
        },
    )
)
def test_a_decoded_label_conforms_to_the_schema(document):
    try:
        decode_label(JSON_TOPIC, json.dumps(document).encode(), RECEIVED_AT)
    except WireError:
        return
    validate_document(document)
