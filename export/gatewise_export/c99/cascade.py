"""What is written as C: the stages on the device, their thresholds, and what follows them.

One form of a fitted system and of a bundle, at the active operating point.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gatewise.decision import exit_stages, labels, split
from gatewise.errors import InputError
from gatewise.models.stage import Stage
from gatewise.tiers import on_device
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.bundle.errors import BundleError, ConversionError
from gatewise_export.onnx_files.flat_reader import read_stage

if TYPE_CHECKING:
    from gatewise_export.bundle.manifest import Manifest

__all__ = ["Cascade", "Expected", "cascade_of"]

Matrix = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Expected:
    """What C must answer to n rows; class indices, and stages counted on the device.

    Attributes
    ----------
    outputs : tuple of ndarray of float32, shape (n, outputs of the stage)
        Of each stage, for all rows; no columns where its model is left out.
    exits : ndarray of int64, shape (n,)
        Stage that stops; the number of stages where none does and a cloud follows.
    labels : ndarray of int64, shape (n,)
        Class indices, of the last stage with a model where none stops; -1 without any.
    acquired : ndarray of bool, shape (n, n_features)
        Features acquired until then.
    """

    outputs: tuple[Matrix, ...]
    exits: NDArray[np.int64]
    labels: NDArray[np.int64]
    acquired: NDArray[np.bool_]


_GIVEN = (
    "has a stage that was given as a graph, which has no form in C; give trees or LightGBM, "
    "or run it with onnxruntime"
)


@dataclass(frozen=True, eq=False)
class Cascade:
    """The stages that a device runs, one after another.

    Attributes
    ----------
    title : str
        Name and version, for comments.
    stages : tuple of Stage
        Those on the device, the first ones of the active point's chain.
    thresholds : tuple of float or None
        Their own, at the active operating point.
    feature_names : tuple of str
        Columns of an instance.
    classes : tuple
        The user's labels.
    takes_missing : bool
        Whether NaN is a value to the stages.
    offloads : bool
        Whether something follows that can answer what no stage stops for.
    cloud_takes_missing : bool
        Whether NaN is a value to that.
    request : ndarray of int64, or None
        Features that a request to it carries; None: all.
    rows : ndarray of float32, shape (n, n_features)
        For the self-test; n may be 0.
    lean : bool
        Whether models of stages that never stop are left out.
    """

    title: str
    stages: tuple[Stage, ...]
    thresholds: tuple[float | None, ...]
    feature_names: tuple[str, ...]
    classes: tuple[Any, ...]
    takes_missing: bool
    offloads: bool
    cloud_takes_missing: bool
    rows: Matrix
    lean: bool = False
    request: NDArray[np.int64] | None = None

    @property
    def holds(self) -> tuple[bool, ...]:
        """Whether the C has a stage's model; without it the stage only acquires its features."""
        last = len(self.stages) - 1
        return tuple(
            not self.lean
            or threshold is not None
            or stage.acquisition == "node"  # what it acquires depends on its trees
            or (s == last and not self.offloads)
            for s, (stage, threshold) in enumerate(zip(self.stages, self.thresholds, strict=True))
        )

    @property
    def outputs(self) -> tuple[int, ...]:
        """Number of outputs of each stage; 0 where its model is left out."""
        return tuple(
            stage.model.n_outputs if held else 0
            for stage, held in zip(self.stages, self.holds, strict=True)
        )

    def expected(self, x: Matrix) -> Expected:
        """What C must answer, computed by the flat models in Python.

        Shapes: `x` (n, n_features).
        """
        outputs = tuple(stage.margins(x) for stage in self.stages)
        parts = [split(o, s.score) for o, s in zip(outputs, self.stages, strict=True)]
        exits = exit_stages([score for _, score in parts], self.thresholds)
        last = np.minimum(exits, len(self.stages) - 1)
        answers = np.full((len(self.stages) + 1, len(x)), -1)
        for s, (margins, _) in enumerate(parts):
            answers[s + 1] = labels(margins) if self.holds[s] else answers[s]
        acquired = np.zeros(x.shape, np.bool_)
        for s, stage in enumerate(self.stages):
            acquired |= np.broadcast_to(stage.acquired(x), x.shape) & (last >= s)[:, None]
        return Expected(
            outputs=tuple(o[:, :k] for o, k in zip(outputs, self.outputs, strict=True)),
            exits=exits if self.offloads else last,
            labels=answers[last + 1, np.arange(len(x))],
            acquired=acquired,
        )


