"""onnxruntime without its telemetry, which the wheels from 1.31 on switch on by default."""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any


def load() -> ModuleType:
    """Import onnxruntime; the switch only counts before its first import."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime

    return onnxruntime  # type: ignore[no-any-return]


def session(graph: bytes) -> Any:
    """Open a session on one thread, with the settings under which devices run a stage's graph."""
    onnxruntime = load()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # two threads are slower on models this small
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
