"""Messages as bytes: what device and cloud say to each other. Pure, no I/O.

A message is one CBOR map (RFC 8949) with text keys; numbers travel as RFC 8746 typed arrays,
never one by one. Layout, version 1:

======== ===================== ===============================================================
key      CBOR type             meaning
======== ===================== ===============================================================
``v``    unsigned              layout version, 1
``id``   16 bytes              the request's id; a response repeats it
``m``    text, 1 to 64 bytes   model name
``mv``   text, 1 to 64 bytes   model version
-------- --------------------- ---------------------------------------------------------------
Request
----------------------------------------------------------------------------------------------
``ttl``  unsigned              time left to live in ms, relative (a device's clock drifts)
``n``    unsigned, 1 to 4096   rows (instances)
``k``    unsigned, 1 to 65535  columns: the cloud model's inputs, in its order
``x``    tag 85 or 84          rows * columns values, row by row: float32 or float16, little-endian
-------- --------------------- ---------------------------------------------------------------
Response that answers
----------------------------------------------------------------------------------------------
``n``    unsigned              rows, as in the request
``c``    unsigned, 2 to 65535  classes
``y``    tag 69                class index of each row: uint16, little-endian
``p``    tag 85                rows * classes probabilities: float32, little-endian
``us``   unsigned              what the worker took, in microseconds
-------- --------------------- ---------------------------------------------------------------
Response that refuses (``m`` and ``mv`` are left out where the request's were unreadable)
----------------------------------------------------------------------------------------------
``e``    text, 1 to 32 bytes   error code; ``busy`` and ``no-model`` may be retried
``d``    text, 0 to 200 bytes  detail for people
======== ===================== ===============================================================

A decoder never trusts. A payload is at most :data:`MAX_PAYLOAD` bytes and exactly one map of
at most 32 entries, definite lengths, no key twice, no nesting beyond it, no CBOR tag but the
typed arrays above; every type, range and shape is checked. Keys that are not listed are
ignored, so that version 1 may grow. Infinite values are refused; NaN, the mark of a missing
value, only passes where the caller says so.

>>> import numpy as np
>>> request = Request(id=bytes(16), model="digits", version="1", ttl_ms=500, X=np.ones((1, 2)))
>>> payload = encode_request(request)
>>> len(payload), decode_request(payload).X.tolist()
(64, [[1.0, 1.0]])
"""

from __future__ import annotations

import io
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import cbor2
import numpy as np
from numpy.typing import NDArray

from gatewise_edge.errors import WireError

__all__ = [
    "BAD_REQUEST",
    "BUSY",
    "EXPIRED",
    "FAILED",
    "MAX_PAYLOAD",
    "NO_MODEL",
    "REQUESTS",
    "RETRYABLE",
    "Request",
    "Response",
    "check_device",
    "check_model",
    "dead_topic",
    "decode_request",
    "decode_response",
    "device_of",
    "encode_request",
    "encode_response",
    "manifest_topic",
    "metrics_topic",
    "new_id",
    "request_topic",
    "response_topic",
    "shared",
    "status_topic",
]

WIRE_VERSION: Final = 1
#: Bytes of a payload at most: AWS IoT Core's limit, the lowest of the usual brokers.
MAX_PAYLOAD: Final = 128 * 1024
MAX_ROWS: Final = 4096
MAX_COLUMNS: Final = 65535
MAX_NAME: Final = 64
MAX_TTL_MS: Final = 86_400_000
MAX_ENTRIES: Final = 32
_MAX_CODE: Final = 32
_MAX_DETAIL: Final = 200
_MAX_WORKER_US: Final = 2**40

#: Error codes of a response. Others may come; only those in RETRYABLE are worth a retry.
BUSY: Final = "busy"
NO_MODEL: Final = "no-model"
BAD_REQUEST: Final = "bad-request"
EXPIRED: Final = "expired"
FAILED: Final = "failed"
RETRYABLE: Final = frozenset({BUSY, NO_MODEL})

