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
from tests.support.hand_made_bundle import DOCUMENT, Document, complete_document, make_stage_entry

F32 = np.float32
FEATURE_NAMES = ("age", "chol", "fbs", "thal")
STAGE_INPUTS = ((0, 3), (2, 0, 1), (0, 1))
STAGE_KINDS = ("linear", "trees", "lazy")


def make_linear_model(n_columns: int, n_outputs: int) -> LinearModel:
    weights = np.random.default_rng(n_columns).normal(size=(n_columns, n_outputs)).astype(F32)
    return LinearModel(
        np.zeros(n_columns, F32), np.ones(n_columns, F32), weights, np.zeros(n_outputs, F32)
    )


def make_ensemble(left: Any, right: Any, roots: Any, n_columns: int) -> TreeEnsemble:
    """Make trees with the given structure and nodes that test the first column."""
    n_nodes = len(left)
    return TreeEnsemble(
        feature=np.where(np.asarray(left) < 0, -1, 0).astype(np.int32),
        threshold=np.linspace(-1, 1, n_nodes).astype(F32),
        left=np.array(left, np.int32),
        right=np.array(right, np.int32),
        nan_left=np.zeros(n_nodes, bool),
        value=np.linspace(-2, 2, n_nodes).astype(F32)[:, None],
        roots=np.array(roots, np.int32),
        output=np.zeros(len(roots), np.int32),
        base=np.zeros(1, F32),
        n_features=n_columns,
    )


def make_trees(n_columns: int) -> TreeEnsemble:
    """Make three trees with two levels of tests."""
    left = np.array([1, 2, -1, -1, 5, -1, -1])
    right = np.array([4, 3, -1, -1, 6, -1, -1])
    roots = np.array([0, 7, 14])
    children = [
        np.concatenate([np.where(nodes < 0, nodes, nodes + root) for root in roots])
        for nodes in (left, right)
    ]
    return make_ensemble(*children, roots, n_columns)


STAGE_MODELS = (
    make_linear_model(2, 1),
    canonical_model(make_trees(3)),
    canonical_model(make_trees(2)),
)


def make_good_files() -> dict[str, bytes]:
    """Make the files of the bundle, without its manifest."""
    x = np.random.default_rng(0).normal(size=(12, 4)).astype(F32)
    files: dict[str, bytes] = {}
    sample: dict[str, NDArray[Any]] = {"X": x}
    for number, (model, inputs, kind) in enumerate(
        zip(STAGE_MODELS, STAGE_INPUTS, STAGE_KINDS, strict=True)
    ):
        files[f"stage_{number}.npz"] = write_model(model)
        if kind != "lazy":
            files[f"stage_{number}.onnx"] = write_graph(model)
        sample[f"stage_{number}"] = model.margins(x[:, inputs])
    files["cloud.onnx"] = write_graph(make_trees(4))
    sample["bought_2"] = make_trees(2).visited_features(x[:, STAGE_INPUTS[2]])
    margins = make_trees(4).margins(x)
    sample["cloud_label"] = labels(margins)
    sample["cloud_probabilities"] = probabilities(margins, "sigmoid").astype(F32)
    files["sample.npz"] = write_arrays(sample)
    return files


FILES = make_good_files()


def make_document(files: dict[str, bytes]) -> Document:
    """Make the manifest of these files."""
    stages = [
        make_stage_entry(stage_index, [FEATURE_NAMES[k] for k in inputs], kind)
        for stage_index, (inputs, kind) in enumerate(zip(STAGE_INPUTS, STAGE_KINDS, strict=True))
    ]
    point = DOCUMENT["operating_points"][0] | {"thresholds": [0.5, 0.5, 0.25]}
    cloud = {
        "file": "cloud.onnx",
        "inputs": list(FEATURE_NAMES),
        "kind": "margins",
        "link": "sigmoid",
    }
    fields = {"stages": stages, "chains": [[0, 1, 2]], "cloud": cloud, "operating_points": [point]}
    return complete_document(DOCUMENT | fields, files)


def write_directory(
    path: Path,
    changed_files: dict[str, bytes] | None = None,
    manifest_text: str | bytes | None = None,
    *,
    hashes_match: bool = True,
) -> Path:
    """Write a directory bundle.

    With `hashes_match`, the manifest has the hashes of the changed files.
    """
    path.mkdir(parents=True)
    files = FILES | (changed_files or {})
    for name, content in files.items():
        (path / name).write_bytes(content)
    if manifest_text is None:
        manifest_text = json.dumps(make_document(files if hashes_match else FILES))
    if isinstance(manifest_text, str):
        manifest_text = manifest_text.encode()
    (path / "manifest.json").write_bytes(manifest_text)
    return path


def write_zip(
    path: Path, files: dict[str, bytes] = FILES, *, hashes_match: bool = True, **options: Any
) -> Path:
    """Write a zip bundle.

    With `hashes_match`, the manifest is that of `files`, otherwise that of the good files.
    """
    manifest_text = json.dumps(make_document(files if hashes_match else FILES)).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path = path.with_suffix(".gwb")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, content in (files | {"manifest.json": manifest_text}).items():
            archive.writestr(name, content, **options)
    return path


#: Function that writes a hostile bundle at a path, and returns the path of what it wrote.
WriteBundle = Callable[[Path], Path]
#: The function and the expected error message of each kind of hostile bundle.
Cases = dict[str, tuple[WriteBundle, str]]


def replace_file(name: str, content: Callable[[], bytes]) -> WriteBundle:
    """Make a function that writes a bundle with another file and its hash."""
    return lambda path: write_directory(path, {name: content()})
