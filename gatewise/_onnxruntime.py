"""onnxruntime without its telemetry, which the wheels from 1.31 on switch on by default."""

from __future__ import annotations

import os
from types import ModuleType

__all__ = ["load"]


def load() -> ModuleType:
    """Import onnxruntime; the switch only counts before its first import."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime

    return onnxruntime  # type: ignore[no-any-return]
