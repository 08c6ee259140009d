"""Plan the order, calls and memory of the steps that C computes for windows of one shape."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise_export.bundle.errors import ConversionError
from gatewise_export.c99.signals.kinds import KINDS
from gatewise_export.c99.signals.memory import Buffer, place_buffers
from gatewise_export.c99.signals.step_code import SignalTables, StepCode
from gatewise_signals.blocks.sound import MelSpectrogram, Spectrogram
from gatewise_signals.graph import SignalGraph
from gatewise_signals.steps import Step


@dataclass(frozen=True, eq=False)
class SignalPlan:
    """Blocks in the order in which stages read them, and the steps that the blocks need.

    Attributes
    ----------
    spans : list of slice
        The features of each block.
    block_steps : list of int
        The step that computes each block.
    codes : list of StepCode
        The calls of the steps, in order.
    tables : SignalTables
        Constant tables of the steps.
    offsets : dict
        Offset of each result and each working memory, in floats.
    n_floats : int
        Size of the memory in floats.
    """

    spans: list[slice]
    block_steps: list[int]
    codes: list[StepCode]
    tables: SignalTables
    offsets: dict[str, int]
    n_floats: int

    @property
    def features(self) -> NDArray[np.int64]:
        """All features of the blocks, block by block."""
        return np.concatenate([np.arange(span.start, span.stop) for span in self.spans])


def plan_signals(
    graph: SignalGraph, window: NDArray[Any], features: Iterable[int] | None = None
) -> SignalPlan:
    """Plan the blocks that compute `features` (by default all), in their order of acquisition.

    `window` holds zeros in the shape and dtype of the windows. Raises ConversionError if C cannot
    compute a step, and InputError if the windows do not fit the blocks.
    """
    indices = range(len(graph.feature_names)) if features is None else features
    blocks = list(dict.fromkeys(int(graph.block_of[feature]) for feature in indices))
    if not blocks:
        raise InputError("features is empty: give at least one feature of a block")
    # each step comes before the first block that needs it
    steps = list(dict.fromkeys(s for b in blocks for s in _in_order(graph, graph.blocks[b])))
    unsupported = [step.label for step in steps if type(step) not in KINDS]
    if unsupported:
        raise ConversionError(
            f"cannot write {', '.join(unsupported)} in C: Python functions, networks and "
            "user-defined steps have no C form. Leave out their blocks, or run the bundle with "
            "Python"
        )
    inner_steps = _inner_spectrograms(steps)
    steps = [step for step in steps if step not in inner_steps]
    tables = SignalTables()
    codes = _codes(graph, steps, window, tables)
    block_steps = [steps.index(graph.blocks[b]) for b in blocks]
    offsets, n_floats = _memory(codes, block_steps)
    spans = [graph.columns(b) for b in blocks]
    return SignalPlan(spans, block_steps, codes, tables, offsets, n_floats)


def computable(graph: SignalGraph) -> set[int]:
    """Find the features that C can compute."""
    return {
        feature
        for b, block in enumerate(graph.blocks)
        if all(type(step) in KINDS for step in _in_order(graph, block))
        for feature in range(graph.columns(b).start, graph.columns(b).stop)
    }


def _in_order(graph: SignalGraph, block: Step) -> list[Step]:
    """List a block and all steps that it needs, each after the steps that it reads."""
    needed = set()
    unvisited = [block]
    while unvisited:
        step = unvisited.pop()
        needed.add(step)
        unvisited += step.inputs
    return [step for step in graph.steps if step in needed]


def _inner_spectrograms(steps: Sequence[Step]) -> set[Step]:
    """Find spectrograms that only one mel spectrogram reads.

    The mel spectrogram computes each frame's spectrum, so that memory holds only one frame.
    """
    reader_types = {s: [type(r) for r in steps if s in r.inputs] for s in steps}
    return {s for s in steps if type(s) is Spectrogram and reader_types[s] == [MelSpectrogram]}


def _codes(
    graph: SignalGraph, steps: Sequence[Step], window: NDArray[Any], tables: SignalTables
) -> list[StepCode]:
    """Write the calls of steps; the shapes of results come from running a `window` of zeros."""
    values = graph.start(window)
    try:
        shapes = {step: values.of_step(step).shape[1:] for step in steps}
    except (IndexError, ValueError) as error:
        raise InputError(
            f"windows of shape {window.shape} do not fit the blocks: {error}"
        ) from error
    codes = []
    for number, step in enumerate(steps):
        inputs = [s for i in step.inputs for s in ([i] if i in shapes else i.inputs)]
        # an inner spectrogram was left out of `steps`, but it is the reader of its own input
        reader = step if all(i in shapes for i in step.inputs) else step.inputs[0]
        code = StepCode(
            step=step,
            number=number,
            shape=shapes[step],
            may_overwrite=len(inputs) == 1 and _is_only_reader(graph, reader, inputs[0]),
            input_steps=[steps.index(s) for s in inputs],
            input_shapes=[shapes[s] for s in inputs] or [window.shape],
            tables=tables,
        )
        KINDS[type(step)](code, step)
        codes.append(code)
    return codes


def _is_only_reader(graph: SignalGraph, step: Step, source: Step) -> bool:
    """Whether `source` reads only the window, and `step` is its only reader in every block.

    `step` may then overwrite the result of `source`.
    """
    steps_of_blocks = (_in_order(graph, block) for block in graph.blocks)
    return not source.inputs and all(
        [s for s in needed if source in s.inputs] == [step]
        for needed in steps_of_blocks
        if step in needed
    )


def _memory(codes: Sequence[StepCode], block_steps: Collection[int]) -> tuple[dict[str, int], int]:
    """Place the results and the working memory of steps; return offsets and the size in floats.

    A result is needed from its step to its last reader. A step that reads only the window can run
    again for each block, so its result is needed only until its last reader within the block.
    """
    needed_steps = [{i} for i in range(len(codes))]
    for block in block_steps:
        ancestors = _ancestors(codes, block)
        for i in ancestors:
            last_reader = max((r for r in ancestors if i in codes[r].input_steps), default=i)
            is_source = not codes[i].input_steps
            span = (
                {s for s in ancestors if s <= last_reader} if is_source else range(i, last_reader)
            )
            needed_steps[i].update(span, {last_reader})
    sizes = [math.prod(code.shape) for code in codes]
    for code in codes:
        for i in code.input_steps:
            sizes[i] = max(sizes[i], code.input_floats)
    results = []
    for i, code in enumerate(codes):
        host = code.input_steps[0] if code.result_in_input else None
        if host is not None and not needed_steps[host] & needed_steps[i] <= {i}:
            host = None  # the input is recomputed while the result is still needed
        results.append(
            Buffer(
                name=f"RESULT_{i}",
                size=sizes[i],
                steps=frozenset(needed_steps[i]),
                host=None if host is None else f"RESULT_{host}",
            )
        )
    # features stay valid to the end, so no other buffer may share their memory
    all_steps = frozenset(range(len(codes)))
    features = [replace(results[i], steps=all_steps, host=None) for i in sorted(block_steps)]
    offsets, n_floats = place_buffers(features)
    shared = [buffer for buffer in results if buffer.name not in offsets]
    shared += [
        Buffer(f"WORK_{i}", code.work, frozenset([i])) for i, code in enumerate(codes) if code.work
    ]
    shared_offsets, n_floats = place_buffers(shared, n_floats)
    offsets |= shared_offsets
    _mark_overwritten(codes, offsets, shared)
    return offsets, n_floats


def _ancestors(codes: Sequence[StepCode], number: int) -> set[int]:
    """List the numbers of a step and of all steps that it needs."""
    return {number}.union(*(_ancestors(codes, i) for i in codes[number].input_steps))


def _mark_overwritten(
    codes: Sequence[StepCode], offsets: dict[str, int], shared: Sequence[Buffer]
) -> None:
    """Record which results each step overwrites, of those computed from the window alone."""
    spans = {b.name: range(offsets[b.name], offsets[b.name] + b.size) for b in shared}
    for source in codes:
        if source.input_steps:
            continue
        source_span = spans[f"RESULT_{source.number}"]
        for code in codes:
            if code is source:
                continue
            written_spans = [
                spans.get(f"{kind}_{code.number}", range(0)) for kind in ("RESULT", "WORK")
            ]
            if any(
                s.start < source_span.stop and source_span.start < s.stop for s in written_spans
            ):
                code.overwritten.add(source.number)
