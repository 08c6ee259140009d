"""Reproducible zip files, read only after a check of the size of their list of entries."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Final

#: Allowed compressions; decoders of others may take gigabytes of memory.
_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
#: Flags of entries that are encrypted or patches, APPNOTE.TXT 4.4.4.
_NOT_PLAIN: Final = 0x01 | 0x20 | 0x40

_END: Final = struct.Struct("<4s4H2LH")  # end of central directory, APPNOTE.TXT 4.3.16
_ZIP64_LOCATOR: Final = b"PK\x06\x07"
_LOCATOR_BYTES: Final = 20
#: Number of last bytes of a zip file that contain the length of its list of entries.
TAIL_BYTES: Final = _END.size + 65535 + _LOCATOR_BYTES


def zip_bytes(files: Mapping[str, bytes]) -> bytes:
    """Make a zip file that depends on the contents alone: no times, a fixed order."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as writer:
        for name, data in sorted(files.items()):
            writer.writestr(zip_entry(name), data)
    return content.getvalue()


def zip_entry(name: str) -> zipfile.ZipInfo:
    """Make the entry of a file, dated 1980-01-01."""
    entry = zipfile.ZipInfo(name)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.create_system = 3
    entry.external_attr = 0o644 << 16
    return entry


def open_zip(file: Path | IO[bytes]) -> zipfile.ZipFile:
    """Open a zip file to read; raise BadZipFile if zipfile cannot read its format."""
    try:
        return zipfile.ZipFile(file)
    except RuntimeError as error:  # of a later version of the format
        raise zipfile.BadZipFile(str(error)) from error


def open_entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> IO[bytes]:
    """Open an entry; raise BadZipFile unless it is stored or deflated, and not encrypted."""
    if entry.compress_type not in _METHODS:
        raise zipfile.BadZipFile("its compression is not deflate")
    if entry.flag_bits & _NOT_PLAIN:
        raise zipfile.BadZipFile("it is encrypted or a patch")
    return archive.open(entry)


def check_entry_list(tail: bytes, limit: int) -> None:
    """Refuse a zip file with a list of entries of more than `limit` bytes, by its last bytes."""
    record = tail.rfind(b"PK\x05\x06", max(0, len(tail) - TAIL_BYTES))
    if record < 0 or len(tail) - record < _END.size:
        raise ValueError("its zip file is cut off")
    length = _END.unpack_from(tail, record)[5]
    # a zip64 locator before the end record would replace this length by one of 64 bits
    locator = tail[max(0, record - _LOCATOR_BYTES) : record]
    if length > limit or locator.startswith(_ZIP64_LOCATOR):
        raise ValueError(f"the zip file's list of entries is larger than {limit} B")
