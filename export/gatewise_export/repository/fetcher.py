"""Fetch files of a repository over HTTP(S) or from a folder, each bounded in time.

A server may trickle headers or send ``100 Continue`` for ever: no timeout of a socket bounds that.
So a timer cuts the connection when the time is up, and :meth:`BoundedFetcher.cut` does so at once.
Sizes are bounded by the caller, who takes no more than the signed length. Redirects are errors and
proxies are not used.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import url2pathname

import urllib3
from tuf.api.exceptions import DownloadError, DownloadHTTPError, SlowRetrievalError
from tuf.ngclient import FetcherInterface
from urllib3.connection import HTTPConnection, HTTPSConnection

from gatewise.errors import InputError

_CHUNK: Final = 64 << 10
_HEADERS: Final = {"User-Agent": "gatewise", "Accept-Encoding": "identity"}


class BoundedFetcher(FetcherInterface):
    """Fetch within the time that :meth:`allow` gives.

    Beside the system's authorities those of `ca_file` are trusted. The server may be silent for
    `timeout` seconds. Nothing is waited for while `cancelled` says so, which is asked before and
    after connecting: call :meth:`interrupt` when that changes. Raises InputError if `ca_file`
    cannot be used.
    """

    def __init__(
        self,
        *,
        ca_file: str | Path | None = None,
        timeout: float = 20.0,
        cancelled: Callable[[], bool] = bool,
    ) -> None:
        context = ssl.create_default_context()
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if ca_file is not None:
            try:
                context.load_verify_locations(ca_file)
            except (ssl.SSLError, OSError) as error:
                raise InputError(f"update certificates {ca_file}: {error}") from None
        self._context = context
        self._timeout = urllib3.Timeout(connect=timeout, read=timeout)
        self._cancelled = cancelled
        self._end = 0.0
        self._closed = threading.Event()
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()
        self.received = 0
        """Bytes of files received so far."""

    def allow(self, seconds: float) -> None:
        """Give what is fetched from now on so much time in all."""
        self._end = time.monotonic() + seconds

    def cut(self) -> None:
        """End what is under way, and all that is asked for later."""
        self._closed.set()
        self.interrupt()

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
            raise SlowRetrievalError(f"{url}: there is no time left")
        timer = threading.Timer(self._end - time.monotonic(), self.interrupt)
        timer.daemon = True
        timer.start()
        try:
            with self._pool() as pool:
                response = pool.request(
                    "GET",
                    url,
                    headers=_HEADERS,
                    preload_content=False,
                    decode_content=False,
                    redirect=False,
                    retries=False,
                    timeout=self._timeout,
                )
                if response.status != 200:
                    raise DownloadHTTPError(
                        f"{url}: the server returned {response.status}", response.status
                    )
                for chunk in response.stream(_CHUNK, decode_content=False):
                    yield self._counted(chunk)
                if self._is_over():  # what was cut off may look like an end
                    raise SlowRetrievalError(f"{url}: it took too long")
        except urllib3.exceptions.HTTPError as error:
            if self._is_over():
                raise SlowRetrievalError(f"{url}: it took too long") from error
            raise DownloadError(f"{url}: {_describe(error)}") from error
        finally:
            timer.cancel()
            with self._lock:
                for kept in self._sockets:
                    kept.close()
                self._sockets.clear()

    def _is_over(self) -> bool:
        return self._closed.is_set() or self._cancelled() or time.monotonic() >= self._end

    def _counted(self, chunk: bytes) -> bytes:
        self.received += len(chunk)
        return chunk

    def interrupt(self) -> None:
        """End what is under way: the thread that waits finds the connection at its end."""
        with self._lock:
            for kept in self._sockets:
                with contextlib.suppress(OSError):
                    kept.shutdown(socket.SHUT_RDWR)

    def _keep(self, sock: socket.socket) -> socket.socket:
        """Keep a second handle of a connection: TLS takes over the first."""
        with self._lock:
            self._sockets.append(sock.dup())
        if self._is_over():
            self.interrupt()
        return sock

    @contextlib.contextmanager
    def _pool(self) -> Iterator[urllib3.PoolManager]:
        keep = self._keep

        class Plain(HTTPConnection):
            def _new_conn(self) -> socket.socket:
                return keep(super()._new_conn())

        class Secure(HTTPSConnection):
            def _new_conn(self) -> socket.socket:
                return keep(super()._new_conn())

        class PlainPool(urllib3.HTTPConnectionPool):
            ConnectionCls = Plain

        class SecurePool(urllib3.HTTPSConnectionPool):
            ConnectionCls = Secure

        with urllib3.PoolManager(ssl_context=self._context) as pool:
            pools: dict[str, Any] = {"http": PlainPool, "https": SecurePool}
            pool.pool_classes_by_scheme = pools
            yield pool


def _describe(error: Exception) -> str:
    cause = getattr(error, "reason", None) or error
    verify = getattr(cause.args[0] if cause.args else None, "verify_message", None)
    return f"its certificate does not hold: {verify}" if verify else str(cause)
