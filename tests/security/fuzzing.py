"""Random mutations of valid messages."""

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
#: Tags that decoders treat in a special way: times, large and rational numbers, shared and
#: embedded values, patterns, arrays, sets and addresses.
_TAGS = [0, 1, 2, 3, 4, 5, 24, 25, 28, 29, 30, 35, 36, 37, 55799, 64, 69, 84, 85, 86, 256, 258, 260]


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
    mutated = bytearray(message_bytes)
    for _ in range(rng.randint(1, 6)):
        mutated[rng.randrange(len(mutated))] ^= 1 << rng.randrange(8)
    return bytes(mutated)


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
    """Insert a header of a huge or deep value, perhaps instead of as many bytes."""
    position = rng.randrange(len(message_bytes))
    header, n_replaced = (
        (rng.choice(_HUGE_HEADERS), 9) if rng.random() < 0.5 else (rng.choice(_DEEP_HEADERS), 3)
    )
    return (
        message_bytes[:position] + header + message_bytes[position + rng.randint(0, n_replaced) :]
    )


def _draw_bytes(rng: random.Random, message_bytes: bytes, _other_bytes: bytes) -> bytes:
    return rng.randbytes(rng.choice((0, 1, 3, 16, 100, 2000)))


def _enlarge_message(rng: random.Random, message_bytes: bytes, _other_bytes: bytes) -> bytes:
    """Append zeros up to about the largest payload, seldom because such messages are slow."""
    if rng.random() < 0.9:
        return _flip_bits(rng, message_bytes, message_bytes)
    return message_bytes[:20] + bytes(wire.MAX_PAYLOAD + rng.choice((-20, -21, 0, 1000)))


def _draw_value(rng: random.Random, depth: int = 0) -> object:
    """Draw a value near the limits of each CBOR type; only the last three kinds are nested."""
    value_kind = rng.randrange(12 if depth < 3 else 9)
    if value_kind == 0:
        return rng.choice((0, 1, -1, 2**16, 2**31, 2**63, 2**64 - 1, -(2**64), 2**200))
    if value_kind == 1:
        return rng.choice((math.nan, math.inf, -0.0, 1e308, 1.5))
    if value_kind == 2:
        return rng.randbytes(rng.choice((0, 1, 4, 15, 16, 17, 64)))
    if value_kind == 3:
        return rng.choice(
            ("", "a", "a/b", "+", "#", "\0", "é" * 40, "x" * 65, "1", "small", "tiny")
        )
    if value_kind in (4, 5):
        # typed arrays, with and without a whole number of elements
        return cbor2.CBORTag(
            rng.choice((69, 84, 85)), rng.randbytes(rng.choice((0, 2, 4, 12, 13, 16)))
        )
    if value_kind in (6, 7):
        return rng.choice((None, True, False, cbor2.undefined))
    if value_kind == 8:
        return rng.randint(0, 70_000)
    if value_kind == 9:
        return [_draw_value(rng, depth + 1) for _ in range(rng.randint(0, 4))]
    if value_kind == 10:
        return {rng.choice(_KEYS): _draw_value(rng, depth + 1) for _ in range(rng.randint(0, 3))}
    return cbor2.CBORTag(rng.choice(_TAGS), _draw_value(rng, depth + 1))


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


#: Mutations, which are drawn evenly; those that pass the first checks occur more often.
MUTATIONS: Sequence[Callable[[random.Random, bytes, bytes], bytes]] = (
    _flip_bits, _flip_bits, _cut_end, _append_bytes, _splice_messages, _repeat_part,
    _insert_header, _insert_header, _draw_bytes, _enlarge_message,
    *[_change_entries] * 8,
)  # fmt: skip


def mutate_messages(
    valid_messages: Sequence[bytes], n_messages: int, *, seed: int
) -> Iterator[bytes]:
    """Make `n_messages` messages, each a valid one with one or two mutations."""
    rng = random.Random(seed)
    for _ in range(n_messages):
        message = rng.choice(MUTATIONS)(rng, rng.choice(valid_messages), rng.choice(valid_messages))
        if message and rng.random() < 0.1:
            # The first ten mutations also work on invalid CBOR.
            message = rng.choice(MUTATIONS[:10])(rng, message, rng.choice(valid_messages))
        yield message


def read_resident_mb(process: int | str = "self") -> float:
    """Read the resident memory of a process in MB (10^6 bytes)."""
    with open(f"/proc/{process}/smaps_rollup") as lines:
        rss_line = next(line for line in lines if line.startswith("Rss:"))
    return int(rss_line.split()[1]) * 1024 / 1e6
