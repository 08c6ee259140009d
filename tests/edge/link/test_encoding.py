"""Messages decode to what was encoded, and invalid messages are refused with a reason.

docs/wire.md describes the keys of messages. The tests repeat its bounds as numbers, because
implementations in other languages rely on them.
"""

from __future__ import annotations

import random

import cbor2
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from gatewise.costs import request_bytes
from gatewise_edge.errors import WireError
from gatewise_edge.link import wire
from gatewise_edge.link.encoding import write_map
from gatewise_edge.link.messages import MAX_TTL_MS
from gatewise_edge.link.wire import Request, Response
from tests.edge.link.test_topics import topic_levels

#: Any id of a request; it has 16 bytes.
ID = bytes(range(16))
#: CBOR tag of little-endian float32 arrays (RFC 8746, table 4).
FLOAT32_TAG = 85

shapes = st.tuples(st.integers(1, 20), st.integers(1, 40))
finite_floats = st.floats(width=32, allow_nan=False, allow_infinity=False)
probabilities_strategy = st.floats(0, 1, width=32)
matrices = st.one_of(arrays(np.float32, shapes, elements=finite_floats), arrays(np.float16, shapes))
matrices = matrices.filter(lambda X: bool(np.isfinite(X).all()))
#: Values of all types that are not nested.
plain_values = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=80), st.binary()
)


def float32_array(numbers: list[float]) -> cbor2.CBORTag:
    return cbor2.CBORTag(FLOAT32_TAG, np.array(numbers, "<f4").tobytes())


def make_entries(**changes: object) -> dict[str, object]:
    """Make the entries of a valid request with one row and two columns, with some changes.

    The value None removes an entry.
    """
    entries: dict[str, object] = {
        "v": 1,
        "id": ID,
        "m": "digits",
        "mv": "1",
        "ttl": 500,
        "n": 1,
        "k": 2,
        "x": float32_array([1, 1]),
    }
    entries.update(changes)
    return {key: value for key, value in entries.items() if value is not None}


def make_request(X: object, **changes: object) -> Request:
    fields: dict[str, object] = {"id": ID, "model": "m", "version": "1", "ttl_ms": 500}
    return Request(**(fields | changes), X=X)


def decode_request_or_return_error(payload: bytes) -> Request | WireError:
    try:
        return wire.decode_request(payload)
    except WireError as error:
        return error


@given(
    request_id=st.binary(min_size=16, max_size=16),
    model=topic_levels,
    version=topic_levels,
    ttl_ms=st.integers(0, MAX_TTL_MS),
    X=matrices,
)
def test_request_decodes_to_what_was_encoded(request_id, model, version, ttl_ms, X):
    request = Request(id=request_id, model=model, version=version, ttl_ms=ttl_ms, X=X)
    decoded_request = wire.decode_request(wire.encode_request(request))
    assert (decoded_request.id, decoded_request.model) == (request_id, model)
    assert (decoded_request.version, decoded_request.ttl_ms) == (version, ttl_ms)
    assert decoded_request.X.dtype == X.dtype
    assert decoded_request.X.tobytes() == X.tobytes()


@given(
    data=st.data(),
    n_rows=st.integers(1, 20),
    n_classes=st.integers(2, 30),
    worker_us=st.integers(0, 10**9),
)
def test_response_decodes_to_what_was_encoded(data, n_rows, n_classes, worker_us):
    labels = data.draw(arrays(np.int64, n_rows, elements=st.integers(0, n_classes - 1)))
    probabilities = data.draw(
        arrays(np.float32, (n_rows, n_classes), elements=probabilities_strategy)
    )
    response = Response(
        id=ID,
        model="m",
        version="2",
        labels=labels,
        probabilities=probabilities,
        worker_us=worker_us,
    )
    decoded = wire.decode_response(wire.encode_response(response))
    assert (decoded.id, decoded.model) == (ID, "m")
    assert (decoded.version, decoded.worker_us) == ("2", worker_us)
    assert decoded.error is None
    assert decoded.n_rows == n_rows
    np.testing.assert_array_equal(decoded.labels, labels)
    np.testing.assert_array_equal(decoded.probabilities, probabilities)


