"""Forms of requests and responses: CBOR, and JSON for clients without CBOR.

A JSON request has the fields of a CBOR request (:mod:`.wire`) under the same names. Its ``id`` has
32 lower-case hexadecimal digits. Its ``x`` is one row or a list of rows, with null for a missing
value. ``v``, ``n`` and ``k`` are optional. The same checks and limits apply. In a JSON response
``y`` is a list of numbers, and ``p`` has a list for each row. JSON messages have no checksum.

>>> request = decode_json_request(
...     b'{"id": "00112233445566778899aabbccddeeff", "m": "digits", "mv": "1", "ttl": 500,'
...     b' "x": [1, 2.5]}')
>>> request.model, request.X.tolist()
('digits', [[1.0, 2.5]])
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from gatewise.documents import unique_json
from gatewise.errors import InputError
from gatewise_edge.checks import MAX_PAYLOAD, check_size
from gatewise_edge.errors import WireError, WireReason
from gatewise_edge.link.encoding import (
    WIRE_VERSION,
    decode_request,
    encode_response,
    response_entries,
)
from gatewise_edge.link.messages import MAX_ROWS, Request, Response
from gatewise_edge.link.topics import json_response_topic, response_topic

#: The form of an id, 16 bytes in hexadecimal digits.
_ID_FORM: Final = re.compile("[0-9a-f]{32}", re.ASCII)

Row = list[float | None]


@dataclass(frozen=True, slots=True)
class MessageForm:
    """A form of requests and responses, as workers use it.

    Attributes
    ----------
    decode_request, encode_response : callable
        Decode a request, and encode a response.
    response_topic : callable
        Returns the topic of the responses to a device.
    answer_bytes : callable
        Returns the largest size of the answer to one instance for a number of classes, in bytes.
    """

    decode_request: Callable[..., Request]
    encode_response: Callable[[Response], bytes]
    response_topic: Callable[[str], str]
    answer_bytes: Callable[[int], int]


class _MessageId(msgspec.Struct):
    """The id of a request, without which no response is possible."""

    id: str


class _JsonRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A request in JSON, with the keys of docs/wire.md."""

    id: str
    m: str
    mv: str
    ttl: int
    x: list[float | Row | None]
    v: int = WIRE_VERSION
    n: int | msgspec.UnsetType = msgspec.UNSET
    k: int | msgspec.UnsetType = msgspec.UNSET
    pr: Literal[0, 1] = 0


#: Decoders are made once, because making one compiles the fields of its type.
_ID_DECODER: Final = msgspec.json.Decoder(_MessageId)
_REQUEST_DECODER: Final = msgspec.json.Decoder(_JsonRequest)
_ENCODER: Final = msgspec.json.Encoder()


def decode_json_request(payload: bytes) -> Request:
    """Decode a JSON request from an untrusted sender; raise WireError as :func:`decode_request`.

    The reason is ``json`` if the payload is not a JSON object.
    """
    check_size(payload)
    request_id = _request_id(payload)
    try:
        message = _REQUEST_DECODER.decode(payload)
        # Refuse equal keys: msgspec would use the last one, and other decoders may use the first.
        unique_json(payload)
        if message.v != WIRE_VERSION:
            raise WireError("version", f"a message of layout {message.v}, not {WIRE_VERSION}")
        X = _request_matrix(message.x)
        for key, stated_size, actual_size in (
            ("n", message.n, len(X)),
            ("k", message.k, X.shape[1]),
        ):
            if stated_size not in (msgspec.UNSET, actual_size):
                raise WireError("shape", f"{key!r} is {stated_size}, but 'x' has {actual_size}")
        request = Request(
            id=request_id,
            model=message.m,
            version=message.mv,
            ttl_ms=message.ttl,
            X=X,
            is_private=bool(message.pr),
        )
        if X.nbytes > MAX_PAYLOAD:
            raise WireError(
                "size", f"{X.nbytes} bytes of values: the largest allowed size is {MAX_PAYLOAD}"
            )
        return request
    except msgspec.ValidationError as error:
        raise WireError("type", str(error)[:200], id=request_id) from None
    except UnicodeDecodeError as error:
        # The id is readable, because msgspec skips other texts without decoding them.
        raise WireError("json", f"not a message in JSON: {error}", id=request_id) from None
    except InputError as error:
        raise WireError("json", str(error), id=request_id) from None
    except WireError as error:
        error.id = request_id
        raise


def encode_json_response(response: Response) -> bytes:
    """Encode a response as JSON; raise WireError if it is larger than :data:`.MAX_PAYLOAD`."""
    entries = response_entries(response) | {"id": response.id.hex()}
    if "y" in entries:
        entries["y"] = entries["y"].tolist()
        # str() of a float32 is the shortest decimal that is read back as the same float32.
        entries["p"] = [[float(str(probability)) for probability in row] for row in entries["p"]]
    payload = _ENCODER.encode(entries)
    check_size(payload)
    return payload


def _request_id(payload: bytes) -> bytes:
    """Read only the id, so that an error in the other fields can be answered."""
    try:
        id_text = _ID_DECODER.decode(payload).id
    except msgspec.ValidationError as error:
        reason: WireReason = "id" if payload.lstrip()[:1] == b"{" else "json"
        raise WireError(reason, f"not a message in JSON: {str(error)[:120]}") from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise WireError("json", f"not a message in JSON: {str(error)[:120]}") from None
    if _ID_FORM.fullmatch(id_text) is None:
        raise WireError("id", "a message's id must be 32 hexadecimal digits, 0-9 and a-f")
    return bytes.fromhex(id_text)


def _request_matrix(rows_or_row: list[Any]) -> NDArray[np.float32]:
    """Values of a request, shape (rows, columns), from rows or one row."""
    rows = rows_or_row if rows_or_row and isinstance(rows_or_row[0], list) else [rows_or_row]
    if len(rows) > MAX_ROWS:
        raise WireError("range", f"'x' has {len(rows)} rows: at most {MAX_ROWS} are allowed")
    if any(not isinstance(row, list) or len(row) != len(rows[0]) for row in rows):
        raise WireError("shape", "'x' has rows of different lengths")
    numbers = [math.nan if number is None else number for row in rows for number in row]
    if any(isinstance(number, list) for number in numbers):
        raise WireError("type", "'x' mixes rows and numbers")
    with np.errstate(over="ignore"):  # values beyond float32 become infinite and are refused later
        return np.array(numbers, np.float64).astype(np.float32).reshape(len(rows), -1)


#: The form that devices use. An answer is a label (2 bytes) and float32 probabilities.
CBOR: Final = MessageForm(
    decode_request, encode_response, response_topic, lambda n_classes: 4 * n_classes + 2
)
#: A float32 has at most 14 characters and a label 5, each with a comma; a row of probabilities also
#: has brackets and a comma.
JSON: Final = MessageForm(
    decode_json_request,
    encode_json_response,
    json_response_topic,
    lambda n_classes: 15 * n_classes + 10,
)
