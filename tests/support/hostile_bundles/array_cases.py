"""Hostile arrays of stages and samples."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise_export.bundle.arrays import read_arrays, write_arrays
from tests.support.hostile_bundles.good_bundle import F32, FILES, Cases, WriteBundle, replace_file

MakeArray = Callable[[], NDArray[Any]]


def change_arrays(file: str, **make_array_by_name: MakeArray | None) -> WriteBundle:
    """Write a bundle with changed arrays in a file, without those with the value None."""

    def make_content() -> bytes:
        arrays = dict(read_arrays(FILES[file]))
        arrays |= {
            name: make_array()
            for name, make_array in make_array_by_name.items()
            if make_array is not None
        }
        return write_arrays(
            {
                name: array
                for name, array in arrays.items()
                if make_array_by_name.get(name, array) is not None
            }
        )

    return replace_file(file, make_content)


def change_number(name: str, index: int, value: int) -> MakeArray:
    """Make a function that returns an array of the lazy stage with one changed number."""

    def make_array() -> NDArray[Any]:
        array = read_arrays(FILES["stage_2.npz"])[name].copy()
        array[index] = value
        return array

    return make_array


def make_lying_file(length: int = 1 << 40, body: bytes = b"") -> bytes:
    """Make an npz file with headers that state another length than that of the data."""
    array_file = io.BytesIO()
    header = {"descr": "<i4", "fortran_order": False, "shape": (length,)}
    np.lib.format.write_array_header_1_0(array_file, header)
    array_file.write(body)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name in read_arrays(FILES["stage_2.npz"]):
            archive.writestr(f"{name}.npy", array_file.getvalue())
    return content.getvalue()


def make_pickled_file() -> bytes:
    """Make an npz file with a pickled object."""
    content = io.BytesIO()
    np.savez(content, feature=np.array([{"a": 1}], object))
    return content.getvalue()


ARRAY_CASES: Cases = {
    # lazy stages and samples
    "cyclic lazy tree": (
        change_arrays("stage_2.npz", left=change_number("left", 1, 0)),
        r"stage_2\.npz: 'left' must point to a later node",
    ),
    "lazy tree with another feature": (
        change_arrays("stage_2.npz", feature=change_number("feature", 0, 9)),
        r"stage_2\.npz: 'feature' points outside",
    ),
    "npz bomb": (
        change_arrays("stage_2.npz", feature=lambda: np.full(1 << 25, -1, np.int32)),
        r"stage_2\.npz cannot be read: arrays larger than",
    ),
    "npz bomb of many arrays": (
        change_arrays(
            "stage_2.npz",
            **dict.fromkeys(("feature", "threshold", "left"), lambda: np.zeros(7 << 20, F32)),
        ),
        "arrays larger than",
    ),
    "npz with a header that lies": (
        replace_file("stage_2.npz", make_lying_file),
        r"stage_2\.npz cannot be read: .*truncated",
    ),
    "npz with an array longer than its shape": (
        replace_file("stage_2.npz", partial(make_lying_file, 1, bytes(8))),
        r"stage_2\.npz cannot be read: .*truncated",
    ),
    "npz with a pickle": (
        replace_file("stage_2.npz", make_pickled_file),
        r"stage_2\.npz cannot be read: .*values that are not numbers",
    ),
    "linear stage that is not finite": (
        change_arrays("stage_0.npz", weights=lambda: np.full((2, 1), np.inf, F32)),
        r"stage_0\.npz: 'weights' holds values that are not finite",
    ),
    "linear stage of other inputs": (
        change_arrays("stage_0.npz", mean=lambda: np.zeros(3, F32)),
        r"stage_0\.npz: 'mean' has 3 inputs, not 2",
    ),
    "sample of the wrong shape": (
        change_arrays("sample.npz", stage_1=lambda: np.zeros((12, 3), F32)),
        r"sample\.npz: 'stage_1' is float32",
    ),
    "sample without an array": (
        change_arrays("sample.npz", bought_2=None),
        r"sample\.npz lacks the array 'bought_2'",
    ),
    "sample bomb": (
        change_arrays("sample.npz", X=lambda: np.zeros((1 << 23, 4), F32)),
        r"sample\.npz cannot be read: arrays larger than",
    ),
}