def encode_and_decode_refusal(code: str, detail: str) -> Response:
    request = make_request(np.ones((1, 1), np.float32), version="2")
    return wire.decode_response(wire.encode_response(Response.refusal(request, code, detail)))


@given(code=st.sampled_from([wire.BUSY, wire.NO_MODEL, wire.FAILED, "x"]), detail=st.text())
def test_refusal_decodes_to_its_code_and_detail(code, detail):
    decoded = encode_and_decode_refusal(code, detail)
    assert (decoded.id, decoded.model, decoded.version, decoded.error) == (ID, "m", "2", code)
    assert decoded.is_retryable == (code in {"busy", "no-model"})
    assert decoded.n_rows == 0
    if len(detail.encode()) <= 200:
        assert decoded.detail == detail


@pytest.mark.parametrize(
    ("detail", "decoded_detail"),
    [
        ("a" * 201, "a" * 200),
        ("a" * 199 + "é", "a" * 199),  # the first 200 bytes end within the é
        ("\ud800 is a surrogate", "? is a surrogate"),
    ],
)
def test_detail_of_a_refusal_is_cut_off_and_its_surrogates_are_replaced(detail, decoded_detail):
    assert encode_and_decode_refusal(wire.FAILED, detail).detail == decoded_detail


@pytest.mark.parametrize("item_bytes", [4, 2])
@pytest.mark.parametrize(("model", "version"), [("digits", "1"), ("engine-7", "1.0.0")])
def test_request_bytes_predicts_the_size_of_a_request(model, version, item_bytes):
    dtype = np.float32 if item_bytes == 4 else np.float16
    for n_features in range(1, 601):
        request = make_request(np.zeros((1, n_features), dtype), model=model, version=version)
        n_bytes = len(wire.encode_request(request))
        n_predicted_bytes = request_bytes(n_features, item_size=item_bytes)
        # The prediction does not know the lengths of model and version. They change the size by up
        # to 4 bytes here, which are more than 5 % of a request with few features.
        assert abs(n_bytes - n_predicted_bytes) <= max(4, 0.05 * n_bytes), n_features
    large_request = make_request(np.zeros((64, 64), dtype), model=model, version=version)
    n_predicted_bytes = request_bytes(64, rows=64, item_size=item_bytes)
    assert len(wire.encode_request(large_request)) == pytest.approx(n_predicted_bytes, rel=0.05)


@given(payload=st.binary(max_size=300))
@example(b"")
@example(b"\xa0\x00")  # an empty map and a further byte
@example(b"\xbf\xff")  # a map of indefinite length
@example(b"\x5b\x00\x00\x00\xff\xff\xff\xff\xff")  # bytes of a huge stated length
@example(b"\xbb\x00\x00\x00\xff\xff\xff\xff\xff")  # a map of a huge stated length
@example(b"\x81" * 5000)  # deeply nested lists
def test_random_bytes_are_refused_with_a_reason(payload):
    for decode in (wire.decode_request, wire.decode_response):
        with pytest.raises(WireError) as error_info:
            decode(payload)
        assert error_info.value.reason


