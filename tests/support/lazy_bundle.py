"""The small bundle with a stage of one tree, which acquires features node by node.

The tree is over a, c and d. If ``a <= 0``, the answer is a sure no; otherwise, if ``c <= 0``, a
weak no; otherwise, if ``d <= 0``, a weak yes, and above it a sure yes. If the stage is not sure,
the cloud reads a, c and e. Features c and d share the price of the group "blood".
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gatewise.models.trees import TreeEnsemble
from gatewise_export.bundle.arrays import read_arrays, write_arrays
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.bundle.flat_models import write_model
from tests.support.bundle_files import replace_file
from tests.support.hand_made_bundle import make_stage_entry
from tests.support.small_bundle import NAMES, write_bundle

#: Features of the stage.
STAGE_INPUTS = ["a", "c", "d"]
# Rows of a to f; no node tests a 9.
SURE_NO_ROW = [-1.0, 9, 9, 9, 9, 9]
SURE_YES_ROW = [1.0, 9, 1.0, 1.0, 9, 9]
UNSURE_ROW = [1.0, 9, -1.0, 9, -1.0, 9]


def write_trees(trees: TreeEnsemble) -> bytes:
    return write_model(trees.in_canonical_order())


def make_tree(**changes: Any) -> TreeEnsemble:
    """Make the tree of these tests: the nodes 0, 2 and 4 test a, c and d, the others are leaves."""
    arrays = {
        "feature": np.array([0, -1, 1, -1, 2, -1, -1], np.int32),
        "threshold": np.zeros(7, np.float32),
        "left": np.array([1, -1, 3, -1, 5, -1, -1], np.int32),
        "right": np.array([2, -1, 4, -1, 6, -1, -1], np.int32),
        "nan_left": np.array([0, 0, 1, 0, 0, 0, 0], np.bool_),
        "value": np.array([[0], [-2], [0], [-0.1], [0], [0.1], [2]], np.float32),
        "roots": np.array([0], np.int32),
        "output": np.array([0], np.int32),
        "base": np.array([0], np.float32),
    }
    return TreeEnsemble(**arrays | changes, n_features=3)


def replace_files(bundle: Bundle, files: dict[str, bytes], **fields: Any) -> Bundle:
    """Replace fields of a bundle's manifest, then files, their hashes and sizes.

    The manifest keeps only the files that the stages and the cloud name, and the sample.
    """
    manifest_file = bundle.path / "manifest.json"
    document = json.loads(manifest_file.read_text()) | fields
    if document["cloud"] is None:
        document["largest_request"] = 0
    models = [*document["stages"], document["cloud"] or {}]
    used_files = {model.get(key) for model in models for key in ("arrays", "graph", "file")}
    document["files"] = {
        name: entry
        for name, entry in document["files"].items()
        if name in used_files | {"sample.npz"}
    }
    manifest_file.write_text(json.dumps(document))
    for name, content in files.items():
        replace_file(bundle.path, name, content)
    return Bundle.open(bundle.path)


def replace_trees(bundle: Bundle, trees: TreeEnsemble) -> Bundle:
    """Replace the trees of the stage and their hash, so that only the self-test can detect it."""
    return replace_files(bundle, {"stage_1.npz": write_trees(trees)})


def write_lazy_bundle(path: Path, *, is_second: bool = False, **changes: Any) -> Bundle:
    """Write the bundle; with `is_second` its stage follows the first stage of the small bundle.

    `changes` are fields of the small bundle's manifest.
    """
    bundle = write_bundle(path, **changes)
    manifest = json.loads(bundle.manifest.to_json())
    tree_stage = make_stage_entry(1, STAGE_INPUTS, "lazy")
    stages = [manifest["stages"][0], tree_stage] if is_second else [tree_stage]
    points = [point | {"thresholds": [1.0] * len(stages)} for point in manifest["operating_points"]]
    trees = make_tree()
    sample = read_arrays(bundle.read("sample.npz"))
    stage_rows = sample["X"][:, [NAMES.index(name) for name in STAGE_INPUTS]]
    stage_index = len(stages) - 1
    sample[f"stage_{stage_index}"] = trees.margins(stage_rows)
    sample[f"bought_{stage_index}"] = trees.visited_features(stage_rows)
    return replace_files(
        bundle,
        {"stage_1.npz": write_trees(trees), "sample.npz": write_arrays(sample)},
        stages=stages,
        chains=[list(range(len(stages)))],
        operating_points=points,
    )


@pytest.fixture
def lazy_bundle(tmp_path: Path) -> Bundle:
    """Fixture with the bundle; imported by conftests."""
    return write_lazy_bundle(tmp_path / "lazy")
