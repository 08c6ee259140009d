"""Plan the order, the calls and the memory of the steps that C computes for a window."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise_export.bundle.errors import ConversionError
from gatewise_export.c99.signals.kinds import CALL_WRITERS
from gatewise_export.c99.signals.memory import Buffer, place_buffers
from gatewise_export.c99.signals.step_code import SignalTables, StepCode
from gatewise_signals.blocks.sound import MelSpectrogram, Spectrogram
from gatewise_signals.graph import SignalGraph
from gatewise_signals.steps import Step


@dataclass(frozen=True, eq=False)
class SignalPlan:
    """The blocks in the order in which stages read them, and the steps that they need.

    Attributes
    ----------
    feature_spans : list of slice
        The features of each block.
    block_steps : list of int
        The step that computes each block.
    step_codes : list of StepCode
        The calls of the steps, in order.
    tables : SignalTables
        Constant tables of the steps.
    offsets : dict
        Offset of each result and each working memory, in floats.
    n_floats : int
        Size of the memory in floats.
    """

    feature_spans: list[slice]
    block_steps: list[int]
    step_codes: list[StepCode]
    tables: SignalTables
    offsets: dict[str, int]
    n_floats: int

    @property
    def features(self) -> NDArray[np.int64]:
        """All features of the blocks, block by block."""
        return np.concatenate([np.arange(span.start, span.stop) for span in self.feature_spans])


def plan_signals(
    graph: SignalGraph, window: NDArray[Any], features: Iterable[int] | None = None
) -> SignalPlan:
    """Plan the blocks that compute `features` (by default all), in their order of acquisition.

    `window` holds zeros in the shape and dtype of the windows. Raises ConversionError if C cannot
    compute a step, and InputError if the windows do not fit the blocks.
    """
    feature_indices = range(len(graph.feature_names)) if features is None else features
    block_indices = list(
        dict.fromkeys(int(graph.block_of_feature[feature]) for feature in feature_indices)
    )
    if not block_indices:
        raise InputError("features is empty: give at least one feature of a block")
    # each step comes before the first block that needs it
    steps = list(
        dict.fromkeys(
            step
            for block_index in block_indices
            for step in _list_steps_of_block(graph, graph.blocks[block_index])
        )
    )
    unsupported_labels = [step.label for step in steps if type(step) not in CALL_WRITERS]
    if unsupported_labels:
        raise ConversionError(
            f"cannot write {', '.join(unsupported_labels)} in C: Python functions, networks and "
            "user-defined steps have no C form. Leave out their blocks, or run the bundle with "
            "Python"
        )
    inner_steps = _find_inner_spectrograms(steps)
    steps = [step for step in steps if step not in inner_steps]
    tables = SignalTables()
    step_codes = _write_step_codes(graph, steps, window, tables)
    block_steps = [steps.index(graph.blocks[block_index]) for block_index in block_indices]
    offsets, n_floats = _place_memory(step_codes, block_steps)
    feature_spans = [graph.columns(block_index) for block_index in block_indices]
    return SignalPlan(feature_spans, block_steps, step_codes, tables, offsets, n_floats)


def computable_features(graph: SignalGraph) -> set[int]:
    """Find the features that C can compute."""
    return {
        feature
        for block_index, block in enumerate(graph.blocks)
        if all(type(step) in CALL_WRITERS for step in _list_steps_of_block(graph, block))
        for feature in range(graph.columns(block_index).start, graph.columns(block_index).stop)
    }


def _list_steps_of_block(graph: SignalGraph, block: Step) -> list[Step]:
    """List a block and all steps that it needs, each after the steps that it reads."""
    needed_steps = set()
    unvisited_steps = [block]
    while unvisited_steps:
        step = unvisited_steps.pop()
        needed_steps.add(step)
        unvisited_steps += step.inputs
    return [step for step in graph.steps if step in needed_steps]


def _find_inner_spectrograms(steps: Sequence[Step]) -> set[Step]:
    """Find the spectrograms that one mel spectrogram reads, and no other step.

    To save memory, such a mel spectrogram computes the spectrum of each frame itself.
    """
    reader_types = {
        step: [type(reader) for reader in steps if step in reader.inputs] for step in steps
    }
    return {
        step
        for step in steps
        if type(step) is Spectrogram and reader_types[step] == [MelSpectrogram]
    }


def _write_step_codes(
    graph: SignalGraph, steps: Sequence[Step], window: NDArray[Any], tables: SignalTables
) -> list[StepCode]:
    """Write the calls of steps; the shapes of results come from running a `window` of zeros."""
    step_values = graph.lazy_values(window)
    try:
        shape_of_step = {step: step_values.step_result(step).shape[1:] for step in steps}
    except (IndexError, ValueError) as error:
        raise InputError(
            f"windows of shape {window.shape} do not fit the blocks: {error}"
        ) from error
    step_codes = []
    for step_number, step in enumerate(steps):
        # an inner spectrogram is not among the steps; its reader reads the spectrogram's input
        input_steps = [
            input_step
            for direct_input in step.inputs
            for input_step in (
                [direct_input] if direct_input in shape_of_step else direct_input.inputs
            )
        ]
        # overwriting depends on the graph's reader of the input, which may be an inner spectrogram
        reads_planned_steps = all(direct_input in shape_of_step for direct_input in step.inputs)
        reader = step if reads_planned_steps else step.inputs[0]
        code = StepCode(
            step=step,
            step_number=step_number,
            result_shape=shape_of_step[step],
            may_overwrite=len(input_steps) == 1 and _is_only_reader(graph, reader, input_steps[0]),
            input_steps=[steps.index(input_step) for input_step in input_steps],
            input_shapes=[shape_of_step[input_step] for input_step in input_steps]
            or [window.shape],
            tables=tables,
        )
        CALL_WRITERS[type(step)](code, step)
        step_codes.append(code)
    return step_codes


def _is_only_reader(graph: SignalGraph, step: Step, source: Step) -> bool:
    """Whether `source` reads only the window, and `step` is its only reader in every block.

    `step` may then overwrite the result of `source`.
    """
    steps_of_blocks = (_list_steps_of_block(graph, block) for block in graph.blocks)
    return not source.inputs and all(
        [reader for reader in steps_of_block if source in reader.inputs] == [step]
        for steps_of_block in steps_of_blocks
        if step in steps_of_block
    )


def _place_memory(
    step_codes: Sequence[StepCode], block_steps: Collection[int]
) -> tuple[dict[str, int], int]:
    """Place the results and the working memory of steps; return offsets and the size in floats.

    A result is needed from its step to its last reader. If a step reads only the window, its result
    is needed only until its last reader within a block, because the step can run again for another
    block.
    """
    # find the steps during which each result is needed
    steps_with_result = [{number} for number in range(len(step_codes))]
    for block_step in block_steps:
        ancestors = _list_ancestors(step_codes, block_step)
        for number in ancestors:
            last_reader = max(
                (reader for reader in ancestors if number in step_codes[reader].input_steps),
                default=number,
            )
            is_source = not step_codes[number].input_steps
            live_steps = (
                {step for step in ancestors if step <= last_reader}
                if is_source
                else range(number, last_reader)
            )
            steps_with_result[number].update(live_steps, {last_reader})
    # place results, each with room for the step that works in it, and some inside their inputs
    result_floats = [math.prod(code.result_shape) for code in step_codes]
    for code in step_codes:
        for number in code.input_steps:
            result_floats[number] = max(result_floats[number], code.input_scratch_floats)
    result_buffers = []
    for number, code in enumerate(step_codes):
        container = code.input_steps[0] if code.has_result_in_input else None
        is_recomputed = container is not None and not (
            steps_with_result[container] & steps_with_result[number] <= {number}
        )
        if is_recomputed:
            container = None  # the input is recomputed while the result is still needed
        result_buffers.append(
            Buffer(
                name=f"RESULT_{number}",
                size=result_floats[number],
                steps=frozenset(steps_with_result[number]),
                container=None if container is None else f"RESULT_{container}",
            )
        )
    # features stay valid to the end, so no other buffer may share their memory
    all_steps = frozenset(range(len(step_codes)))
    feature_buffers = [
        replace(result_buffers[number], steps=all_steps, container=None)
        for number in sorted(block_steps)
    ]
    offsets, n_floats = place_buffers(feature_buffers)
    shared_buffers = [buffer for buffer in result_buffers if buffer.name not in offsets]
    shared_buffers += [
        Buffer(f"WORK_{number}", code.scratch_floats, frozenset([number]))
        for number, code in enumerate(step_codes)
        if code.scratch_floats
    ]
    shared_offsets, n_floats = place_buffers(shared_buffers, n_floats)
    offsets |= shared_offsets
    _mark_overwritten(step_codes, offsets, shared_buffers)
    return offsets, n_floats


def _list_ancestors(step_codes: Sequence[StepCode], step_number: int) -> set[int]:
    """List the numbers of a step and of all steps that it needs."""
    return {step_number}.union(
        *(
            _list_ancestors(step_codes, input_number)
            for input_number in step_codes[step_number].input_steps
        )
    )


def _mark_overwritten(
    step_codes: Sequence[StepCode], offsets: dict[str, int], shared_buffers: Sequence[Buffer]
) -> None:
    """Record for each step which results it overwrites, of steps that read only the window."""
    span_of_buffer = {
        buffer.name: range(offsets[buffer.name], offsets[buffer.name] + buffer.size)
        for buffer in shared_buffers
    }
    for source in step_codes:
        if source.input_steps:
            continue
        source_span = span_of_buffer[f"RESULT_{source.step_number}"]
        for code in step_codes:
            if code is source:
                continue
            written_spans = [
                span_of_buffer.get(f"{buffer_kind}_{code.step_number}", range(0))
                for buffer_kind in ("RESULT", "WORK")
            ]
            if any(
                span.start < source_span.stop and source_span.start < span.stop
                for span in written_spans
            ):
                code.overwritten_steps.add(source.step_number)
