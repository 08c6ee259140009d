"""Fetch files of a repository, over HTTP(S) or from a folder, within a time limit.

Socket timeouts do not limit a server that sends headers slowly or repeats ``100 Continue`` forever.
Therefore a timer closes the connection when the time is over, and :meth:`BoundedFetcher.cut` closes
it at once. The caller reads at most the signed length. Redirects are errors, and proxies are not
used.
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

_CHUNK: Final = 64 << 10


class BoundedFetcher(FetcherInterface):
    """Fetcher with the time limit that :meth:`allow` sets.

    The authorities in `ca_file` are trusted in addition to the system's. A connection may be silent
    for `timeout` seconds. A fetch ends if `cancelled`, which is called before and after connecting,
    returns true: call :meth:`interrupt` when its value changes. `received` counts the bytes of
    files. Raises InputError if `ca_file` cannot be used.
    """

    def __init__(
        self,
        *,
        ca_file: str | Path | None = None,
        timeout: float = 20.0,
        cancelled: Callable[[], bool] = bool,
    ) -> None:
        self._ca_file = ca_file
        if ca_file is not None:
            _ = self._context  # raises if the file cannot be used
        self._timeout = timeout
        self._cancelled = cancelled
        self._end = 0.0
        self._closed = threading.Event()
        self._handles: list[socket.socket] = []
        self._lock = threading.Lock()
        self.received = 0

    @functools.cached_property
    def _context(self) -> ssl.SSLContext:
        """TLS context, created only for HTTPS because loading the system's authorities is slow."""
        context = ssl.create_default_context()
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self._ca_file is not None:
            try:
                context.load_verify_locations(self._ca_file)
            except (ssl.SSLError, OSError) as error:
                raise InputError(f"update certificates {self._ca_file}: {error}") from None
        return context

    def allow(self, seconds: float) -> None:
        """Set the time limit for all following fetches together."""
        self._end = time.monotonic() + seconds

    def cut(self) -> None:
        """End the current fetch and refuse later ones."""
        self._closed.set()
        self.interrupt()

    def interrupt(self) -> None:
        """End the current fetch by closing its connection."""
        with self._lock:
            for handle in self._handles:
                with contextlib.suppress(OSError):
                    handle.shutdown(socket.SHUT_RDWR)

    def _fetch(self, url: str) -> Iterator[bytes]:
        if urlsplit(url).scheme == "file":
            return self._read_file(Path(url2pathname(urlsplit(url).path)))
        return self._read_response(url)

    def _read_file(self, path: Path) -> Iterator[bytes]:
        if not path.is_file():
            raise DownloadHTTPError(f"{path} does not exist", 404)
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                yield self._counted(chunk)

    def _read_response(self, url: str) -> Iterator[bytes]:
        if self._is_over():
            raise SlowRetrievalError(f"{url}: the time is over")
        timer = threading.Timer(self._end - time.monotonic(), self.interrupt)
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
                while chunk := response.read(_CHUNK):
                    yield self._counted(chunk)
                # if the length is unknown, a closed connection looks like the end of the file
                if self._is_over():
                    raise SlowRetrievalError(f"{url}: it took too long")
                if response.length:
                    raise DownloadError(f"{url}: the connection ended early")
        except (HTTPException, OSError) as error:
            if self._is_over():
                raise SlowRetrievalError(f"{url}: it took too long") from error
            verify = getattr(error, "verify_message", None)
            why = f"its certificate is not valid: {verify}" if verify else repr(error)
            raise DownloadError(f"{url}: {why}") from error
        finally:
            timer.cancel()

    @contextlib.contextmanager
    def _connection(self, url: str) -> Iterator[HTTPConnection]:
        """Connect, with a second handle for :meth:`interrupt`, because TLS detaches the socket."""
        split_url = urlsplit(url)
        host = split_url.hostname or ""
        secure = split_url.scheme == "https"
        port = split_url.port or (443 if secure else 80)
        connection = (HTTPSConnection if secure else HTTPConnection)(host, port)
        plain_socket = socket.create_connection((host, port), self._timeout)
        with plain_socket, plain_socket.dup() as handle, contextlib.closing(connection):
            with self._lock:
                self._handles.append(handle)
            try:
                if self._is_over():
                    self.interrupt()
                connection.sock = plain_socket
                if secure:
                    connection.sock = self._context.wrap_socket(plain_socket, server_hostname=host)
                yield connection
            finally:
                with self._lock:
                    self._handles.remove(handle)

    def _is_over(self) -> bool:
        return self._closed.is_set() or self._cancelled() or time.monotonic() >= self._end

    def _counted(self, chunk: bytes) -> bytes:
        self.received += len(chunk)
        return chunk
