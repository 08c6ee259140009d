"""Decisions that follow from the outputs of all models, and those expected of ``sample.npz``.

The sample has rows and each model's outputs. The exits, labels and costs follow from them and from
the active thresholds, so that all operating points share a sample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise.acquisition import select_exit_costs
from gatewise.decision import answers, exit_stages, split
from gatewise_export.bundle.errors import BundleError
from gatewise_export.bundle.manifest import Manifest

#: Largest difference of a feature between machines, as a share of its largest sample value.
CLOSE = 1e-4


@dataclass(frozen=True, eq=False)
class Outcome:
    """Decisions on n rows, and the outputs of the models.

    Attributes
    ----------
    margins : tuple of ndarray, each of shape (n, n_outputs)
        Outputs of each stage of the active point's chain, for all rows.
    exits : ndarray of shape (n,)
        Index of the stage that answers; the number of stages for the cloud.
    labels : ndarray of shape (n,)
        Class indices, or float32 values where the bundle answers with values.
    costs : ndarray of shape (n,)
    cloud_labels, cloud_probabilities : ndarray of shape (n,) and (n, n_classes), or None
        Answers of the high-cost model to all rows, if there is one.
    """

    margins: tuple[NDArray[np.float32], ...]
    exits: NDArray[np.int64]
    labels: NDArray[Any]
    costs: NDArray[np.float64]
    cloud_labels: NDArray[np.int64] | None
    cloud_probabilities: NDArray[Any] | None


def decided(
    manifest: Manifest,
    margins: Sequence[NDArray[np.float32]],
    acquired: Sequence[NDArray[np.bool_]],
    cloud_labels: NDArray[np.int64] | None,
    cloud_probabilities: NDArray[Any] | None,
) -> Outcome:
    """Decide rows from the outputs of every stage and its acquired features, as a device does."""
    split_outputs = [split(m, s.score) for m, s in zip(margins, manifest.stages, strict=True)]
    exits = exit_stages([score for _, score in split_outputs], manifest.active_point.thresholds)
    choices = [answers(m, s.link) for (m, _), s in zip(split_outputs, manifest.stages, strict=True)]
    if cloud_labels is not None:
        choices.append(cloud_labels)
    # without a cloud the last stage answers
    exits = np.minimum(exits, min(len(choices) - 1, manifest.last_exit))
    return Outcome(
        margins=tuple(margins),
        exits=exits,
        labels=np.stack(choices)[exits, np.arange(len(exits))],
        costs=select_exit_costs(manifest.exit_costs(acquired), exits),
        cloud_labels=cloud_labels,
        cloud_probabilities=cloud_probabilities,
    )


def expected_sample(
    manifest: Manifest, arrays: Mapping[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """Check the sample's arrays, and add the decisions at the active operating point.

    The file has ``X`` without the values of raw windows, which are in ``windows``; ``stage_<i>``
    for each stage of the manifest, and ``bought_<i>`` for each lazy one; ``cloud_label`` and
    ``cloud_probabilities`` with a high-cost model. In the result, which :meth:`Bundle.sample`
    documents, i counts the stages of the active point's chain.
    """
    n = len(arrays["X"]) if "X" in arrays and arrays["X"].ndim else 0
    signal = manifest.signal
    width = len(manifest.features) - (0 if signal is None else len(signal.window_names))
    out = {"X": _checked(arrays, "X", np.float32, (n, width))}
    if not n:
        raise BundleError("sample.npz has no rows")
    if signal is not None:
        dtype = np.dtype(signal.dtype).type
        out["windows"] = _checked(arrays, "windows", dtype, (n, *signal.shape))
        if signal.raw:
            out["X"] = np.concatenate([out["X"], signal.values(out["windows"])], axis=1)
    margins = []
    acquired = []
    for i, number in enumerate(manifest.chains[manifest.active_point.chain]):
        stage = manifest.every_stage[number]
        columns = None
        outputs = _checked(arrays, f"stage_{number}", np.float32, (n, stage.outputs))
        margins.append(outputs)
        out[f"stage_{i}"] = outputs
        if stage.kind == "lazy":
            columns = _checked(arrays, f"bought_{number}", np.bool_, (n, len(stage.inputs)))
            out[f"bought_{i}"] = columns
        acquired.append(manifest.acquired(i, columns))
    if manifest.cloud is not None:
        shape = (n, manifest.n_classes)
        out["cloud_label"] = _checked(arrays, "cloud_label", np.int64, (n,))
        out["cloud_probabilities"] = _checked(arrays, "cloud_probabilities", np.float32, shape)
    cloud = out.get("cloud_label"), out.get("cloud_probabilities")
    outcome = decided(manifest, margins, acquired, *cloud)
    return out | {"exit": outcome.exits, "label": outcome.labels, "cost": outcome.costs}


def unlike_features(manifest: Manifest, sample: Mapping[str, NDArray[Any]]) -> NDArray[np.bool_]:
    """Mark the sample windows with other features on this machine, shape (n,).

    Differences up to :data:`CLOSE` are allowed, because processors differ in the last bits of
    Fourier transforms and logarithms.
    """
    expected = sample["X"]
    if manifest.signal is None:
        return np.zeros(len(expected), np.bool_)
    features = manifest.signal.features(sample["windows"])
    scale = np.maximum(np.nanmax(np.abs(expected), axis=0, initial=0.0), 1e-6)
    differs = np.abs(features - expected) > CLOSE * scale
    return np.asarray((differs | (np.isnan(features) != np.isnan(expected))).any(axis=1))


def _checked(
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
