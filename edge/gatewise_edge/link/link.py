"""The interface between a device and a transport: payloads out, payloads in.

A link has no notion of requests, deadlines or retries; those are in :mod:`.offload`. It reports
whether sending now may work, takes a payload or refuses it at once, and hands every payload that
arrives to one function, on any thread. It never queues without a connection: a message that is sent
later is stale.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gatewise_edge.errors import WireError
from gatewise_edge.link.encoding import decode_request, encode_response
from gatewise_edge.link.messages import (
    BAD_REQUEST,
    FAILED,
    Response,
)

Receive = Callable[[bytes], None]


class Link(Protocol):
    """A transport of payloads to and from the cloud."""

    @property
    def ready(self) -> bool:
        """Whether a request sent now may arrive; if False, none is sent."""
        ...

    def open(self, receive: Receive) -> None:
        """Begin; return at once. `receive` gets every response's payload, on any thread.

        It must not block, and may be called from within :meth:`send`.
        """
        ...

    def send(self, payload: bytes) -> bool:
        """Send a request's `payload`; False if it was not taken (and never will be sent)."""
        ...

    def close(self) -> None:
        """End; nothing is received any more. May be called twice."""
        ...


class InProcessLink:
    """The cloud's model in the same process: for tests, trials and batch work.

    Messages are encoded and checked as on a real link.

    Parameters
    ----------
    answer : callable
        ``answer(X) -> (labels, probabilities)`` for a float32 matrix `X` of shape (n, k):
        class indices of shape (n,) and probabilities of shape (n, n_classes), as
        ``gatewise_cloud.CloudModel.answer`` gives them.
    allow_missing : bool, default False
        Whether requests may hold NaN.

    Examples
    --------
    >>> link = InProcessLink(lambda X: ([1] * len(X), [[0.0, 1.0]] * len(X)))
    >>> link.ready
    False
    """

    def __init__(
        self,
        answer: Callable[[NDArray[np.float32]], tuple[ArrayLike, ArrayLike]],
        *,
        allow_missing: bool = False,
    ) -> None:
        self._answer = answer
        self._allow_missing = allow_missing
        self._receive: Receive | None = None

    @property
    def ready(self) -> bool:
        """True between open and close."""
        return self._receive is not None

    def open(self, receive: Receive) -> None:
        """Begin; `receive` gets every response. See :meth:`Link.open`."""
        self._receive = receive

    def send(self, payload: bytes) -> bool:
        """Answer `payload` before returning. See :meth:`Link.send`."""
        receive = self._receive
        if receive is None:
            return False
        response = self._respond(payload)
        if response is not None:
            receive(encode_response(response))
        return True

    def close(self) -> None:
        """Close it, as :meth:`Link.close`."""
        self._receive = None

    def _respond(self, payload: bytes) -> Response | None:
        started = time.perf_counter()
        try:
            request = decode_request(payload, allow_missing=self._allow_missing)
        except WireError as error:
            if error.id is None:
                return None
            return Response(id=error.id, model="", version="", error=BAD_REQUEST, detail=str(error))
        try:
            labels, probabilities = self._answer(request.X.astype(np.float32, copy=False))
            return Response(
                id=request.id,
                model=request.model,
                version=request.version,
                labels=np.asarray(labels, np.int64),
                probabilities=np.asarray(probabilities, np.float32),
                worker_us=int(1e6 * (time.perf_counter() - started)),
            )
        except Exception as error:
            # An error of the model is an outcome, as from a worker.
            return Response.refusal(request, FAILED, f"{type(error).__name__}: {error}")
