"""A stage's model, ready to run: a graph in onnxruntime or in numpy, or trees to walk.

A graph is checked before any runtime opens it (:mod:`gatewise_export.onnx_files.graph_rules`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from gatewise import _onnxruntime
from gatewise.errors import InputError
from gatewise_edge.stages.graph_runner import GraphRunner, TreeWalker
from gatewise_edge.stages.walker import Walker
from gatewise_export.bundle.bundle import Bundle, BundleError
from gatewise_export.bundle.flat_trees import FlatTrees, read_trees
from gatewise_export.onnx_files.graph_rules import (
    MOST_STAGE_BYTES,
    check_stage_graph,
    read_stage_graph,
)

if TYPE_CHECKING:
    from gatewise_export.bundle.manifest import StageSpec

__all__ = [
    "GraphModel",
    "GraphRunner",
    "Runner",
    "TreeWalker",
    "WalkerKind",
    "pick_walker",
    "stage_models",
]

Runner = Literal["auto", "onnxruntime", "numpy"]
WalkerKind = Literal["auto", "python", "native"]
Matrix = NDArray[np.float32]
MakeWalker = Callable[[FlatTrees], TreeWalker]

_MOST_LAZY_BYTES: Final = 64 << 20


class GraphModel:
    """A graph of onnxruntime's; the same face as :class:`GraphRunner`."""

    def __init__(self, session: Any) -> None:
        self._run = session.run

    def run(self, x: Matrix) -> Matrix:
        """Margins of rows, float32 (n, n_outputs)."""
        margins: Matrix = self._run(None, {"x": x})[0]
        return margins


StageModel = GraphModel | GraphRunner | TreeWalker


def stage_models(bundle: Bundle, runner: Runner, walker: WalkerKind) -> list[StageModel]:
    """Load the models of the stages of the chain in force.

    Parameters
    ----------
    bundle : Bundle
    runner : {"auto", "onnxruntime", "numpy"}
        What runs graphs; auto takes onnxruntime where it can be imported.
    walker : {"auto", "python", "native"}
        What walks trees; auto takes the native one where it can be built.

    Raises
    ------
    BundleError
        If a file is not fit to be run, or is another model than the manifest says.
    InputError
        If the runner or walker asked for does not exist, or not on this machine.
    """
    for name, value, known in (
        ("runner", runner, get_args(Runner)),
        ("walker", walker, get_args(WalkerKind)),
    ):
        if value not in known:
            raise InputError(f"{name} {value!r}; choose one of {', '.join(known)}")
    onnxruntime, make = _Runtime(runner), pick_walker(walker)
    checked = [_check(bundle, spec, onnxruntime, make) for spec in bundle.manifest.stages]
    return [start() for start in checked]  # all are checked before the first graph is opened


def pick_walker(walker: WalkerKind) -> MakeWalker:
    """Get what makes walkers of trees."""
    return Walker if walker == "python" else _Native(needed=walker == "native")


class _Native:
    """Makes native walkers; Python's where there are none and none is demanded."""

    def __init__(self, *, needed: bool) -> None:
        self.needed = needed

    def __call__(self, trees: FlatTrees) -> TreeWalker:
        from gatewise_edge.stages.native_walker import load

        made = load(trees)
        if made is None and self.needed:
            raise InputError(
                "walker 'native' cannot be built here: it needs a C compiler and cffi; "
                "install them, or choose 'python'"
            )
        return Walker(trees) if made is None else made


def _check(
    bundle: Bundle, spec: StageSpec, onnxruntime: _Runtime, make: MakeWalker
) -> Callable[[], StageModel]:
    """Read and check a stage's file; gives what starts its model."""
    n_inputs, n_outputs, file = len(spec.inputs), spec.outputs, _say(spec)
    if spec.kind == "lazy":
        content = _content(bundle, spec, _MOST_LAZY_BYTES)
        trees = read_trees(content, spec.file, n_features=n_inputs, n_outputs=n_outputs)
        return lambda: make(trees)
    content = _content(bundle, spec, MOST_STAGE_BYTES)
    module = onnxruntime.load()
    if module is None:
        graph = read_stage_graph(content, file=file, n_inputs=n_inputs, n_outputs=n_outputs)
        return lambda: GraphRunner(graph, file, make)
    check_stage_graph(content, file=file, n_inputs=n_inputs, n_outputs=n_outputs)
    del content  # read again, and its hash checked, when its turn comes: many may be large
    return lambda: GraphModel(_session(module, bundle.read(spec.file), file))


def _content(bundle: Bundle, spec: StageSpec, most: int) -> bytes:
    if spec.bytes > most:  # said before it is read into memory
        raise BundleError(f"{_say(spec)} is too large: {spec.bytes} B, at most {most}")
    return bundle.read(spec.file)


def _say(spec: StageSpec) -> str:
    return f"stage file {spec.file}"


class _Runtime:
    """onnxruntime, imported when a graph needs it, or what stands in for it."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner

    def load(self) -> Any:
        """Import the module; None where numpy is to run the graphs."""
        if self.runner == "numpy":
            return None
        try:
            return _onnxruntime.load()
        except ImportError as error:
            if self.runner == "auto":
                return None
            why = " ".join(str(error).split())[:200]
            raise InputError(
                f"runner 'onnxruntime' cannot be used: {why}; install onnxruntime, "
                "or choose 'numpy'"
            ) from error


def _session(onnxruntime: Any, graph: bytes, file: str) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # two threads are slower on models this small
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        # onnxruntime's errors have no common base of their own.
        why = str(error).splitlines()[0][:200]
        raise BundleError(f"{file} is not a model that runs here: {why}") from None
