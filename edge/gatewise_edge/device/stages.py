"""The stages of a bundle: load their models, and run them in order until one stops.

A device decides one row at a time with plain floats, because numpy's calls for one row would take
several times as long as the model. :mod:`gatewise.decision` computes stop score, label and
probabilities, as in training.

The graph of a flat model is written here from its checked arrays, and its hash is compared with the
manifest, so that no graph from the bundle has to be trusted. A given graph, such as a user's
network, is trusted because of its hash and, with a configured key, of the signature. A child
process loads it first, under limits of memory and time.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from gatewise.decision import STOP_RULES, StopRule, as_float32
from gatewise.errors import InputError, one_line
from gatewise.graph_loading import GraphLoadError, check_loads
from gatewise.imports import CPU, check_provider, load_onnxruntime, open_session
from gatewise.models.trees import TreeEnsemble
from gatewise_edge.device.tree_walker import TreeWalker
from gatewise_edge.sensors.feature_reader import Reading
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.bundle.errors import BundleError, DamagedFileError
from gatewise_export.bundle.flat_models import MAX_BYTES, FlatModel
from gatewise_export.bundle.manifest_records import StageSpec
from gatewise_export.onnx_writer import MARGINS, write_graph
from gatewise_signals.blocks.block import OnnxBlock

_LOG = logging.getLogger("gatewise_edge")

Runner = Literal["auto", "onnxruntime", "numpy"]
"""Runner of the stages' graphs; auto is onnxruntime if it can be imported, otherwise numpy."""

Matrix = NDArray[np.float32]
Row = NDArray[np.float32]


class GraphSession:
    """A stage's graph in onnxruntime."""

    def __init__(self, session: Any, n_inputs: int, n_outputs: int) -> None:
        self._session = session
        self._widths = n_inputs, n_outputs
        self._thread_buffers = threading.local()

    def run(self, rows: Matrix) -> Matrix:
        """Compute the margins of rows, shape (n, n_outputs)."""
        margins: Matrix = self._session.run([MARGINS], {"x": rows})[0]
        return margins

    def run_row(self, row: Row) -> list[float]:
        """Compute the margins of one row, shape (n_inputs,).

        Each thread binds its buffers once, which takes half the time of :meth:`run`.
        """
        try:
            input_buffer, margin_buffer, binding = self._thread_buffers.binding
        except AttributeError:
            input_buffer, margin_buffer, binding = self._thread_buffers.binding = self._bind()
        input_buffer[:] = row
        self._session.run_with_iobinding(binding)
        margin_list: list[float] = margin_buffer.tolist()
        return margin_list

    def _bind(self) -> tuple[Row, Row, Any]:
        input_buffer, margin_buffer = (np.zeros(width, np.float32) for width in self._widths)
        binding = self._session.io_binding()
        binding.bind_input(
            "x", "cpu", 0, np.float32, (1, len(input_buffer)), input_buffer.ctypes.data
        )
        binding.bind_output(
            MARGINS, "cpu", 0, np.float32, (1, len(margin_buffer)), margin_buffer.ctypes.data
        )
        return input_buffer, margin_buffer, binding


class FlatRunner:
    """A stage's flat model in numpy, with the interface of :class:`GraphSession`."""

    def __init__(self, model: FlatModel) -> None:
        self.run = model.run
        self._walker = TreeWalker(model) if isinstance(model, TreeEnsemble) else None

    def run_row(self, row: Row) -> list[float]:
        """Compute the margins of one row, shape (n_inputs,)."""
        if self._walker is None:
            margins = self.run(row[np.newaxis])
        else:  # plain Python is faster than numpy's calls for each level of a tree
            margins = self._walker.walk(row.tolist().__getitem__)
        margin_list: list[float] = margins[0].tolist()
        return margin_list


StageModel = GraphSession | FlatRunner | TreeWalker