_ARRAYS: Final[dict[int, np.dtype[Any]]] = {
    69: np.dtype("<u2"),
    84: np.dtype("<f2"),
    85: np.dtype("<f4"),
}
_TAGS: Final[dict[np.dtype[Any], int]] = {dtype: tag for tag, dtype in _ARRAYS.items()}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Request:
    """One or several instances for the cloud.

    Parameters
    ----------
    id : bytes
        16 bytes, see :func:`new_id`.
    model, version : str
        The bundle's name and version.
    ttl_ms : int
        Time left to live in milliseconds, 0 to one day: the smallest of the rows'.
    X : ndarray of float32 or float16, shape (rows, columns)
        The cloud model's inputs, in its order. Other dtypes are cast to float32.

    Raises
    ------
    WireError
        If a field is out of its bounds, or a value of `X` is infinite.
    """

    id: bytes
    model: str
    version: str
    ttl_ms: int
    X: NDArray[np.float32] | NDArray[np.float16]

    def __post_init__(self) -> None:
        _check_id(self.id)
        check_model(self.model)
        check_model(self.version, "model version")
        _check_int("ttl_ms", self.ttl_ms, 0, MAX_TTL_MS)
        X = np.asarray(self.X)
        if X.dtype not in (np.dtype(np.float32), np.dtype(np.float16)):
            X = X.astype(np.float32)
        object.__setattr__(self, "X", X)
        if X.ndim != 2:
            raise WireError("shape", f"the instances must form a matrix, not shape {X.shape}")
        _check_int("rows", X.shape[0], 1, MAX_ROWS)
        _check_int("columns", X.shape[1], 1, MAX_COLUMNS)
        if np.isinf(X).any():
            raise WireError("infinite", "the instances hold an infinite value")

    @property
    def rows(self) -> int:
        """Number of instances."""
        return int(self.X.shape[0])

    @property
    def has_missing(self) -> bool:
        """Whether a value is NaN, the mark of a missing one."""
        return bool(np.isnan(self.X).any())


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Response:
    """What the cloud says to a request: an answer for every row, or one error for all.

    Parameters
    ----------
    id : bytes
        The request's id.
    model, version : str
        The model that answered, or that was asked for; both empty in an error whose request
        could not be read that far.
    labels : ndarray of int64, shape (rows,)
        Class indices.
    probabilities : ndarray of float32, shape (rows, classes)
    worker_us : int
        What the worker took, in microseconds.
    error : str or None
        Error code; then `labels` and `probabilities` are empty.
    detail : str
        What went wrong, for people; cut to 200 bytes.

    Raises
    ------
    WireError
        If a field is out of its bounds, shapes do not agree, a class index is too large or a
        probability is not finite.
    """

    id: bytes
    model: str
    version: str
    labels: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    probabilities: NDArray[np.float32] = field(default_factory=lambda: np.empty((0, 0), np.float32))
    worker_us: int = 0
    error: str | None = None
    detail: str = ""

    def __post_init__(self) -> None:
        _check_id(self.id)
        if self.model or self.version or self.error is None:
            check_model(self.model)
            check_model(self.version, "model version")
        object.__setattr__(self, "labels", np.asarray(self.labels, np.int64))
        object.__setattr__(self, "probabilities", np.asarray(self.probabilities, np.float32))
        if self.error is not None:
            _check_text("error code", self.error, 1, _MAX_CODE)
            detail = str(self.detail).encode("utf-8", "replace")[:_MAX_DETAIL]
            object.__setattr__(self, "detail", detail.decode("utf-8", "ignore"))
            return
        _check_int("worker_us", self.worker_us, 0, _MAX_WORKER_US)
        labels, probabilities = self.labels, self.probabilities
        if labels.ndim != 1 or probabilities.ndim != 2 or len(labels) != len(probabilities):
            shapes = f"{labels.shape} labels and {probabilities.shape} probabilities"
            raise WireError("shape", f"a response with {shapes}")
        _check_int("rows", labels.shape[0], 1, MAX_ROWS)
        _check_int("classes", probabilities.shape[1], 2, MAX_COLUMNS)
        if labels.min() < 0 or labels.max() >= probabilities.shape[1]:
            raise WireError("range", "a response with a class index out of range")
        if not np.isfinite(probabilities).all():
            raise WireError("infinite", "a response with a probability that is not finite")

    @property
    def rows(self) -> int:
        """Number of instances answered; 0 in an error."""
        return len(self.labels)

    @property
    def retryable(self) -> bool:
        """Whether the same request may do better a little later."""
        return self.error in RETRYABLE

    @classmethod
    def refusal(cls, request: Request, code: str, detail: str = "") -> Response:
        """Answer `request` with an error."""
        return cls(
            id=request.id, model=request.model, version=request.version, error=code, detail=detail
        )


