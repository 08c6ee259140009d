"""JSON messages have the same content as CBOR messages, and are refused for the same reasons."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import fastjsonschema
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gatewise_edge.errors import WireError
from gatewise_edge.link import wire
from gatewise_edge.link.message_forms import CBOR, JSON, decode_json_request, encode_json_response
from gatewise_edge.link.wire import Request, Response

#: Any id of a request; it has 16 bytes.
REQUEST_ID = bytes(range(16))
SCHEMA = json.loads((Path(__file__).parents[3] / "docs/wire.schema.json").read_text())
check_schema = fastjsonschema.compile(SCHEMA)
#: Reasons of refusals that a JSON Schema cannot express, such as sizes and related fields.
NOT_IN_SCHEMA = ("shape", "infinite", "size")


#: Removes a field from a payload.
LEFT_OUT = object()


def make_payload(**changes: object) -> bytes:
    """Encode a valid request with changed fields, or without those that are LEFT_OUT."""
    fields: dict[str, object] = {
        "id": REQUEST_ID.hex(), "m": "digits", "mv": "1", "ttl": 500, "x": [[1, 2.5], [3, -4e-3]],
    }  # fmt: skip
    fields.update(changes)
    return json.dumps(
        {key: field for key, field in fields.items() if field is not LEFT_OUT}
    ).encode()


def test_json_request_decodes_to_the_same_fields_as_its_cbor_form():
    X = np.array([[1, 2.5], [3, -4e-3]], np.float32)
    cbor_request = wire.decode_request(
        wire.encode_request(Request(id=REQUEST_ID, model="digits", version="1", ttl_ms=500, X=X))
    )
    for payload in (make_payload(), make_payload(v=1, n=2, k=2)):
        check_schema(json.loads(payload))
        request = decode_json_request(payload)
        assert (request.id, request.model) == (cbor_request.id, cbor_request.model)
        assert (request.version, request.ttl_ms) == (cbor_request.version, cbor_request.ttl_ms)
        assert request.X.dtype == cbor_request.X.dtype
        assert request.X.tobytes() == cbor_request.X.tobytes()
    assert decode_json_request(make_payload(x=[7, 8, 9])).X.tolist() == [[7, 8, 9]]
    X_with_null = decode_json_request(make_payload(x=[1, None])).X
    assert np.isnan(X_with_null).tolist() == [[False, True]]


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "json"),
        (b"\xff", "json"),
        (b"[1]", "json"),
        (b'{"id": NaN}', "json"),
        (b"[" * 100_000, "json"),  # deeper than the recursion limit
        (b'{"id": ' + b"1" * 5000 + b"}", "id"),  # more digits than int() reads
        (make_payload(m="\ud800"), "json"),
        (b" " * (wire.MAX_PAYLOAD + 1), "size"),
        (make_payload(id=LEFT_OUT), "id"),
        (make_payload(id="0" * 31), "id"),
        (make_payload(id="A" * 32), "id"),
        (make_payload(id=7), "id"),
    ],
)  # fmt: skip
def test_request_without_a_valid_id_raises_an_error_without_id(payload, reason):
    with pytest.raises(WireError) as error_info:
        decode_json_request(payload)
    assert (error_info.value.reason, error_info.value.id) == (reason, None)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"v": 2}, "version"),
        ({"v": "1"}, "type"),
        ({"m": "a/b"}, "name"),
        ({"m": LEFT_OUT}, "type"),
        ({"mv": 3}, "type"),
        ({"ttl": -1}, "range"),
        ({"ttl": 1.5}, "type"),
        ({"new": None}, "type"),
        ({"n": 3}, "shape"),
        ({"k": 1}, "shape"),
        ({"x": LEFT_OUT}, "type"),
        ({"x": []}, "range"),
        ({"x": [[]]}, "range"),
        ({"x": [[1], [1, 2]]}, "shape"),
        ({"x": [[1], 2]}, "shape"),
        ({"x": [1, [2]]}, "type"),
        ({"x": [True]}, "type"),
        ({"x": ["1"]}, "type"),
        ({"x": [[[1]]]}, "type"),
        ({"x": [1e39]}, "infinite"),  # above the largest float32
        ({"x": [10**400]}, "type"),
        ({"x": [[1]] * 4097}, "range"),  # at most 4096 rows
        ({"x": [0] * 40_000}, "size"),  # 160,000 bytes as float32; at most 131,072
    ],
)
def test_invalid_field_raises_an_error_with_its_reason(changes, reason):
    with pytest.raises(WireError) as error_info:
        decode_json_request(make_payload(**changes))
    assert (error_info.value.reason, error_info.value.id) == (reason, REQUEST_ID)
    # a JSON number has no bound, so 10**400 agrees with the schema
    if reason not in NOT_IN_SCHEMA and changes != {"x": [10**400]}:
        with pytest.raises(fastjsonschema.JsonSchemaException):
            check_schema(json.loads(make_payload(**changes)))


@pytest.mark.parametrize("field", [b'"m": "\xff"', b'"\xff": 1'])
def test_text_that_is_not_utf_8_raises_an_error_with_the_id(field):
    payload = b'{"id": "%s", %s}' % (REQUEST_ID.hex().encode(), field)
    with pytest.raises(WireError, match="not a message in JSON") as error_info:
        decode_json_request(payload)
    assert (error_info.value.reason, error_info.value.id) == ("json", REQUEST_ID)


@pytest.mark.parametrize(("key", "json_text"), [("ttl", "1"), ("x", "[1]"), ("mv", '"1"')])
def test_error_names_an_unknown_or_repeated_key(key, json_text):
    # The second key is written with an escape, so that only a parser sees the repetition.
    payload_with_repeated_key = (
        make_payload()[:-1] + f', "\\u{ord(key[0]):04x}{key[1:]}": {json_text}}}'.encode()
    )
    with pytest.raises(WireError, match=f"the key '{key}' is repeated"):
        decode_json_request(payload_with_repeated_key)
    with pytest.raises(WireError, match=f"unknown field `{key}_`"):
        decode_json_request(make_payload(**{f"{key}_": 1}))


@pytest.mark.slow
@given(payload=st.one_of(st.binary(max_size=99), st.text(max_size=99).map(str.encode)))
@example(b'{"x":' * 900)
def test_noise_is_refused_with_a_reason(payload):
    with pytest.raises(WireError) as error_info:
        decode_json_request(payload)
    assert error_info.value.reason


json_scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=70))


@given(key=st.sampled_from(["v", "id", "m", "mv", "ttl", "n", "k", "x"]), value=json_scalars)
def test_accepted_entries_agree_with_the_schema(key, value):
    with suppress(WireError):
        payload = make_payload(**{key: value})
        assert decode_json_request(payload).X.shape == (2, 2)
        check_schema(json.loads(payload))


@given(st.data())
def test_response_keeps_the_bits_of_its_probabilities(data):
    probability_rows = st.lists(st.floats(0, 1, width=32), min_size=3, max_size=3)
    probabilities = data.draw(st.lists(probability_rows, min_size=1, max_size=4))
    n_rows = len(probabilities)
    response = Response(
        id=REQUEST_ID, model="m é", version="1", labels=[2] * n_rows,
        probabilities=probabilities, worker_us=9,
    )  # fmt: skip
    entries = json.loads(encode_json_response(response))
    check_schema(entries)
    assert np.array_equal(np.array(entries["p"], np.float32), response.probabilities)
    del entries["p"]
    assert entries == {
        "v": 1, "id": REQUEST_ID.hex(), "m": "m é", "mv": "1", "n": n_rows, "c": 3,
        "y": [2] * n_rows, "us": 9,
    }  # fmt: skip


def test_refusal_has_its_code_detail_and_wait():
    refusal = Response(
        id=REQUEST_ID, model="m", version="1", error="busy", detail="full", wait_ms=7
    )
    entries = json.loads(encode_json_response(refusal))
    check_schema(entries)
    assert entries == {
        "v": 1, "id": REQUEST_ID.hex(), "m": "m", "mv": "1", "e": "busy", "d": "full", "w": 7,
    }  # fmt: skip
    refusal_without_model = Response(id=REQUEST_ID, model="", version="", error="bad-request")
    entries = json.loads(encode_json_response(refusal_without_model))
    check_schema(entries)
    assert entries.keys() == {"v", "id", "e", "d"}


@pytest.mark.parametrize("form", [CBOR, JSON])
def test_response_is_not_larger_than_answer_bytes_states(form):
    n_rows, n_classes = 40, 30
    # A negative number with an exponent and nine digits has the longest text.
    longest_probabilities = np.full((n_rows, n_classes), -1.1754944e-4, np.float32)
    response = Response(
        id=REQUEST_ID, model="m" * 64, version="v" * 64, labels=np.full(n_rows, 29),
        probabilities=longest_probabilities, worker_us=2**40,
    )  # fmt: skip
    max_bytes = wire.MAX_RESPONSE_FIELD_BYTES + n_rows * form.answer_bytes(n_classes)
    assert len(form.encode_response(response)) <= max_bytes
    oversized_response = Response(
        id=REQUEST_ID,
        model="m",
        version="1",
        labels=np.zeros(4096, int),
        probabilities=np.ones((4096, 8)),
    )
    with pytest.raises(WireError, match="the largest allowed is 131072"):
        form.encode_response(oversized_response)
