"""A small local server for the page: this machine only, a few fixed paths, nothing to change.

A page of somebody else's in the same browser must not read along: the Host header has to name this
machine (a rebound name does not), no other origin is allowed to read, and nothing can be posted.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from gatewise.console import plain
from gatewise.errors import InputError
from gatewise_sim.view.page import page, tell
from gatewise_sim.view.tracker import Tracker

__all__ = ["PageServer"]

_HOST: Final = "127.0.0.1"
_CONNECTIONS: Final = 24
_SILENCE: Final = 5.0  # s that a connection may keep its thread waiting
_LOOKING: Final = 2.5  # s since the last question until nobody looks any more
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_NOTHING: Final = "default-src 'none'; frame-ancestors 'none'"
_REPORT: Final = (  # a page of ours with all inside; it may ask nobody
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; "
    "font-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_BESIDE: Final = {  # what lies in a report's folder and may be asked for
    "report.html": "text/html",
    "report.json": "application/json",
    "legs.csv": "text/csv",
    "timeline.csv": "text/csv",
    "classes.csv": "text/csv",
}


class PageServer:
    """Serves a tracker's picture until it is closed.

    Parameters
    ----------
    tracker : Tracker
    port : int, default 0
        0 = any that is free.

    Attributes
    ----------
    url : str

    Raises
    ------
    InputError
        If the port is taken or may not be used.
    """

    def __init__(self, tracker: Tracker, port: int = 0) -> None:
        self._tracker = tracker
        self._report: Path | None = None
        self._final = False
        self._asked = -_LOOKING
        self._seen = threading.Event()
        try:
            self._server = _Server((_HOST, port), self._answer)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise InputError(
                f"--serve: port {port} cannot be used ({why}); choose another, or give none"
            ) from error
        self.url = f"http://{_HOST}:{self._server.server_port}/"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="page", daemon=True
        )
        self._thread.start()

    def finish(self, report: Path | None = None) -> None:
        """Tell pages that nothing more comes, and where the report is."""
        self._report, self._final = report, True

    def wait_seen(self, seconds: float) -> None:
        """Wait until a page that looks on knows the end; at most so long, not at all for none."""
        end = time.monotonic() + seconds
        while (now := time.monotonic()) < end and now - self._asked < _LOOKING:
            if self._seen.wait(0.1):
                return

    def close(self) -> None:
        """End the server and every connection. May be called again."""
        self._server.shutdown()
        self._server.server_close()
        self._server.drop_all()
        self._thread.join(2.0)

    def _answer(self, path: str) -> tuple[bytes, str, str] | None:
        """Find what lies at a path: body, type and policy."""
        if path == "/":
            body, policy = page()
            return body, "text/html", policy
        if path == "/state.json":
            final = self._final
            report = str(self._report) if self._report else None
            told = tell(self._tracker.picture(), final=final, report=report)
            self._asked = time.monotonic()
            if final:
                self._seen.set()
            return json.dumps(plain(told)).encode(), "application/json", _NOTHING
        name = path[1:]
        if name in _BESIDE and self._report is not None:
            place = self._report if name == "report.html" else self._report.with_name(name)
            try:
                return place.read_bytes(), _BESIDE[name], _REPORT
            except OSError:
                return None
        return None


class _Server(ThreadingHTTPServer):
    """Threads for a bounded number of connections; one too many ends the oldest."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(
        self, place: tuple[str, int], answer: Callable[[str], tuple[bytes, str, str] | None]
    ) -> None:
        self._open: dict[socket.socket, None] = {}  # the oldest first
        self._lock = threading.Lock()
        self.answer = answer
        super().__init__(place, _Handler)
        port = self.server_port
        self.names = {f"{name}:{port}" for name in (_HOST, "localhost")}
        if port == 80:
            self.names |= {_HOST, "localhost"}

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            while len(self._open) >= _CONNECTIONS:
                _drop(self._open, next(iter(self._open)))
            self._open[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def drop_all(self) -> None:
        with self._lock:
            while self._open:
                _drop(self._open, next(iter(self._open)))

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that breaks is its own business."""


def _drop(connections: dict[socket.socket, None], one: socket.socket) -> None:
    del connections[one]
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)  # its thread closes it


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version = "gatewise"
    sys_version = ""
    timeout = _SILENCE

    def do_GET(self) -> None:
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or hosts[0].lower() not in self.server.names:
            self._send(HTTPStatus.FORBIDDEN, b"this page is for this machine alone\n")
            return
        path = self.path.partition("?")[0]
        if path == "/favicon.ico":
            self._send(HTTPStatus.NO_CONTENT, b"")
            return
        found = self.server.answer(path)
        if found is None:
            self._send(HTTPStatus.NOT_FOUND, b"not here\n")
        else:
            self._send(HTTPStatus.OK, *found)

    def do_HEAD(self) -> None:
        self.do_GET()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse: nothing of the request comes back."""
        if code == HTTPStatus.NOT_IMPLEMENTED:  # any other method
            code = HTTPStatus.METHOD_NOT_ALLOWED
        self._send(HTTPStatus(code), b"no\n")

    def _send(
        self, status: HTTPStatus, body: bytes, kind: str = "text/plain", policy: str = _NOTHING
    ) -> None:
        self.send_response(status)
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Security-Policy", policy)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Say nothing: standard error shows the run."""
