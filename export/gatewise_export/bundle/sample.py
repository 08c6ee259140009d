"""``sample.npz``: real rows with every output expected, for the self-test of a device.

The file holds the rows and what every model says to them. Which stage answers, the label and
the cost follow from these and from the thresholds in force, so that another operating point
needs no other sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise.acquisition import at_exits
from gatewise.decision import answers, exit_stages, split
from gatewise_export.bundle.errors import BundleError
from gatewise_export.bundle.manifest import Manifest

__all__ = ["expected"]


def expected(manifest: Manifest, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """What the bundle must answer to the sample's rows at the operating point in force.

    Parameters
    ----------
    manifest : Manifest
    arrays : mapping of str to ndarray
        The file's: ``X``; ``stage_<i>`` for each stage listed in the manifest, and
        ``bought_<i>`` for those of kind lazy; with a high-cost model ``cloud_label`` and
        ``cloud_probabilities``.

    Returns
    -------
    dict of ndarray
        See :meth:`Bundle.sample`; here the i of ``stage_<i>`` and ``bought_<i>`` counts the
        stages of the chain in force.

    Raises
    ------
    BundleError
        If an array is missing, or of another shape or type than the manifest says.
    """
    n = len(arrays["X"]) if "X" in arrays and arrays["X"].ndim else 0
    out = {"X": _take(arrays, "X", np.float32, (n, len(manifest.features)))}
    scores, said, bought = [], [], []
    for i, number in enumerate(manifest.chains[manifest.active_point.chain]):
        stage = manifest.every_stage[number]
        outputs = _take(arrays, f"stage_{number}", np.float32, (n, stage.outputs))
        margins, score = split(outputs, stage.score)
        scores.append(score)
        said.append(answers(margins, stage.link))
        out[f"stage_{i}"] = outputs
        columns = None
        if stage.kind == "lazy":
            columns = _take(arrays, f"bought_{number}", np.bool_, (n, len(stage.inputs)))
            out[f"bought_{i}"] = columns
        bought.append(manifest.acquired(i, columns))
    exits = exit_stages(scores, manifest.active_point.thresholds)
    if manifest.cloud is not None:
        out["cloud_label"] = _take(arrays, "cloud_label", np.int64, (n,))
        shape = (n, manifest.n_classes)
        out["cloud_probabilities"] = _take(arrays, "cloud_probabilities", np.float32, shape)
        said.append(out["cloud_label"])
    else:
        exits = np.minimum(exits, len(scores) - 1)  # the last stage's answer stands
    out["exit"] = exits
    out["label"] = np.stack(said)[exits, np.arange(n)]
    out["cost"] = at_exits(manifest.exit_costs(bought), exits)
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
