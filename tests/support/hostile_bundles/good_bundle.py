"""The good bundle that hostile ones are made of."""

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
from gatewise_export.bundle.flat_trees import write_trees
from gatewise_export.packing.onnx_graph import flat_graph
from tests.support.hand_made_bundle import DOCUMENT, Document, complete, stage

F = np.float32
NAMES = ("age", "chol", "fbs", "thal")
INPUTS = {"stage_0.onnx": (0, 3), "stage_1.onnx": (2, 0, 1), "stage_2.npz": (0, 1)}

# -- the good bundle that they are made of -------------------------------------------------


def linear(width: int, outputs: int) -> LinearModel:
    weights = np.random.default_rng(width).normal(size=(width, outputs)).astype(F)
    return LinearModel(np.zeros(width, F), np.ones(width, F), weights, np.zeros(outputs, F))


def ensemble(left: Any, right: Any, roots: Any, width: int) -> TreeEnsemble:
    """Trees of the given structure that test the first column."""
    n = len(left)
    return TreeEnsemble(
        feature=np.where(np.asarray(left) < 0, -1, 0).astype(np.int32),
        threshold=np.linspace(-1, 1, n).astype(F),
        left=np.array(left, np.int32),
        right=np.array(right, np.int32),
        nan_left=np.zeros(n, bool),
        value=np.linspace(-2, 2, n).astype(F)[:, None],
        roots=np.array(roots, np.int32),
        output=np.zeros(len(roots), np.int32),
        base=np.zeros(1, F),
        n_features=width,
    )


def trees(width: int) -> TreeEnsemble:
    """Three trees with two levels of tests each."""
    left, right = np.array([1, 2, -1, -1, 5, -1, -1]), np.array([4, 3, -1, -1, 6, -1, -1])
    roots = np.array([0, 7, 14])
    moved = [np.concatenate([np.where(a < 0, a, a + r) for r in roots]) for a in (left, right)]
    return ensemble(*moved, roots, width)


def deep_tree(depth: int) -> TreeEnsemble:
    """One tree, its right children leaves."""
    n = 2 * depth + 1
    inner = (np.arange(n) % 2 == 0) & (np.arange(n) < n - 1)
    left, right = (np.where(inner, np.arange(n) + step, -1) for step in (1, 2))
    return ensemble(right, left, [0], 3)


MODELS = {"stage_0.onnx": linear(2, 1), "stage_1.onnx": trees(3), "stage_2.npz": trees(2)}


def good_files() -> dict[str, bytes]:
    x = np.random.default_rng(0).normal(size=(12, 4)).astype(F)
    files = {
        name: write_trees(model) if name.endswith(".npz") else flat_graph(model).SerializeToString()
        for name, model in MODELS.items()
    }
    files["cloud.onnx"] = flat_graph(trees(4)).SerializeToString()
    sample: dict[str, NDArray[Any]] = {"X": x}
    for i, (name, model) in enumerate(MODELS.items()):
        sample[f"stage_{i}"] = model.margins(x[:, INPUTS[name]])
    sample["bought_2"] = trees(2).visited(x[:, INPUTS["stage_2.npz"]])
    margins = trees(4).margins(x)
    sample["cloud_label"] = labels(margins)
    sample["cloud_probabilities"] = probabilities(margins, "sigmoid").astype(F)
    files["sample.npz"] = write_arrays(sample)
    return files


FILES = good_files()


def document(files: dict[str, bytes]) -> Document:
    """A manifest that agrees with the files."""
    stages = [
        stage(name, [NAMES[i] for i in inputs], kind="lazy" if name.endswith(".npz") else "graph")
        for name, inputs in INPUTS.items()
    ]
    point = DOCUMENT["operating_points"][0] | {"thresholds": [0.5, 0.5, 0.25]}
    cloud = {"file": "cloud.onnx", "inputs": list(NAMES), "kind": "margins", "link": "sigmoid"}
    parts = {"stages": stages, "cloud": cloud, "operating_points": [point]}
    return complete(DOCUMENT | parts, files)


def write(
    path: Path,
    changed: dict[str, bytes] | None = None,
    text: str | bytes | None = None,
    *,
    agree: bool = True,
) -> Path:
    """Write a directory; `changed` files are known to the manifest if it `agree`s."""
    path.mkdir(parents=True)
    files = FILES | (changed or {})
    for name, content in files.items():
        (path / name).write_bytes(content)
    if text is None:
        text = json.dumps(document(files if agree else FILES))
    (path / "manifest.json").write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def zipped(
    path: Path, files: dict[str, bytes] = FILES, *, agree: bool = False, **options: Any
) -> Path:
    """Write a zip file; its manifest is that of the good files unless it `agree`s with these."""
    text = json.dumps(document(files if agree else FILES)).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path = path.with_suffix(".gwb")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, content in (files | {"manifest.json": text}).items():
            archive.writestr(name, content, **options)
    return path


Make = Callable[[Path], Path]
"""Writes a hostile bundle; returns where it is."""
Cases = dict[str, tuple[Make, str]]
"""By kind: what is done, and what must be said."""


def holding(name: str, content: Callable[[], bytes]) -> Make:
    """Another file, which the manifest vouches for."""
    return lambda path: write(path, {name: content()})
