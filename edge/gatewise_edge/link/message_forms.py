"""Forms of requests and responses: CBOR, and plain JSON for clients without it. Pure, no I/O.

A JSON request holds the fields of a CBOR one (:mod:`.wire`), by the same names: ``id`` as 32 small
hexadecimal digits, ``x`` as a list of rows or as one row, null for a missing value; ``v``, ``n``
and ``k`` may be left out. It becomes a CBOR message and is read as such, with the same checks and
limits. Its response has lists of numbers for ``y``, ``p`` (row by row) and ``s``. There is no
checksum.

>>> request = decode_json_request(
...     b'{"id": "00112233445566778899aabbccddeeff", "m": "digits", "mv": "1", "ttl": 500,'
...     b' "x": [1, 2.5]}')
>>> request.model, request.X.tolist()
('digits', [[1.0, 2.5]])
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import cbor2
import numpy as np
from numpy.typing import NDArray

from gatewise_edge.checks import MAX_PAYLOAD
from gatewise_edge.errors import WireError
from gatewise_edge.link.encoding import (
    MAX_ENTRIES,
    WIRE_VERSION,
    decode_request,
    encode_response,
    response_entries,
)
from gatewise_edge.link.messages import MAX_ROWS, Request, Response
from gatewise_edge.link.topics import json_response_topic, response_topic

_ID: Final = re.compile("[0-9a-f]{32}", re.ASCII)
_FLOAT32: Final = 85


@dataclass(frozen=True, slots=True)
class MessageForm:
    """How a request was written, and so its response is: where it goes, and how large it may be.

    `answer_bytes` gives the bytes at most of the answer to one instance, from the number of
    classes.
    """

    decode_request: Callable[..., Request]
    encode_response: Callable[[Response], bytes]
    response_topic: Callable[[str], str]
    answer_bytes: Callable[[int], int]


def decode_json_request(payload: bytes, *, allow_missing: bool = False) -> Request:
    """Decode a JSON request from an untrusted sender; raises WireError as :func:`decode_request`.

    What is no JSON object has the reason ``json``.
    """
    if len(payload) > MAX_PAYLOAD:
        raise WireError("size", f"a message of {len(payload)} bytes; at most {MAX_PAYLOAD} may be")
    document = _document(payload)
    text = document.get("id")
    if not isinstance(text, str) or _ID.fullmatch(text) is None:
        raise WireError("id", "a message's id must be 32 hexadecimal digits, 0-9 and a-f")
    entries: dict[str, Any] = {"v": WIRE_VERSION, "id": bytes.fromhex(text)}
    try:
        for key, value in document.items():
            if isinstance(value, list | dict) and key != "x":
                raise WireError("type", f"{key[:20]!r} is nested: nothing but x may be")
        rows = _rows(document.get("x"))
        n, k = rows.shape
        entries |= {"n": n, "k": k}
        entries |= {key: document[key] for key in ("v", "m", "mv", "ttl") if key in document}
        for key, size in (("n", n), ("k", k)):
            if document.get(key, size) != size:
                raise WireError("shape", f"{key!r} is {document[key]!r}, but 'x' has {size}")
        entries["x"] = cbor2.CBORTag(_FLOAT32, rows.astype("<f4").tobytes())
        return decode_request(cbor2.dumps(entries), allow_missing=allow_missing)
    except UnicodeEncodeError:
        raise WireError("name", "a text that is not valid Unicode", id=entries["id"]) from None
    except WireError as error:
        error.id = entries["id"]
        raise


def encode_json_response(response: Response) -> bytes:
    """Encode a response as JSON; WireError if it is larger than :data:`MAX_PAYLOAD`."""
    document = response_entries(response) | {"id": response.id.hex()}
    for key in document.keys() & {"y", "s"}:
        document[key] = document[key].tolist()
    if "p" in document:
        # The shortest decimals that are read back as the same float32.
        document["p"] = [[float(str(p)) for p in row] for row in document["p"]]
    payload = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    if len(payload) > MAX_PAYLOAD:
        raise WireError("size", f"a message of {len(payload)} bytes; at most {MAX_PAYLOAD} may go")
    return payload


def _document(payload: bytes) -> dict[str, Any]:
    try:
        document = json.loads(
            payload.decode("utf-8"), parse_constant=_refuse, object_pairs_hook=_unique
        )
    except (ValueError, RecursionError) as error:
        raise WireError("json", f"not a message in JSON: {str(error)[:120]}") from None
    if not isinstance(document, dict) or len(document) > MAX_ENTRIES:
        raise WireError("json", f"a message is one JSON object of at most {MAX_ENTRIES} entries")
    return document


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON; null is a missing value")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return found


def _rows(x: Any) -> NDArray[np.float32]:
    """Values of a request, shape (rows, columns)."""
    if not isinstance(x, list) or not x:
        raise WireError("type", "'x' must be a list of rows, or one row, of numbers")
    rows = x if isinstance(x[0], list) else [x]
    if len(rows) > MAX_ROWS:
        raise WireError("range", f"'x' has {len(rows)} rows; at most {MAX_ROWS} may be")
    if any(not isinstance(row, list) or len(row) != len(rows[0]) for row in rows):
        raise WireError("shape", "'x' has rows of different lengths")
    values = [math.nan if value is None else value for row in rows for value in row]
    if any(type(value) not in (int, float) for value in values):
        raise WireError("type", "'x' holds what is neither a number nor null")
    try:
        with np.errstate(over="ignore"):  # beyond float32 is refused as infinite
            return np.array(values, np.float64).astype(np.float32).reshape(len(rows), -1)
    except OverflowError:
        raise WireError("infinite", "the instances hold an infinite value") from None


#: The form of devices. A label, probabilities and the stage.
CBOR: Final = MessageForm(
    decode_request, encode_response, response_topic, lambda classes: 4 * classes + 4
)
#: A float32 has at most 14 characters, a label and a stage 5 each, all with a comma.
JSON: Final = MessageForm(
    decode_json_request,
    encode_json_response,
    json_response_topic,
    lambda classes: 15 * classes + 16,
)
