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

from tests.support.hostile_bundles.good_bundle import (
    FILES,
    Cases,
    WriteBundle,
    make_document,
    write_directory,
    write_zip,
)


def swap_stages(*, hashes_match: bool) -> WriteBundle:
    """Exchange the files of the first two stages."""
    names = ("stage_0.npz", "stage_1.npz")
    return lambda path: write_directory(
        path,
        {name: FILES[other_name] for name, other_name in zip(names, names[::-1], strict=True)},
        hashes_match=hashes_match,
    )


def change_manifest(*path_and_value: Any) -> WriteBundle:
    """Change a value of the manifest; `where` is the path to it, followed by the value."""
    *path_to_parent, key, value = path_and_value

    def write_changed(path: Path) -> Path:
        changed_document = make_document(FILES)
        parent = changed_document
        for key_or_index in path_to_parent:
            parent = parent[key_or_index]
        parent[key] = value
        return write_directory(path, manifest_text=json.dumps(changed_document))

    return write_changed


def change_manifest_text(edit: Callable[[str], str | bytes]) -> WriteBundle:
    """Change the text of the manifest."""
    return lambda path: write_directory(path, manifest_text=edit(json.dumps(make_document(FILES))))


def replace_graph(put: Callable[[Path], object]) -> WriteBundle:
    """Replace the graph of the first stage by another kind of file."""

    def write_changed(path: Path) -> Path:
        file = write_directory(path) / "stage_0.onnx"
        file.rename(path.parent / "outside")
        put(file)
        return path

    return write_changed


def change_zip(edit: Callable[[bytes], bytes]) -> WriteBundle:
    """Change the bytes of a zip file."""

    def write_changed(path: Path) -> Path:
        path = write_zip(path)
        path.write_bytes(edit(path.read_bytes()))
        return path

    return write_changed


def add_entry(entry: str | zipfile.ZipInfo, content: bytes, *without: str) -> WriteBundle:
    """Add an entry to a zip file, and remove the entries `without`."""

    def write_changed(path: Path) -> Path:
        path = write_zip(
            path,
            {name: file_content for name, file_content in FILES.items() if name not in without},
            hashes_match=False,
        )
        with zipfile.ZipFile(path, "a") as archive:
            archive.NameToInfo.clear()  # prevents a warning about a duplicate name
            archive.writestr(entry, content)
        return path

    return write_changed


def make_link_entry() -> zipfile.ZipInfo:
    """Make the entry of a symbolic link."""
    link = zipfile.ZipInfo("stage_0.onnx")
    link.create_system = 3  # Unix
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    return link


