"""Load a bundle's stages: graphs in onnxruntime, flat models in numpy, trees to walk.

A flat model's graph is written here, from the arrays that were checked, and its hash compared with
the manifest's: no graph of ours is parsed to be trusted. A graph that was given is trusted by its
hash, and by the signature where a key is configured; it is loaded under a memory limit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Final, Literal, get_args

import numpy as np

from gatewise.decision import STOP_RULES, as_float32
from gatewise.errors import InputError, one_line
from gatewise.imports import load_onnxruntime, open_session
from gatewise.memory import memory_limit
from gatewise.models.trees import TreeEnsemble
from gatewise_edge.device.stages import DeviceStage, FlatRunner, GraphSession, StageModel
from gatewise_edge.device.walker import Walker
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.bundle.errors import BundleError, DamagedFileError
from gatewise_export.bundle.flat_models import MAX_BYTES, FlatModel
from gatewise_export.bundle.manifest import StageSpec
from gatewise_export.onnx_writer import write_graph

Runner = Literal["auto", "onnxruntime", "numpy"]

#: Bytes that loading a given graph may take, and more for each byte of its file: some operators
#: make gigabytes of a few kilobytes.
_MEMORY: Final = 256 << 20
_MEMORY_PER_BYTE: Final = 8


def load_stages(bundle: Bundle, runner: Runner = "auto") -> tuple[DeviceStage, ...]:
    """Load the stages of a bundle's active operating point.

    The `runner` "auto" is onnxruntime, or where that cannot be imported numpy alone, slower on
    large models and with the same bits. BundleError if a file is not fit to be run, or has other
    inputs or outputs than the manifest says; InputError if there is no such runner on this machine.
    """
    manifest = bundle.manifest
    models = load_stage_models(bundle, runner)
    thresholds = manifest.active_point.thresholds
    stages = []
    for s, spec in enumerate(manifest.stages):
        inputs = manifest.stage_inputs(s)
        threshold = as_float32(thresholds[s])
        stages.append(
            DeviceStage(
                index=s,
                spec=spec,
                rule=STOP_RULES[spec.score],
                inputs=inputs,
                threshold=threshold,
                model=models[s],
                columns=inputs.tolist(),
            )
        )
    return tuple(stages)


def load_stage_models(bundle: Bundle, runner: Runner) -> list[StageModel]:
    """Load the models of the active operating point's stages, and the networks that are blocks.

    Raises BundleError if a file is not fit to be run, or is another model than the manifest says;
    InputError if there is no such runner, or not on this machine.
    """
    if runner not in get_args(Runner):
        raise InputError(f"runner {runner!r}; choose one of {', '.join(get_args(Runner))}")
    bundle.read_block_models()
    loaders = [_checked(bundle, spec, runner) for spec in bundle.manifest.stages]
    return [load() for load in loaders]  # all are checked before the first graph is opened


def _checked(bundle: Bundle, spec: StageSpec, runner: Runner) -> Callable[[], StageModel]:
    """Read and check a stage's file; return what loads its model."""
    if spec.kind == "graph":
        return lambda: _load_given(bundle, spec, runner)
    model = bundle.read_model(spec)
    if isinstance(model, TreeEnsemble) and spec.kind == "lazy":
        return lambda: Walker(model)
    if not _uses_onnxruntime(runner):
        return lambda: FlatRunner(model)
    return lambda: _load_flat(bundle, spec, model)


def _load_flat(bundle: Bundle, spec: StageSpec, model: FlatModel) -> GraphSession:
    """Write the graph of a model, and open it if it is the one that was packed."""
    assert spec.graph is not None
    content = write_graph(model)
    if hashlib.sha256(content).hexdigest() != bundle.manifest.files[spec.graph].sha256:
        raise DamagedFileError(
            spec.graph,
            f"bundle {bundle.path}: {spec.graph} is not the graph of {spec.arrays}: pack it again",
        )
    return GraphSession(_session(content, spec.graph), len(spec.inputs), spec.outputs)


def _load_given(bundle: Bundle, spec: StageSpec, runner: Runner) -> StageModel:
    """Load a given graph, and run it once to see that it is of the sizes that the manifest says."""
    assert spec.graph is not None
    file = f"stage file {spec.graph}"
    if not _uses_onnxruntime(runner):
        raise BundleError(f"{file} was given as a graph: it needs onnxruntime, install it")
    content = bundle.read(spec.graph, most=MAX_BYTES)
    with memory_limit(_MEMORY + _MEMORY_PER_BYTE * len(content)):
        session = GraphSession(_session(content, file), len(spec.inputs), spec.outputs)
        try:
            margins = session.run(np.zeros((1, len(spec.inputs)), np.float32))
        except Exception as error:  # onnxruntime's errors have no common base of their own
            raise BundleError(f"{file} does not run here: {one_line(error)}") from None
    if margins.shape != (1, spec.outputs) or margins.dtype != np.float32:
        raise BundleError(
            f"{file} gives {margins.dtype} {margins.shape}, not float32 (1, {spec.outputs})"
        )
    return session


def _uses_onnxruntime(runner: Runner) -> bool:
    """Whether onnxruntime runs the graphs, not numpy the arrays."""
    if runner == "numpy":
        return False
    try:
        load_onnxruntime()
    except ImportError as error:
        if runner == "auto":
            return False
        raise InputError(
            f"runner 'onnxruntime' cannot be used: {one_line(error)}; install onnxruntime, or "
            "choose 'numpy'"
        ) from error
    return True


def _session(content: bytes, file: str) -> Any:
    try:
        return open_session(content)
    except Exception as error:  # onnxruntime's errors have no common base of their own
        raise BundleError(f"{file} is not a model that runs here: {one_line(error)}") from None
