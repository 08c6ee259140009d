"""``sample.npz``: real rows with every output expected, for the self-test of a device.

The file holds the rows and what every model says to them. Which stage answers, the label and
the cost follow from these and from the thresholds in force, so that another operating point
needs no other sample.
"""

from __future__ import annotations

import io
import math
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise_export.errors import BundleError
from gatewise_export.manifest import Manifest
from gatewise_export.storage import archive
from gatewise_training.decision import exit_stages, labels, split

__all__ = ["expected", "read_arrays", "write_arrays"]

MOST_ARRAYS = 2048
MOST_BYTES = 256 << 20
"""An array of the sample takes at most this much memory."""


def write_arrays(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Make an npz file whose bytes depend on the arrays alone."""
    members = {}
    for name, array in arrays.items():
        content = io.BytesIO()
        np.lib.format.write_array(content, np.ascontiguousarray(array), allow_pickle=False)
        members[f"{name}.npy"] = content.getvalue()
    return archive(members)


def read_arrays(content: bytes) -> dict[str, NDArray[Any]]:
    """Read an npz file from a stranger: no pickle, and no array larger than its bytes.

    Raises
    ------
    BundleError
        If it is not such a file.
    """
    arrays = {}
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as members:
            if len(members.namelist()) > MOST_ARRAYS:
                raise ValueError(f"more than {MOST_ARRAYS} arrays")
            for name in members.namelist():
                with members.open(name) as member:
                    data = member.read(MOST_BYTES + 1)
                arrays[name.removesuffix(".npy")] = _array(data)
    except (ValueError, OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise BundleError(f"sample.npz cannot be read: {error}") from error
    return arrays


def _array(data: bytes) -> NDArray[Any]:
    # np.load would reserve whatever the header claims before it sees that the bytes are missing
    if len(data) > MOST_BYTES:
        raise ValueError(f"an array larger than {MOST_BYTES} B")
    file = io.BytesIO(data)
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("an array in an unknown format")
    shape, by_column, dtype = np.lib.format.read_array_header_1_0(file)
    body = data[file.tell() :]
    if dtype.hasobject or math.prod(shape) * dtype.itemsize != len(body):
        raise ValueError("an array that is not plain numbers, or not all there")
    flat = np.frombuffer(body, dtype)
    return flat.reshape(shape, order="F" if by_column else "C")


def expected(manifest: Manifest, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """What the bundle must answer to the sample's rows at the operating point in force.

    Parameters
    ----------
    manifest : Manifest
    arrays : mapping of str to ndarray
        The file's: ``X``; ``stage_<i>`` for each stage listed in the manifest; with a
        high-cost model ``cloud_label`` and ``cloud_probabilities``.

    Returns
    -------
    dict of ndarray
        See :meth:`Bundle.sample`; here ``stage_<i>`` is stage i of the chain in force.

    Raises
    ------
    BundleError
        If an array is missing, or of another shape or type than the manifest says.
    """
    n = len(arrays["X"]) if "X" in arrays and arrays["X"].ndim else 0
    out = {"X": _take(arrays, "X", np.float32, (n, len(manifest.features)))}
    scores, answers = [], []
    for i, number in enumerate(manifest.chains[manifest.active_point.chain]):
        stage = manifest.every_stage[number]
        outputs = _take(arrays, f"stage_{number}", np.float32, (n, stage.outputs))
        margins, score = split(outputs, stage.score)
        scores.append(score)
        answers.append(labels(margins))
        out[f"stage_{i}"] = outputs
    exits = exit_stages(scores, manifest.active_point.thresholds)
    if manifest.cloud is not None:
        out["cloud_label"] = _take(arrays, "cloud_label", np.int64, (n,))
        shape = (n, manifest.n_classes)
        out["cloud_probabilities"] = _take(arrays, "cloud_probabilities", np.float32, shape)
        answers.append(out["cloud_label"])
    else:
        exits = np.minimum(exits, len(scores) - 1)  # the last stage's answer stands
    out["exit"] = exits
    out["label"] = np.stack(answers)[exits, np.arange(n)]
    out["cost"] = manifest.exit_costs()[exits]
    return out


def _take(
    arrays: Mapping[str, NDArray[Any]], name: str, dtype: type, shape: tuple[int, ...]
) -> NDArray[Any]:
    array = arrays.get(name)
    if array is None:
        raise BundleError(f"sample.npz lacks the array {name!r}")
    if array.dtype != dtype or array.shape != shape:
        raise BundleError(
            f"sample.npz: {name!r} is {array.dtype} of shape {array.shape}, "
            f"the manifest asks for {np.dtype(dtype)} of shape {shape}"
        )
    return array
