"""Public data sets: their files, licences and citations, read from sources.toml.

Each file has a URL and a SHA-256. The arrays made from the files also have a SHA-256, because
everybody should compare methods on the same rows. The features of HAPT, the patches of CIFAR-10 and
the signal sets are not listed, because their raw files have no address with a known hash.
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
    """File to download."""

    name: str
    url: str
    sha256: str


class Source(NamedTuple):
    """Data set, and the function that converts its files to arrays."""

    publisher: str
    licence: str
    citation: str
    arrays_sha256: str
    files: tuple[SourceFile, ...]
    prepare: Callable[[Files], Arrays]


def hash_arrays(arrays: Mapping[str, NDArray[Any]]) -> str:
    """Compute the SHA-256 of names, types, shapes and values, whatever the compression of a file.

    sources.toml records these hashes. A change of the hashed text makes all of them invalid.
    """
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _read_sources() -> dict[str, Source]:
    """Read sources.toml; the function ``prepare_NAME`` must exist for each section ``[NAME]``."""
    document = tomllib.loads((Path(__file__).parent / "sources.toml").read_text())
    sources = {}
    for name, table in document.items():
        files = tuple(SourceFile(**file) for file in table.pop("files"))
        prepare = getattr(preparation, f"prepare_{name}")
        sources[name] = Source(**table, files=files, prepare=prepare)
    return sources


SOURCES = _read_sources()
