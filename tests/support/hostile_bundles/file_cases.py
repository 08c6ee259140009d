"""Hostile files, archives and manifests."""

from __future__ import annotations

import json
import os
import stat
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.hostile_bundles.good_bundle import FILES, Cases, Make, document, write, zipped


def swapped(*, hashes_match: bool) -> Make:
    """Exchange the files of the first two stages."""
    names = ("stage_0.npz", "stage_1.npz")
    return lambda path: write(
        path,
        {a: FILES[b] for a, b in zip(names, names[::-1], strict=True)},
        hashes_match=hashes_match,
    )


def manifest(*where: Any) -> Make:
    """Change a value of the manifest; `where` is the path to it, followed by the value."""
    *path_to_parent, key, value = where

    def make(path: Path) -> Path:
        changed = document(FILES)
        parent = changed
        for step in path_to_parent:
            parent = parent[step]
        parent[key] = value
        return write(path, manifest_text=json.dumps(changed))

    return make


def manifest_text(edit: Callable[[str], str | bytes]) -> Make:
    """Change the text of the manifest."""
    return lambda path: write(path, manifest_text=edit(json.dumps(document(FILES))))


def in_place_of_a_file(put: Callable[[Path], object]) -> Make:
    """Replace the graph of the first stage by another kind of file."""

    def make(path: Path) -> Path:
        file = write(path) / "stage_0.onnx"
        file.rename(path.parent / "outside")
        put(file)
        return path

    return make


def bytes_changed(edit: Callable[[bytes], bytes]) -> Make:
    """Change the bytes of a zip file."""

    def make(path: Path) -> Path:
        path = zipped(path)
        path.write_bytes(edit(path.read_bytes()))
        return path

    return make


def entry_added(entry: str | zipfile.ZipInfo, content: bytes, *without: str) -> Make:
    """Add an entry to a zip file, and remove the entries `without`."""

    def make(path: Path) -> Path:
        path = zipped(path, {n: c for n, c in FILES.items() if n not in without})
        with zipfile.ZipFile(path, "a") as archive:
            archive.NameToInfo.clear()  # prevents a warning about a duplicate name
            archive.writestr(entry, content)
        return path

    return make


def link_entry() -> zipfile.ZipInfo:
    """Make the entry of a symbolic link."""
    link = zipfile.ZipInfo("stage_0.onnx")
    link.create_system = 3  # Unix
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    return link


