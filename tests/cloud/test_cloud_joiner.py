"""Parts of a request: cut, carried in any way, joined again; in bounded memory."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gatewise_cloud.worker.batcher import Joiner
from gatewise_edge.checks import MAX_PAYLOAD, MAX_VALUES
from gatewise_edge.errors import WireError
from gatewise_edge.link import wire
from gatewise_edge.link.messages import AnnouncedParts, Part
from tests.support.wire_vectors import altered

KEY = ("pi-1", bytes(16))
CONTENTS = st.binary(min_size=1, max_size=200)


def announced(content: bytes, count: int) -> AnnouncedParts:
    return AnnouncedParts(len(content), count, hashlib.sha256(content).digest())


def cut(content: bytes, parts: AnnouncedParts) -> list[Part]:
    size = parts.part_size
    return [Part(KEY[1], i, content[i * size :][:size]) for i in range(parts.count)]


@st.composite
def transfers(draw):
    """A content, what announces it, and its parts in any order, some of them more than once."""
    content = draw(CONTENTS)
    count = draw(st.integers(1, min(len(content), 20)))
    count = -(-len(content) // -(-len(content) // count))  # as many as have bytes
    parts = announced(content, count)
    order = draw(st.permutations(range(count)))
    more = draw(st.lists(st.integers(0, count - 1), max_size=10))
    places = draw(st.lists(st.integers(0, count), min_size=len(more), max_size=len(more)))
    for index, place in zip(more, places, strict=True):
        order.insert(place, index)
    pieces = cut(content, parts)
    return content, parts, [pieces[i] for i in order]


@given(transfers())
def test_parts_in_any_order_and_twice_are_joined_once(transfer):
    content, parts, pieces = transfer
    joiner = Joiner()
    assert joiner.expect(KEY, b"head", parts, ttl=9, now=0)
    joined = [joiner.add(KEY, piece, 1.0) for piece in pieces if KEY in joiner]
    (found,) = [each for each in joined if each is not None]
    assert (bytes(found.content), found.payload, found.expires) == (content, b"head", 9)
    assert (len(joiner), joiner.held) == (0, 0)


@given(transfers(), st.data())
def test_what_lacks_a_part_is_never_joined(transfer, data):
    _, parts, pieces = transfer
    lost = data.draw(st.integers(0, parts.count - 1))
    joiner = Joiner(idle=30)
    joiner.expect(KEY, b"head", parts, ttl=60, now=0)
    for piece in pieces:
        if piece.index != lost:
            assert joiner.add(KEY, piece, 1.0) is None
    assert joiner.expect(("other", KEY[1]), b"head", parts, ttl=1, now=61.0)
    assert KEY not in joiner


@given(transfers(), st.data())
def test_a_part_that_is_cut_or_altered_ends_the_request_with_the_reason(transfer, data):
    _, parts, pieces = transfer
    at = data.draw(st.integers(0, len(pieces) - 1))
    piece = pieces[at]
    wrong, reason = data.draw(
        st.sampled_from(
            [
                (Part(KEY[1], piece.index, piece.content[:-1]), "shape"),
                (Part(KEY[1], piece.index, piece.content + b"x"), "shape"),
                (Part(KEY[1], parts.count, piece.content), "shape"),
                (Part(KEY[1], parts.count, b""), "shape"),
                (Part(KEY[1], piece.index, bytes(b ^ 1 for b in piece.content)), "hash"),
            ]
        )
    )
    joiner = Joiner()
    joiner.expect(KEY, b"head", parts, ttl=9, now=0)
    with pytest.raises(WireError) as caught:  # noqa: PT012 - any of them may be the last
        for each in [wrong, *(p for p in pieces if p.index != piece.index)]:
            joiner.add(KEY, each, 1.0)
    assert (caught.value.reason, caught.value.id) == (reason, KEY[1])
    assert (KEY in joiner, joiner.held) == (False, 0)


@given(transfers())
def test_parts_of_others_do_not_mix(transfer):
    content, parts, pieces = transfer
    joiner, other = Joiner(), ("pi-2", KEY[1])
    joiner.expect(KEY, b"head", parts, ttl=9, now=0)
    with pytest.raises(KeyError):
        joiner.add(other, pieces[0], 1.0)
    reverse = content[::-1]
    joiner.expect(other, b"head", announced(reverse, parts.count), ttl=9, now=0)
    found = {}
    for mine, its in zip(cut(content, parts), cut(reverse, parts), strict=True):
        found[KEY] = joiner.add(KEY, mine, 1.0)
        found[other] = joiner.add(other, its, 1.0)
    assert (found[KEY].content, found[other].content) == (content, reverse)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.integers(1, 4 << 10))))
def test_memory_is_bounded_in_all_and_for_each_device(offers):
    joiner = Joiner(memory=16 << 10)
    held = dict.fromkeys("abc", 0)
    for i, (device, number, size) in enumerate(offers):
        key = (device, bytes([number]) * 16)
        parts = AnnouncedParts(size, 1, bytes(32))
        before = joiner.held
        taken = joiner.expect(key, b"%d" % i, parts, ttl=99, now=i / 1e3)
        assert joiner.held <= 16 << 10
        if key not in joiner:
            assert not taken
        held[device] += joiner.held - before
    assert sum(held.values()) == joiner.held
    # Whoever holds nothing gets what is free.
    small = AnnouncedParts(1, 1, bytes(32))
    free = (16 << 10) - joiner.held
    assert joiner.expect(("new", bytes(16)), b"", small, ttl=9, now=1) is (free >= 1025)


def test_a_message_again_goes_on_and_another_with_its_id_starts_anew():
    content = bytes(range(100))
    parts = announced(content, 4)
    joiner, pieces = Joiner(), cut(content, parts)
    joiner.expect(KEY, b"head", parts, ttl=9, now=0)
    for piece in pieces[:3]:
        joiner.add(KEY, piece, 1.0)
    assert joiner.expect(KEY, b"head", parts, ttl=9, now=2.0)
    assert joiner.add(KEY, pieces[3], 3.0).expires == 11
    joiner.expect(KEY, b"head", parts, ttl=9, now=4.0)
    joiner.add(KEY, pieces[0], 4.0)
    joiner.expect(KEY, b"another", parts, ttl=9, now=5.0)
    assert [joiner.add(KEY, piece, 5.0) for piece in pieces[1:]] == [None] * 3


# -- messages ------------------------------------------------------------------------------


def request(X, **more):
    return wire.Request(id=KEY[1], model="m", version="1", ttl_ms=500, X=X, **more)


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["float32", "float16", "int16", "int8", "uint8"]),
    st.integers(30_000, 400_000),
    st.booleans(),
)
def test_a_request_of_any_size_is_what_comes_of_its_messages(dtype, columns, deflate):
    values = np.random.default_rng(columns).integers(0, 40, (1, columns)).astype(dtype)
    sent = request(values, deflate=deflate)
    payload, content = wire.encode_in_parts(sent)
    whole = wire.decode_request(payload)
    if not content:
        assert payload == wire.encode_request(sent)
        np.testing.assert_array_equal(whole.X, values)
        return
    with pytest.raises(WireError, match="at most 131072 may go"):
        wire.encode_request(sent)
    assert (whole.X.shape, whole.X.dtype.name, whole.rows) == (values.shape, dtype, 1)
    joiner = Joiner()
    joiner.expect(KEY, payload, whole.parts, ttl=9, now=0)
    payloads = list(wire.cut_parts(KEY[1], content))
    assert max(map(len, [payload, *payloads])) <= MAX_PAYLOAD
    joined = [joiner.add(KEY, wire.decode_part(p), 0) for p in payloads][-1]
    got = wire.decode_request(payload, content=bytes(joined.content))
    assert (got.X.dtype.name, got.parts) == (dtype, None)
    np.testing.assert_array_equal(got.X, values)


def test_a_large_file_goes_in_parts_too():
    file = bytes(200_000)
    payload, content = wire.encode_in_parts(request(np.empty((0, 0), np.uint8), jpeg=file))
    assert wire.decode_request(payload).parts.size == len(content) == len(file)
    assert wire.decode_request(payload, content=content).jpeg == file


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"xb": MAX_VALUES + 1}, "xb must lie in 1 to 4194304"),
        ({"xp": 1}, "give other parts"),
        ({"xp": 1025}, "xp must lie in 1 to 1024"),
        ({"xb": 7, "xp": 5}, "give other parts"),
        ({"xh": bytes(16)}, "must have 32 bytes"),
        ({"xh": "a" * 32}, "'xh' is no byte string"),
        ({"k": 399_999}, "comes in 400000 bytes, not as"),
        ({"k": 1 << 21}, "k must lie in 1 to 1048576"),
        ({"n": 64, "z": 1}, "comes in 400000 bytes, not as"),
    ],
)
def test_an_announcement_that_cannot_be_is_refused(changes, message):
    payload, _ = wire.encode_in_parts(request(np.zeros((1, 400_000), np.uint8)))
    with pytest.raises(WireError, match=message) as caught:
        wire.decode_request(altered(payload, changes))
    assert caught.value.id == KEY[1]


def test_more_values_than_may_be_are_refused():
    with pytest.raises(WireError, match="bytes in parts must lie in 1 to 4194304"):
        wire.encode_in_parts(request(np.zeros((2, 1 << 20), np.float32)))


def test_an_acceptance_names_a_topic_level():
    asked = request(np.zeros((1, 2)))
    accepted = wire.decode_response(wire.encode_response(wire.Response.acceptance(asked, "w-1")))
    assert (accepted.parts_to, accepted.error, accepted.rows) == ("w-1", None, 0)
    for name in ("json", "a/b", "+"):
        with pytest.raises(WireError, match="worker"):
            wire.Response.acceptance(asked, name)
