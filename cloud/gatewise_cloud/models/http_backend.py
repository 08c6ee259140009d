"""Calls of a model server over HTTP: kept connections, bounded answers, busy or broken."""

from __future__ import annotations

import io
import time
from collections.abc import Mapping
from http.client import HTTPResponse
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

import urllib3

from gatewise.errors import InputError, one_line
from gatewise_cloud.errors import BackendBusy, ModelError

if TYPE_CHECKING:
    from gatewise_export.bundle.manifest import Manifest

_MOST_BYTES: Final = 64 << 20
_MOST_CONNECTIONS: Final = 64
_BUSY: Final = frozenset({408, 429, 502, 503, 504})


class _TimedReader(io.RawIOBase):
    """Reads a socket until a time (s): its own timeout is one of each byte, not of all."""

    def __init__(self, raw: Any, sock: Any, end: float) -> None:
        self._raw, self._sock, self._end = raw, sock, end

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> Any:
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self._sock.settimeout(left)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _TimedResponse(HTTPResponse):
    """A response that comes within the socket's timeout from its head to its last byte."""

    def __init__(self, sock: Any, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        end = time.monotonic() + sock.gettimeout()
        self.fp: Any = io.BufferedReader(_TimedReader(self.fp.detach(), sock, end))


class HttpBackend:
    """Base of backends over HTTP; safe across threads.

    Connections are kept open, as many as calls were made at a time.

    `model`: name and version, for messages. `timeout`: seconds for one call, however slowly its
    answer comes.
    """

    local = False

    def __init__(self, url: str, *, model: str, timeout: float) -> None:
        parts = urlsplit(url)
        self._path = parts.path.rstrip("/") or "/"
        if parts.query:
            self._path += f"?{parts.query}"
        try:
            self._pool = urllib3.connection_from_url(
                url,
                maxsize=_MOST_CONNECTIONS,
                timeout=urllib3.Timeout(total=timeout),
                retries=False,
            )
        except urllib3.exceptions.LocationParseError as error:
            raise InputError(f"backend {url}: {error}") from None
        connection = self._pool.ConnectionCls
        timed = type("TimedConnection", (connection,), {"response_class": _TimedResponse})
        self._pool.ConnectionCls = timed
        self.url = f"{parts.scheme}://{self._pool.host}:{self._pool.port}{self._path}"
        self._model = model
        self._trouble: str | None = None

    @property
    def trouble(self) -> str | None:
        """What the last call failed with, if the server was away or overloaded."""
        return self._trouble

    def close(self) -> None:
        """Close the connections."""
        self._pool.close()

    def _call(
        self, method: str, path: str, body: bytes, headers: dict[str, str]
    ) -> tuple[int, Mapping[str, str], bytes]:
        try:
            answer = self._pool.urlopen(method, path, body or None, headers, preload_content=False)
            content = answer.read(_MOST_BYTES + 1)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise self._away(error) from None
        if len(content) > _MOST_BYTES:
            answer.close()
            raise self._bad(f"its answer is larger than {_MOST_BYTES} bytes")
        answer.release_conn()
        if answer.status in _BUSY:
            raise self._away(f"it answered {answer.status} {excerpt(content)}")
        self._trouble = None
        return answer.status, answer.headers, content

    def _bad(self, why: str) -> ModelError:
        return ModelError(self._model, f"backend {self.url} of model {self._model}: {why}")

    def _away(self, why: Exception | str) -> BackendBusy:
        text = one_line(why) if isinstance(why, Exception) else why
        self._trouble = f"backend {self.url} does not answer: {text or type(why).__name__}"
        return BackendBusy(self._model, self._trouble)


def url_for(url: str, manifest: Manifest) -> str:
    """Put a bundle's name and version in the places of ``{name}`` and ``{version}``."""
    at = url.replace("{name}", quote(manifest.name, safe=""))
    return at.replace("{version}", quote(manifest.version, safe=""))


def excerpt(body: bytes) -> str:
    """First words of an answer, for a message."""
    return " ".join(body[:200].decode("utf-8", "replace").split())
