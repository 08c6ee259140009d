"""Fetch files of a repository, over HTTP(S) or from a folder, within a time limit.

Socket timeouts do not stop a server that sends headers slowly or repeats ``100 Continue`` forever.
Therefore a timer closes the connection at the time limit, and :meth:`BoundedFetcher.stop` closes it
at once. The caller reads at most the signed length. Redirects are errors, and proxies are not used.
"""

from __future__ import annotations

import contextlib
import functools
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit
from urllib.request import url2pathname

from tuf.api.exceptions import DownloadError, DownloadHTTPError, SlowRetrievalError
from tuf.ngclient import FetcherInterface

from gatewise.errors import InputError

#: Bytes per read, after which the caller checks the length.
_CHUNK_BYTES: Final = 64 << 10


class BoundedFetcher(FetcherInterface):
    """Fetcher with the time limit that :meth:`set_time_limit` sets.

    The authorities in `ca_file` are trusted in addition to the system's. A connection may be silent
    for `timeout_s` seconds. A fetch ends if `is_cancelled()` is true before or after connecting;
    call :meth:`interrupt` when it becomes true later. `received_bytes` counts the bytes of files.
    Raises InputError if `ca_file` cannot be used.
    """

    def __init__(
        self,
        *,
        ca_file: str | Path | None = None,
        timeout_s: float = 20.0,
        is_cancelled: Callable[[], bool] = bool,
    ) -> None:
        self._ca_file = ca_file
        if ca_file is not None:
            _ = self._tls_context  # raises if the file cannot be used
        self._timeout_s = timeout_s
        self._is_cancelled = is_cancelled
        self._deadline = 0.0
        self._stop_event = threading.Event()
        self._socket_handles: list[socket.socket] = []
        self._lock = threading.Lock()
        self.received_bytes = 0

    @functools.cached_property
    def _tls_context(self) -> ssl.SSLContext:
        """TLS context, created only for HTTPS because loading the system's authorities is slow."""
        context = ssl.create_default_context()
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self._ca_file is not None:
            try:
                context.load_verify_locations(self._ca_file)
            except (ssl.SSLError, OSError) as error:
                raise InputError(f"update certificates {self._ca_file}: {error}") from None
        return context

    def set_time_limit(self, seconds: float) -> None:
        """Set the time limit for all following fetches together."""
        self._deadline = time.monotonic() + seconds

    def stop(self) -> None:
        """End the current fetch and refuse later ones."""
        self._stop_event.set()
        self.interrupt()

    def interrupt(self) -> None:
        """End the current fetch by closing its connection."""
        with self._lock:
            for socket_handle in self._socket_handles:
                with contextlib.suppress(OSError):
                    socket_handle.shutdown(socket.SHUT_RDWR)

    def _fetch(self, url: str) -> Iterator[bytes]:
        if urlsplit(url).scheme == "file":
            return self._read_file(Path(url2pathname(urlsplit(url).path)))
        return self._read_response(url)

    def _read_file(self, path: Path) -> Iterator[bytes]:
        if not path.is_file():
            raise DownloadHTTPError(f"{path} does not exist", 404)
        try:
            with path.open("rb") as file:
                while True:
                    if self._must_end():
                        raise SlowRetrievalError(f"{path}: the time is over")
                    if not (chunk := file.read(_CHUNK_BYTES)):
                        return
                    yield self._count_bytes(chunk)
        except OSError as error:
            raise DownloadError(f"{path} cannot be read: {error.strerror}") from None

    def _read_response(self, url: str) -> Iterator[bytes]:
        """Read the body of a response in chunks, until its end or the time limit."""
        if self._must_end():
            raise SlowRetrievalError(f"{url}: the time is over")
        timer = threading.Timer(self._deadline - time.monotonic(), self.interrupt)
        timer.daemon = True
        timer.start()
        try:
            with self._connection(url) as connection:
                split_url = urlsplit(url)
                query = f"?{split_url.query}" if split_url.query else ""
                path = f"{split_url.path}{query}"
                connection.request("GET", path, headers={"User-Agent": "gatewise"})
                response = connection.getresponse()
                if response.status != 200:
                    raise DownloadHTTPError(
                        f"{url}: the server returned {response.status}", response.status
                    )
                while chunk := response.read(_CHUNK_BYTES):
                    yield self._count_bytes(chunk)
                # without a stated length, a closed connection looks like the end of the file
                if self._must_end():
                    raise SlowRetrievalError(f"{url}: it took too long")
                if response.length:
                    raise DownloadError(f"{url}: the connection ended early")
        except (HTTPException, OSError, ValueError) as error:  # ValueError: a malformed host
            if self._must_end():
                raise SlowRetrievalError(f"{url}: it took too long") from error
            certificate_error = getattr(error, "verify_message", None)
            reason = (
                f"its certificate is not valid: {certificate_error}"
                if certificate_error
                else repr(error)
            )
            raise DownloadError(f"{url}: {reason}") from error
        finally:
            timer.cancel()

    @contextlib.contextmanager
    def _connection(self, url: str) -> Iterator[HTTPConnection]:
        """Connect, with a second handle for :meth:`interrupt`, because TLS detaches the socket."""
        split_url = urlsplit(url)
        host = split_url.hostname or ""
        is_https = split_url.scheme == "https"
        port = split_url.port or (443 if is_https else 80)
        connection = (HTTPSConnection if is_https else HTTPConnection)(host, port)
        plain_socket = socket.create_connection((host, port), self._timeout_s)
        with plain_socket, plain_socket.dup() as socket_handle, contextlib.closing(connection):
            with self._lock:
                self._socket_handles.append(socket_handle)
            try:
                if self._must_end():
                    self.interrupt()
                connection.sock = plain_socket
                if is_https:
                    connection.sock = self._tls_context.wrap_socket(
                        plain_socket, server_hostname=host
                    )
                yield connection
            finally:
                with self._lock:
                    self._socket_handles.remove(socket_handle)

    def _must_end(self) -> bool:
        return (
            self._stop_event.is_set() or self._is_cancelled() or time.monotonic() >= self._deadline
        )

    def _count_bytes(self, chunk: bytes) -> bytes:
        self.received_bytes += len(chunk)
        return chunk
