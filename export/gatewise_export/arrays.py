"""Arrays in npz files: written the same each time, read from strangers.

No pickle is ever loaded, and no memory is reserved for what is not there. Standard library and
numpy alone: a device uses this.
"""

from __future__ import annotations

import io
import math
import struct
import warnings
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise_export.errors import BundleError
from gatewise_export.storage import archive

__all__ = ["read_arrays", "write_arrays"]

MOST_ARRAYS = 2048
MOST_BYTES = 256 << 20


def write_arrays(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Make an npz file whose bytes depend on the arrays alone."""
    members = {}
    for name, array in arrays.items():
        content = io.BytesIO()
        np.lib.format.write_array(content, np.ascontiguousarray(array), allow_pickle=False)
        members[f"{name}.npy"] = content.getvalue()
    return archive(members)


def read_arrays(
    content: bytes,
    file: str = "sample.npz",
    *,
    most_arrays: int = MOST_ARRAYS,
    most_bytes: int = MOST_BYTES,
) -> dict[str, NDArray[Any]]:
    """Read an npz file from a stranger: no pickle, and no array larger than its bytes.

    Parameters
    ----------
    content : bytes
    file : str
        What errors call it.
    most_arrays : int
    most_bytes : int
        That an array may take in memory.

    Returns
    -------
    dict of ndarray
        Read-only.

    Raises
    ------
    BundleError
        If it is not such a file.
    """
    arrays: dict[str, NDArray[Any]] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as members:
            names = members.namelist()
            if len(names) > most_arrays:
                raise ValueError(f"more than {most_arrays} arrays")
            for name in names:
                if name.removesuffix(".npy") in arrays:
                    raise ValueError(f"the array {name[:64]!r} stands twice")
                with members.open(name) as member:
                    data = member.read(most_bytes + 1)
                arrays[name.removesuffix(".npy")] = _array(data, most_bytes)
    except (
        ValueError, TypeError, LookupError, SyntaxError, ArithmeticError, OSError, EOFError,
        RuntimeError, Warning, struct.error, zipfile.BadZipFile, zlib.error,
    ) as error:  # fmt: skip
        reason = " ".join(str(error).split())[:200]
        raise BundleError(f"{file} cannot be read: {reason}") from error
    return arrays


def _array(data: bytes, most_bytes: int) -> NDArray[Any]:
    # np.load would reserve whatever the header claims before it sees that the bytes are missing
    if len(data) > most_bytes:
        raise ValueError(f"an array larger than {most_bytes} B")
    file = io.BytesIO(data)
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("an array in an unknown format")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a header that Python 2 wrote is not ours
        shape, by_column, dtype = np.lib.format.read_array_header_1_0(file)
    body = data[file.tell() :]
    if dtype.hasobject or math.prod(shape) * dtype.itemsize != len(body):
        raise ValueError("an array that is not plain numbers, or not all there")
    flat = np.frombuffer(body, dtype)
    return flat.reshape(shape, order="F" if by_column else "C")
