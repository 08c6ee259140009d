"""Helpers that read, replace and run the files of a bundle."""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any

import onnxruntime


def read_contents(path: Path) -> dict[str, bytes]:
    """Read the files of a bundle, a directory or a zip file, by name."""
    if path.is_dir():
        return {file.name: file.read_bytes() for file in path.iterdir()}
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def replace_file(path: Path, name: str, content: bytes) -> None:
    """Replace a file in the directory of a bundle, and its hash and size in the manifest."""
    document = json.loads((path / "manifest.json").read_text())
    document["files"][name] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
    for stage in document["stages"]:
        file_names = [stage[key] for key in ("arrays", "graph") if key in stage]
        stage["bytes"] = sum(document["files"][file_name]["size"] for file_name in file_names)
    (path / name).write_bytes(content)
    (path / "manifest.json").write_text(json.dumps(document))


def run_onnx(content: bytes, x: Any) -> dict[str, Any]:
    """Compute the outputs of an ONNX file by name, in one thread so that sums are reproducible."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    input_name = session.get_inputs()[0].name
    output_names = [output.name for output in session.get_outputs()]
    return dict(zip(output_names, session.run(None, {input_name: x}), strict=True))
