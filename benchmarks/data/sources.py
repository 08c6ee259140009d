"""Public data sets: their files, licences and citations, read from sources.toml.

A file is known by its address and its SHA-256, the arrays made of it by a SHA-256 of their own, so
that everybody works on the same rows. HAPT's features, CIFAR-10's patches and the signal sets are
not among them: no address with a known hash gives what they were made from.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.data import preparation
from benchmarks.data.preparation import Arrays, Files


class SourceFile(NamedTuple):
    """A file to be fetched."""

    name: str
    url: str
    sha256: str


class Source(NamedTuple):
    """A data set, and the function that makes arrays of its files."""

    publisher: str
    licence: str
    citation: str
    arrays_sha256: str
    files: tuple[SourceFile, ...]
    prepare: Callable[[Files], Arrays]


def hash_arrays(arrays: Mapping[str, NDArray[Any]]) -> str:
    """SHA-256 over names, types, shapes and values, independent of how a file packs them."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _read_sources() -> dict[str, Source]:
    document = tomllib.loads((Path(__file__).parent / "sources.toml").read_text())
    sources = {}
    for name, table in document.items():
        files = tuple(SourceFile(**file) for file in table.pop("files"))
        prepare = getattr(preparation, f"prepare_{name}")
        sources[name] = Source(**table, files=files, prepare=prepare)
    return sources


SOURCES = _read_sources()
