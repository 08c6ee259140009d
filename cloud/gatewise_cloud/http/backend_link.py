"""A link to a model server: requests run on threads, as if a worker stood behind a broker."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from gatewise_cloud.models.cloud_model import CloudModel
from gatewise_edge.link.link import InProcessLink, Receive


class BackendLink:
    """Requests to a high-cost model's backend: see :class:`.Link`.

    `n_threads` requests run at a time; the others wait, and their deadlines go on.
    """

    def __init__(self, model: CloudModel, *, n_threads: int = 16) -> None:
        allow_missing = model.manifest.missing.cloud == "allowed"
        self._model = model
        self._inner = InProcessLink(model.answer, allow_missing=allow_missing)
        self._threads = ThreadPoolExecutor(n_threads, thread_name_prefix="gatewise-backend")

    @property
    def ready(self) -> bool:
        """Whether it is open."""
        return self._inner.ready

    def open(self, receive: Receive) -> None:
        """Begin; `receive` gets every response, on one of the threads."""
        self._inner.open(receive)

    def send(self, payload: bytes) -> bool:
        """Queue a request."""
        if self.ready:
            self._threads.submit(self._inner.send, payload)
        return self.ready

    def close(self) -> None:
        """End; queued requests are dropped."""
        self._inner.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._model.close()
