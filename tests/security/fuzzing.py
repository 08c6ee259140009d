"""Mutate valid messages at random, to test that decoders refuse or survive them."""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Callable, Iterator, Sequence

import cbor2
import numpy as np

from gatewise_edge.link import wire

#: CBOR headers with huge lengths.
_HUGE_HEADERS = [bytes([major | 27]) + size for major in (0x40, 0x60, 0x80, 0xA0, 0xC0)
         for size in (b"\xff" * 8, b"\x7f" + b"\xff" * 7, b"\x00\x00\x00\x00\xff\xff\xff\xff",
                      b"\x00\x00\x00\x10\x00\x00\x00\x00")]  # fmt: skip
#: Headers of endless values, and of values nested deeper than a decoder's recursion may go.
_DEEP_HEADERS = [
    b"\x9f",  # endless array, map, bytes and text
    b"\xbf",
    b"\x5f",
    b"\x7f",
    b"\x81" * 500,  # arrays of one array
    b"\xa1\x61a" * 300,  # maps of one map
    b"\xd8\x1c" * 99,  # tags 28 of tags 28, which share values
]
#: Keys of requests, responses and refusals.
_KEYS = ["v", "id", "m", "mv", "ttl", "n", "k", "x", "c", "y", "p", "us", "e", "d", "w", "crc"]
#: Tags that decoders treat in a special way.
_TAGS = [
    *(0, 1),  # times
    *(2, 3, 4, 5, 30),  # large integers, decimal and binary fractions, rational numbers
    *(24, 55799),  # embedded CBOR
    *(25, 28, 29, 256),  # shared values and texts
    *(35, 36, 37),  # regular expressions, MIME messages, ids
    *(64, 69, 84, 85, 86),  # typed arrays
    *(258, 260),  # sets, network addresses
]


def make_requests(model: str, version: str, n_columns: int) -> list[bytes]:
    """Make valid requests."""
    rng = np.random.default_rng(0)
    matrices = [
        rng.normal(size=(n_rows, n_columns)).astype(dtype)
        for n_rows in (1, 3)
        for dtype in ("f4", "f2")
    ]
    return [
        wire.encode_request(
            wire.Request(id=wire.new_id(), model=model, version=version, ttl_ms=9000, X=X)
        )
        for X in matrices
    ]


def make_responses(model: str, version: str, n_classes: int, ids: Sequence[bytes]) -> list[bytes]:
    """Make valid responses, one for each id."""
    probabilities = np.full((1, n_classes), 1 / n_classes)
    return [
        wire.encode_response(
            wire.Response(
                id=request_id, model=model, version=version, labels=[0], probabilities=probabilities
            )
        )
        for request_id in ids
    ]


def _flip_bits(rng: random.Random, message_bytes: bytes, _other_bytes: bytes) -> bytes:
    mutated_bytes = bytearray(message_bytes)
    for _ in range(rng.randint(1, 6)):
        mutated_bytes[rng.randrange(len(mutated_bytes))] ^= 1 << rng.randrange(8)
    return bytes(mutated_bytes)


def _cut_end(rng: random.Random, message_bytes: bytes, _other_bytes: bytes) -> bytes:
    return message_bytes[: rng.randrange(len(message_bytes))]


def _append_bytes(rng: random.Random, message_bytes: bytes, _other_bytes: bytes) -> bytes:
    return message_bytes + rng.randbytes(rng.randint(1, 64))


def _splice_messages(rng: random.Random, message_bytes: bytes, other_bytes: bytes) -> bytes:
    return (
        message_bytes[: rng.randrange(len(message_bytes))]
        + other_bytes[rng.randrange(len(other_bytes)) :]
    )


def _repeat_part(rng: random.Random, message_bytes: bytes, _other_bytes: bytes) -> bytes:
    begin = rng.randrange(len(message_bytes))
    end = rng.randint(begin, len(message_bytes))
    return message_bytes[:end] + message_bytes[begin:end] * rng.randint(0, 3) + message_bytes[end:]


def _insert_header(rng: random.Random, message_bytes: bytes, _other_bytes: bytes) -> bytes:
    """Insert the header of a huge or deep value, and delete some of the following bytes.

    The longest header of CBOR has 9 bytes; up to as many are deleted after a huge header, and a few
    after a deep one.
    """
    position = rng.randrange(len(message_bytes))
    header, max_deleted = (
        (rng.choice(_HUGE_HEADERS), 9) if rng.random() < 0.5 else (rng.choice(_DEEP_HEADERS), 3)
    )
    return (
        message_bytes[:position] + header + message_bytes[position + rng.randint(0, max_deleted) :]
    )


def _draw_bytes(rng: random.Random, _message_bytes: bytes, _other_bytes: bytes) -> bytes:
    return rng.randbytes(rng.choice((0, 1, 3, 16, 100, 2000)))


def _enlarge_message(rng: random.Random, message_bytes: bytes, _other_bytes: bytes) -> bytes:
    """Append zeros up to about the largest payload, seldom because such messages are slow."""
    if rng.random() < 0.9:
        return _flip_bits(rng, message_bytes, message_bytes)
    # the largest payload, one byte less, and two larger ones
    n_bytes = wire.MAX_PAYLOAD + rng.choice((0, -1, 20, 1020))
    return message_bytes[:20].ljust(n_bytes, b"\0")


