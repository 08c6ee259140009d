"""Write reproducible npz files, and read untrusted ones.

The reader loads no pickle, and allocates memory only for bytes that the file contains. Devices use
this module, so it needs only the standard library and numpy.
"""

from __future__ import annotations

import io
import math
import re
import struct
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import one_line
from gatewise_export.bundle.errors import BundleError
from gatewise_export.bundle.zip_files import check_entry_list, open_entry, open_zip, zip_bytes

#: Default bounds of a file, far above any sample: number of arrays, and their bytes in memory.
MAX_ARRAYS = 2048
MAX_ARRAY_BYTES = 64 << 20
#: Largest size of an array's entry in the zip file's list, in bytes: 46 and a short name.
MAX_ENTRY_BYTES = 512
#: Bytes before an npy header's text: magic string, version and length of the text.
NPY_PREFIX_BYTES = 10
#: Number of bytes of an npy file that are searched for its header. The header of version 1.0 has a
#: length of 16 bits.
MAX_HEADER_BYTES = NPY_PREFIX_BYTES + (1 << 16)
#: Number of bytes per read, after which the size of the expanded entry is checked.
CHUNK_BYTES = 1 << 20
#: Header of an npy file exactly as numpy writes it (numpy.lib.format). A length of up to 18 digits
#: fits in 64 bits.
_NPY_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '(?P<dtype>[<>|][biuf][1248])', "
    rb"'fortran_order': (?P<by_column>False|True), "
    rb"'shape': \((?P<shape>(?:[0-9]{1,18},? ?)*)\),? ?\} *\n?",
    re.DOTALL,
)

#: Errors that zipfile and numpy raise for damaged or hostile files. A filter may turn warnings into
#: errors.
_READING_ERRORS = (
    ValueError,
    TypeError,
    LookupError,
    SyntaxError,
    ArithmeticError,
    OSError,
    EOFError,
    RecursionError,
    Warning,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)


def write_arrays(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Write an npz file; equal arrays give equal bytes."""
    members = {}
    for name, array in arrays.items():
        content = io.BytesIO()
        # ascontiguousarray turns a 0-d array into a 1-d array; reshape reverts that
        contiguous_array = np.ascontiguousarray(array).reshape(array.shape)
        np.lib.format.write_array(content, contiguous_array, allow_pickle=False)
        members[f"{name}.npy"] = content.getvalue()
    return zip_bytes(members)


def read_arrays(
    content: bytes,
    file: str = "sample.npz",
    *,
    max_arrays: int = MAX_ARRAYS,
    max_bytes: int = MAX_ARRAY_BYTES,
) -> dict[str, NDArray[Any]]:
    """Read an untrusted npz file with at most `max_bytes` bytes of arrays.

    The arrays are read-only.
    """
    arrays: dict[str, NDArray[Any]] = {}
    n_bytes = 0
    try:
        check_entry_list(content, max_arrays * MAX_ENTRY_BYTES)
        with open_zip(io.BytesIO(content)) as archive:
            entries = archive.infolist()
            if len(entries) > max_arrays:
                raise ValueError(f"more than {max_arrays} arrays")
            for entry in entries:
                name = entry.filename.removesuffix(".npy")
                if name in arrays:
                    raise ValueError(f"the array {name[:64]!r} is listed twice")
                npy_content = _read_member(archive, entry, n_bytes, max_bytes)
                n_bytes += npy_content.nbytes
                arrays[name] = _parse_npy(npy_content)
    except _READING_ERRORS as error:
        raise BundleError(f"{file} cannot be read: {one_line(error)}") from error
    return arrays


def _read_member(
    archive: zipfile.ZipFile, entry: zipfile.ZipInfo, n_bytes_before: int, max_bytes: int
) -> memoryview:
    """Read a member; ValueError if it and the members before have more than `max_bytes` bytes."""
    content = io.BytesIO()
    with open_entry(archive, entry) as member:
        while chunk := member.read(CHUNK_BYTES):
            if n_bytes_before + content.tell() + len(chunk) > max_bytes:
                raise ValueError(f"arrays larger than {max_bytes} B")
            content.write(chunk)
    return content.getbuffer().toreadonly()


def _parse_npy(npy_content: memoryview) -> NDArray[Any]:
    """Read an npy file of version 1.0 with plain numbers, without copying its data."""
    header = bytes(npy_content[:MAX_HEADER_BYTES])
    match = _NPY_HEADER.match(header)
    text_length = int.from_bytes(header[8:NPY_PREFIX_BYTES], "little")
    if match is None or match.end() != NPY_PREFIX_BYTES + text_length:
        raise ValueError("an array has an unknown format, or holds values that are not numbers")
    dtype = np.dtype(match["dtype"].decode())
    shape = tuple(int(length) for length in match["shape"].split(b",") if length.strip())
    array_bytes = npy_content[match.end() :]
    if math.prod(shape) * dtype.itemsize != len(array_bytes):
        raise ValueError("an array is truncated")
    order: Literal["F", "C"] = "F" if match["by_column"] == b"True" else "C"
    return np.frombuffer(array_bytes, dtype).reshape(shape, order=order)