@pytest.mark.slow
@pytest.mark.parametrize("n_flips", [1, 2, 3, 8, 40])
def test_message_with_flipped_bits_is_refused(n_flips):
    """The checksum detects the damage; without it, flipped bits may give a valid message."""
    rng = random.Random(n_flips)
    request = make_request(np.ones((1, 2)), model="digits")
    response = Response(
        id=ID, model="digits", version="1", labels=[1], probabilities=[[0.25, 0.75]], worker_us=40
    )
    for encoded, decode in [
        (wire.encode_request(request), wire.decode_request),
        (wire.encode_response(response), wire.decode_response),
    ]:
        for _ in range(4000):
            payload = bytearray(encoded)
            for bit in rng.sample(range(8 * len(payload)), n_flips):
                payload[bit // 8] ^= 1 << bit % 8
            with pytest.raises(WireError):
                decode(bytes(payload))


@given(key=st.sampled_from(["v", "id", "m", "mv", "ttl", "n", "k", "x"]), value=plain_values)
def test_entry_of_a_wrong_type_is_refused(key, value):
    entries = make_entries()
    entries[key] = value
    decoded = decode_request_or_return_error(write_map(entries))
    if isinstance(decoded, WireError):
        assert decoded.id == (None if key == "id" else ID)
    else:
        assert key in {"id", "m", "mv", "ttl"} or entries == make_entries()
        assert decoded.X.shape == (1, 2)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"v": 2}, "version"),
        ({"v": True}, "version"),
        ({"id": b"short"}, "id"),
        ({"id": None}, "id"),
        ({"m": ""}, "range"),
        ({"m": "a/b"}, "name"),
        ({"m": "x" * 65}, "range"),
        ({"mv": 3}, "type"),
        ({"ttl": -1}, "range"),
        ({"ttl": 1.5}, "type"),
        ({"n": 2}, "shape"),
        ({"n": 0}, "range"),
        ({"k": (1 << 20) + 1}, "range"),
        ({"n": True}, "type"),
        ({"x": None}, "type"),
        ({"x": b"12345678"}, "type"),
        ({"x": cbor2.CBORTag(86, bytes(8))}, "type"),  # one float64
        ({"x": cbor2.CBORTag(81, bytes(8))}, "type"),  # two big-endian float32
        ({"x": cbor2.CBORTag(FLOAT32_TAG, bytes(7))}, "shape"),
        ({"x": cbor2.CBORTag(FLOAT32_TAG, bytes(9))}, "shape"),
        ({"x": cbor2.CBORTag(FLOAT32_TAG, bytes(12))}, "shape"),
        ({"x": cbor2.CBORTag(FLOAT32_TAG, [1, 2])}, "type"),
        ({"x": float32_array([1, np.inf])}, "infinite"),
    ],
)
def test_invalid_entry_raises_an_error_with_its_reason(changes, reason):
    with pytest.raises(WireError) as error_info:
        wire.decode_request(write_map(make_entries(**changes)))
    assert error_info.value.reason == reason
    assert error_info.value.id == (None if "id" in changes else ID)


def test_nan_is_decoded_because_the_model_decides_on_missing_values():
    payload = write_map(make_entries(x=float32_array([1, np.nan])))
    assert np.isnan(wire.decode_request(payload).X).tolist() == [[False, True]]


# Tags for which decoders make dates, large integers, fractions, references, regular expressions,
# ids, addresses and sets, the tag that marks CBOR, and an unassigned one.
@pytest.mark.parametrize("tag", [0, 1, 2, 4, 5, 28, 29, 30, 35, 36, 37, 256, 258, 260, 55799, 99])
@pytest.mark.parametrize("value", ["(a+)+$", b"\x01\x02", [2**40, 1], 7])
def test_no_cbor_tag_is_executed(tag, value):
    with pytest.raises(WireError) as error_info:
        wire.decode_request(write_map(make_entries(x=cbor2.CBORTag(tag, value))))
    assert (error_info.value.reason, error_info.value.id) == ("type", ID)
    # A tag in an unknown entry is ignored, unless its value is nested.
    payload_with_extra_entry = write_map(make_entries(extra=cbor2.CBORTag(tag, value)))
    if isinstance(value, list):
        assert "nested" in str(decode_request_or_return_error(payload_with_extra_entry))
    else:
        assert wire.decode_request(payload_with_extra_entry).n_rows == 1


@pytest.mark.parametrize(
    "value", [[], {}, [1], {"a": 1}, [[[1]]], cbor2.CBORTag(85, {"a": b""}),
              cbor2.CBORTag(9, cbor2.CBORTag(9, 1))]
)  # fmt: skip
def test_nested_value_is_refused_even_in_unknown_entries(value):
    payload_with_extra_entry = write_map(make_entries(extra=value))
    with pytest.raises(WireError, match="'extra' has a nested value") as error_info:
        wire.decode_request(payload_with_extra_entry)
    assert (error_info.value.reason, error_info.value.id) == ("type", ID)


def test_unknown_entries_are_ignored_up_to_a_bound():
    assert wire.decode_request(write_map(make_entries(new="field"))).n_rows == 1
    with pytest.raises(WireError, match="at most 32 entries"):
        wire.decode_request(cbor2.dumps(make_entries(**{f"k{i}": i for i in range(40)})))


