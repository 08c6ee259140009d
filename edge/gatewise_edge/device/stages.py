"""The stages of a bundle: load their models, and run them on instances.

A device decides one row at a time with plain floats, because numpy's calls for one row would take
several times as long as the model. :mod:`gatewise.decision` computes stop score, label and
probabilities, as in training.

A device does not trust the graphs in a bundle. It writes the graph of a flat model from the checked
arrays, and compares its hash with the manifest. A given graph, such as a user's network, is trusted
because of its hash and, with a configured key, because of the bundle's signature. A child process
loads it first, under limits of memory and time.
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
from gatewise_export.bundle.flat_models import MAX_MODEL_BYTES, FlatModel
from gatewise_export.bundle.manifest_records import StageSpec
from gatewise_export.onnx_writer import MARGINS, write_graph
from gatewise_signals.blocks.block import OnnxBlock

_LOG = logging.getLogger("gatewise_edge")

#: Runner of the stages' graphs; auto is onnxruntime if it can be imported, otherwise numpy.
Runner = Literal["auto", "onnxruntime", "numpy"]

Matrix = NDArray[np.float32]
Row = NDArray[np.float32]


class GraphSession:
    """A stage's graph in onnxruntime; several threads may run it at the same time.

    The input of every packed graph is named ``x``, and its output :data:`MARGINS`.
    """

    def __init__(self, session: Any, n_inputs: int, n_outputs: int) -> None:
        self._session = session
        self._n_inputs = n_inputs
        self._n_outputs = n_outputs
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
            input_buffer, margin_buffer, binding = self._thread_buffers.buffers_and_binding
        except AttributeError:  # the first row of this thread
            buffers_and_binding = self._thread_buffers.buffers_and_binding = self._bind()
            input_buffer, margin_buffer, binding = buffers_and_binding
        input_buffer[:] = row
        self._session.run_with_iobinding(binding)
        row_margins: list[float] = margin_buffer.tolist()
        return row_margins

    def _bind(self) -> tuple[Row, Row, Any]:
        """Make an input buffer, a buffer of margins and the binding, which holds their addresses.

        The buffers must live as long as the binding, and must not be replaced.
        """
        input_buffer = np.zeros(self._n_inputs, np.float32)
        margin_buffer = np.zeros(self._n_outputs, np.float32)
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
        self._model = model
        self._walker = TreeWalker(model) if isinstance(model, TreeEnsemble) else None

    def run(self, rows: Matrix) -> Matrix:
        """Compute the margins of rows, shape (n, n_outputs)."""
        return self._model.run(rows)

    def run_row(self, row: Row) -> list[float]:
        """Compute the margins of one row, shape (n_inputs,)."""
        if self._walker is not None:  # faster than calls of numpy for each level of a tree
            return self.walk(row.tolist().__getitem__)
        row_margins: list[float] = self._model.run(row[np.newaxis])[0].tolist()
        return row_margins

    def walk(self, acquire_column: Callable[[int], float]) -> list[float]:
        """Compute the margins of one instance with trees; see :meth:`.TreeWalker.walk`."""
        assert self._walker is not None
        row_margins: list[float] = self._walker.walk(acquire_column)[0].tolist()
        return row_margins


StageModel = GraphSession | FlatRunner


class StageOutput:
    """Output of a stage for one instance.

    `outputs` has the float32 margins of the stage's model, followed by the gate's output if the
    stage has a gate. `score` is the stop score that the stage's rule computes from them.
    """

    __slots__ = ("outputs", "score", "stage")

    def __init__(self, stage: DeviceStage, outputs: Sequence[float]) -> None:
        self.stage = stage
        self.outputs = outputs
        self.score = stage.rule.row_score(outputs)

    @property
    def stops(self) -> bool:
        """Whether the instance stops here; it never does at a stage without a threshold.

        A NaN score does not stop, because the comparison is false.
        """
        threshold = self.stage.threshold
        return threshold is not None and self.score >= threshold


@dataclass(frozen=True, slots=True, eq=False)
class DeviceStage:
    """A loaded stage; several threads may run it at the same time.

    A stage of kind ``lazy`` walks its trees in order and acquires a feature when a node tests it.
    Any other stage acquires all its features and then runs its model.

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
        The `inputs` as Python integers, which index Python lists faster than numpy's.
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

        With `allow_missing` values may be NaN. Raises SensorError if a feature cannot be acquired
        or is refused; the features acquired before are still charged.
        """
        model = self.model
        if self.spec.kind == "lazy" and isinstance(model, FlatRunner):
            acquire_column = reading.value_getter(self.input_list, allow_missing=allow_missing)
            return StageOutput(self, model.walk(acquire_column))
        row = reading.acquire(self.inputs, allow_missing=allow_missing)
        return StageOutput(self, model.run_row(row))

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
    """Run stages in order until one stops; return whether one does.

    The outputs are added to `outputs`, which also has those of the finished stages after a
    SensorError; see :meth:`DeviceStage.run_instance`.
    """
    for stage in stages:
        output = stage.run_instance(reading, allow_missing=allow_missing)
        outputs.append(output)
        if output.stops:
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
    # Check all files before the first graph is opened, so that onnxruntime sees no graph of a
    # damaged bundle.
    stage_loaders = [_check_stage_file(bundle, spec, runner, provider) for spec in manifest.stages]
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
    """Load the networks among the blocks, and run each once.

    A network that cannot run is then refused at the installation, not at the first instance.
    """
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


def _check_stage_file(
    bundle: Bundle, spec: StageSpec, runner: Runner, provider: str
) -> Callable[[], StageModel]:
    """Read and check a stage's file; return a function that loads its model.

    A given graph is read only when it is loaded, because its check is to load it.
    """
    if spec.kind == "graph":
        return lambda: _load_given_graph(bundle, spec, runner, provider)
    model = bundle.read_model(spec)
    # lazy trees have no graph, because a graph would acquire all features
    if spec.kind == "lazy" or not _uses_onnxruntime(runner):
        return lambda: FlatRunner(model)
    return lambda: _load_flat_model(bundle, spec, model)


def _load_flat_model(bundle: Bundle, spec: StageSpec, model: FlatModel) -> GraphSession:
    """Write the graph of a flat model, and open it if its hash is in the manifest."""
    assert spec.graph is not None  # the manifest's reader requires the name for these kinds
    graph_bytes = write_graph(model)
    if hashlib.sha256(graph_bytes).hexdigest() != bundle.manifest.files[spec.graph].sha256:
        raise DamagedFileError(
            spec.graph,
            f"bundle {bundle.path}: {spec.graph} does not match {spec.arrays}: pack it again",
        )
    return GraphSession(_open_graph(graph_bytes, spec.graph), len(spec.inputs), spec.outputs)


def _load_given_graph(bundle: Bundle, spec: StageSpec, runner: Runner, provider: str) -> StageModel:
    """Load a given graph, and run it once to compare its outputs with the manifest."""
    assert spec.graph is not None  # the manifest's reader requires the name for these kinds
    file_label = f"stage file {spec.graph}"
    if not _uses_onnxruntime(runner):
        raise BundleError(f"{file_label} is a given graph and needs onnxruntime: install it")
    graph_bytes = bundle.read(spec.graph, max_bytes=MAX_MODEL_BYTES)
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
    """Whether onnxruntime runs the stages' graphs; if not, numpy runs flat models."""
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
    """Open a graph in onnxruntime; raise BundleError if that fails."""
    try:
        return open_session(graph_bytes, provider=provider)
    except InputError:  # the provider cannot be used, which is not the bundle's fault
        raise
    except Exception as error:  # onnxruntime's errors have no common base class
        raise BundleError(f"{file_label} cannot be run on this device: {one_line(error)}") from None
