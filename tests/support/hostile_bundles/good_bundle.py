"""A valid bundle, and functions that write changed copies of it."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise.decision import labels, probabilities
from gatewise.models.linear import LinearModel
from gatewise.models.trees import TreeEnsemble
from gatewise_export.bundle.arrays import write_arrays
from gatewise_export.bundle.flat_models import canonical_model, write_model
from gatewise_export.onnx_writer import write_graph
from tests.support.hand_made_bundle import DOCUMENT, Document, completed_document, stage_entry

F32 = np.float32
NAMES = ("age", "chol", "fbs", "thal")
INPUTS = ((0, 3), (2, 0, 1), (0, 1))
KINDS = ("linear", "trees", "lazy")


def linear(width: int, outputs: int) -> LinearModel:
    weights = np.random.default_rng(width).normal(size=(width, outputs)).astype(F32)
    return LinearModel(np.zeros(width, F32), np.ones(width, F32), weights, np.zeros(outputs, F32))


def ensemble(left: Any, right: Any, roots: Any, width: int) -> TreeEnsemble:
    """Make trees with the given structure, whose nodes test the first column."""
    n = len(left)
    return TreeEnsemble(
        feature=np.where(np.asarray(left) < 0, -1, 0).astype(np.int32),
        threshold=np.linspace(-1, 1, n).astype(F32),
        left=np.array(left, np.int32),
        right=np.array(right, np.int32),
        nan_left=np.zeros(n, bool),
        value=np.linspace(-2, 2, n).astype(F32)[:, None],
        roots=np.array(roots, np.int32),
        output=np.zeros(len(roots), np.int32),
        base=np.zeros(1, F32),
        n_features=width,
    )


def trees(width: int) -> TreeEnsemble:
    """Make three trees with two levels of tests."""
    left = np.array([1, 2, -1, -1, 5, -1, -1])
    right = np.array([4, 3, -1, -1, 6, -1, -1])
    roots = np.array([0, 7, 14])
    children = [np.concatenate([np.where(a < 0, a, a + r) for r in roots]) for a in (left, right)]
    return ensemble(*children, roots, width)


MODELS = (linear(2, 1), canonical_model(trees(3)), canonical_model(trees(2)))


def good_files() -> dict[str, bytes]:
    """Make the files of the bundle, without its manifest."""
    x = np.random.default_rng(0).normal(size=(12, 4)).astype(F32)
    files: dict[str, bytes] = {}
    sample: dict[str, NDArray[Any]] = {"X": x}
    for i, (model, inputs, kind) in enumerate(zip(MODELS, INPUTS, KINDS, strict=True)):
        files[f"stage_{i}.npz"] = write_model(model)
        if kind != "lazy":
            files[f"stage_{i}.onnx"] = write_graph(model)
        sample[f"stage_{i}"] = model.margins(x[:, inputs])
    files["cloud.onnx"] = write_graph(trees(4))
    sample["bought_2"] = trees(2).visited_features(x[:, INPUTS[2]])
    margins = trees(4).margins(x)
    sample["cloud_label"] = labels(margins)
    sample["cloud_probabilities"] = probabilities(margins, "sigmoid").astype(F32)
    files["sample.npz"] = write_arrays(sample)
    return files


FILES = good_files()


def document(files: dict[str, bytes]) -> Document:
    """Make the manifest of these files."""
    stages = [
        stage_entry(i, [NAMES[k] for k in inputs], kind)
        for i, (inputs, kind) in enumerate(zip(INPUTS, KINDS, strict=True))
    ]
    point = DOCUMENT["operating_points"][0] | {"thresholds": [0.5, 0.5, 0.25]}
    cloud = {"file": "cloud.onnx", "inputs": list(NAMES), "kind": "margins", "link": "sigmoid"}
    parts = {"stages": stages, "chains": [[0, 1, 2]], "cloud": cloud, "operating_points": [point]}
    return completed_document(DOCUMENT | parts, files)


def write(
    path: Path,
    changed: dict[str, bytes] | None = None,
    manifest_text: str | bytes | None = None,
    *,
    hashes_match: bool = True,
) -> Path:
    """Write a directory bundle.

    With `hashes_match`, the manifest has the hashes of the changed files.
    """
    path.mkdir(parents=True)
    files = FILES | (changed or {})
    for name, content in files.items():
        (path / name).write_bytes(content)
    if manifest_text is None:
        manifest_text = json.dumps(document(files if hashes_match else FILES))
    if isinstance(manifest_text, str):
        manifest_text = manifest_text.encode()
    (path / "manifest.json").write_bytes(manifest_text)
    return path


def zipped(
    path: Path, files: dict[str, bytes] = FILES, *, hashes_match: bool = False, **options: Any
) -> Path:
    """Write a zip bundle.

    With `hashes_match`, the manifest is that of `files`, otherwise that of the good files.
    """
    manifest_text = json.dumps(document(files if hashes_match else FILES)).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path = path.with_suffix(".gwb")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, content in (files | {"manifest.json": manifest_text}).items():
            archive.writestr(name, content, **options)
    return path


Make = Callable[[Path], Path]
"""Function that writes a hostile bundle and returns its path."""
Cases = dict[str, tuple[Make, str]]
"""The function and the expected error message of each kind of hostile bundle."""


def with_file(name: str, content: Callable[[], bytes]) -> Make:
    """Replace a file and its hash in the manifest."""
    return lambda path: write(path, {name: content()})