class StageOutput:
    """Output of a stage for one instance.

    `outputs` are the float32 margins, and `score` is the stop score that the stage's rule computes
    from them.
    """

    __slots__ = ("outputs", "score", "stage")

    def __init__(self, stage: DeviceStage, outputs: Sequence[float]) -> None:
        self.stage = stage
        self.outputs = outputs
        self.score = stage.rule.row_score(outputs)

    @property
    def stops(self) -> bool:
        """Whether the instance stops here; it never does at a stage without a threshold."""
        threshold = self.stage.threshold
        return threshold is not None and self.score >= threshold


@dataclass(frozen=True, slots=True, eq=False)
class DeviceStage:
    """A loaded stage; several threads may run it at the same time.

    A stage of kind ``lazy`` walks its trees one after the other and acquires a feature when a node
    tests it. Any other stage acquires all its features and runs its model.

    Attributes
    ----------
    index : int
        Index of the stage.
    spec : StageSpec
        Description of the stage in the manifest.
    rule : StopRule
        Computes the stop score.
    inputs : ndarray of intp, shape (k,)
        Features that the stage may acquire, in the order of its model's columns.
    threshold : float or None
        Threshold of the active operating point, rounded to float32 like the scores; None if the
        stage never stops.
    model : StageModel
        Computes the margins.
    input_list : list of int
        The `inputs` as Python integers.
    """

    index: int
    spec: StageSpec
    rule: StopRule
    inputs: NDArray[np.intp]
    threshold: float | None
    model: StageModel
    input_list: list[int]

    def run_instance(self, reading: Reading, *, allow_missing: bool) -> StageOutput:
        """Run the stage for one instance; `reading` acquires its features.

        `allow_missing` says whether values may be NaN. Raises SensorError if a feature cannot be
        acquired or is refused; the features acquired before are still charged.
        """
        model = self.model
        if not isinstance(model, TreeWalker):
            values = reading.acquire(self.inputs, allow_missing=allow_missing)
            return StageOutput(self, model.run_row(values))
        value_of = reading.value_getter(self.input_list, allow_missing=allow_missing)
        return StageOutput(self, model.walk(value_of)[0].tolist())

    def run(self, rows: Matrix) -> Matrix:
        """Compute the margins, shape (n, n_outputs), for given values of all inputs, (n, k)."""
        return self.model.run(rows)


def run_stages(
    stages: Sequence[DeviceStage],
    reading: Reading,
    outputs: list[StageOutput],
    *,
    allow_missing: bool,
) -> bool:
    """Run stages on one instance until one stops; return whether one did.

    Each stage's output is appended to `outputs`. Raises SensorError as
    :meth:`DeviceStage.run_instance`.
    """
    for stage in stages:
        output = stage.run_instance(reading, allow_missing=allow_missing)
        outputs.append(output)
        if stage.threshold is not None and output.score >= stage.threshold:
            return True
    return False


# -- loading -------------------------------------------------------------------------------


def load_stages(
    bundle: Bundle, runner: Runner = "auto", provider: str = CPU
) -> tuple[DeviceStage, ...]:
    """Load the stages of a bundle's active operating point, and the networks among its blocks.

    The execution `provider` runs only given graphs; without one, a warning is logged. Raises
    BundleError if a file cannot be run or does not match the manifest, and InputError if the
    `runner` or the `provider` is unknown or not available on this machine.
    """
    check_provider(provider)
    if runner not in get_args(Runner):
        raise InputError(f"runner {runner!r}; choose one of {', '.join(get_args(Runner))}")
    bundle.read_block_models()
    _load_networks(bundle)
    manifest = bundle.manifest
    if provider != CPU and not any(spec.kind == "graph" for spec in manifest.stages):
        _LOG.warning("provider %s has no stage to run: flat models run on the CPU", provider)
    thresholds = manifest.active_point.thresholds
    # Check all files before the first graph is opened.
    stage_loaders = [_stage_loader(bundle, spec, runner, provider) for spec in manifest.stages]
    stages = []
    for stage_index, (spec, load_model) in enumerate(
        zip(manifest.stages, stage_loaders, strict=True)
    ):
        inputs = manifest.stage_inputs(stage_index)
        stages.append(
            DeviceStage(
                index=stage_index,
                spec=spec,
                rule=STOP_RULES[spec.score],
                inputs=inputs,
                threshold=as_float32(thresholds[stage_index]),
                model=load_model(),
                input_list=inputs.tolist(),
            )
        )
    return tuple(stages)


