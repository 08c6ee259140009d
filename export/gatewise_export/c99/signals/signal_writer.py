"""``write_signals``: the blocks of windows as files of C99, with a self-test."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from gatewise.errors import InputError
from gatewise_export.c99 import c_text
from gatewise_export.c99.probes import probe_windows
from gatewise_export.c99.signals.signal_source import element_type, write_signal_text
from gatewise_export.c99.signals.step_code import Shape
from gatewise_signals.graph import SignalGraph

SELFTEST = "signals_selftest.c"
#: Largest difference of a feature, as a part of its largest absolute value in the sample.
BOUND = 1e-5
#: Bytes of the self-test's windows.
MOST_SAMPLE_BYTES = 1 << 17


@dataclass(frozen=True)
class SignalSource:
    """Files of blocks that were written, and their sizes.

    `shape` and `dtype` describe a window, `n_steps` and `n_features` count what can be acquired.
    `table_bytes`: the const arrays (flash). `struct_bytes`: the struct that holds the steps'
    results on a machine of 32 bits (memory). `stack_bytes`: the largest use of the stack.
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


def write_signals(
    graph: SignalGraph,
    shape: Shape,
    dtype: DTypeLike,
    folder: str | Path,
    *,
    name: str = "model",
    sample: ArrayLike | None = None,
    features: Iterable[int] | None = None,
) -> SignalSource:
    """Write the blocks of `graph` as C99; :func:`to_c` does so for a system with blocks.

    `name` begins every public name of C. `shape` is that of a window, (samples,), (samples,
    channels), or a picture's; `dtype` int8, uint8, int16, uint16 or float32. `folder` gets
    ``<name>_signals.h``, ``.c`` and ``_selftest.c``, whose windows are those of `sample`, (n, ...),
    as many as take 128 KiB at most. Only the steps that `features` need, all by default, are
    written. ConversionError names steps that C cannot compute; InputError for a name that is no
    identifier, a folder that holds other files of these names, or windows that do not fit the
    blocks.

    ``write_signals(SignalGraph(blocks), (128, 6), "int16", "firmware").struct_bytes`` is the memory
    that a window's results take.
    """
    source, files = signal_files(graph, shape, dtype, c_text.identifier(name), sample, features)
    c_text.write_files(Path(folder), files)
    return source


def signal_files(
    graph: SignalGraph,
    shape: Shape,
    dtype: DTypeLike,
    prefix: str,
    sample: ArrayLike | None = None,
    features: Iterable[int] | None = None,
    *,
    decides: bool = False,
) -> tuple[SignalSource, dict[str, str]]:
    """The files' texts by name; `decides`: there is a model of this prefix to compare with."""
    element_type(dtype)  # refuses other types
    windows = probe_windows(shape, dtype) if sample is None else np.ascontiguousarray(sample)
    if windows.shape[1:] != tuple(shape) or windows.dtype != np.dtype(dtype):
        raise InputError(
            f"sample must have windows of shape {tuple(shape)} and dtype {np.dtype(dtype)}, "
            f"not {windows.shape[1:]} and {windows.dtype}"
        )
    windows = windows[: max(1, MOST_SAMPLE_BYTES // max(windows[:1].nbytes, 1))]
    files, written, sizes = write_signal_text(graph, shape, dtype, prefix, features)
    files[f"{prefix}_signals_selftest.c"] = _selftest(graph, written, windows, prefix, decides)
    source = SignalSource(
        files=tuple(files),
        shape=tuple(shape),
        dtype=np.dtype(dtype).name,
        n_features=len(written),
        **sizes,
        sample_windows=len(windows),
    )
    return source, files


def _selftest(
    graph: SignalGraph,
    features: NDArray[np.int64],
    windows: NDArray[Any],
    prefix: str,
    decides: bool,
) -> str:
    """Write a function that counts windows with features other than Python's."""
    expected = graph.transform(windows)[:, features]
    scale = np.max(np.abs(expected), axis=0, initial=0, where=np.isfinite(expected))
    element = element_type(windows.dtype)
    tables = c_text.Tables()
    tables.add("feature", features, "uint16_t", "The features, by number.")
    tables.add("windows", windows, element)
    tables.add("expected", expected, "float")
    tables.add("scale", scale, "float")
    fill = c_text.template_names(prefix) | {
        "include": f'#include "{prefix}.h"\n' if decides else "",
        "tables": str(tables),
        "element": element,
        "read": "READ_FLOAT(numbers + i)"
        if element == "float"
        else f"READ({element}, numbers + i)",
        "bound": c_text.number(BOUND),
        "n_windows": str(len(windows)),
        "n_features": str(len(features)),
        "size": str(math.prod(windows.shape[1:])),
    }
    parts = {
        p: c_text.filled(SELFTEST, p, **fill) if decides else "" for p in ("decisions", "compare")
    }
    return c_text.filled(SELFTEST, "test", **fill, **parts)
