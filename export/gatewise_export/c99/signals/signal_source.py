"""``<name>_signals.h`` and ``.c``: the steps of a graph, for windows of one shape and dtype."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gatewise.errors import InputError
from gatewise_export.bundle.errors import ConversionError
from gatewise_export.c99.c_text import filled, needed, sections, template_names, unsigned
from gatewise_export.c99.signals.kinds import KINDS
from gatewise_export.c99.signals.memory import Buffer, places
from gatewise_export.c99.signals.step_code import Shape, SignalTables, StepCode
from gatewise_signals.blocks.sound import MelSpectrogram, Spectrogram
from gatewise_signals.graph import SignalGraph
from gatewise_signals.steps import Step

#: C's types of a window's values, by numpy's names.
ELEMENTS = {
    "int8": "int8_t",
    "uint8": "uint8_t",
    "int16": "int16_t",
    "uint16": "uint16_t",
    "float32": "float",
}
STEPS = "signal_steps.c"
#: Bytes of stack that calls may take, without the C library's; tests measure their real use.
FRAMES = 768


def element_type(dtype: DTypeLike) -> str:
    """Get C's type of a window's values."""
    name = np.dtype(dtype).name
    if name not in ELEMENTS:
        raise ConversionError(f"windows of {name} have no form in C: give {', '.join(ELEMENTS)}")
    return ELEMENTS[name]


def write_signal_text(
    graph: SignalGraph,
    shape: Shape,
    dtype: DTypeLike,
    prefix: str,
    features: Iterable[int] | None = None,
) -> tuple[dict[str, str], NDArray[np.int64], dict[str, int]]:
    """Write the steps that `features`, all by default, need; `prefix` begins public names.

    Memory is planned for features that are acquired in this order. Gives the two files, the
    features in them, and their sizes (of `SignalSource`). ConversionError names steps that C cannot
    compute, or the dtype; InputError if windows do not fit.
    """
    element = element_type(dtype)
    numbers = range(len(graph.feature_names)) if features is None else features
    blocks = list(dict.fromkeys(int(graph.block_of[feature]) for feature in numbers))
    if not blocks:
        raise InputError("features: give some of the blocks'")
    # each step where the first block needs it
    steps = list(dict.fromkeys(s for b in blocks for s in _in_order(graph, graph.blocks[b])))
    _check_kinds(steps)
    inside = _inside_others(steps)
    steps = [s for s in steps if s not in inside]
    signal_tables = SignalTables()
    codes = _codes(graph, steps, np.zeros(shape, dtype), signal_tables)
    spans = [graph.columns(b) for b in blocks]
    block_steps = [steps.index(graph.blocks[b]) for b in blocks]
    place_of, n_floats = _places(codes, block_steps)
    block_places = [place_of[f"RESULT_{step}"] for step in block_steps]
    tables = signal_tables.finished()
    tables.define(
        {
            "input_type": unsigned(len(steps)),
            "input_start_type": unsigned(sum(len(code.input_steps) for code in codes)),
            "feature_type": unsigned(max(span.stop for span in spans)),
            "place_type": unsigned(max(block_places)),
        }
    )
    read_steps = [i for code in codes for i in code.input_steps]
    starts = np.cumsum([0, *(len(code.input_steps) for code in codes)])
    tables.add("input", np.array(read_steps, np.int64), "input_type", "Steps that each step reads")
    tables.add("input_start", starts, "input_start_type")
    tables.add("is_feature", _bits(block_steps, len(steps)), "uint32_t", "A bit for each step")
    tables.add("first_feature", np.array([s.start for s in spans]), "feature_type", "Of each block")
    tables.add("end_feature", np.array([s.stop for s in spans]), "feature_type")
    tables.add("block_step", np.array(block_steps), "input_type")
    tables.add("block_place", np.array(block_places), "place_type", "Its features in memory")
    n_words = len(_bits([], len(steps)))
    # the pointer to the window, floats, bits, the number of steps; 64-bit pointers align to 8 bytes
    n_floats += (n_floats + n_words + 1) % 2
    own_bytes = 4 * (n_floats + n_words + 1)
    fill = template_names(prefix) | {
        "element": element,
        "shape": " x ".join(map(str, shape)),
        "n_floats": str(n_floats),
        "n_steps": str(len(steps)),
        "n_words": str(n_words),
        "n_blocks": str(len(blocks)),
        "table_bytes": str(tables.nbytes),
        "own_bytes": str(own_bytes),
        "stack_bytes": str(FRAMES),
        "listing": "".join(f"   {i} {_comment(s)}\n" for i, s in enumerate(steps)),
        "places": ",\n".join(f"    {name} = {place}" for name, place in place_of.items()),
        "cases": _cases([c.text for c in codes]),
    }
    top, bottom = (filled("signals.c", part, **fill) for part in ("top", "bottom"))
    texts = {name: filled(STEPS, name, **fill) for name in sections(STEPS) if name}
    functions = "".join(needed(texts, "".join(code.text for code in codes)).values())
    files = {
        f"{prefix}_signals.h": filled("signals.h", **fill),
        f"{prefix}_signals.c": f"{top}{tables}{functions}{bottom}",
    }
    sizes = {
        "n_steps": len(steps),
        "table_bytes": tables.nbytes,
        "struct_bytes": own_bytes + 4,
        "stack_bytes": FRAMES,
    }
    return files, np.concatenate([np.arange(s.start, s.stop) for s in spans]), sizes


def _places(codes: Sequence[StepCode], block_steps: Collection[int]) -> tuple[dict[str, int], int]:
    """Place results and work of steps in memory, those of blocks first; count all floats."""
    end = len(codes)
    last_reader = {i: r for r, code in enumerate(codes) for i in code.input_steps}
    results = [
        Buffer(f"RESULT_{i}", math.prod(code.shape), i, last_reader.get(i, i))
        for i, code in enumerate(codes)
    ]
    features = [replace(results[i], last=end, first=0) for i in sorted(block_steps)]
    place_of, n_floats = places(features)
    shared = [buffer for buffer in results if buffer.name not in place_of]
    shared += [Buffer(f"WORK_{i}", c.work, i, i) for i, c in enumerate(codes) if c.work]
    shared_places, n_floats = places(shared, n_floats)
    return place_of | shared_places, n_floats


def _bits(numbers: Collection[int], n: int) -> NDArray[np.uint32]:
    """Words of 32 bits in which the bits of these `numbers`, of `n`, are set."""
    bits = np.zeros(-(-n // 32) * 32, np.uint8)
    bits[list(numbers)] = 1
    return np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32)


def computable(graph: SignalGraph) -> set[int]:
    """Get the features that C can compute."""
    return {
        feature
        for b, block in enumerate(graph.blocks)
        if all(type(step) in KINDS for step in _in_order(graph, block))
        for feature in range(graph.columns(b).start, graph.columns(b).stop)
    }


def _in_order(graph: SignalGraph, block: Step) -> list[Step]:
    """List a block and the steps that it needs; each step follows the steps that it reads."""
    needed = set()
    unvisited = [block]
    while unvisited:
        step = unvisited.pop()
        needed.add(step)
        unvisited += step.inputs
    return [step for step in graph.steps if step in needed]


def _inside_others(steps: Sequence[Step]) -> set[Step]:
    """Spectrograms that one mel spectrogram alone reads.

    The mel spectrogram computes each frame's spectrum itself, so that one frame is in memory.
    """
    readers = {s: [r for r in steps if s in r.inputs] for s in steps if type(s) is Spectrogram}
    return {s for s, steps in readers.items() if [type(r) for r in steps] == [MelSpectrogram]}


def _check_kinds(steps: Sequence[Step]) -> None:
    without = [step.label for step in steps if type(step) not in KINDS]
    if without:
        raise ConversionError(
            f"no C of {', '.join(without)}: Python functions, networks and steps of one's own have "
            "none; leave these blocks out, or run the bundle with Python"
        )


def _codes(
    graph: SignalGraph, steps: Sequence[Step], window: NDArray[Any], tables: SignalTables
) -> list[StepCode]:
    """Write the calls of steps; a `window` of zeros gives the shapes of their results."""
    values = graph.start(window)
    try:
        shapes = {step: values.of_step(step).shape[1:] for step in steps}
    except (IndexError, ValueError) as error:
        raise InputError(
            f"windows of shape {window.shape} do not fit the blocks: {error}"
        ) from error
    codes = []
    for i, step in enumerate(steps):
        read = [r for s in step.inputs for r in ([s] if s in shapes else s.inputs)]
        code = StepCode(
            step=step,
            shape=shapes[step],
            input_shapes=[shapes[s] for s in read] or [window.shape],
            input_steps=[steps.index(s) for s in read],
            number=i,
            tables=tables,
        )
        KINDS[type(step)](code, step)
        codes.append(code)
    return codes


def _cases(calls: Sequence[str]) -> str:
    """Write a case for each step, in order."""
    return "".join(f"    case {i}:\n        {call}        break;\n" for i, call in enumerate(calls))


def _comment(step: Step) -> str:
    """A step's label, as far as a comment may hold it."""
    return re.sub(r"[^\w(), .:+-]", "_", step.label, flags=re.ASCII)
