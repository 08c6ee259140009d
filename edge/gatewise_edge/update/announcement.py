"""The signed announcement of a bundle on ``gw/v1/model/<name>/manifest``.

The retained message is text: a signature as in a bundle's SIGNATURE file, an empty line, and a
JSON document::

    gatewise signature 1
    ed25519 9f86d081884c7d65 <sha256 of the JSON> <base64>

    {"announcement": 1, "name": "digits", "version": "8", "serial": 1790000000,
     "sha256": "...", "size": 48213, "url": "https://models.example.org/digits-8.gwb"}

The signature has a context of its own, so that a manifest's cannot be passed off as one. The serial
rises with every announcement, whatever the version: going back is a new announcement that names
an older bundle.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import Final
from urllib.parse import urlsplit

from gatewise.errors import GatewiseError
from gatewise_edge.checks import check_model
from gatewise_edge.update.errors import UpdateError
from gatewise_export.bundle.errors import ManifestError, SignatureError
from gatewise_export.bundle.json_reader import JsonField
from gatewise_export.bundle.signing import PublicKey, Signer, read_signatures, write_signatures

__all__ = ["ANNOUNCEMENT_CONTEXT", "LARGEST_SERIAL", "Announcement", "decode", "encode"]

ANNOUNCEMENT_CONTEXT: Final = b"gatewise announcement signature, version 1\0"
LARGEST_SERIAL: Final = (1 << 53) - 1
MOST_PAYLOAD: Final = 8 << 10

_SHA256: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_KEYS: Final = ("announcement", "name", "version", "serial", "sha256", "size", "url")


@dataclass(frozen=True)
class Announcement:
    """One announcement.

    `serial`, 1 to 2**53 - 1, is greater than that of every one before it; `sha256` and `size` are
    those of the ``.gwb`` file at `url`: https, or file where a device allows it.
    """

    name: str
    version: str
    serial: int
    sha256: str
    size: int
    url: str

    def __str__(self) -> str:
        return f"{self.name}/{self.version} (serial {self.serial})"


def encode(announcement: Announcement, signer: Signer) -> bytes:
    """Make the payload of an announcement, checked and signed; UpdateError if out of range."""
    body = json.dumps({"announcement": 1, **asdict(announcement)}, ensure_ascii=False).encode()
    _read(body)
    return write_signatures(signer.sign(ANNOUNCEMENT_CONTEXT, body)) + b"\n" + body


def decode(payload: bytes, key: PublicKey, *, name: str | None = None) -> Announcement:
    """Check a payload's signature, and only then read it; `name` is the topic's model.

    Raises UpdateError with the reason ``malformed``, ``forged`` or ``other-name``.
    """
    if len(payload) > MOST_PAYLOAD:
        raise UpdateError("malformed", f"an announcement of more than {MOST_PAYLOAD} bytes")
    head, gap, body = payload.partition(b"\n\n")
    if not gap:
        raise UpdateError("malformed", "an announcement without a signature")
    try:
        signatures = read_signatures(head + b"\n", "the announcement's signature")
    except SignatureError as error:
        raise UpdateError("malformed", str(error)) from None
    try:
        key.check(signatures, ANNOUNCEMENT_CONTEXT, body, "the announcement")
    except SignatureError as error:
        raise UpdateError("forged", str(error)) from None
    announcement = _read(body)
    if name is not None and announcement.name != name:
        raise UpdateError(
            "other-name", f"an announcement of {announcement.name!r}, where {name!r} is announced"
        )
    return announcement


def _read(body: bytes) -> Announcement:
    try:
        document = JsonField.parse(body)
        document.keys(_KEYS)
        document["announcement"].integer(1, 1)
        digest = document["sha256"].text(64)
        url = document["url"].text(2048)
        if not _SHA256.fullmatch(digest):
            document["sha256"].fail("must be 64 hexadecimal digits")
        if urlsplit(url).scheme not in ("https", "file"):
            document["url"].fail("must begin with https://")
        return Announcement(
            name=check_model(document["name"].text(64)),
            version=check_model(document["version"].text(64), "model version"),
            serial=document["serial"].integer(1, LARGEST_SERIAL),
            sha256=digest,
            size=document["size"].integer(1, 1 << 40),
            url=url,
        )
    except (GatewiseError, ValueError) as error:
        why = str(error).removeprefix("manifest.json: ") if _named(error) else str(error)
        raise UpdateError("malformed", f"announcement: {why}") from None


def _named(error: Exception) -> bool:
    return isinstance(error, ManifestError)