def with_a_million_entries(content: bytes) -> bytes:
    """Add 40 MB of entries, each of which would need half a kilobyte of memory."""
    position = content.rfind(b"PK\x05\x06")
    end = list(struct.unpack("<4s4H2LH", content[position : position + 22]))
    entry = struct.pack("<4s6H3L5H2L", b"PK\1\2", 20, 20, 0, 0, 0, 33, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    filler = entry * 800_000
    end[5] += len(filler)
    return content[:position] + filler + struct.pack("<4s4H2LH", *end)


def with_field(content: bytes, offset: int, value: int) -> bytes:
    """Change the number at an offset of each entry in the zip file's directory."""
    first, *entries = content.split(b"PK\1\2")
    number = struct.pack("<H", value)
    changed = [e[: offset - 4] + number + e[offset - 2 :] for e in entries]
    return b"PK\1\2".join([first, *changed])


def more_bytes_than_a_bundle_may_have(text: str) -> str:
    """State file sizes in the manifest whose sum is too large."""
    manifest = json.loads(text)
    for spec in manifest["files"].values():
        spec["size"] = 1 << 30
    for entry in manifest["stages"]:
        entry["bytes"] = sum(1 << 30 for key in ("arrays", "graph") if key in entry)
    return json.dumps(manifest)


NO_FILE = {"sha256": "0" * 64, "size": 1}

FILE_CASES: Cases = {
    # paths and files
    "path traversal in the manifest": (
        manifest("files", "../../etc/passwd", NO_FILE),
        "files.*etc/passwd",
    ),
    "absolute path in the manifest": (
        manifest("stages", 0, "arrays", "/etc/passwd"),
        r"stages\[0\]\.arrays: must be a plain file name",
    ),
    "path traversal in the zip": (
        entry_added("../stage_0.onnx", FILES["stage_0.onnx"], "stage_0.onnx"),
        r"stage_0\.onnx is missing",
    ),
    "symlink": (
        in_place_of_a_file(lambda file: file.symlink_to(file.parents[1] / "outside")),
        r"stage_0\.onnx cannot be opened as a plain",
    ),
    "symlink in the zip": (
        entry_added(link_entry(), b"/etc/passwd", "stage_0.onnx"),
        r"stage_0\.onnx is not the file that was packed",
    ),
    "pipe": (in_place_of_a_file(os.mkfifo), r"stage_0\.onnx is not a plain file"),
    "directory in place of a file": (
        in_place_of_a_file(Path.mkdir),
        r"stage_0\.onnx (is not a plain|cannot be)",
    ),
    "missing file": (in_place_of_a_file(lambda file: None), r"stage_0\.onnx is missing"),
    "wrong hash": (
        lambda path: write(
            path, {"stage_1.onnx": FILES["stage_1.onnx"][:-1] + b"!"}, hashes_match=False
        ),
        r"stage_1\.onnx is not the file that was packed \(SHA-256 differs",
    ),
    "wrong size": (
        lambda path: write(
            path, {"stage_1.onnx": FILES["stage_1.onnx"] + b"\0"}, hashes_match=False
        ),
        r"stage_1\.onnx is not the file that was packed \(size differs",
    ),
    "swapped stages": (swapped(hashes_match=False), "is not the file that was packed"),
    "swapped stages with their true hashes": (
        swapped(hashes_match=True),
        r"stage_0\.npz (lacks|has an unknown array|cannot be read)",
    ),
    # zip files
    "truncated zip": (bytes_changed(lambda content: content[:-30]), "is not a bundle|truncated"),
    "zip cut in the middle": (
        bytes_changed(lambda content: content[:700] + content[900:]),
        "cannot be read|is not the file|is missing",
    ),
    "zip bomb": (
        lambda path: zipped(path, FILES | {"stage_0.onnx": bytes(256 << 20)}),
        r"stage_0\.onnx is not the file that was packed \(size differs",
    ),
    "zip bomb with its true size and hash": (
        lambda path: zipped(path, FILES | {"stage_0.npz": bytes(256 << 20)}, hashes_match=True),
        r"stage_0\.npz has 268435456 B, more than",
    ),
    "zip with a million entries": (bytes_changed(with_a_million_entries), "entries is larger"),
    "zip with another method": (
        lambda path: zipped(path, compress_type=zipfile.ZIP_LZMA),
        r"manifest\.json cannot be read: its compression method is neither",
    ),
    "encrypted zip": (
        bytes_changed(lambda content: with_field(content, 8, 0x01)),
        r"manifest\.json cannot be read: it is encrypted",
    ),
    "zip of a later version": (
        bytes_changed(lambda content: with_field(content, 6, 99)),
        "zip file version 9.9",
    ),
    "duplicate zip entries": (
        entry_added("stage_1.onnx", FILES["stage_1.onnx"]),
        r"stage_1\.onnx is listed 2 times",
    ),
    # manifests
    "deep manifest": (manifest_text(lambda text: "[" * 300_000), "not readable JSON"),
    "manifest of empty lists": (
        manifest_text(lambda text: "[" + "[]," * 1_300_000 + "[]]"),
        "lists and objects, more than",
    ),
    "manifest beyond its size": (
        manifest_text(lambda text: b" " * (60 << 20)),
        r"manifest\.json is larger than",
    ),
    "threshold that is no number": (
        manifest_text(lambda text: text.replace("[0.5, 0.5,", "[0.5, NaN,")),
        "not readable JSON",
    ),
    "infinite threshold": (
        manifest_text(lambda text: text.replace("[0.5, 0.5,", "[0.5, 1e999,")),
        r"operating_points\[0\]\.thresholds\[1\]: must be",
    ),
    "manifest with a key twice": (
        manifest_text(lambda text: text[:-1] + ', "active": 0}'),
        "key 'active' is repeated",
    ),
    "more bytes than a bundle may have": (
        manifest_text(more_bytes_than_a_bundle_may_have),
        "files: have more than 2147483648 B",
    ),
}