def _load_networks(bundle: Bundle) -> None:
    """Load the networks among the blocks, and run each once."""
    signal = bundle.manifest.signal
    for block in () if signal is None else signal.graph.blocks:
        if not isinstance(block, OnnxBlock):
            continue
        zeros = np.zeros((1, *block.shape), np.float32)
        try:
            check_loads(block.model, zeros.reshape(1, -1), bundle.manifest.loading)
            block.run(zeros)
        except InputError as error:
            raise BundleError(f"bundle {bundle.path}: {error}") from None


def _stage_loader(
    bundle: Bundle, spec: StageSpec, runner: Runner, provider: str
) -> Callable[[], StageModel]:
    """Read and check a stage's file; return a function that loads its model."""
    if spec.kind == "graph":
        return lambda: _load_given_graph(bundle, spec, runner, provider)
    model = bundle.read_model(spec)
    if isinstance(model, TreeEnsemble) and spec.kind == "lazy":
        return lambda: TreeWalker(model)
    if not _uses_onnxruntime(runner):
        return lambda: FlatRunner(model)
    return lambda: _load_flat_model(bundle, spec, model)


def _load_flat_model(bundle: Bundle, spec: StageSpec, model: FlatModel) -> GraphSession:
    """Write the graph of a flat model, and open it if its hash is in the manifest."""
    assert spec.graph is not None
    graph_bytes = write_graph(model)
    if hashlib.sha256(graph_bytes).hexdigest() != bundle.manifest.files[spec.graph].sha256:
        raise DamagedFileError(
            spec.graph,
            f"bundle {bundle.path}: {spec.graph} does not match {spec.arrays}: pack it again",
        )
    return GraphSession(_open_graph(graph_bytes, spec.graph), len(spec.inputs), spec.outputs)


def _load_given_graph(bundle: Bundle, spec: StageSpec, runner: Runner, provider: str) -> StageModel:
    """Load a given graph, and run it once to compare its outputs with the manifest."""
    assert spec.graph is not None
    file_label = f"stage file {spec.graph}"
    if not _uses_onnxruntime(runner):
        raise BundleError(f"{file_label} is a given graph and needs onnxruntime: install it")
    graph_bytes = bundle.read(spec.graph, max_bytes=MAX_BYTES)
    zeros = np.zeros((1, len(spec.inputs)), np.float32)
    try:
        check_loads(graph_bytes, zeros, bundle.manifest.loading)
    except GraphLoadError as error:
        raise BundleError(f"{file_label} cannot be run on this device: {error}") from None
    session = GraphSession(
        _open_graph(graph_bytes, file_label, provider), len(spec.inputs), spec.outputs
    )
    try:
        margins = session.run(zeros)
    except Exception as error:  # onnxruntime's errors have no common base class
        raise BundleError(f"{file_label} cannot be run on this device: {one_line(error)}") from None
    if margins.shape != (1, spec.outputs) or margins.dtype != np.float32:
        raise BundleError(
            f"{file_label} gives {margins.dtype} {margins.shape}, not float32 (1, {spec.outputs})"
        )
    return session


def _uses_onnxruntime(runner: Runner) -> bool:
    """Whether onnxruntime runs flat models, instead of numpy."""
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


def _open_graph(graph_bytes: bytes, file_label: str, provider: str = CPU) -> Any:
    try:
        return open_session(graph_bytes, provider=provider)
    except InputError:  # the provider cannot be used
        raise
    except Exception as error:  # onnxruntime's errors have no common base class
        raise BundleError(f"{file_label} cannot be run on this device: {one_line(error)}") from None
