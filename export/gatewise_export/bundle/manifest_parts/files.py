"""Read the list of a bundle's files."""

from __future__ import annotations

import re
from typing import Final

from gatewise.documents.json_reader import JsonField
from gatewise_export.bundle.manifest_parts.specs import FileSpec

_SHA256: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)


def read_files(field: JsonField, *, most: int, most_bytes: int) -> dict[str, FileSpec]:
    """Read an object of at most `most` files of at most `most_bytes` each, by name."""
    files = {}
    for name, item in field.entries(most).items():
        file = JsonField(name, field.where).file_name()
        item.keys(("sha256", "size"))
        files[file] = FileSpec(
            sha256=item["sha256"].matching(_SHA256, "64 hexadecimal digits"),
            size=item["size"].integer(0, most_bytes),
        )
    return files
