"""Test vectors of messages, for implementations in other languages.

python -m tests.support.wire_vectors > docs/wire-vectors.json
"""

from __future__ import annotations

import json
import zlib
from typing import Any

import cbor2
import numpy as np

from gatewise_edge.errors import WireError
from gatewise_edge.link import wire
from gatewise_edge.link.message_forms import decode_json_request, encode_json_response
from gatewise_edge.link.wire import AuditMark, Request, Response

ID = bytes(range(16))
NAMES = {"id": ID, "model": "digits", "version": "1"}
FLOATS = np.array([[1, 2.5], [-0.1, 3e38]], np.float32)

REQUESTS = {
    "one row, float32": Request(**NAMES, ttl_ms=500, X=FLOATS[:1]),
    "two rows, float32": Request(**NAMES, ttl_ms=23, X=FLOATS),
    "float16": Request(**NAMES, ttl_ms=500, X=FLOATS[:1].astype(np.float16)),
    "a missing value": Request(**NAMES, ttl_ms=500, X=np.array([[1, np.nan]], np.float32)),
    "an audit": Request(**NAMES, ttl_ms=9000, X=FLOATS[:1], audit=AuditMark(2, 0.02)),
    "names beyond ASCII, 40 columns, ttl 0": Request(
        id=ID, model="größe", version="2026-01", ttl_ms=0, X=np.arange(40, dtype="f4")[None]
    ),
}
RESPONSES = {
    "one row": Response(**NAMES, labels=[1], probabilities=[[0.25, 0.75]], worker_us=40),
    "two rows": Response(
        **NAMES, labels=[1, 0], probabilities=[[0.25, 0.75], [0.9, 0.1]], worker_us=70000
    ),
    "busy, wait": Response(**NAMES, error="busy", detail="the queue is full", wait_ms=300),
    "no-model": Response(**NAMES, error="no-model", detail="this worker does not serve digits 1"),
    "bad-request without a model": Response(id=ID, model="", version="", error="bad-request"),
}  # fmt: skip


def make_vectors() -> dict[str, Any]:
    """Make the document."""
    return {
        "about": "Messages of docs/wire.md. `hex` is the payload; `says` what it says, NaN as "
        "null. `reason` is why a decoder refuses it, `id` what "
        "a refusal can be sent to.",
        "requests": [
            {
                "name": name,
                "hex": wire.encode_request(message).hex(),
                "says": request_values(message),
            }
            for name, message in REQUESTS.items()
        ],
        "responses": [
            {
                "name": name,
                "hex": wire.encode_response(message).hex(),
                "says": response_values(message),
            }
            for name, message in RESPONSES.items()
        ],
        "json_requests": [{"text": text, **_decode_json(text)} for text in _list_json_requests()],
        "json_responses": [
            {"text": encode_json_response(message).decode(), "says": response_values(message)}
            for message in RESPONSES.values()
        ],
        "wrong_requests": [
            _decode_refused(name, payload) for name, payload in _make_wrong_requests().items()
        ],
    }


def request_values(request: Request) -> dict[str, Any]:
    """Convert a request to JSON values."""
    audit = request.audit
    values: dict[str, Any] = {
        "id": request.id.hex(), "m": request.model, "mv": request.version, "ttl": request.ttl_ms,
    }  # fmt: skip
    values |= {
        "n": request.n_rows, "k": request.X.shape[1], "type": request.X.dtype.name,
        "x": [
            [None if np.isnan(value) else value for value in row]
            for row in request.X.astype(float).tolist()
        ],
    }  # fmt: skip
    if audit is None:
        return values
    return values | {
        "a": audit.class_index,
        "ap": round(1e6 * audit.probability),
    }


def response_values(response: Response) -> dict[str, Any]:
    """Convert a response to JSON values; probabilities are float32 values as float64."""
    values: dict[str, Any] = {"id": response.id.hex(), "m": response.model, "mv": response.version}
    if response.error is not None:
        return values | {"e": response.error, "d": response.detail, "w": response.wait_ms}
    return values | {
        "n": response.n_rows, "c": response.probabilities.shape[1], "y": response.labels.tolist(),
        "p": response.probabilities.astype(float).tolist(), "us": response.worker_us,
    }  # fmt: skip


def _list_json_requests() -> list[str]:
    request = {
        "id": ID.hex(),
        "m": "digits",
        "mv": "1",
        "ttl": 500,
        "x": [[1, 2.5], [-0.1, 3e38]],
    }
    return [
        json.dumps(entries)
        for entries in (
            request, request | {"x": [1, None]},
            request | {"v": 1, "n": 2, "k": 2, "new": "ignored"},
            request | {"x": [[1], [2, 3]]}, request | {"x": [1e39]}, request | {"n": 3},
            request | {"new": []}, request | {"id": "short"},
        )
    ]  # fmt: skip


def _decode_json(text: str) -> dict[str, Any]:
    try:
        return {"says": request_values(decode_json_request(text.encode()))}
    except WireError as error:
        return {"reason": error.reason, "id": None if error.id is None else error.id.hex()}


def _decode_refused(name: str, payload: bytes) -> dict[str, Any]:
    try:
        wire.decode_request(payload)
    except WireError as error:
        refusal = {"reason": error.reason, "id": None if error.id is None else error.id.hex()}
        return {"name": name, "hex": payload.hex(), **refusal}
    raise AssertionError(f"{name} is accepted")


def change_message(payload: bytes, changes: dict[str, Any]) -> bytes:
    """Change entries of a message, and update its checksum, which is its last entry."""
    entries = cbor2.loads(payload) | changes
    del entries["crc"]
    body = cbor2.dumps(entries | {"crc": bytes(4)})[:-4]
    return body + zlib.crc32(body).to_bytes(4, "big")


def _make_wrong_requests() -> dict[str, bytes]:
    good_request = wire.encode_request(REQUESTS["one row, float32"])
    entries = cbor2.loads(good_request)
    del entries["crc"]
    assert change_message(good_request, {}) == good_request

    def change_request(**changes: Any) -> bytes:
        return change_message(good_request, changes)

    infinite_values = np.array([1, np.inf], "<f4").tobytes()
    return {
        "empty": b"",
        "cut off": good_request[:-1],
        "a byte behind the end": good_request + b"\0",
        "indefinite length": b"\xbf" + good_request[1:] + b"\xff",
        "a bit flipped": good_request[:40] + bytes([good_request[40] ^ 4]) + good_request[41:],
        "no checksum": cbor2.dumps(entries),
        "an id of 8 bytes": change_request(id=ID[:8]),
        "layout 2": change_request(v=2),
        "a model's name with a slash": change_request(m="a/b"),
        "a ttl of more than a day": change_request(ttl=86_400_001),
        "no rows": change_request(n=0),
        "bytes of another shape": change_request(k=3),
        "float64": change_request(x=cbor2.CBORTag(86, bytes(16))),
        "an infinite value": change_request(x=cbor2.CBORTag(85, infinite_values)),
        "a list in a key that nobody reads": change_request(new=[1]),
        "a byte string that is no typed array": change_request(x=bytes(8)),
    }


if __name__ == "__main__":
    print(json.dumps(make_vectors(), indent=1))
