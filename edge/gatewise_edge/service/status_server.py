"""Serve ``/metrics`` for Prometheus and ``/healthz`` for supervisors over HTTP."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self

from gatewise.errors import InputError

#: Largest number of open connections; Prometheus and a supervisor need one each.
_MAX_CONNECTIONS: Final = 8
#: Longest wait for data from a client, and age after which the next new connection closes an open
#: one, both in seconds.
_MAX_CONNECTION_SECONDS: Final = 5.0

_METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_TEXT_TYPE: Final = "text/plain; charset=utf-8"


class StatusServer(ThreadingHTTPServer):
    """An HTTP server with two pages that runs inside a ``with`` block.

    ``/metrics`` responds with the text that `read_metrics` returns. ``/healthz`` responds with
    status 200 and ``ok`` if `read_trouble` returns None, otherwise with status 503 and the returned
    text. With port 0 the system chooses a free port; the attribute `port` is the actual one.

    Each new connection closes those that have been open for more than 5 s, and is refused if 8 were
    open. The server requires no password, so `host` should be an address
    that only trusted clients can reach. Raises InputError if the port cannot be used.
    """

    daemon_threads = True
    block_on_close = False  # server_close must not wait for slow clients
    allow_reuse_address = True

    def __init__(
        self,
        port: int,
        *,
        read_metrics: Callable[[], bytes],
        read_trouble: Callable[[], str | None],
        host: str = "127.0.0.1",
    ) -> None:
        self.read_metrics = read_metrics
        self.read_trouble = read_trouble
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._opened_at: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise InputError(
                f"metrics-port {port} on {host} cannot be used ({error.strerror or error}): "
                "choose another, or 0 for a free one"
            ) from None
        self.port: int = self.server_address[1]
        # Poll every 0.1 s for the shutdown.
        self._thread = threading.Thread(
            target=self.serve_forever, args=(0.1,), name="gatewise-http", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection on a new thread, or close it if too many are open."""
        with self._lock:
            now = time.monotonic()
            for connection, opened_at in self._opened_at.items():
                if now - opened_at > _MAX_CONNECTION_SECONDS:
                    with contextlib.suppress(OSError):
                        connection.shutdown(socket.SHUT_RDWR)  # ends its thread
            is_full = len(self._opened_at) >= _MAX_CONNECTIONS
            if not is_full:
                self._opened_at[request] = now
        if is_full:
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # the system cannot start another thread
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection and stop counting it."""
        with self._lock:
            self._opened_at.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """Log nothing, because clients often disconnect early."""


class _Handler(BaseHTTPRequestHandler):
    server: StatusServer
    timeout = _MAX_CONNECTION_SECONDS
    server_version = "gatewise"
    sys_version = ""

    def do_GET(self) -> None:
        path = self.path.split("?", 1)[0]
        if path == "/metrics":
            self._respond(200, self.server.read_metrics(), _METRICS_TYPE)
        elif path == "/healthz":
            trouble = self.server.read_trouble()
            self._respond(200 if trouble is None else 503, f"{trouble or 'ok'}\n".encode())
        else:
            self._respond(404, b"not found: this server has /metrics and /healthz\n")

    do_HEAD = do_GET  # noqa: N815  http.server requires this name

    def _respond(self, status: int, body: bytes, content_type: str = _TEXT_TYPE) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Log nothing, because Prometheus sends a request every few seconds."""
