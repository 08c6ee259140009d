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
_HUGE = [bytes([major | 27]) + size for major in (0x40, 0x60, 0x80, 0xA0, 0xC0)
         for size in (b"\xff" * 8, b"\x7f" + b"\xff" * 7, b"\x00\x00\x00\x00\xff\xff\xff\xff",
                      b"\x00\x00\x00\x10\x00\x00\x00\x00")]  # fmt: skip
_OPENERS = [b"\x9f", b"\xbf", b"\x5f", b"\x7f", b"\x81" * 500, b"\xa1\x61a" * 300, b"\xd8\x1c" * 99]
_KEYS = ["v", "id", "m", "mv", "ttl", "n", "k", "x", "c", "y", "p", "us", "e", "d", "w", "crc"]
_TAGS = [0, 1, 2, 3, 4, 5, 24, 25, 28, 29, 30, 35, 36, 37, 55799, 64, 69, 84, 85, 86, 256, 258, 260]


def requests(model: str, version: str, columns: int) -> list[bytes]:
    """Make valid requests."""
    rng = np.random.default_rng(0)
    matrices = [rng.normal(size=(n, columns)).astype(t) for n in (1, 3) for t in ("f4", "f2")]
    return [
        wire.encode_request(
            wire.Request(id=wire.new_id(), model=model, version=version, ttl_ms=9000, X=X)
        )
        for X in matrices
    ]


def responses(model: str, version: str, classes: int, ids: Sequence[bytes]) -> list[bytes]:
    """Make valid responses, one for each id."""
    probabilities = np.full((1, classes), 1 / classes)
    return [
        wire.encode_response(
            wire.Response(
                id=i, model=model, version=version, labels=[0], probabilities=probabilities
            )
        )
        for i in ids
    ]


def _flip(r: random.Random, seed: bytes, _: bytes) -> bytes:
    data = bytearray(seed)
    for _turn in range(r.randint(1, 6)):
        data[r.randrange(len(data))] ^= 1 << r.randrange(8)
    return bytes(data)


def _cut(r: random.Random, seed: bytes, _: bytes) -> bytes:
    return seed[: r.randrange(len(seed))]


def _extend(r: random.Random, seed: bytes, _: bytes) -> bytes:
    return seed + r.randbytes(r.randint(1, 64))


def _splice(r: random.Random, seed: bytes, other: bytes) -> bytes:
    return seed[: r.randrange(len(seed))] + other[r.randrange(len(other)) :]


def _repeat(r: random.Random, seed: bytes, _: bytes) -> bytes:
    start = r.randrange(len(seed))
    stop = r.randint(start, len(seed))
    return seed[:stop] + seed[start:stop] * r.randint(0, 3) + seed[stop:]


def _insert(r: random.Random, seed: bytes, _: bytes) -> bytes:
    """Insert a header of a huge or deep value."""
    position = r.randrange(len(seed))
    header, n_replaced = (r.choice(_HUGE), 9) if r.random() < 0.5 else (r.choice(_OPENERS), 3)
    return seed[:position] + header + seed[position + r.randint(0, n_replaced) :]


def _noise(r: random.Random, seed: bytes, _: bytes) -> bytes:
    return r.randbytes(r.choice((0, 1, 3, 16, 100, 2000)))


def _large(r: random.Random, seed: bytes, _: bytes) -> bytes:
    if r.random() < 0.9:
        return _flip(r, seed, seed)
    return seed[:20] + bytes(wire.MAX_PAYLOAD + r.choice((-20, -21, 0, 1000)))


def _value(r: random.Random, depth: int = 0) -> object:
    kind = r.randrange(12 if depth < 3 else 9)
    if kind == 0:
        return r.choice((0, 1, -1, 2**16, 2**31, 2**63, 2**64 - 1, -(2**64), 2**200))
    if kind == 1:
        return r.choice((math.nan, math.inf, -0.0, 1e308, 1.5))
    if kind == 2:
        return r.randbytes(r.choice((0, 1, 4, 15, 16, 17, 64)))
    if kind == 3:
        return r.choice(("", "a", "a/b", "+", "#", "\0", "é" * 40, "x" * 65, "1", "small", "tiny"))
    if kind in (4, 5):
        return cbor2.CBORTag(r.choice((69, 84, 85)), r.randbytes(r.choice((0, 2, 4, 12, 13, 16))))
    if kind in (6, 7):
        return r.choice((None, True, False, cbor2.undefined))
    if kind == 8:
        return r.randint(0, 70_000)
    if kind == 9:
        return [_value(r, depth + 1) for _turn in range(r.randint(0, 4))]
    if kind == 10:
        return {r.choice(_KEYS): _value(r, depth + 1) for _turn in range(r.randint(0, 3))}
    return cbor2.CBORTag(r.choice(_TAGS), _value(r, depth + 1))


def _structure(r: random.Random, seed: bytes, _: bytes) -> bytes:
    """Change entries of the map, and usually update the checksum."""
    entries: list[tuple[object, object]] = list(cbor2.loads(seed).items())
    for _turn in range(r.randint(1, 3)):
        action = r.randrange(4)
        if action == 0 and entries:
            index = r.randrange(len(entries))
            entries[index] = (entries[index][0], _value(r))
        elif action == 1 and entries:
            del entries[r.randrange(len(entries))]
        elif action == 2:
            entries.append((r.choice(_KEYS), _value(r)))
        else:
            entries.append((r.choice((0, b"id", None, 1.5, "new")), _value(r)))
    if r.random() < 0.02:
        entries += [(f"key-{i}", i) for i in range(r.choice((20, 40, 3000)))]
    r.shuffle(entries)
    if r.random() < 0.1:
        return _map(entries)
    entries = [entry for entry in entries if entry[0] != "crc"]
    covered = _map([*entries, ("crc", bytes(4))])[:-4]
    return covered + zlib.crc32(covered).to_bytes(4, "big")


def _map(entries: list[tuple[object, object]]) -> bytes:
    count = len(entries)
    head = bytes([0xA0 | count]) if count < 24 else b"\xb9" + count.to_bytes(2, "big")
    return head + b"".join(cbor2.dumps(k) + cbor2.dumps(v) for k, v in entries)


MUTATIONS: Sequence[Callable[[random.Random, bytes, bytes], bytes]] = (
    _flip, _flip, _cut, _extend, _splice, _repeat, _insert, _insert, _noise, _large,
    *[_structure] * 8,
)  # fmt: skip


def mutants(seeds: Sequence[bytes], count: int, *, seed: int) -> Iterator[bytes]:
    """Make `count` messages, each a valid one with one or two mutations."""
    r = random.Random(seed)
    for _turn in range(count):
        message = r.choice(MUTATIONS)(r, r.choice(seeds), r.choice(seeds))
        if message and r.random() < 0.1:
            # The first ten mutations also work on invalid CBOR.
            message = r.choice(MUTATIONS[:10])(r, message, r.choice(seeds))
        yield message


def resident_mb(process: int | str = "self") -> float:
    """Resident memory of a process in MB (10^6 bytes)."""
    with open(f"/proc/{process}/smaps_rollup") as lines:
        rss = next(line for line in lines if line.startswith("Rss:"))
    return int(rss.split()[1]) * 1024 / 1e6