def cascade_of(source: Any, *, sample: ArrayLike | None = None, lean: bool = False) -> Cascade:
    """Take what is to be written out of a fitted system, a bundle or its path; see :func:`to_c`."""
    if isinstance(source, str | Path):
        source = Bundle.open(source)
    if isinstance(source, Bundle):
        return replace(_of_bundle(source, sample), lean=lean)
    if not hasattr(source, "operating_point_") or not hasattr(source, "feature_names_"):
        raise InputError(
            f"to_c takes a fitted system or a bundle, not {type(source).__name__}; "
            "fit it first, or wrap the model in a cascade"
        )
    return replace(_of_system(source, sample), lean=lean)


def _of_system(system: Any, sample: ArrayLike | None) -> Cascade:
    if not hasattr(system, "classes_"):
        raise ConversionError(
            f"{type(system).__name__} cannot be written as C: only what classifies can"
        )
    stages = tuple(stage for stage in system.stages_ if stage.on_device)
    beyond = [stage.features for stage in system.stages_ if not stage.on_device]
    f0 = system.high_cost_model_
    return Cascade(
        title=type(system).__name__,
        stages=stages,
        thresholds=tuple(system.operating_point_.thresholds)[: len(stages)],
        feature_names=tuple(system.feature_names_),
        classes=tuple(system.classes_.tolist()),
        takes_missing=system.missing_["stages"] == "allowed",
        offloads=f0 is not None,
        cloud_takes_missing=system.missing_["cloud"] == "allowed",
        rows=_sample(sample, len(system.feature_names_)),
        request=None if f0 is None else np.concatenate([f0.features, *beyond]).astype(np.int64),
    )


def _of_bundle(bundle: Bundle, sample: ArrayLike | None) -> Cascade:
    manifest = bundle.manifest
    if manifest.task != "classify":
        raise ConversionError(
            f"bundle {bundle.path} is of task {manifest.task!r}: only what classifies can be "
            "written as C"
        )
    n_stages = on_device(manifest.tiers)
    if any(spec.origin == "given" for spec in manifest.stages[:n_stages]):
        raise ConversionError(f"bundle {bundle.path} {_GIVEN}")
    stages = tuple(
        read_stage(spec, manifest.stage_inputs(s), bundle.read(spec.file))
        for s, spec in enumerate(manifest.stages[:n_stages])
    )
    cascade = Cascade(
        title=f"{manifest.name} {manifest.version}",
        stages=stages,
        thresholds=tuple(manifest.active_point.thresholds)[:n_stages],
        feature_names=manifest.feature_names,
        classes=tuple(manifest.classes),
        takes_missing=manifest.missing["stages"] == "allowed",
        offloads=manifest.cloud is not None,
        cloud_takes_missing=_later_take_missing(manifest, n_stages),
        rows=bundle.sample()["X"] if sample is None else _sample(sample, len(manifest.features)),
        request=manifest.request_inputs().astype(np.int64),
    )
    if sample is None:
        _check_sample(bundle, cascade)
    return cascade


def _later_take_missing(manifest: Manifest, n_device: int) -> bool:
    parts = ["cloud", "stages"] if len(manifest.stages) > n_device else ["cloud"]
    return all(manifest.missing[part] == "allowed" for part in parts)


def _check_sample(bundle: Bundle, cascade: Cascade) -> None:
    """Hold the models that were read back against what was computed at packing."""
    sample = bundle.sample()
    for s, outputs in enumerate(cascade.expected(sample["X"]).outputs):
        if not np.array_equal(outputs, sample[f"stage_{s}"], equal_nan=True):
            file = bundle.manifest.stages[s].file
            raise BundleError(f"bundle {bundle.path}: {file} does not give its sample's outputs")


def _sample(sample: ArrayLike | None, n_features: int) -> Matrix:
    if sample is None:
        return np.zeros((0, n_features), np.float32)
    x = np.ascontiguousarray(sample, np.float32)
    if x.ndim != 2 or x.shape[1] != n_features:
        raise InputError(f"sample must have rows of {n_features} features, not shape {x.shape}")
    return x
