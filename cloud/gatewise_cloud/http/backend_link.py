"""Link that sends a device's requests directly to a high-cost model, without a broker."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from gatewise_cloud.models.cloud_model import CloudModel
from gatewise_edge.link.link import InProcessLink

#: Number of requests that run at the same time; the others wait, and may miss their deadline.
_N_THREADS = 16


class BackendLink(InProcessLink):
    """Link to the backend of a high-cost model, which runs requests on threads of its own."""

    def __init__(self, model: CloudModel) -> None:
        super().__init__(model.answer)
        self._model = model
        self._threads = ThreadPoolExecutor(_N_THREADS, thread_name_prefix="gatewise-backend")

    def send(self, payload: bytes) -> bool:
        """Queue a request; return False if the link is not open."""
        if self.is_ready:
            self._threads.submit(super().send, payload)
        return self.is_ready

    def close(self) -> None:
        """Close the link and the model, and drop queued requests."""
        super().close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._model.close()