def new_id() -> bytes:
    """Draw a fresh request id: 128 bits from the operating system."""
    return secrets.token_bytes(16)


# -- encoding ------------------------------------------------------------------------------


def encode_request(request: Request) -> bytes:
    """Write a request as a payload.

    Raises
    ------
    WireError
        If it is larger than :data:`MAX_PAYLOAD`: send fewer rows at a time.
    """
    rows, columns = request.X.shape
    return _dumps(
        {
            "v": WIRE_VERSION,
            "id": request.id,
            "m": request.model,
            "mv": request.version,
            "ttl": request.ttl_ms,
            "n": rows,
            "k": columns,
            "x": _typed(request.X, "<f2" if request.X.dtype == np.float16 else "<f4"),
        }
    )


def encode_response(response: Response) -> bytes:
    """Write a response as a payload.

    Raises
    ------
    WireError
        If it is larger than :data:`MAX_PAYLOAD`.
    """
    message: dict[str, Any] = {"v": WIRE_VERSION, "id": response.id}
    if response.model:
        message |= {"m": response.model, "mv": response.version}
    if response.error is not None:
        return _dumps(message | {"e": response.error, "d": response.detail})
    return _dumps(
        message
        | {
            "n": response.rows,
            "c": response.probabilities.shape[1],
            "y": _typed(response.labels, "<u2"),
            "p": _typed(response.probabilities, "<f4"),
            "us": response.worker_us,
        }
    )


def _typed(array: NDArray[Any], dtype: str) -> cbor2.CBORTag:
    data = np.ascontiguousarray(array, np.dtype(dtype))
    return cbor2.CBORTag(_TAGS[data.dtype], data.tobytes())


def _dumps(message: dict[str, Any]) -> bytes:
    payload: bytes = cbor2.dumps(message)
    if len(payload) > MAX_PAYLOAD:
        raise WireError("size", f"a message of {len(payload)} bytes; at most {MAX_PAYLOAD} may go")
    return payload


# -- decoding ------------------------------------------------------------------------------


def decode_request(payload: bytes, *, allow_missing: bool = False) -> Request:
    """Read a request that anyone may have sent.

    Parameters
    ----------
    payload : bytes
    allow_missing : bool, default False
        Let NaN pass. A worker whose models differ in this lets it pass here and checks
        :attr:`Request.has_missing` once it knows the model.

    Raises
    ------
    WireError
        With a `reason` and, where one could be read, the message's `id`.
    """
    message = _loads(payload)
    try:
        shape = (message.integer("n", 1, MAX_ROWS), message.integer("k", 1, MAX_COLUMNS))
        request = Request(
            id=message.id,
            model=message.text("m"),
            version=message.text("mv"),
            ttl_ms=message.integer("ttl", 0, MAX_TTL_MS),
            X=message.array("x", shape, "<f4", "<f2"),
        )
        if not allow_missing and request.has_missing:
            raise WireError("missing", "the instances hold a NaN")
    except WireError as error:
        error.id = message.id
        raise
    return request