#: Draws of values that are not nested; typed arrays and simple values occur twice as often.
_FLAT_DRAWS: Sequence[Callable[[random.Random], object]] = (
    lambda rng: rng.choice((0, 1, -1, 2**16, 2**31, 2**63, 2**64 - 1, -(2**64), 2**200)),
    lambda rng: rng.randint(0, 70_000),  # up to somewhat above the 65,535 of 16 bits
    lambda rng: rng.choice((math.nan, math.inf, -0.0, 1e308, 1.5)),
    # a checksum has 4 bytes, and an id 16
    lambda rng: rng.randbytes(rng.choice((0, 1, 4, 15, 16, 17, 64))),
    # valid and invalid names; a name has at most 64 bytes
    lambda rng: rng.choice(("", "a", "a/b", "+", "#", "\0", "é" * 40, "x" * 65, "1", "small")),
    # uint16, float16 or float32, sometimes with a part of a number
    *[
        lambda rng: cbor2.CBORTag(
            rng.choice((69, 84, 85)), rng.randbytes(rng.choice((0, 2, 4, 12, 13, 16)))
        )
    ]
    * 2,
    *[lambda rng: rng.choice((None, True, False, cbor2.undefined))] * 2,
)
_MAX_DEPTH = 3


def _draw_value(rng: random.Random, depth: int = 0) -> object:
    """Draw a value near the limits of each CBOR type, nested at most _MAX_DEPTH times."""
    nested_draws: Sequence[Callable[[random.Random], object]] = (
        lambda rng: [_draw_value(rng, depth + 1) for _ in range(rng.randint(0, 4))],
        lambda rng: {
            rng.choice(_KEYS): _draw_value(rng, depth + 1) for _ in range(rng.randint(0, 3))
        },
        lambda rng: cbor2.CBORTag(rng.choice(_TAGS), _draw_value(rng, depth + 1)),
    )
    return rng.choice((*_FLAT_DRAWS, *(nested_draws if depth < _MAX_DEPTH else ())))(rng)


def _change_entries(rng: random.Random, message_bytes: bytes, _other_bytes: bytes) -> bytes:
    """Change entries of the map, and usually update the checksum."""
    entries: list[tuple[object, object]] = list(cbor2.loads(message_bytes).items())
    for _ in range(rng.randint(1, 3)):
        action = rng.randrange(4)
        if action == 0 and entries:
            index = rng.randrange(len(entries))
            entries[index] = (entries[index][0], _draw_value(rng))
        elif action == 1 and entries:
            del entries[rng.randrange(len(entries))]
        elif action == 2:
            entries.append((rng.choice(_KEYS), _draw_value(rng)))
        else:
            entries.append((rng.choice((0, b"id", None, 1.5, "new")), _draw_value(rng)))
    if rng.random() < 0.02:  # more entries than a message has, seldom because they are slow
        entries += [(f"key-{index}", index) for index in range(rng.choice((20, 40, 3000)))]
    rng.shuffle(entries)
    if rng.random() < 0.1:  # without a correct checksum, which would hide the other checks
        return _encode_map(entries)
    # the decoder requires the checksum of all bytes before it as the last entry, of 4 bytes
    entries = [entry for entry in entries if entry[0] != "crc"]
    checked_bytes = _encode_map([*entries, ("crc", bytes(4))])[:-4]
    return checked_bytes + zlib.crc32(checked_bytes).to_bytes(4, "big")


def _encode_map(entries: list[tuple[object, object]]) -> bytes:
    """Encode a map that may have equal keys, which no dict has."""
    n_entries = len(entries)
    header = bytes([0xA0 | n_entries]) if n_entries < 24 else b"\xb9" + n_entries.to_bytes(2, "big")
    return header + b"".join(
        cbor2.dumps(key) + cbor2.dumps(entry_value) for key, entry_value in entries
    )


Mutation = Callable[[random.Random, bytes, bytes], bytes]

#: Mutations of bytes, which need not be valid CBOR. One is drawn uniformly; those with results that
#: pass more checks are listed twice.
BYTE_MUTATIONS: Sequence[Mutation] = (
    _flip_bits, _flip_bits, _cut_end, _append_bytes, _splice_messages, _repeat_part,
    _insert_header, _insert_header, _draw_bytes, _enlarge_message,
)  # fmt: skip
#: Mutations of valid messages. Nearly half of them change entries, and pass the first checks.
MUTATIONS: Sequence[Mutation] = (*BYTE_MUTATIONS, *[_change_entries] * 8)


def mutate_messages(
    valid_messages: Sequence[bytes], n_messages: int, *, seed: int
) -> Iterator[bytes]:
    """Make `n_messages` messages, each a valid one with one or two mutations."""
    rng = random.Random(seed)
    for _ in range(n_messages):
        message = rng.choice(MUTATIONS)(rng, rng.choice(valid_messages), rng.choice(valid_messages))
        if message and rng.random() < 0.1:
            message = rng.choice(BYTE_MUTATIONS)(rng, message, rng.choice(valid_messages))
        yield message
