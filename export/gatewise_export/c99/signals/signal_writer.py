"""Write the blocks of a signal graph as C99 files with a self-test."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from gatewise.errors import InputError
from gatewise_export.bundle.errors import ConversionError
from gatewise_export.c99 import c_text
from gatewise_export.c99.probes import probe_windows
from gatewise_export.c99.signals.signal_plan import SignalPlan, plan_signals
from gatewise_export.c99.signals.step_code import Shape, StepCode
from gatewise_signals.graph import SignalGraph, WindowValues
from gatewise_signals.steps import Step

#: C type of a window's values for each numpy type.
ELEMENT_TYPES = {
    "int8": "int8_t",
    "uint8": "uint8_t",
    "int16": "int16_t",
    "uint16": "uint16_t",
    "float32": "float",
}
STEPS_TEMPLATE = "signal_steps.c"
SELFTEST_TEMPLATE = "signals_selftest.c"
#: Bytes of stack for calls, without the C library's; tests measure the real use.
CALL_STACK_BYTES = 768
#: Largest allowed difference of a feature, relative to its largest absolute value in the sample;
#: numpy and a C library round the same float32 functions differently.
MAX_RELATIVE_ERROR = 1e-5
#: Largest total size of the self-test's windows in bytes.
MAX_SAMPLE_BYTES = 1 << 17


@dataclass(frozen=True)
class SignalCode:
    """Generated files of signal blocks and their sizes.

    Attributes
    ----------
    files : tuple of str
    shape : tuple of int
        Shape of a window.
    dtype : str
        Numpy type of its values.
    n_steps, n_features : int
        Number of steps, and of features that can be acquired.
    table_bytes : int
        Size of the const arrays, which lie in flash.
    struct_bytes : int
        Size in RAM of the struct with the steps' results, on a 32-bit machine.
    stack_bytes : int
        Upper bound on the stack.
    sample_windows : int
        Number of windows in the self-test.
    labels : tuple of str
        Labels of the steps, in the order of their numbers in C.
    """

    files: tuple[str, ...]
    shape: Shape
    dtype: str
    n_steps: int
    n_features: int
    table_bytes: int
    struct_bytes: int
    stack_bytes: int
    sample_windows: int
    labels: tuple[str, ...]


def write_signals(
    graph: SignalGraph,
    shape: Shape,
    dtype: DTypeLike,
    folder: str | Path,
    *,
    name: str = "model",
    sample: ArrayLike | None = None,
    features: Iterable[int] | None = None,
    rate_hz: float | None = None,
) -> SignalCode:
    """Write the blocks of `graph` as C99; for a whole system with blocks use :func:`to_c`.

    Parameters
    ----------
    graph : SignalGraph
    shape : tuple of int
        Shape of a window: (samples,), (samples, channels), or a picture's shape.
    dtype : dtype
        Type of a window's values: int8, uint8, int16, uint16 or float32.
    folder : str or Path
        Folder for ``<name>_signals.h``, ``.c`` and ``_selftest.c``.
    name : str, default "model"
        Prefix of every public C name.
    sample : array-like of shape (n, ...), optional
        Windows for the self-test, which uses the first 128 KiB; by default noise.
    features : iterable of int, optional
        Features to acquire, in this order; steps that they do not need are left out.
    rate_hz : float, optional
        Samples per second. The header states it, so that firmware can check its sensor's rate.

    Returns
    -------
    SignalCode

    Raises
    ------
    ConversionError
        If C cannot compute a step or read windows of this type.
    InputError
        If C does not allow the name, the folder holds files of these names that Gatewise did not
        write, or the windows do not fit the blocks.

    Examples
    --------
    ``write_signals(SignalGraph(blocks), (128, 6), "int16", "firmware").struct_bytes`` is the RAM
    that the results of one window take.
    """
    code, files = signal_files(
        graph, shape, dtype, c_text.checked_identifier(name), sample, features, rate_hz=rate_hz
    )
    c_text.write_files(Path(folder), files)
    return code


def signal_files(
    graph: SignalGraph,
    shape: Shape,
    dtype: DTypeLike,
    prefix: str,
    sample: ArrayLike | None = None,
    features: Iterable[int] | None = None,
    *,
    rate_hz: float | None = None,
    compares_decisions: bool = False,
) -> tuple[SignalCode, dict[str, str]]:
    """Write the text of each file.

    With `compares_decisions` the self-test also compares decisions with the model of the same
    prefix.
    """
    dtype_name = np.dtype(dtype).name
    if dtype_name not in ELEMENT_TYPES:
        raise ConversionError(
            f"the C cannot read windows of {dtype_name}: use one of {', '.join(ELEMENT_TYPES)}"
        )
    windows = probe_windows(shape, dtype) if sample is None else np.ascontiguousarray(sample)
    if not windows.size:
        raise InputError("sample has no windows: give at least one, or leave sample out")
    if windows.shape[1:] != tuple(shape) or windows.dtype != np.dtype(dtype):
        raise InputError(
            f"sample must have windows of shape {tuple(shape)} and dtype {dtype_name}, "
            f"not {windows.shape[1:]} and {windows.dtype}"
        )
    windows = windows[: max(1, MAX_SAMPLE_BYTES // max(windows[:1].nbytes, 1))]
    plan = plan_signals(graph, np.zeros(shape, dtype), features)
    tables = _add_plan_tables(plan)
    n_words = len(_packed_bits([], len(plan.step_codes)))
    # The struct has a pointer to the window, the floats, the bits and the number of steps that ran.
    # A 64-bit pointer needs a struct of a multiple of 8 bytes, so an even number of words follows.
    n_floats = plan.n_floats + (plan.n_floats + n_words + 1) % 2
    bytes_after_pointer = 4 * (n_floats + n_words + 1)
    placeholders = c_text.common_placeholders(prefix) | {
        "element": ELEMENT_TYPES[dtype_name],
        "shape": " x ".join(map(str, shape)),
        "millihertz": str(round(1000 * (rate_hz or 0.0))),
        "n_floats": str(n_floats),
        "n_steps": str(len(plan.step_codes)),
        "n_words": str(n_words),
        "n_blocks": str(len(plan.feature_spans)),
        "table_bytes": str(tables.nbytes),
        "bytes_after_pointer": str(bytes_after_pointer),
        "stack_bytes": str(CALL_STACK_BYTES),
    }
    files = {
        f"{prefix}_signals.h": c_text.fill_template("signals.h", **placeholders),
        f"{prefix}_signals.c": _source_text(plan, tables, placeholders),
        f"{prefix}_signals_selftest.c": _selftest_text(
            graph, plan.features, windows, placeholders, compares_decisions
        ),
    }
    code = SignalCode(
        files=tuple(files),
        shape=tuple(shape),
        dtype=dtype_name,
        n_steps=len(plan.step_codes),
        n_features=len(plan.features),
        table_bytes=tables.nbytes,
        struct_bytes=4 + bytes_after_pointer,
        stack_bytes=CALL_STACK_BYTES,
        sample_windows=len(windows),
        labels=tuple(code.step.label for code in plan.step_codes),
    )
    return code, files


def _add_plan_tables(plan: SignalPlan) -> c_text.Tables:
    """Add the tables of steps and blocks to the tables of the calls."""
    tables = plan.tables.finish()
    input_steps = [code.input_steps for code in plan.step_codes]
    starts = np.array([span.start for span in plan.feature_spans])
    stops = np.array([span.stop for span in plan.feature_spans])
    offsets = np.array([plan.offsets[f"RESULT_{step}"] for step in plan.block_steps])
    tables.add_typedefs(
        {
            "input_type": c_text.unsigned_type(len(plan.step_codes)),
            "input_start_type": c_text.unsigned_type(sum(map(len, input_steps))),
            "feature_type": c_text.unsigned_type(int(stops.max())),
            "offset_type": c_text.unsigned_type(int(offsets.max())),
        }
    )
    input_numbers = np.array([number for numbers in input_steps for number in numbers], np.int64)
    tables.add("input", input_numbers, "input_type", "Steps that each step reads")
    tables.add("input_start", np.cumsum([0, *map(len, input_steps)]), "input_start_type")
    is_feature = _packed_bits(plan.block_steps, len(plan.step_codes))
    tables.add("is_feature", is_feature, "uint32_t", "A bit for each step")
    tables.add("first_feature", starts, "feature_type", "Features of each block")
    tables.add("end_feature", stops, "feature_type")
    tables.add("block_step", np.array(plan.block_steps), "input_type")
    tables.add("block_offset", offsets, "offset_type", "Its features in memory")
    return tables


def _packed_bits(numbers: Collection[int], n_bits: int) -> NDArray[np.uint32]:
    """Pack `n_bits` bits into words of 32 bits, with the bits in `numbers` set."""
    bits = np.zeros(-(-n_bits // 32) * 32, np.uint8)
    bits[list(numbers)] = 1
    return np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32)


def _source_text(plan: SignalPlan, tables: c_text.Tables, placeholders: dict[str, str]) -> str:
    """Write the C file: tables, the functions that the steps need, and the steps' calls."""
    cases = "".join(_case_text(code) for code in plan.step_codes)
    placeholders = placeholders | {
        "listing": "".join(
            f"   {code.step_number} {_comment_text(code.step)}\n" for code in plan.step_codes
        ),
        "offsets": ",\n".join(f"    {name} = {offset}" for name, offset in plan.offsets.items()),
        "cases": cases,
    }
    function_texts = {
        name: c_text.fill_template(STEPS_TEMPLATE, name, **placeholders)
        for name in c_text.template_sections(STEPS_TEMPLATE)
        if name
    }
    functions = "".join(c_text.needed_functions(function_texts, cases).values())
    top, bottom = (
        c_text.fill_template("signals.c", section, **placeholders) for section in ("top", "bottom")
    )
    return f"{top}{tables}{functions}{bottom}"