def decode_response(payload: bytes) -> Response:
    """Read a response that anyone may have sent.

    Raises
    ------
    WireError
        With a `reason` and, where one could be read, the message's `id`.
    """
    message = _loads(payload)
    try:
        if message.has("e"):
            return Response(
                id=message.id,
                model=message.text("m") if message.has("m") else "",
                version=message.text("mv") if message.has("mv") else "",
                error=message.text("e", _MAX_CODE),
                detail=message.text("d", _MAX_DETAIL, shortest=0) if message.has("d") else "",
            )
        rows, classes = message.integer("n", 1, MAX_ROWS), message.integer("c", 2, MAX_COLUMNS)
        return Response(
            id=message.id,
            model=message.text("m"),
            version=message.text("mv"),
            labels=message.array("y", (rows,), "<u2"),
            probabilities=message.array("p", (rows, classes), "<f4"),
            worker_us=message.integer("us", 0, _MAX_WORKER_US),
        )
    except WireError as error:
        error.id = message.id
        raise


class _Message:
    """A decoded map whose entries are checked as they are taken out."""

    def __init__(self, entries: dict[Any, Any]) -> None:
        self._entries = entries
        self.id: bytes = _check_id(entries.get("id"))
        version = entries.get("v")
        if type(version) is not int or version != WIRE_VERSION:
            raise WireError(
                "version", f"a message of layout {str(version)[:20]}, not 1", id=self.id
            )

    def has(self, key: str) -> bool:
        return key in self._entries

    def integer(self, key: str, low: int, high: int) -> int:
        return _check_int(key, self._entries.get(key), low, high)

    def text(self, key: str, longest: int = MAX_NAME, *, shortest: int = 1) -> str:
        return _check_text(key, self._entries.get(key), shortest, longest)

    def array(self, key: str, shape: tuple[int, ...], *dtypes: str) -> NDArray[Any]:
        typed = self._entries.get(key)
        if not isinstance(typed, _Tagged) or type(typed.value) is not bytes:
            raise WireError("type", f"{key!r} is not a typed array")
        dtype = _ARRAYS.get(typed.tag)
        if dtype is None or dtype not in [np.dtype(d) for d in dtypes]:
            raise WireError("type", f"{key!r} is a typed array of tag {typed.tag}, not of {dtypes}")
        count = int(np.prod(shape, dtype=np.int64))
        if len(typed.value) != count * dtype.itemsize:
            raise WireError("shape", f"{key!r} has {len(typed.value)} bytes, not those of {shape}")
        values: NDArray[Any] = np.frombuffer(typed.value, dtype).reshape(shape)
        return values.astype(dtype.newbyteorder("="), copy=False)


@dataclass(frozen=True, slots=True)
class _Tagged:
    tag: int
    value: Any


class _NoTagRuns(Mapping[int, Callable[[Any, bool], Any]]):
    """Stands before every tag decoder of cbor2: a tag is kept as data, whatever it means.

    Otherwise a sender could have dates, regular expressions, e-mails and huge decimals built.
    """

    def __getitem__(self, tag: int) -> Callable[[Any, bool], Any]:
        return lambda value, immutable: _Tagged(tag, value)

    def __iter__(self) -> Iterator[int]:
        return iter(())

    def __len__(self) -> int:
        return 1


_NO_TAG_RUNS: Final = _NoTagRuns()


def _loads(payload: bytes) -> _Message:
    if len(payload) > MAX_PAYLOAD:
        raise WireError("size", f"a message of {len(payload)} bytes; at most {MAX_PAYLOAD} may be")
    stream = io.BytesIO(payload)
    try:
        entries = cbor2.CBORDecoder(
            stream,
            semantic_decoders=_NO_TAG_RUNS,
            max_depth=4,
            allow_indefinite=False,
            allow_duplicate_keys=False,
            strict_hashable_types=True,
        ).decode()
    except (cbor2.CBORDecodeError, ValueError, OverflowError, RecursionError) as error:
        raise WireError("cbor", f"not a message in CBOR: {str(error)[:120]}") from None
    if stream.tell() != len(payload):
        raise WireError("cbor", "a message with bytes after its end")
    if type(entries) is not dict or len(entries) > MAX_ENTRIES:
        raise WireError("cbor", f"a message is one CBOR map of at most {MAX_ENTRIES} entries")
    return _Message(entries)


