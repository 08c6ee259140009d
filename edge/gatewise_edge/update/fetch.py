"""Fetch an announced file over HTTPS: from known hosts only, bounded, resumable.

What arrives is kept in a partial file, with the server's entity tag beside it; a later try gets
the rest (``Range`` with ``If-Range``, RFC 9110) and begins anew if the file has changed there.
Certificates are checked; a redirect is followed to known hosts alone. Proxies are not used.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import logging
import os
import re
import shutil
import ssl
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Final
from urllib.parse import urljoin, urlsplit
from urllib.request import url2pathname

from gatewise.errors import InputError
from gatewise_edge.update.announcement import Announcement
from gatewise_edge.update.errors import UpdateError

__all__ = ["Fetcher", "check_host"]

_LOG = logging.getLogger(__name__)
_CHUNK: Final = 64 << 10
_REDIRECTS: Final = (301, 302, 303, 307, 308)
_MOST_REDIRECTS: Final = 4
_SPARE_SPACE: Final = 8 << 20
_CONTENT_RANGE: Final = re.compile(r"bytes (\d+)-(\d+)/(\d+)", re.ASCII)


def check_host(host: str) -> str:
    """Check and complete a host's name: ``host``, which means port 443, or ``host:port``.

    >>> check_host("Models.example.org")
    'models.example.org:443'
    """
    try:
        parts = urlsplit(f"//{host}")
        port = 443 if parts.port is None else parts.port
    except ValueError:
        raise InputError(f"host {host!r}: the port is not a number up to 65535") from None
    if not parts.hostname or parts.netloc != host or parts.username is not None:
        raise InputError(f"host {host!r}: give a host's name, perhaps with :port, and no more")
    return f"{parts.hostname}:{port}"


class Fetcher:
    """Fetch announced files, from `hosts` alone (``host`` or ``host:port``).

    Beside the system's authorities those of `ca_file` are trusted; `allow_files` allows ``file:``
    URLs; files above `most_bytes` are refused. The server may be silent for `timeout` seconds, and
    one try may take `longest`. Raises InputError if a host is malformed or a file cannot be read.
    """

    def __init__(
        self,
        hosts: Iterable[str],
        *,
        ca_file: str | Path | None = None,
        allow_files: bool = False,
        most_bytes: int = 256 << 20,
        timeout: float = 20.0,
        longest: float = 3600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.hosts = frozenset(map(check_host, hosts))
        self.allow_files = allow_files
        self.most_bytes = most_bytes
        self._timeout = timeout
        self._longest = longest
        self._clock = clock
        self._context = ssl.create_default_context()
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2
        if ca_file is not None:
            try:
                self._context.load_verify_locations(ca_file)
            except (ssl.SSLError, OSError) as error:
                raise InputError(f"update certificates {ca_file}: {error}") from None
        self.received = 0
        """Bytes of files received so far."""

    def fetch(
        self,
        announcement: Announcement,
        folder: Path,
        *,
        stop: Callable[[], bool] = lambda: False,
    ) -> Path:
        """Fetch a file, or the rest of it, into a folder of partial files.

        `stop` is checked between chunks. Returns the whole file, of the announced size and hash, on
        the disk. Raises UpdateError: ``host``, ``fetch``, ``size``, ``space``, ``hash``,
        ``stopped``.
        """
        part = folder / f"{announcement.sha256}.part"
        tag_file = folder / f"{announcement.sha256}.etag"
        self._check(announcement, part)
        resumed = False
        if urlsplit(announcement.url).scheme == "file":
            self._copy(announcement, part, stop)
        elif not (part.exists() and part.stat().st_size == announcement.size):
            resumed = self._download(announcement, part, tag_file, stop)
        with part.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            os.fsync(file.fileno())
        if digest != announcement.sha256:
            part.unlink()
            tag_file.unlink(missing_ok=True)
            raise UpdateError(
                "hash",
                f"{announcement.url}: the file is not the one announced (SHA-256 differs)",
                again=True,
            )
        _LOG.info("fetched %s%s", announcement.url, ", in more than one part" if resumed else "")
        return part

    def _check(self, announcement: Announcement, part: Path) -> None:
        self._check_url(announcement.url)
        if announcement.size > self.most_bytes:
            raise UpdateError(
                "size", f"{announcement} has {announcement.size} B, more than {self.most_bytes} B"
            )
        there = part.stat().st_size if part.exists() else 0
        if shutil.disk_usage(part.parent).free < announcement.size - there + _SPARE_SPACE:
            raise UpdateError("space", f"no room for {announcement} on the disk", again=True)

    def _check_url(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme == "file":
            if not self.allow_files:
                raise UpdateError("host", f"{url}: file URLs are not allowed on this device")
            return
        try:
            host = check_host(parts.netloc)
        except InputError as error:
            raise UpdateError("host", f"{url}: {error}") from None
        if parts.scheme != "https" or host not in self.hosts:
            raise UpdateError("host", f"{url}: this device fetches from no such host ({host})")

    # -- ways ------------------------------------------------------------------------------

    def _copy(self, announcement: Announcement, part: Path, stop: Callable[[], bool]) -> None:
        source = Path(url2pathname(urlsplit(announcement.url).path))
        try:
            with source.open("rb") as file, part.open("wb") as target:
                self._take(file.read, target, announcement.size, announcement, stop)
        except OSError as error:
            raise UpdateError("fetch", f"{source}: {error.strerror}", again=True) from None

    def _download(
        self, announcement: Announcement, part: Path, tag_file: Path, stop: Callable[[], bool]
    ) -> bool:
        """Receive what is missing; return whether something was there already."""
        there, tag = _kept_part(part, tag_file, announcement)
        url, resumed = announcement.url, False
        try:
            for _ in range(_MOST_REDIRECTS + 1):
                connection, response = self._get(url, there, tag)
                try:
                    if response.status in _REDIRECTS:
                        url = urljoin(url, response.headers.get("Location", ""))
                        self._check_url(url)
                        if urlsplit(url).scheme != "https":
                            raise UpdateError("host", f"{url}: a redirect away from https")
                        continue
                    resumed = there > 0 and response.status == 206
                    left = _length(response, announcement, there if resumed else 0)
                    _keep_tag(tag_file, announcement, response)
                    with part.open("ab" if resumed else "wb") as target:
                        self._take(response.read1, target, left, announcement, stop)
                    return resumed
                finally:
                    response.close()
                    connection.close()
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise UpdateError("fetch", f"{url}: {_describe(error)}", again=True) from None
        raise UpdateError("fetch", f"{announcement.url}: too many redirects", again=True)

    def _get(
        self, url: str, there: int, tag: str | None
    ) -> tuple[http.client.HTTPSConnection, http.client.HTTPResponse]:
        parts = urlsplit(url)
        headers = {"Accept-Encoding": "identity", "User-Agent": "gatewise"}
        if there and tag is not None:
            headers |= {"Range": f"bytes={there}-", "If-Range": tag}
        connection = http.client.HTTPSConnection(
            parts.hostname or "", parts.port or 443, timeout=self._timeout, context=self._context
        )
        try:
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            connection.request("GET", target, headers=headers)
            return connection, connection.getresponse()
        except BaseException:
            connection.close()
            raise

    def _take(
        self,
        read: Callable[[int], bytes],
        target: IO[bytes],
        left: int,
        announcement: Announcement,
        stop: Callable[[], bool],
    ) -> None:
        """Write exactly `left` bytes; raise if there are more or fewer."""
        end = self._clock() + self._longest
        while chunk := read(min(_CHUNK, left + 1)):
            left -= len(chunk)
            if left < 0:
                target.truncate(0)
                raise UpdateError(
                    "size", f"{announcement.url} has more bytes than announced", again=True
                )
            target.write(chunk)
            target.flush()
            self.received += len(chunk)
            if stop():
                raise UpdateError("stopped", "the update was stopped", again=True)
            if self._clock() > end:
                raise UpdateError("fetch", f"{announcement.url}: too slow", again=True)
        if left:
            raise UpdateError("fetch", f"{announcement.url}: the body was cut off", again=True)


def _kept_part(part: Path, tag_file: Path, announcement: Announcement) -> tuple[int, str | None]:
    """Bytes kept from an earlier try and the entity tag they had; nothing without a tag."""
    try:
        kept = json.loads(tag_file.read_bytes())
        there = part.stat().st_size
        if kept["url"] == announcement.url and 0 < there < announcement.size:
            return there, str(kept["etag"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return 0, None


def _keep_tag(
    tag_file: Path, announcement: Announcement, response: http.client.HTTPResponse
) -> None:
    tag = response.headers.get("ETag", "")
    # If-Range takes strong tags only (RFC 9110, 13.1.5); a weak one begins with W/
    if tag.startswith('"') and tag.isascii() and len(tag) <= 256:
        tag_file.write_text(json.dumps({"url": announcement.url, "etag": tag}))
    elif response.status == 200:
        tag_file.unlink(missing_ok=True)


def _length(response: http.client.HTTPResponse, announcement: Announcement, there: int) -> int:
    """Bytes still to come; an error if the response does not fit the request."""
    url, left = announcement.url, announcement.size - there
    if response.status == 206 and there:
        span = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        expected = (there, announcement.size - 1, announcement.size)
        if span is None or tuple(map(int, span.groups())) != expected:
            raise UpdateError("size", f"{url}: the server sends another part", again=True)
    elif response.status != 200:
        raise UpdateError(
            "fetch", f"{url}: the server returned {response.status} {response.reason}", again=True
        )
    length = response.headers.get("Content-Length")
    if length is not None and (not length.isdigit() or int(length) != left):
        raise UpdateError("size", f"{url}: {length[:20]} bytes instead of {left}", again=True)
    return left


def _describe(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate does not hold: {error.verify_message}"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
