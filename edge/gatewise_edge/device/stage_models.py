"""Load the models of a bundle's stages: graphs in onnxruntime or numpy, trees to walk.

A graph is checked before any runtime opens it (:mod:`gatewise_export.onnx_files.graph_rules`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise.imports import load_onnxruntime, open_session
from gatewise_edge.device.graph_runner import GraphRunner
from gatewise_edge.device.walker import Walker
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.bundle.errors import BundleError
from gatewise_export.bundle.flat_trees import read_trees
from gatewise_export.bundle.manifest import StageSpec
from gatewise_export.onnx_files.graph_rules import (
    MOST_STAGE_BYTES,
    check_stage_graph,
    read_stage_graph,
)

Runner = Literal["auto", "onnxruntime", "numpy"]


class GraphSession:
    """A stage's graph in onnxruntime, with the interface of :class:`GraphRunner`."""

    def __init__(self, session: Any, n_inputs: int, n_outputs: int) -> None:
        self._session = session
        self._widths = n_inputs, n_outputs
        self._names = [output.name for output in session.get_outputs()]
        self._thread = threading.local()

    def run(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Margins of rows, float32 (n, n_outputs)."""
        margins: NDArray[np.float32] = self._session.run(self._names, {"x": x})[0]
        return margins

    def run_row(self, x: NDArray[np.float32]) -> list[float]:
        """Margins of one row (n_inputs,), in buffers bound once a thread: half the time of run."""
        try:
            row, margins, binding = self._thread.bound
        except AttributeError:
            row, margins, binding = self._thread.bound = self._bind()
        row[:] = x
        self._session.run_with_iobinding(binding)
        listed: list[float] = margins.tolist()
        return listed

    def _bind(self) -> tuple[NDArray[np.float32], NDArray[np.float32], Any]:
        row, margins = (np.zeros(width, np.float32) for width in self._widths)
        binding = self._session.io_binding()
        binding.bind_input("x", "cpu", 0, np.float32, (1, len(row)), row.ctypes.data)
        name = self._names[0]
        binding.bind_output(name, "cpu", 0, np.float32, (1, len(margins)), margins.ctypes.data)
        return row, margins, binding


StageModel = GraphSession | GraphRunner | Walker


def load_stage_models(bundle: Bundle, runner: Runner) -> list[StageModel]:
    """Load the models of the active operating point's stages, and the networks that are blocks.

    Raises BundleError if a file is not fit to be run, or is another model than the manifest says;
    InputError if there is no such runner, or not on this machine.
    """
    if runner not in get_args(Runner):
        raise InputError(f"runner {runner!r}; choose one of {', '.join(get_args(Runner))}")
    bundle.read_block_models(check_stage_graph)
    checked = [_check(bundle, spec, runner) for spec in bundle.manifest.stages]
    return [start() for start in checked]  # all are checked before the first graph is opened


def _check(bundle: Bundle, spec: StageSpec, runner: Runner) -> Callable[[], StageModel]:
    """Read and check a stage's file; return what starts its model."""
    n_inputs, n_outputs, file = len(spec.inputs), spec.outputs, f"stage file {spec.file}"
    if spec.bytes > MOST_STAGE_BYTES:  # before it is read into memory
        raise BundleError(f"{file} is too large: {spec.bytes} B, at most {MOST_STAGE_BYTES}")
    content = bundle.read(spec.file)
    if spec.kind == "lazy":
        trees = read_trees(content, spec.file, n_features=n_inputs, n_outputs=n_outputs)
        return lambda: Walker(trees)
    given = spec.origin == "given"
    onnxruntime = _import_onnxruntime(runner)
    if onnxruntime is None and given:
        raise BundleError(f"{file} was given as a graph: it needs onnxruntime, install it")
    if onnxruntime is None:
        graph = read_stage_graph(content, file=file, n_inputs=n_inputs, n_outputs=n_outputs)
        return lambda: GraphRunner(graph, file)
    check_stage_graph(content, file=file, n_inputs=n_inputs, n_outputs=n_outputs, given=given)
    del content  # read again, and its hash checked, when its turn comes: many may be large
    return lambda: GraphSession(_session(bundle.read(spec.file), file), n_inputs, n_outputs)


def _import_onnxruntime(runner: Runner) -> Any:
    """Import onnxruntime; None where numpy is to run the graphs."""
    if runner == "numpy":
        return None
    try:
        return load_onnxruntime()
    except ImportError as error:
        if runner == "auto":
            return None
        why = " ".join(str(error).split())[:200]
        raise InputError(
            f"runner 'onnxruntime' cannot be used: {why}; install onnxruntime, or choose 'numpy'"
        ) from error


def _session(graph: bytes, file: str) -> Any:
    try:
        return open_session(graph)
    except Exception as error:
        # onnxruntime's errors have no common base of their own.
        why = str(error).splitlines()[0][:200]
        raise BundleError(f"{file} is not a model that runs here: {why}") from None