def test_repeated_key_and_deeply_nested_value_are_refused():
    entry = cbor2.dumps({"v": 1})[1:]
    repeated_key = b"\xa2" + entry * 2  # a map with two entries
    for payload in (repeated_key, cbor2.dumps(make_entries(q=[[[[[[1]]]]]])), cbor2.dumps({1: 2})):
        with pytest.raises(WireError) as error_info:
            wire.decode_request(payload)
        assert error_info.value.reason == "cbor"


def test_size_is_bounded_in_both_directions():
    with pytest.raises(WireError) as error_info:
        wire.decode_request(bytes(wire.MAX_PAYLOAD + 1))
    assert error_info.value.reason == "size"
    with pytest.raises(WireError, match="the largest allowed is 131072"):
        wire.encode_request(make_request(np.zeros((600, 600), np.float32)))


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "float16", "float32"])
def test_arrays_keep_their_type(dtype):
    X = (np.arange(600).reshape(3, 200) % 5).astype(dtype)  # numbers of every type
    request = wire.decode_request(wire.encode_request(make_request(X)))
    assert request.X.dtype == X.dtype
    np.testing.assert_array_equal(request.X, X)


def test_message_without_a_checksum_is_refused():
    with pytest.raises(WireError) as error_info:
        wire.decode_request(cbor2.dumps(make_entries()))
    assert error_info.value.reason == "checksum"


def test_probabilities_of_an_audit_are_encoded_in_millionths():
    request = Request(
        id=ID, model="m", version="1", ttl_ms=5, X=[[1.0]], audit=wire.AuditMark(3, 0.25, 0.5)
    )
    entries = cbor2.loads(wire.encode_request(request))
    assert [entries[key] for key in ("a", "ap", "ac")] == [3, 250_000, 500_000]
    assert wire.decode_request(wire.encode_request(request)).audit == request.audit


#: Entries of an audit: class, probability, skipped audits and confidence.
AUDIT_ENTRIES = {"a": 1, "ap": 1, "ac": 0}


@pytest.mark.parametrize(
    ("key", "smallest", "largest"),
    [
        ("a", 0, 65_535),
        ("ap", 1, 1_000_000),
        ("ac", 0, 1_000_000),
        ("pr", 0, 1),
        ("late", 0, 366 * 86_400),
        ("ttl", 0, 86_400_000),
    ],
)
def test_number_in_a_request_must_lie_within_its_bounds(key, smallest, largest):
    for value in (smallest, largest):
        wire.decode_request(write_map(make_entries(**(AUDIT_ENTRIES | {key: value}))))
    for value in (smallest - 1, largest + 1):
        with pytest.raises(WireError, match=f"{key} must lie in {smallest} to {largest}"):
            wire.decode_request(write_map(make_entries(**(AUDIT_ENTRIES | {key: value}))))


def test_optional_entries_of_a_request_are_encoded_only_if_they_are_set():
    X = np.ones((1, 2), np.float32)
    required_entries = cbor2.loads(wire.encode_request(make_request(X)))
    assert required_entries.keys() == {"v", "id", "m", "mv", "ttl", "n", "k", "x", "crc"}
    payload = wire.encode_request(make_request(X, is_private=True, late_s=9))
    entries = cbor2.loads(payload)
    assert {key: entries[key] for key in entries.keys() - required_entries.keys()} == {
        "pr": 1,
        "late": 9,
    }
    request = wire.decode_request(payload)
    assert (request.is_private, request.late_s) == (True, 9)
    assert not wire.decode_request(write_map(make_entries(pr=0))).is_private


@pytest.mark.parametrize(
    ("key", "smallest", "largest"), [("us", 0, 2**40), ("c", 2, 65_535), ("n", 1, 4096)]
)
def test_number_in_a_response_must_lie_within_its_bounds(key, smallest, largest):
    answer = Response(id=ID, model="m", version="1", labels=[0], probabilities=[[0.5, 0.5]])
    entries = cbor2.loads(wire.encode_response(answer))
    del entries["crc"]
    for value in (smallest - 1, largest + 1):
        with pytest.raises(WireError, match=f"{key} must lie in {smallest} to {largest}"):
            wire.decode_response(write_map(entries | {key: value}))
