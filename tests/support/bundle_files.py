"""Files of a bundle, to look at and to exchange; graphs run, rows as tables."""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pandas as pd
from numpy.typing import NDArray

__all__ = ["contents", "replace_file", "rows_as_table", "run_onnx"]


def contents(path: Path) -> dict[str, bytes]:
    """Every file of a bundle, directory or zip, by name."""
    if path.is_dir():
        return {p.name: p.read_bytes() for p in path.iterdir()}
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def replace_file(path: Path, name: str, content: bytes) -> None:
    """Put another file into a bundle's directory, with a manifest that lists it."""
    document = json.loads((path / "manifest.json").read_text())
    document["files"][name] = {
        "sha256": hashlib.sha256(content).hexdigest(),
        "size": len(content),
    }
    for stage in document["stages"]:
        if stage["file"] == name:
            stage["bytes"] = len(content)
    (path / name).write_bytes(content)
    (path / "manifest.json").write_text(json.dumps(document))


def rows_as_table(system: Any, rows: NDArray[np.float32]) -> Any:
    """Rows as the table that the system was fitted on, if it was."""
    names = getattr(system, "feature_names_in_", None)
    return rows if names is None else pd.DataFrame(rows, columns=names)


def run_onnx(model: Any, x: Any) -> dict[str, Any]:
    """Outputs of an ONNX model by name, trees added up in their order."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    read = session.get_inputs()[0].name
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(None, {read: x}), strict=True))
