"""Link that sends a device's requests directly to a high-cost model, without a broker."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from gatewise_cloud.models.cloud_model import CloudModel
from gatewise_edge.link.link import InProcessLink, PayloadHandler

#: Number of requests that run at the same time; the others wait, and may miss their deadline.
_N_THREADS = 16


class BackendLink:
    """Link to the backend of a high-cost model; it implements :class:`.Link`."""

    def __init__(self, model: CloudModel) -> None:
        allow_missing = model.manifest.missing.cloud == "allowed"
        self._model = model
        self._in_process_link = InProcessLink(model.answer, allow_missing=allow_missing)
        self._threads = ThreadPoolExecutor(_N_THREADS, thread_name_prefix="gatewise-backend")

    @property
    def is_ready(self) -> bool:
        """Whether the link is open."""
        return self._in_process_link.is_ready

    def open(self, receive: PayloadHandler) -> None:
        """Open the link; one of its threads calls `receive` with each response."""
        self._in_process_link.open(receive)

    def send(self, payload: bytes) -> bool:
        """Queue a request; return False if the link is not open."""
        if self.is_ready:
            self._threads.submit(self._in_process_link.send, payload)
        return self.is_ready

    def close(self) -> None:
        """Close the link and the model, and drop queued requests."""
        self._in_process_link.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._model.close()
