"""Read a fitted system or a bundle as the cascade that C is written from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gatewise.errors import InputError
from gatewise.models.graph_model import GraphModel
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.bundle.errors import BundleError, ConversionError
from gatewise_export.c99.cascade import Cascade
from gatewise_signals.signal_input import SignalInput

_GRAPH_PROBLEM = (
    "has a stage whose model is an ONNX graph, which cannot be written in C: use a tree model "
    "such as LightGBM for this stage, or run the stage with onnxruntime"
)


def cascade_of(source: Any, *, sample: ArrayLike | None = None, lean: bool = False) -> Cascade:
    """Read the cascade of a fitted system, a bundle or its path; see :func:`to_c`."""
    if isinstance(source, str | Path):
        source = Bundle.open(source)
    if isinstance(source, Bundle):
        return replace(
            _cascade_of_bundle(source, sample), is_lean=lean
        ).without_unreachable_stages()
    if not hasattr(source, "operating_point_") or not hasattr(source, "feature_names_"):
        raise InputError(
            f"to_c takes a fitted system or a bundle, not {type(source).__name__}; "
            "fit it first, or wrap the model in a cascade"
        )
    return replace(_cascade_of_system(source, sample), is_lean=lean).without_unreachable_stages()


def _cascade_of_system(system: Any, sample: ArrayLike | None) -> Cascade:
    """Read the cascade of a fitted system at its operating point."""
    if not hasattr(system, "classes_"):
        raise ConversionError(
            f"{type(system).__name__} cannot be written in C: it is not a classifier"
        )
    last_exit = system.last_exit_
    stages = system.stages_[: last_exit + 1]
    if any(isinstance(stage.model, GraphModel) for stage in stages):
        raise ConversionError(f"{type(system).__name__} {_GRAPH_PROBLEM}")
    high_cost_model = system.high_cost_model_
    signal = getattr(system, "signal_input_", None)
    rows, windows = _sample_rows(sample, len(system.feature_names_), signal)
    return Cascade(
        title=type(system).__name__,
        stages=stages,
        thresholds=tuple(system.operating_point_.thresholds)[: len(stages)],
        feature_names=tuple(system.feature_names_),
        classes=tuple(system.classes_.tolist()),
        takes_missing=system.missing_["stages"] == "allowed",
        offloads=last_exit >= len(system.stages_),
        cloud_takes_missing=system.missing_["cloud"] == "allowed",
        rows=rows,
        request_features=None
        if high_cost_model is None
        else high_cost_model.features.astype(np.int64),
        signal=signal,
        windows=windows,
    )


def _cascade_of_bundle(bundle: Bundle, sample: ArrayLike | None) -> Cascade:
    """Read the active cascade of a bundle; without a sample, use and check that of the bundle."""
    if sample is not None:
        bundle.read_block_models()  # the features of the sample may need them
    manifest = bundle.manifest
    if manifest.task != "classify":
        raise ConversionError(
            f"bundle {bundle.path} cannot be written in C: its task is {manifest.task!r}, "
            "not 'classify'"
        )
    last_exit = manifest.last_exit
    n_stages = min(len(manifest.stages), last_exit + 1)
    if any(stage_spec.kind == "graph" for stage_spec in manifest.stages[:n_stages]):
        raise ConversionError(f"bundle {bundle.path} {_GRAPH_PROBLEM}")
    stages = tuple(map(bundle.read_stage, range(n_stages)))
    rows, windows = _sample_rows(sample, len(manifest.features), manifest.signal)
    if sample is None:
        packed_sample = bundle.sample()
        rows = packed_sample["X"]
        windows = packed_sample.get("windows")
    cascade = Cascade(
        title=manifest.title,
        name=manifest.name,
        stages=stages,
        thresholds=tuple(manifest.active_point.thresholds)[:n_stages],
        feature_names=manifest.feature_names,
        classes=tuple(manifest.classes),
        takes_missing=manifest.missing.stages == "allowed",
        offloads=last_exit >= len(manifest.stages),
        cloud_takes_missing=manifest.missing.cloud == "allowed",
        rows=rows,
        request_features=manifest.cloud_inputs().astype(np.int64),
        signal=manifest.signal,
        windows=windows,
    )
    if sample is None:
        _check_sample(bundle, cascade)
    return cascade


def _check_sample(bundle: Bundle, cascade: Cascade) -> None:
    """Compare the models' outputs for the sample with those that packing recorded."""
    sample = bundle.sample()
    for stage_index, outputs in enumerate(cascade.expected_answers(sample["X"]).outputs):
        if not np.array_equal(outputs, sample[f"stage_{stage_index}"], equal_nan=True):
            file = bundle.manifest.stages[stage_index].arrays
            raise BundleError(
                f"bundle {bundle.path}: outputs of {file} differ from those recorded at packing"
            )


def _sample_rows(
    sample: ArrayLike | None, n_features: int, signal: SignalInput | None
) -> tuple[NDArray[np.float32], NDArray[Any] | None]:
    """Get the self-test's rows of features, and the windows from which they are computed."""
    if sample is None:
        return np.zeros((0, n_features), np.float32), None
    if signal is not None:
        windows = signal.as_checked_array(sample).astype(signal.dtype)
        return signal.features(windows), windows
    rows = np.ascontiguousarray(sample, np.float32)
    if rows.ndim != 2 or rows.shape[1] != n_features:
        raise InputError(f"sample must have rows of {n_features} features, not shape {rows.shape}")
    return rows, None
