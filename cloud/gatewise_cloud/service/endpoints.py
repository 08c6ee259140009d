"""``/metrics`` and ``/healthz`` of a worker; the pages are :class:`.endpoints`'s."""

from __future__ import annotations

from typing import Any

from gatewise.errors import InputError
from gatewise_edge.service.endpoints import Endpoints

__all__ = ["Endpoints", "worker_endpoints"]


def worker_endpoints(worker: Any, port: int, *, host: str = "127.0.0.1") -> Endpoints:
    """Make the pages of one worker; see :class:`Endpoints`."""
    try:
        from gatewise_cloud.service.metrics import text_of
    except ModuleNotFoundError:
        raise InputError("metrics need prometheus-client: pip install 'gatewise[cloud]'") from None
    return Endpoints(
        port, metrics=lambda: text_of(worker), trouble=lambda: worker.trouble, host=host
    )
