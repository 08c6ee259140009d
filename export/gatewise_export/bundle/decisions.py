"""Compute decisions from the outputs of models, and the expected decisions of ``sample.npz``.

The sample stores rows and each model's outputs. Exits, labels and costs follow from these outputs
and the active thresholds, so one sample serves all operating points.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gatewise.acquisition import select_exit_costs
from gatewise.decision import answers, exit_stages, split_outputs
from gatewise_export.bundle.errors import BundleError
from gatewise_export.bundle.manifest import Manifest

#: Allowed difference of a feature between machines, relative to its largest sample value.
FEATURE_TOLERANCE = 1e-4


class CloudAnswers(NamedTuple):
    """Answers of a high-cost model to n rows.

    Attributes
    ----------
    labels : ndarray of int64, shape (n,)
        Class indices.
    probabilities : ndarray of shape (n, n_classes)
    """

    labels: NDArray[np.int64]
    probabilities: NDArray[Any]

    def take(self, mask: NDArray[np.bool_]) -> CloudAnswers:
        """Select rows by a mask."""
        return CloudAnswers(self.labels[mask], self.probabilities[mask])


@dataclass(frozen=True, eq=False)
class Decisions:
    """Decisions on n rows, and the outputs of the models that led to them.

    Attributes
    ----------
    margins : tuple of ndarray, each of shape (n, n_outputs)
        Outputs of each stage in the active point's chain.
    exits : ndarray of shape (n,)
        Index of the stage that answers; the number of stages if the cloud answers.
    labels : ndarray of shape (n,)
        Class indices; float32 values if the bundle answers with values.
    costs : ndarray of shape (n,)
    cloud_answers : CloudAnswers or None
        Answers of the high-cost model to all rows; None without a high-cost model.
    """

    margins: tuple[NDArray[np.float32], ...]
    exits: NDArray[np.int64]
    labels: NDArray[Any]
    costs: NDArray[np.float64]
    cloud_answers: CloudAnswers | None


def decide_rows(
    manifest: Manifest,
    margins: Sequence[NDArray[np.float32]],
    acquired_masks: Sequence[NDArray[np.bool_]],
    cloud_answers: CloudAnswers | None,
) -> Decisions:
    """Decide rows as a device does, from each stage's outputs and acquired features."""
    margins_and_scores = [
        split_outputs(stage_margins, stage.score)
        for stage_margins, stage in zip(margins, manifest.stages, strict=True)
    ]
    exits = exit_stages(
        [score for _, score in margins_and_scores], manifest.active_point.thresholds
    )
    # list the answers of every exit: the stages, then the cloud
    exit_answers = [
        answers(stage_margins, stage.link)
        for (stage_margins, _), stage in zip(margins_and_scores, manifest.stages, strict=True)
    ]
    if cloud_answers is not None:
        exit_answers.append(cloud_answers.labels)
    # the last possible exit answers the remaining rows; a cap on the cost may exclude later exits
    exits = np.minimum(exits, min(len(exit_answers) - 1, manifest.last_exit))
    return Decisions(
        margins=tuple(margins),
        exits=exits,
        labels=np.stack(exit_answers)[exits, np.arange(len(exits))],
        costs=select_exit_costs(manifest.exit_costs(acquired_masks), exits),
        cloud_answers=cloud_answers,
    )


def expected_sample(
    manifest: Manifest, arrays: Mapping[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """Check the sample's arrays and add the decisions at the active operating point.

    The file holds ``X``, or ``X`` and ``windows`` if features are computed from windows. It also
    holds ``stage_<i>`` for each stage of the manifest, ``bought_<i>`` for each lazy stage, and the
    high-cost model's ``cloud_label`` and ``cloud_probabilities``. In the result, which
    :meth:`Bundle.sample` documents, i is an index into the active point's chain.
    """
    # the rows, and the windows from which they are computed
    n_rows = len(arrays["X"]) if "X" in arrays and arrays["X"].ndim else 0
    signal = manifest.signal
    n_columns = len(manifest.features) - (0 if signal is None else len(signal.window_names))
    sample = {"X": _checked_array(arrays, "X", np.float32, (n_rows, n_columns))}
    if not n_rows:
        raise BundleError("sample.npz has no rows")
    if signal is not None:
        dtype = np.dtype(signal.dtype).type
        sample["windows"] = _checked_array(arrays, "windows", dtype, (n_rows, *signal.shape))
        if signal.has_window_values:
            sample["X"] = np.concatenate(
                [sample["X"], signal.window_values(sample["windows"])], axis=1
            )
    # the outputs of each stage of the active chain, and of the high-cost model
    margins = []
    acquired_masks = []
    for stage_index, stage_number in enumerate(manifest.chains[manifest.active_point.chain]):
        stage = manifest.every_stage[stage_number]
        acquired_inputs = None
        outputs = _checked_array(
            arrays, f"stage_{stage_number}", np.float32, (n_rows, stage.outputs)
        )
        margins.append(outputs)
        sample[f"stage_{stage_index}"] = outputs
        if stage.kind == "lazy":
            acquired_inputs = _checked_array(
                arrays, f"bought_{stage_number}", np.bool_, (n_rows, len(stage.inputs))
            )
            sample[f"bought_{stage_index}"] = acquired_inputs
        acquired_masks.append(manifest.acquired_mask(stage_index, acquired_inputs))
    cloud_answers = None
    if manifest.cloud is not None:
        shape = (n_rows, manifest.n_classes)
        cloud_answers = CloudAnswers(
            _checked_array(arrays, "cloud_label", np.int64, (n_rows,)),
            _checked_array(arrays, "cloud_probabilities", np.float32, shape),
        )
        sample["cloud_label"], sample["cloud_probabilities"] = cloud_answers
    # the decisions that follow from the outputs
    decisions = decide_rows(manifest, margins, acquired_masks, cloud_answers)
    return sample | {"exit": decisions.exits, "label": decisions.labels, "cost": decisions.costs}


def differing_windows(manifest: Manifest, sample: Mapping[str, NDArray[Any]]) -> NDArray[np.bool_]:
    """Mark the sample windows with features that differ on this machine, shape (n,).

    Differences up to :data:`FEATURE_TOLERANCE` are allowed, because processors differ in the last
    bits of Fourier transforms and logarithms.
    """
    expected_features = sample["X"]
    if manifest.signal is None:
        return np.zeros(len(expected_features), np.bool_)
    features = manifest.signal.features(sample["windows"])
    # the lower bound allows rounding noise in a feature that is zero in the whole sample
    scales = np.maximum(np.nanmax(np.abs(expected_features), axis=0, initial=0.0), 1e-6)
    is_different = np.abs(features - expected_features) > FEATURE_TOLERANCE * scales
    return np.asarray(
        (is_different | (np.isnan(features) != np.isnan(expected_features))).any(axis=1)
    )


def _checked_array(
    arrays: Mapping[str, NDArray[Any]], name: str, dtype: type, shape: tuple[int, ...]
) -> NDArray[Any]:
    array = arrays.get(name)
    if array is None:
        raise BundleError(f"sample.npz lacks the array {name!r}")
    if array.dtype != dtype or array.shape != shape:
        raise BundleError(
            f"sample.npz: {name!r} is {array.dtype} of shape {array.shape}, "
            f"but the manifest needs {np.dtype(dtype)} of shape {shape}"
        )
    return array