def _case_text(code: StepCode) -> str:
    """Write the case that runs a step and marks the results that it overwrites."""
    lines = [f"    case {code.step_number}:", f"        {code.call_text.rstrip()}"]
    for word_index in sorted({step // 32 for step in code.overwritten_steps}):
        bits = sum(1 << step % 32 for step in code.overwritten_steps if step // 32 == word_index)
        lines.append(
            f"        signals->computed[{word_index}] &= ~(uint32_t){bits:#x}u; /* overwritten */"
        )
    return "\n".join([*lines, "        break;\n"])


def _comment_text(step: Step) -> str:
    """Format a step's label for a C comment."""
    return re.sub(r"[^\w(), .:+-]", "_", step.label, flags=re.ASCII)


def _selftest_text(
    graph: SignalGraph,
    features: NDArray[np.int64],
    windows: NDArray[Any],
    placeholders: dict[str, str],
    compares_decisions: bool,
) -> str:
    """Write the self-test, which counts windows with features that differ from Python's."""
    # Compute only these features, because a bundle lacks the functions of other blocks.
    values = WindowValues(graph, windows)
    expected_features = np.stack(
        [
            values.block_features(block)[:, feature - graph.columns(block).start]
            for feature, block in zip(features, graph.block_of_feature[features], strict=True)
        ],
        axis=1,
    )
    element_type = placeholders["element"]
    tables = c_text.Tables()
    feature_type = c_text.unsigned_type(int(features.max()))
    tables.add("feature", features, feature_type, "Numbers of the features")
    tables.add("windows", windows, element_type)
    tables.add("expected", expected_features, "float")
    largest_features = np.max(
        np.abs(expected_features), axis=0, initial=0, where=np.isfinite(expected_features)
    )
    tables.add("scale", largest_features, "float")
    placeholders = placeholders | {
        "include": f'#include "{placeholders["p"]}.h"\n' if compares_decisions else "",
        "tables": str(tables),
        "read": "READ_FLOAT(source + i)"
        if element_type == "float"
        else f"READ({element_type}, source + i)",
        "feature_type": feature_type,
        "bound": c_text.c_number(MAX_RELATIVE_ERROR),
        "n_windows": str(len(windows)),
        "n_features": str(len(features)),
        "size": str(math.prod(windows.shape[1:])),
    }
    decision_texts = {
        section: c_text.fill_template(SELFTEST_TEMPLATE, section, **placeholders)
        if compares_decisions
        else ""
        for section in ("decisions", "compare")
    }
    return c_text.fill_template(SELFTEST_TEMPLATE, "test", **placeholders, **decision_texts)
