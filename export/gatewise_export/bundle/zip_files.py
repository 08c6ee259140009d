"""Write reproducible zip files, and open untrusted zip files safely."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Final

#: Allowed compression methods. Decoders of other methods may need gigabytes of memory.
_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
#: Bits of the flags of an encrypted entry or a patch (APPNOTE.TXT 4.4.4).
_ENCRYPTED_OR_PATCH: Final = 0x01 | 0x20 | 0x40

#: The record at the end of the list of entries (APPNOTE.TXT 4.3.16).
_END_RECORD: Final = struct.Struct("<4s4H2LH")
_ZIP64_LOCATOR: Final = b"PK\x06\x07"  # APPNOTE.TXT 4.3.15
_LOCATOR_BYTES: Final = 20  # of the ZIP64 locator
_MAX_COMMENT_BYTES: Final = 65535  # the comment after the end record has a 16-bit length
#: Number of bytes at the end of a zip file that contain the length of its list of entries.
TAIL_BYTES: Final = _END_RECORD.size + _MAX_COMMENT_BYTES + _LOCATOR_BYTES


def zip_bytes(files: Mapping[str, bytes]) -> bytes:
    """Make a zip file that depends only on the contents: it has no times and a fixed order."""
    zip_file = io.BytesIO()
    with zipfile.ZipFile(zip_file, "w") as writer:
        for name, content in sorted(files.items()):
            writer.writestr(zip_entry(name), content)
    return zip_file.getvalue()


def zip_entry(name: str) -> zipfile.ZipInfo:
    """Make the entry of a file, dated 1980-01-01."""
    entry = zipfile.ZipInfo(name)
    entry.compress_type = zipfile.ZIP_DEFLATED
    # fixed, because zipfile would record the system that writes the file
    entry.create_system = 3  # Unix
    entry.external_attr = 0o644 << 16  # its file mode is in the upper 16 bits
    return entry


def open_zip(file: Path | IO[bytes]) -> zipfile.ZipFile:
    """Open a zip file for reading; raise BadZipFile if zipfile cannot read its format."""
    try:
        return zipfile.ZipFile(file)
    except RuntimeError as error:  # the file needs a later version of the format
        raise zipfile.BadZipFile(str(error)) from error


def open_entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> IO[bytes]:
    """Open an entry; raise BadZipFile if it is encrypted, or neither stored nor deflated."""
    if entry.compress_type not in _METHODS:
        raise zipfile.BadZipFile("its compression method is neither store nor deflate")
    if entry.flag_bits & _ENCRYPTED_OR_PATCH:
        raise zipfile.BadZipFile("it is encrypted or a patch")
    return archive.open(entry)


def check_entry_list(tail: bytes, limit: int) -> None:
    """Raise ValueError if a zip file's last bytes state a list of entries above `limit` bytes."""
    end_offset = tail.rfind(b"PK\x05\x06", max(0, len(tail) - TAIL_BYTES))
    if end_offset < 0 or len(tail) - end_offset < _END_RECORD.size:
        raise ValueError("the zip file is truncated")
    list_bytes = _END_RECORD.unpack_from(tail, end_offset)[5]
    # a zip64 locator before the end record would replace this length by a 64-bit one
    locator = tail[max(0, end_offset - _LOCATOR_BYTES) : end_offset]
    if list_bytes > limit or locator.startswith(_ZIP64_LOCATOR):
        raise ValueError(f"the zip file's list of entries is larger than {limit} B")
