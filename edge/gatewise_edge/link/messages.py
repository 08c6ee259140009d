"""Requests and responses, which check their fields when they are created."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gatewise.models.instances import DTYPES
from gatewise_edge.checks import MAX_PAYLOAD, check_id, check_int, check_level, check_text
from gatewise_edge.errors import WireError

#: Largest size of a request's fields without the values, in bytes.
_MAX_REQUEST_FIELD_BYTES: Final = 256
#: Largest size of a request's values in bytes; it leaves room in the message for the other fields.
MAX_VALUE_BYTES: Final = MAX_PAYLOAD - _MAX_REQUEST_FIELD_BYTES
#: Bounds of the fields, which docs/wire.md states for other implementations. Bounds without an
#: explanation are far above the needs of a device, and refuse only damaged messages.
MAX_ROWS: Final = 4096
#: Largest number of rows that a device groups in a request; more would make other devices wait.
MAX_GROUP_ROWS: Final = 256
MAX_COLUMNS: Final = 1 << 20
#: A label is an unsigned integer of 16 bits.
MAX_CLASSES: Final = 65535
#: One day.
MAX_TTL_MS: Final = 86_400_000
#: A leap year.
MAX_LATE_S: Final = 366 * 86_400
MAX_CODE_BYTES: Final = 32
#: A detail is one sentence for people.
MAX_DETAIL_BYTES: Final = 200
MAX_WORKER_US: Final = 2**40
#: Largest size of a response's fields without the answers, in bytes.
MAX_RESPONSE_FIELD_BYTES: Final = 256
_NUMPY_DTYPES: Final = frozenset(map(np.dtype, DTYPES))
#: Largest distance of a probability from [0, 1]. A softmax in half precision rounds this much.
_PROBABILITY_TOLERANCE: Final = 1e-3

#: Error codes of a response. Workers may use others; a retry can help only for RETRYABLE ones.
BUSY: Final = "busy"
NO_MODEL: Final = "no-model"
BAD_REQUEST: Final = "bad-request"
FAILED: Final = "failed"
RETRYABLE: Final = frozenset({BUSY, NO_MODEL})


@dataclass(frozen=True, slots=True)
class AuditMark:
    """Mark of a request that audits an answer of the device.

    Attributes
    ----------
    class_index : int
        Class index of the device's answer.
    probability : float
        Probability with which the answer was chosen for an audit, above 0 and up to 1.
    confidence : float, optional
        Largest class probability of the device's answer.
    """

    class_index: int
    probability: float
    confidence: float | None = None

    def __post_init__(self) -> None:
        check_int("audit class", self.class_index, 0, MAX_CLASSES)
        if not 0 < self.probability <= 1:
            raise WireError("range", f"audit probability {self.probability} is not in (0, 1]")
        if self.confidence is not None and not 0 <= self.confidence <= 1 + _PROBABILITY_TOLERANCE:
            raise WireError("range", f"audit confidence {self.confidence} is not in [0, 1]")


@dataclass(slots=True, eq=False, kw_only=True)  # a frozen one takes twice as long to create
class Request:
    """One or several instances that a device sends to the cloud.

    Parameters
    ----------
    id : bytes
        16 bytes, see :func:`new_id`.
    model, version : str
        The bundle's name and version.
    ttl_ms : int
        Time until the earliest deadline of the rows in milliseconds, from 0 to one day.
    X : ndarray of float32, float16, uint8, int8 or int16, shape (rows, columns)
        Inputs of the high-cost model, in the manifest's order. Other dtypes are cast to float32.
    audit : AuditMark, optional
        Mark of an audit. The device has already answered its one instance.
    is_private : bool, default False
        Whether workers must not store the instances.
    late_s : int, default 0
        Seconds since the device answered the instance, in a late request; 0 in a live request.

    Raises
    ------
    WireError
        If a field is out of its bounds, or a value of `X` is infinite.
    """

    id: bytes
    model: str
    version: str
    ttl_ms: int
    X: NDArray[Any]
    audit: AuditMark | None = None
    is_private: bool = False
    late_s: int = 0

    def __post_init__(self) -> None:
        check_id(self.id)
        check_level("model name", self.model)
        check_level("model version", self.version)
        check_int("ttl_ms", self.ttl_ms, 0, MAX_TTL_MS)
        check_int("late_s", self.late_s, 0, MAX_LATE_S)
        X = np.asarray(self.X)
        if X.dtype not in _NUMPY_DTYPES:
            X = X.astype(np.float32)
        self.X = X
        if X.ndim != 2:
            raise WireError("shape", f"the instances must form a matrix, not shape {X.shape}")
        check_int("rows", X.shape[0], 1, MAX_ROWS)
        check_int("columns", X.shape[1], 1, MAX_COLUMNS)
        if X.dtype.kind == "f" and np.isinf(X).any():
            raise WireError("infinite", "the instances contain an infinite value")

    @property
    def n_rows(self) -> int:
        """Number of instances."""
        return int(self.X.shape[0])


@dataclass(slots=True, eq=False, kw_only=True)
class Response:
    """The cloud's response to a request: an answer for every row, or one error for all rows.

    Parameters
    ----------
    id : bytes
        The request's id.
    model, version : str
        The model that answered, or the requested one. Both are empty in an error if the worker
        could not read them from the request.
    labels : ndarray of int64, shape (rows,)
        Class indices.
    probabilities : ndarray of float32, shape (rows, classes)
        Columns in the order of the bundle's classes.
    worker_us : int
        Time in the worker, in microseconds.
    error : str or None
        Error code. In an error `labels` and `probabilities` are empty.
    detail : str
        Description of the error, for people; cut to 200 bytes.
    wait_ms : int, default 0
        With the error ``busy``, milliseconds to wait before the next request.

    Raises
    ------
    WireError
        If a field is out of its bounds, shapes do not agree, a class index is too large, or a
        probability is not finite or more than 0.001 outside of [0, 1].
    """

    id: bytes
    model: str
    version: str
    labels: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    probabilities: NDArray[np.float32] = field(default_factory=lambda: np.empty((0, 0), np.float32))
    worker_us: int = 0
    error: str | None = None
    detail: str = ""
    wait_ms: int = 0

    def __post_init__(self) -> None:
        check_id(self.id)
        if self.model or self.version or self.error is None:
            check_level("model name", self.model)
            check_level("model version", self.version)
        self.labels = np.asarray(self.labels, np.int64)
        self.probabilities = np.asarray(self.probabilities, np.float32)
        check_int("wait_ms", self.wait_ms, 0, MAX_TTL_MS)
        if self.error is not None:
            check_text("error code", self.error, 1, MAX_CODE_BYTES)
            detail = str(self.detail).encode("utf-8", "replace")[:MAX_DETAIL_BYTES]
            self.detail = detail.decode("utf-8", "ignore")
            return
        check_int("worker_us", self.worker_us, 0, MAX_WORKER_US)
        labels = self.labels
        probabilities = self.probabilities
        if labels.ndim != 1 or probabilities.ndim != 2 or len(labels) != len(probabilities):
            shapes = f"{labels.shape} labels and {probabilities.shape} probabilities"
            raise WireError("shape", f"the response has {shapes}")
        check_int("rows", labels.shape[0], 1, MAX_ROWS)
        check_int("classes", probabilities.shape[1], 2, MAX_CLASSES)
        if labels.min() < 0 or labels.max() >= probabilities.shape[1]:
            raise WireError("range", "the response has a class index out of range")
        # With a NaN the minimum and the maximum are NaN, and both comparisons are false.
        if not (
            probabilities.min() >= -_PROBABILITY_TOLERANCE
            and probabilities.max() <= 1 + _PROBABILITY_TOLERANCE
        ):
            # The value farthest from [0, 1] is the farthest from 0.5; argmax prefers a NaN.
            outlier = probabilities.flat[np.abs(probabilities - 0.5).argmax()]
            if not np.isfinite(outlier):
                raise WireError("infinite", "the response has a probability that is not finite")
            raise WireError("range", f"the response has a probability of {outlier:g}")

    @property
    def n_rows(self) -> int:
        """Number of instances answered; 0 in an error."""
        return len(self.labels)

    @property
    def is_retryable(self) -> bool:
        """Whether the same request may succeed a little later."""
        return self.error in RETRYABLE

    @classmethod
    def refusal(cls, request: Request, code: str, detail: str = "") -> Response:
        """Make the error response to `request`, with an error `code` and a `detail` for people."""
        return cls(
            id=request.id, model=request.model, version=request.version, error=code, detail=detail
        )


def max_rows(n_columns: int, n_classes: int) -> int:
    """Compute the largest number of rows for which request and response each fit one message."""
    # A row of a request has at most float32 values of 4 bytes, and a row of a response float32
    # probabilities and a label of 2 bytes.
    max_request_rows = MAX_VALUE_BYTES // max(4 * n_columns, 1)
    max_response_rows = (MAX_PAYLOAD - MAX_RESPONSE_FIELD_BYTES) // (4 * n_classes + 2)
    # A single row is tried in any case; the encoder refuses it if it does not fit.
    return max(1, min(MAX_GROUP_ROWS, max_request_rows, max_response_rows))


def new_id() -> bytes:
    """Draw a request id: 128 bits from the operating system."""
    return secrets.token_bytes(16)