def add_a_million_entries(content: bytes) -> bytes:
    """Add 40 MB of entries; each would need half a kilobyte of memory."""
    # the end-of-central-directory record and a file header of APPNOTE.TXT, sections 4.3.16 and
    # 4.3.12; field 5 is the size of the directory
    position = content.rfind(b"PK\x05\x06")
    end_record = list(struct.unpack("<4s4H2LH", content[position : position + 22]))
    entry = struct.pack("<4s6H3L5H2L", b"PK\1\2", 20, 20, 0, 0, 0, 33, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    filler_entries = entry * 800_000
    end_record[5] += len(filler_entries)
    return content[:position] + filler_entries + struct.pack("<4s4H2LH", *end_record)


def change_field(content: bytes, offset: int, value: int) -> bytes:
    """Change the number at an offset of each entry in the zip file's directory."""
    # split removes the signature of an entry, which has 4 bytes
    before_entries, *entries = content.split(b"PK\1\2")
    number = struct.pack("<H", value)
    changed_entries = [entry[: offset - 4] + number + entry[offset - 2 :] for entry in entries]
    return b"PK\1\2".join([before_entries, *changed_entries])


def state_too_many_bytes(text: str) -> str:
    """State file sizes in the manifest that add up to too much."""
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
        change_manifest("files", "../../etc/passwd", NO_FILE),
        "files.*etc/passwd",
    ),
    "absolute path in the manifest": (
        change_manifest("stages", 0, "arrays", "/etc/passwd"),
        r"stages\[0\]\.arrays: must be a plain file name",
    ),
    "path traversal in the zip": (
        add_entry("../stage_0.onnx", FILES["stage_0.onnx"], "stage_0.onnx"),
        r"stage_0\.onnx is missing",
    ),
    "symlink": (
        replace_graph(lambda file: file.symlink_to(file.parents[1] / "outside")),
        r"stage_0\.onnx cannot be opened as a plain",
    ),
    "symlink in the zip": (
        add_entry(make_link_entry(), b"/etc/passwd", "stage_0.onnx"),
        r"stage_0\.onnx is not the file that was packed",
    ),
    "pipe": (replace_graph(os.mkfifo), r"stage_0\.onnx is not a plain file"),
    "directory in place of a file": (
        replace_graph(Path.mkdir),
        r"stage_0\.onnx (is not a plain|cannot be)",
    ),
    "missing file": (replace_graph(lambda file: None), r"stage_0\.onnx is missing"),
    "wrong hash": (
        lambda path: write_directory(
            path, {"stage_1.onnx": FILES["stage_1.onnx"][:-1] + b"!"}, hashes_match=False
        ),
        r"stage_1\.onnx is not the file that was packed \(SHA-256 differs",
    ),
    "wrong size": (
        lambda path: write_directory(
            path, {"stage_1.onnx": FILES["stage_1.onnx"] + b"\0"}, hashes_match=False
        ),
        r"stage_1\.onnx is not the file that was packed \(size differs",
    ),
    "swapped stages": (swap_stages(hashes_match=False), "is not the file that was packed"),
    "swapped stages with their true hashes": (
        swap_stages(hashes_match=True),
        r"stage_0\.npz (lacks|has an unknown array|cannot be read)",
    ),
    # zip files
    "truncated zip": (change_zip(lambda content: content[:-30]), "is not a bundle|truncated"),
    "zip cut in the middle": (
        change_zip(lambda content: content[:700] + content[900:]),
        "cannot be read|is not the file|is missing",
    ),
    "zip bomb": (
        lambda path: write_zip(
            path, FILES | {"stage_0.onnx": bytes(256 << 20)}, hashes_match=False
        ),
        r"stage_0\.onnx is not the file that was packed \(size differs",
    ),
    "zip bomb with its true size and hash": (
        lambda path: write_zip(path, FILES | {"stage_0.npz": bytes(256 << 20)}),
        r"stage_0\.npz has 268435456 B, more than",
    ),
    "zip with a million entries": (change_zip(add_a_million_entries), "entries is larger"),
    "zip with another method": (
        lambda path: write_zip(path, compress_type=zipfile.ZIP_LZMA),
        r"manifest\.json cannot be read: its compression method is neither",
    ),
    "encrypted zip": (
        change_zip(lambda content: change_field(content, 8, 0x01)),
        r"manifest\.json cannot be read: it is encrypted",
    ),
    "zip of a later version": (
        change_zip(lambda content: change_field(content, 6, 99)),
        "zip file version 9.9",
    ),
    "duplicate zip entries": (
        add_entry("stage_1.onnx", FILES["stage_1.onnx"]),
        r"stage_1\.onnx is listed 2 times",
    ),
    # manifests
    "deep manifest": (change_manifest_text(lambda text: "[" * 300_000), "not readable JSON"),
    "manifest of empty lists": (
        change_manifest_text(lambda text: "[" + "[]," * 1_300_000 + "[]]"),
        "lists and objects, more than",
    ),
    "manifest beyond its size": (
        change_manifest_text(lambda text: b" " * (60 << 20)),
        r"manifest\.json is larger than",
    ),
    "threshold that is no number": (
        change_manifest_text(lambda text: text.replace("[0.5, 0.5,", "[0.5, NaN,")),
        "not readable JSON",
    ),
    "infinite threshold": (
        change_manifest_text(lambda text: text.replace("[0.5, 0.5,", "[0.5, 1e999,")),
        r"operating_points\[0\]\.thresholds\[1\]: must be",
    ),
    "manifest with a key twice": (
        change_manifest_text(lambda text: text[:-1] + ', "active": 0}'),
        "key 'active' is repeated",
    ),
    "more bytes than a bundle may have": (
        change_manifest_text(state_too_many_bytes),
        "files: have more than 2147483648 B",
    ),
}
