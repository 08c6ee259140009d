"""The interface between a device and a transport that carries payloads to and from the cloud.

A link knows nothing of requests, deadlines or retries, which :mod:`.offload` handles. It reports
whether it can send, accepts or refuses each payload at once, and passes every received payload to
one function, on any thread. Without a connection it refuses payloads instead of queueing them,
because a queued request would be stale when it is sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gatewise_edge.errors import WireError
from gatewise_edge.link.encoding import decode_request, encode_response
from gatewise_edge.link.messages import BAD_REQUEST, FAILED, Response

PayloadHandler = Callable[[bytes], None]


class Link(Protocol):
    """A transport of payloads to and from the cloud."""

    @property
    def is_ready(self) -> bool:
        """Whether the link can send now. The device sends no request while this is False."""
        ...

    def open(self, receive: PayloadHandler) -> None:
        """Start to connect, and return at once.

        The link calls `receive` with the payload of every response, on any thread, perhaps within
        :meth:`send`. `receive` must not block.
        """
        ...

    def send(self, payload: bytes) -> bool:
        """Send a request's `payload`; return False if the link refuses it and will not send it."""
        ...

    def close(self) -> None:
        """Disconnect; the link then receives nothing. May be called twice."""
        ...


class InProcessLink:
    """A link to a high-cost model in the same process, for tests and batch work.

    It encodes and checks messages as a real link does.

    Parameters
    ----------
    answer : callable
        ``answer(X) -> (labels, probabilities)``, where `X` is a float32 matrix of shape (n, k),
        `labels` are class indices of shape (n,) and `probabilities` have shape (n, n_classes).
        ``gatewise_cloud.CloudModel.answer`` is such a function.

    Examples
    --------
    >>> link = InProcessLink(lambda X: ([1] * len(X), [[0.0, 1.0]] * len(X)))
    >>> link.is_ready
    False
    """

    def __init__(
        self, answer: Callable[[NDArray[np.float32]], tuple[ArrayLike, ArrayLike]]
    ) -> None:
        self._answer = answer
        self._receive: PayloadHandler | None = None

    @property
    def is_ready(self) -> bool:
        """Whether the link is open."""
        return self._receive is not None

    def open(self, receive: PayloadHandler) -> None:
        """Open the link; `receive` gets every response's payload, see :meth:`Link.open`."""
        self._receive = receive

    def send(self, payload: bytes) -> bool:
        """Answer the request in `payload` before returning; see :meth:`Link.send`."""
        receive = self._receive
        if receive is None:
            return False
        response = self._respond(payload)
        if response is not None:
            receive(encode_response(response))
        return True

    def close(self) -> None:
        """Close the link; see :meth:`Link.close`."""
        self._receive = None

    def _respond(self, payload: bytes) -> Response | None:
        """Answer a request as a worker does; None if the request has no id to respond to."""
        started_at = time.perf_counter()
        try:
            request = decode_request(payload)
        except WireError as error:
            if error.id is None:
                return None
            # Without a decoded request, the names of model and version are not known.
            return Response(id=error.id, model="", version="", error=BAD_REQUEST, detail=str(error))
        try:
            labels, probabilities = self._answer(request.X.astype(np.float32, copy=False))
            return Response(
                id=request.id,
                model=request.model,
                version=request.version,
                labels=np.asarray(labels, np.int64),
                probabilities=np.asarray(probabilities, np.float32),
                worker_us=int(1e6 * (time.perf_counter() - started_at)),
            )
        except Exception as error:
            # A worker also responds to an error of its model.
            return Response.refusal(request, FAILED, f"{type(error).__name__}: {error}")
