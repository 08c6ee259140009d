"""A small handwritten bundle, for tests of reading that do not depend on writing."""

from __future__ import annotations

import copy
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from gatewise.prices import request_bytes
from gatewise_export.bundle.arrays import write_arrays

Document = dict[str, Any]


def make_stage_entry(
    number: int, inputs: list[str], kind: str = "linear", **changed_fields: Any
) -> Document:
    """Make a stage's entry in the manifest, with one margin and a sigmoid link."""
    files = {"arrays": f"stage_{number}.npz", "graph": f"stage_{number}.onnx"}
    if kind in ("graph", "lazy"):
        del files["arrays" if kind == "graph" else "graph"]
    defaults = {"inputs": inputs, "bytes": 0, "link": "sigmoid", "score": "margin", "outputs": 1}
    return {"kind": kind} | defaults | files | changed_fields


DOCUMENT: Document = {
    "schema_version": 2,
    "name": "heart",
    "version": "1",
    "created": "2026-01-31T12:00:00+00:00",
    "min_runtime_version": "0.1.0",
    "task": "classify",
    "classes": ["absent", "present"],
    "link": "sigmoid",
    "features": [
        {"name": "age", "own": 1.0},
        {"name": "chol", "own": 5.17, "group": "blood"},
        {"name": "fbs", "own": 3.1, "group": "blood"},
        {"name": "thal", "own": 100.0},
    ],
    "groups": [{"name": "blood", "shared": 2.1}],
    "prices": {"request": 1.0, "byte": 0.01, "evaluation": 0.5},
    "missing": {"stages": "refused", "cloud": "refused"},
    "stages": [
        make_stage_entry(0, ["age"]),
        make_stage_entry(1, ["fbs", "age"], score="column", outputs=2),
    ],
    "chains": [[0, 1]],
    "cloud": {
        "file": "cloud.onnx",
        "inputs": ["thal", "chol", "age"],
        "kind": "classifier",
        "link": "identity",
    },
    "largest_request": 0,
    "operating_points": [
        {"thresholds": [0.5, -1.25], "expected_cost": 4.0, "accuracy": 0.8, "offload_rate": 0.25},
        {
            "thresholds": [None, None],
            "expected_cost": 115.0,
            "accuracy": 0.9,
            "offload_rate": 1.0,
            "guarantee": {"delta": 0.05, "about": "offload_rate"},
        },
    ],
    "active": 0,
    "files": {},
}

#: The first operating point gives exits 0, 1, 2 (the cloud), 0, 1 and labels 1, 1, 1, 0, 1.
SAMPLE = {
    "X": np.arange(20, dtype=np.float32).reshape(5, 4),
    "stage_0": np.array([[1.0], [0.25], [0.25], [-0.5], [np.nan]], np.float32),
    "stage_1": np.array([[0, 0], [3, -1], [-3, -2], [-4, 0], [1, -1.25]], np.float32),
    "cloud_label": np.array([1, 1, 1, 0, 0]),
    "cloud_probabilities": np.full((5, 2), 0.5, np.float32),
}

FILES = {
    "stage_0.npz": b"first arrays",
    "stage_0.onnx": b"first graph",
    "stage_1.npz": b"second arrays",
    "stage_1.onnx": b"second graph",
    "cloud.onnx": b"large graph",
    "sample.npz": write_arrays(SAMPLE),
}


def complete_document(document: Document, files: dict[str, bytes]) -> Document:
    """Copy a manifest document, and fill in hashes and sizes."""
    document = copy.deepcopy(document)
    for entry in document["stages"]:
        file_names = [entry[key] for key in ("arrays", "graph") if key in entry]
        entry["bytes"] = sum(len(files[name]) for name in file_names)
    if document["cloud"] is not None:
        document["largest_request"] = request_bytes(len(document["cloud"]["inputs"]))
    document["files"] = {
        name: {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
        for name, content in files.items()
    }
    return document


def write_directory(path: Path, document: Document, files: dict[str, bytes]) -> Path:
    """Write a bundle's directory, with errors in the document unchanged."""
    path.mkdir(parents=True)
    for name, content in (files | {"manifest.json": json.dumps(document).encode()}).items():
        (path / name).write_bytes(content)
    return path