def _check_id(value: object) -> bytes:
    if type(value) is not bytes or len(value) != 16:
        raise WireError("id", "a message's id must be 16 bytes")
    return value


def _check_int(what: str, value: object, low: int, high: int) -> int:
    if type(value) is not int:
        raise WireError("type", f"{what} must be an integer, not {type(value).__name__}")
    if not low <= value <= high:
        raise WireError("range", f"{what} must lie in {low} to {high}")
    return value


def _check_text(what: str, value: object, shortest: int, longest: int) -> str:
    if type(value) is not str:
        raise WireError("type", f"{what} must be a text, not {type(value).__name__}")
    try:
        size = len(value.encode("utf-8"))
    except UnicodeEncodeError:
        raise WireError("name", f"{what} is not valid Unicode") from None
    if not shortest <= size <= longest:
        raise WireError("range", f"{what} must have {shortest} to {longest} bytes, not {size}")
    return value


# -- names and topics ----------------------------------------------------------------------

_ROOT: Final = "gw/v1"
#: Topic filter of every device's requests.
REQUESTS: Final = f"{_ROOT}/+/req"
_RESERVED: Final = frozenset({"model", "dead"})


def check_device(device: str) -> str:
    """Check a device id: a topic level of 1 to 64 bytes, not ``model`` and not ``dead``.

    Raises
    ------
    WireError
        If it is too long or empty, holds ``/``, ``+``, ``#`` or a control character, or is
        one of the reserved names.
    """
    _check_level("device id", device)
    if device in _RESERVED:
        raise WireError("name", f"device id {device!r} is reserved")
    return device


def check_model(name: str, what: str = "model name") -> str:
    """Check a model's name or version: a topic level of 1 to 64 bytes.

    Raises
    ------
    WireError
        As :func:`check_device`, but no name is reserved.
    """
    return _check_level(what, name)


def _check_level(what: str, value: str) -> str:
    _check_text(what, value, 1, MAX_NAME)
    if any(c in "/+#" or ord(c) < 32 or 127 <= ord(c) < 160 for c in value):
        raise WireError("name", f"{what} {value!r} holds '/', '+', '#' or a control character")
    return value


def request_topic(device: str) -> str:
    """Where `device` asks."""
    return f"{_ROOT}/{check_device(device)}/req"


def response_topic(device: str) -> str:
    """Where `device` is answered."""
    return f"{_ROOT}/{check_device(device)}/rsp"


def status_topic(device: str) -> str:
    """Where `device` says, retained, that it is ``online`` or (its last will) ``offline``."""
    return f"{_ROOT}/{check_device(device)}/status"


def metrics_topic(device: str) -> str:
    """Where `device` tells its counters."""
    return f"{_ROOT}/{check_device(device)}/metrics"


def manifest_topic(model: str) -> str:
    """Where a model's manifest is announced, retained."""
    return f"{_ROOT}/model/{check_model(model)}/manifest"


def dead_topic(reason: str) -> str:
    """Where messages go that cannot be answered."""
    return f"{_ROOT}/dead/{_check_level('reason', reason)}"


def shared(pool: str, topic_filter: str = REQUESTS) -> str:
    """Make the shared subscription by which the workers of `pool` divide the requests."""
    return f"$share/{_check_level('pool', pool)}/{topic_filter}"


def device_of(topic: str) -> str:
    """Device id in a topic of the form ``gw/v1/<device>/<what>``.

    Raises
    ------
    WireError
        If the topic has another form.

    Examples
    --------
    >>> device_of("gw/v1/pi-7/req")
    'pi-7'
    """
    levels = topic.split("/")
    if len(levels) != 4 or levels[:2] != _ROOT.split("/"):
        raise WireError("name", f"topic {topic[:80]!r} is not a device's")
    return check_device(levels[2])
