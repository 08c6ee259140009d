"""``<name>_signals.h`` and ``.c``: the steps of a graph, for windows of one shape and dtype."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gatewise.errors import InputError
from gatewise_export.bundle.errors import ConversionError
from gatewise_export.c99.c_text import filled, sections, smallest, template_names
from gatewise_export.c99.signals.kinds import KINDS
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


def write_signal_text(
    graph: SignalGraph,
    shape: Shape,
    dtype: DTypeLike,
    prefix: str,
    features: Collection[int] | None = None,
) -> tuple[dict[str, str], NDArray[np.int64], dict[str, int]]:
    """Write the steps that `features`, all by default, need; `prefix` begins public names.

    Gives the two files, the features in them, and their sizes (of `SignalSource`). ConversionError
    names steps that C cannot compute, or the dtype; InputError if windows do not fit.
    """
    element = ELEMENTS.get(np.dtype(dtype).name)
    if element is None:
        raise ConversionError(
            f"windows of {np.dtype(dtype).name} have no form in C: give {', '.join(ELEMENTS)}"
        )
    blocks = [b for b in range(len(graph.blocks)) if _is_read(graph.columns(b), features)]
    if not blocks:
        raise InputError("features: give some of the blocks'")
    needs = [_in_order(graph, graph.blocks[b]) for b in blocks]
    needed = [s for s in graph.steps if any(s in block_steps for block_steps in needs)]
    _check_kinds(needed)
    inside = _inside_others(needed)
    steps = [s for s in needed if s not in inside]
    tables = SignalTables()
    codes = _codes(graph, steps, np.zeros(shape, dtype), tables)
    made = tables.finished()
    # tables by block: its steps, and its span of features
    lists = [[steps.index(s) for s in of_block if s not in inside] for of_block in needs]
    made.add("needs", np.concatenate(lists), smallest(len(steps)), "Steps of each block, in order")
    ends = np.cumsum([0, *map(len, lists)])
    made.add("needs_start", ends, smallest(int(ends[-1])))
    spans = np.array([[graph.columns(b).start, graph.columns(b).stop] for b in blocks])
    made.add("first_feature", spans[:, 0], smallest(int(spans.max())), "Features of each block")
    made.add("end_feature", spans[:, 1], smallest(int(spans.max())))
    words, members = _members(codes)
    results = [
        f"it->r{steps.index(graph.blocks[b])}[feature - {graph.columns(b).start}]" for b in blocks
    ]
    fill = template_names(prefix) | {
        "element": element,
        "shape": " x ".join(map(str, shape)),
        "members": members,
        "n_steps": str(len(steps)),
        "n_words": str(_bit_words(len(steps))),
        "n_blocks": str(len(blocks)),
        "table_bytes": str(made.nbytes),
        "own_bytes": str(4 * words),
        "stack_bytes": str(FRAMES),
        "listing": "".join(f"   {i} {_comment(s)}\n" for i, s in enumerate(steps)),
        "cases": _cases([c.text for c in codes]),
        "results": _cases([f"return {r};" for r in results], "        ", ""),
    }
    top, bottom = (filled("signals.c", part, **fill) for part in ("top", "bottom"))
    functions = _functions("".join(code.text for code in codes), fill)
    files = {
        f"{prefix}_signals.h": filled("signals.h", **fill),
        f"{prefix}_signals.c": f"{top}{made}{functions}{bottom}",
    }
    sizes = {
        "n_steps": len(steps),
        "table_bytes": made.nbytes,
        "struct_bytes": 4 * words + 4,
        "stack_bytes": FRAMES,
    }
    return files, np.concatenate([np.arange(first, end) for first, end in spans]), sizes


def computable(graph: SignalGraph) -> set[int]:
    """Get the features that C can compute."""
    return {
        feature
        for b, block in enumerate(graph.blocks)
        if all(type(step) in KINDS for step in _in_order(graph, block))
        for feature in range(graph.columns(b).start, graph.columns(b).stop)
    }


def _is_read(columns: slice, features: Collection[int] | None) -> bool:
    return features is None or any(columns.start <= f < columns.stop for f in features)


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
        read = [r for s in step.inputs for r in ([s] if s in steps else s.inputs)]
        code = StepCode(
            step=step,
            shape=shapes[step],
            input_shapes=[shapes[s] for s in read] or [window.shape],
            inputs=[f"it->r{steps.index(s)}" for s in read] or ["it->window"],
            out=f"it->r{i}",
            tables=tables,
        )
        KINDS[type(step)](code, step)
        codes.append(code)
    return codes


def _members(codes: Sequence[StepCode]) -> tuple[int, str]:
    """Words of the struct but for its pointer, and its arrays of floats."""
    sizes = [(f"r{i}", math.prod(c.shape), _comment(c.step)) for i, c in enumerate(codes)]
    work = max(code.work for code in codes)
    if work:
        sizes.append(("work", work, "of whichever step runs"))
    words = sum(size for _, size, _ in sizes) + _bit_words(len(codes))
    if words % 2:  # a pointer of 64 bits aligns the struct to 8 bytes
        sizes.append(("unused", 1, ""))
    members = "".join(f"    float {name}[{size}]; /* {about} */\n" for name, size, about in sizes)
    return words + words % 2, members


def _bit_words(steps: int) -> int:
    return -(-steps // 32)


def _cases(bodies: Sequence[str], indent: str = "    ", ends: str = "break;") -> str:
    """Cases of a switch, numbered from 0."""
    lines: list[str] = []
    for i, body in enumerate(bodies):
        lines.append(f"{indent}case {i}:")
        lines += [f"{indent}    {line}" for line in (*body.splitlines(), ends) if line]
    return "".join(f"{line}\n" for line in lines)


def _functions(calls: str, fill: dict[str, str]) -> str:
    """Write the functions that the calls need, and that these need, in the template's order."""
    texts = {name: filled(STEPS, name, **fill) for name in sections(STEPS) if name}
    needed: set[str] = set()
    unread = [calls]
    while unread:
        text = unread.pop()
        called = {name for name in texts if re.search(rf"\b{name}\(", text)} - needed
        needed |= called
        unread += [texts[name] for name in called]
    return "".join(text for name, text in texts.items() if name in needed)


def _comment(step: Step) -> str:
    """A step's label, as far as a comment may hold it."""
    return re.sub(r"[^\w(), .:+-]", "_", step.label, flags=re.ASCII)
