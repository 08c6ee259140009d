"""Hostile bundles: each is refused, in words, before any graph is opened, in little memory.

Every bundle below is written once and opened twice: here, kind by kind, and in one process of its
own that measures its memory. There onnxruntime is real, but opening a session ends the process.
Bundles with a bad signature are in test_signing.py beside this file.
"""

from __future__ import annotations

import io
import json
import os
import re
import stat
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from gatewise.decision import labels, probabilities
from gatewise.models.linear import LinearModel
from gatewise.models.trees import TreeEnsemble
from gatewise_edge.stages.stages import StageRunner, self_test
from gatewise_export.bundle.arrays import read_arrays, write_arrays
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.bundle.errors import BundleError
from gatewise_export.bundle.flat_trees import write_trees
from gatewise_export.onnx_files.graph_rules import check_cloud_graph
from gatewise_export.packing.graph_parts import tensor
from gatewise_export.packing.onnx_graph import flat_graph
from tests.support.hand_made_bundle import DOCUMENT, Document, complete, stage
from tests.support.onnx_graphs import (
    delimited,
    edited,
    external_data,
    nested_graphs,
    node,
    one_output_graph,
)

pytestmark = pytest.mark.slow  # writes files of hundreds of megabytes

F = np.float32
NAMES = ("age", "chol", "fbs", "thal")
INPUTS = {"stage_0.onnx": (0, 3), "stage_1.onnx": (2, 0, 1), "stage_2.npz": (0, 1)}
PEAK_MB = 200

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


# -- what is done to a bundle --------------------------------------------------------------

Make = Callable[[Path], Path]
"""Writes a hostile bundle; returns where it is."""


def holding(name: str, content: Callable[[], bytes]) -> Make:
    """Another file, which the manifest vouches for."""
    return lambda path: write(path, {name: content()})


def stage_0(content: Callable[[], bytes]) -> Make:
    return holding("stage_0.onnx", content)


def cloud(content: Callable[[], bytes]) -> Make:
    return holding("cloud.onnx", content)


def swapped(*, agree: bool) -> Make:
    """The first two stages in each other's place."""
    names = ("stage_0.onnx", "stage_1.onnx")
    return lambda path: write(
        path, {a: FILES[b] for a, b in zip(names, names[::-1], strict=True)}, agree=agree
    )


def manifest(*where: Any) -> Make:
    """A manifest with another value: keys and places that lead to it, and the value last."""
    *steps, key, value = where

    def make(path: Path) -> Path:
        changed = found = document(FILES)
        for step in steps:
            found = found[step]
        found[key] = value
        return write(path, text=json.dumps(changed))

    return make


def manifest_text(edit: Callable[[str], str | bytes]) -> Make:
    """A manifest with its text changed."""
    return lambda path: write(path, text=edit(json.dumps(document(FILES))))


def in_place_of_a_file(put: Callable[[Path], object]) -> Make:
    """A directory in which the first stage's file is something else."""

    def make(path: Path) -> Path:
        file = write(path) / "stage_0.onnx"
        file.rename(path.parent / "outside")
        put(file)
        return path

    return make


def bytes_changed(edit: Callable[[bytes], bytes]) -> Make:
    """A zip file with its bytes changed."""

    def make(path: Path) -> Path:
        path = zipped(path)
        path.write_bytes(edit(path.read_bytes()))
        return path

    return make


def entry_added(entry: str | zipfile.ZipInfo, content: bytes, *without: str) -> Make:
    """A zip file with one more entry, and perhaps without others."""

    def make(path: Path) -> Path:
        path = zipped(path, {n: c for n, c in FILES.items() if n not in without})
        with zipfile.ZipFile(path, "a") as archive:
            archive.NameToInfo.clear()  # or it would warn of a double
            archive.writestr(entry, content)
        return path

    return make


def link_entry() -> zipfile.ZipInfo:
    link = zipfile.ZipInfo("stage_0.onnx")
    link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    return link


def with_a_million_entries(content: bytes) -> bytes:
    """As many entries as 40 MB hold; each would take half a kilobyte of memory."""
    at = content.rfind(b"PK\x05\x06")
    end = list(struct.unpack("<4s4H2LH", content[at : at + 22]))
    entry = struct.pack("<4s6H3L5H2L", b"PK\1\2", 20, 20, 0, 0, 0, 33, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    filler = entry * 800_000
    end[5] += len(filler)
    return content[:at] + filler + struct.pack("<4s4H2LH", *end)


def more_bytes_than_a_bundle_may_have(text: str) -> str:
    found = json.loads(text)
    for spec in found["files"].values():
        spec["size"] = 1 << 30
    for entry in found["stages"]:
        entry["bytes"] = 1 << 30
    return json.dumps(found)


# -- graphs --------------------------------------------------------------------------------


def bomb() -> bytes:
    return one_output_graph(
        node("ConstantOfShape", "size", "many"),
        node("ReduceSum", "many", "sum"),
        node("ReduceSum", "x one", "own"),
        node("Add", "own sum", "margins"),
        size=[1 << 29],
        one=[1],
    )


def tiles() -> bytes:
    nodes = node("Tile", "one times", "many"), node("ReduceSum", "many", "margins")
    return one_output_graph(*nodes, one=np.ones(1, F), times=[1 << 30])


def product_of_two_long_vectors() -> bytes:
    """Operators that are allowed; onnxruntime would fold the constants while it loads."""
    long = np.ones((20_000, 1), F)
    return one_output_graph(
        node("Mul", "column row", "many"),
        node("CumSum", "many axis", "sums"),
        node("ReduceSum", "x axes", "sum"),
        node("Add", "sum zero", "margins"),
        column=long,
        row=long.T,
        axis=1,
        axes=[1],
        zero=np.zeros(1, F),
    )


def matrix_product_of_long_vectors() -> bytes:
    long = np.ones((10_000, 1), F)
    nodes = node("MatMul", "column row", "many"), node("ReduceSum", "many", "margins")
    return one_output_graph(*nodes, column=long, row=long.T)


def size_from_its_input() -> bytes:
    return one_output_graph(
        node("ReduceMax", "x", "most", keepdims=0),
        node("Range", "zero most one", "many"),
        node("ReduceSum", "many", "margins"),
        zero=F(0),
        one=F(1),
    )


def loop() -> bytes:
    body = helper.make_graph(
        [node("Identity", "go", "again"), node("Identity", "v", "w")],
        "body",
        [
            tensor("i", TensorProto.INT64),
            tensor("go", TensorProto.BOOL),
            tensor("v", TensorProto.FLOAT, "n", 1),
        ],
        [tensor("again", TensorProto.BOOL), tensor("w", TensorProto.FLOAT, "n", 1)],
    )
    nodes = node("ReduceSum", "x axes", "sum"), node("Loop", "turns go sum", "margins", body=body)
    return one_output_graph(*nodes, axes=[1], turns=1 << 60, go=True)


def first_stage(edit: Callable[[onnx.ModelProto], object]) -> Make:
    """The first stage's graph with a change."""
    return stage_0(lambda: edited(FILES["stage_0.onnx"], edit))


def custom_domain(model: onnx.ModelProto) -> None:
    model.opset_import.append(helper.make_opsetid("com.evil", 1))
    model.graph.node[0].domain = "com.evil"


def function(model: onnx.ModelProto) -> None:
    opsets = [helper.make_opsetid("", 17)]
    body = [node("Identity", "a", "c")]
    model.functions.append(helper.make_function("", "Sub", ["a", "b"], ["c"], body, opsets))


def two_outputs_said_to_be_one() -> bytes:
    def edit(model: onnx.ModelProto) -> None:
        model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 1

    return edited(flat_graph(linear(2, 2)).SerializeToString(), edit)


def tree_of_numbers_alone() -> bytes:
    """30 MB that would be 120 MB as numbers, once a list."""
    ints = b"\x40\x01" * (15 << 20)
    attribute = delimited(1, b"nodes_nodeids") + ints + b"\xa0\x01\x07"
    tree = b"".join(
        [
            delimited(1, b"x"), delimited(2, b"margins"), delimited(4, b"TreeEnsembleRegressor"),
            delimited(5, attribute), delimited(7, b"ai.onnx.ml"),
        ]
    )  # fmt: skip
    frame = onnx.load_model_from_string(FILES["stage_1.onnx"])
    del frame.graph.node[:]
    graph = frame.graph.SerializeToString() + delimited(1, tree)
    frame.ClearField("graph")
    return frame.SerializeToString() + delimited(7, graph)


Change = Callable[[list[Any]], list[Any]]


def put(*changes: tuple[int, Any]) -> Change:
    """Put values at places of a list."""
    return lambda found: [dict(changes).get(i, v) for i, v in enumerate(found)]


def tree_graph(**changes: Change) -> bytes:
    """The second stage's trees with lists changed."""

    def edit(model: onnx.ModelProto) -> None:
        for attribute in model.graph.node[0].attribute:
            if attribute.name in changes:
                found = list(helper.get_attribute_value(attribute))
                new = helper.make_attribute(attribute.name, changes[attribute.name](found))
                attribute.CopyFrom(new)

    return edited(FILES["stage_1.onnx"], edit)


def tree_stage(**changes: Change) -> Make:
    return holding("stage_1.onnx", lambda: tree_graph(**changes))


# -- arrays --------------------------------------------------------------------------------


def arrays(file: str, **changed: Callable[[], NDArray[Any]] | None) -> Make:
    """A file of arrays with some exchanged or, for None, left out."""

    def content() -> bytes:
        found = dict(read_arrays(FILES[file]))
        found |= {name: make() for name, make in changed.items() if make is not None}
        return write_arrays({n: a for n, a in found.items() if changed.get(n, a) is not None})

    return holding(file, content)


def at(name: str, place: int, value: int) -> Callable[[], NDArray[Any]]:
    """An array of the lazy stage with one number changed."""

    def change() -> NDArray[Any]:
        array = read_arrays(FILES["stage_2.npz"])[name].copy()
        array[place] = value
        return array

    return change


def lying_header() -> bytes:
    member = io.BytesIO()
    header = {"descr": "<i4", "fortran_order": False, "shape": (1 << 40,)}
    np.lib.format.write_array_header_1_0(member, header)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name in read_arrays(FILES["stage_2.npz"]):
            archive.writestr(f"{name}.npy", member.getvalue())
    return content.getvalue()


def pickled() -> bytes:
    content = io.BytesIO()
    np.savez(content, feature=np.array([{"a": 1}], object))
    return content.getvalue()


# -- every kind: what is done, and what must be said ---------------------------------------

NO_FILE = {"sha256": "0" * 64, "size": 1}

HOSTILE: dict[str, tuple[Make, str]] = {
    # paths and files
    "path traversal in the manifest": (
        manifest("files", "../../etc/passwd", NO_FILE),
        "files: .*etc/passwd' is not",
    ),
    "absolute path in the manifest": (
        manifest("stages", 0, "file", "/etc/passwd"),
        r"stages\[0\]\.file: '/etc/passwd' is not a plain",
    ),
    "path traversal in the zip": (
        entry_added("../stage_0.onnx", FILES["stage_0.onnx"], "stage_0.onnx"),
        r"stage_0\.onnx is missing",
    ),
    "symlink": (
        in_place_of_a_file(lambda file: file.symlink_to(file.parents[1] / "outside")),
        r"stage_0\.onnx cannot be opened as a plain",
    ),
    "symlink in the zip": (
        entry_added(link_entry(), b"/etc/passwd", "stage_0.onnx"),
        r"stage_0\.onnx is not the file that was packed",
    ),
    "pipe": (in_place_of_a_file(os.mkfifo), r"stage_0\.onnx is not a plain file"),
    "directory in place of a file": (
        in_place_of_a_file(Path.mkdir),
        r"stage_0\.onnx (is not a plain|cannot be)",
    ),
    "missing file": (in_place_of_a_file(lambda file: None), r"stage_0\.onnx is missing"),
    "wrong hash": (
        lambda path: write(path, {"stage_1.onnx": FILES["stage_1.onnx"][:-1] + b"!"}, agree=False),
        r"stage_1\.onnx is not the file that was packed \(SHA-256 differs",
    ),
    "wrong size": (
        lambda path: write(path, {"stage_1.onnx": FILES["stage_1.onnx"] + b"\0"}, agree=False),
        r"stage_1\.onnx is not the file that was packed \(size differs",
    ),
    "swapped stages": (swapped(agree=False), "is not the file that was packed"),
    "swapped stages with their true hashes": (
        swapped(agree=True),
        r"stage_0\.onnx is refused: .* inputs are",
    ),
    # zip files
    "truncated zip": (bytes_changed(lambda content: content[:-30]), "is not a bundle|cut off"),
    "zip cut in the middle": (
        bytes_changed(lambda content: content[:700] + content[900:]),
        "cannot be read|is not the file|is missing",
    ),
    "zip bomb": (
        lambda path: zipped(path, FILES | {"stage_0.onnx": bytes(256 << 20)}),
        r"stage_0\.onnx is not the file that was packed \(size differs",
    ),
    "zip bomb with its true size and hash": (
        lambda path: zipped(path, FILES | {"stage_0.onnx": bytes(256 << 20)}, agree=True),
        r"stage_0\.onnx is too large: 268435456 B",
    ),
    "zip with a million entries": (bytes_changed(with_a_million_entries), "entries is larger"),
    "zip with another method": (
        lambda path: zipped(path, compress_type=zipfile.ZIP_LZMA),
        r"manifest\.json is compressed otherwise than by deflate",
    ),
    "duplicate zip entries": (
        entry_added("stage_1.onnx", FILES["stage_1.onnx"]),
        r"stage_1\.onnx stands in it twice",
    ),
    # operators
    "constant of shape": (stage_0(bomb), r"stage_0\.onnx is refused: ConstantOfShape"),
    "tile": (stage_0(tiles), r"stage_0\.onnx is refused: Tile"),
    "product of two long vectors": (
        stage_0(product_of_two_long_vectors),
        "Mul: .* more than 16777216 numbers",
    ),
    "loop in a stage": (stage_0(loop), "is refused: "),
    "custom domain": (first_stage(custom_domain), "asks for the custom domain 'com.evil'"),
    "domain of a runtime": (
        first_stage(lambda model: setattr(model.graph.node[0], "domain", "com.microsoft")),
        "Sub: .* domain 'com.microsoft'",
    ),
    "function": (first_stage(function), "it brings along the function 'Sub'"),
    "external data": (first_stage(external_data), "keeps its data in another file"),
    "tensor larger than its bytes": (
        first_stage(lambda model: model.graph.initializer[0].dims.__setitem__(0, 1 << 40)),
        "'mean' has an impossible shape",
    ),
    # trees
    "cyclic tree": (tree_stage(nodes_truenodeids=put((1, 0))), r"stage_1\.onnx .* a cyclic tree"),
    # every node has one parent, and yet nodes 1 and 4 are a cycle; the root leads to 2 and 3
    "cycle apart from the root": (
        tree_stage(
            nodes_truenodeids=put((0, 2), (1, 4), (4, 5)),
            nodes_falsenodeids=put((0, 3), (1, 6), (4, 1)),
        ),
        "nodes that no root leads to",
    ),
    "feature id out of range": (
        tree_stage(nodes_featureids=put((0, 3))),
        "feature id 3, out of range",
    ),
    "negative feature id": (tree_stage(nodes_featureids=put((0, -1))), "featureids' .* negative"),
    "child out of range": (
        tree_stage(nodes_falsenodeids=put((0, 1 << 30))),
        "falsenodeids' points to a child",
    ),
    "target out of range": (
        tree_stage(target_ids=put((0, 7))),
        "'target_ids' holds 7, out of range",
    ),
    "leaf that is none": (
        tree_stage(target_nodeids=put((0, 0))),
        "'target_nodeids' names .* no leaf",
    ),
    "lists of several lengths": (
        tree_stage(nodes_values=lambda found: found[:-1]),
        "'nodes_values' has 20 entries for 21 nodes",
    ),
    "tree as deep as a stack": (
        holding("stage_1.onnx", lambda: flat_graph(deep_tree(5_000)).SerializeToString()),
        "a tree deeper than 1024 nodes",
    ),
    "tree of numbers alone": (
        holding("stage_1.onnx", tree_of_numbers_alone),
        "has 0 entries for|entries for .* nodes|2097152 are allowed",
    ),
    # other graphs
    "mismatched outputs": (
        stage_0(lambda: flat_graph(linear(2, 2)).SerializeToString()),
        r"outputs are \[margins .* not 'margins', float32 \(n, 1\)",
    ),
    "outputs that are not what they say": (
        stage_0(two_outputs_said_to_be_one),
        r"give \(n, 2\) as 'margins'",
    ),
    "deep nesting": (stage_0(lambda: nested_graphs(400)), "graphs inside graphs"),
    "huge length": (
        stage_0(lambda: b"\x08\x08\x3a" + b"\xff" * 9 + b"\x01" + b"\0" * 20),
        "a length of 18446744073709551615",
    ),
    "truncated graph": (stage_0(lambda: FILES["stage_0.onnx"][:-7]), "not a usable ONNX file"),
    "graph of empty nodes": (
        stage_0(lambda: delimited(7, b"\x0a\x00" * 8_000_000)),
        "too many nodes",
    ),
    "graph beyond its size": (
        stage_0(lambda: bytes(50 << 20)),
        r"stage_0\.onnx is too large: 52428800 B",
    ),
    # lazy stages and samples
    "cyclic lazy tree": (
        arrays("stage_2.npz", left=at("left", 1, 0)),
        r"stage_2\.npz: 'left' must point to a later node",
    ),
    "lazy tree with another feature": (
        arrays("stage_2.npz", feature=at("feature", 0, 9)),
        r"stage_2\.npz: 'feature' points outside",
    ),
    "npz bomb": (
        arrays("stage_2.npz", feature=lambda: np.full(1 << 25, -1, np.int32)),
        r"stage_2\.npz cannot be read: arrays larger than",
    ),
    "npz bomb of many arrays": (
        arrays(
            "stage_2.npz",
            **dict.fromkeys(("feature", "threshold", "left"), lambda: np.zeros(7 << 20, F)),
        ),
        "arrays larger than",
    ),
    "npz with a header that lies": (
        holding("stage_2.npz", lying_header),
        r"stage_2\.npz cannot be read: .*not all there",
    ),
    "npz with a pickle": (
        holding("stage_2.npz", pickled),
        r"stage_2\.npz cannot be read: .*not plain numbers",
    ),
    "sample of the wrong shape": (
        arrays("sample.npz", stage_1=lambda: np.zeros((12, 3), F)),
        r"sample\.npz: 'stage_1' is float32",
    ),
    "sample without an array": (
        arrays("sample.npz", bought_2=None),
        r"sample\.npz lacks the array 'bought_2'",
    ),
    "sample bomb": (
        arrays("sample.npz", X=lambda: np.zeros((1 << 23, 4), F)),
        r"sample\.npz cannot be read: arrays larger than",
    ),
    # manifests
    "deep manifest": (manifest_text(lambda text: "[" * 300_000), "not readable JSON"),
    "manifest of empty lists": (
        manifest_text(lambda text: "[" + "[]," * 1_300_000 + "[]]"),
        "lists and objects, more than",
    ),
    "manifest beyond its size": (
        manifest_text(lambda text: b" " * (60 << 20)),
        r"manifest\.json is larger than",
    ),
    "threshold that is no number": (
        manifest_text(lambda text: text.replace("[0.5, 0.5,", "[0.5, NaN,")),
        "NaN is not JSON",
    ),
    "infinite threshold": (
        manifest_text(lambda text: text.replace("[0.5, 0.5,", "[0.5, 1e999,")),
        r"operating_points\[0\]\.thresholds\[1\]: must be",
    ),
    "manifest with a key twice": (
        manifest_text(lambda text: text[:-1] + ', "active": 0}'),
        "key 'active' stands twice",
    ),
    "more bytes than a bundle may have": (
        manifest_text(more_bytes_than_a_bundle_may_have),
        "files: of more than 2147483648 B",
    ),
    # cloud models: a device passes them over, a worker must not
    "cloud with constant of shape": (cloud(bomb), r"cloud\.onnx .* ConstantOfShape: .* more than"),
    "cloud with a loop": (cloud(loop), r"cloud\.onnx is refused: Loop"),
    "cloud with external data": (
        cloud(lambda: edited(FILES["stage_0.onnx"], external_data)),
        r"cloud\.onnx is refused: .*in another file",
    ),
    "cloud with a cyclic tree": (
        cloud(lambda: tree_graph(nodes_truenodeids=put((1, 0)))),
        r"cloud\.onnx .* a cyclic tree",
    ),
    "cloud with a size from its input": (
        cloud(size_from_its_input),
        r"cloud\.onnx .* Range: .* only a run",
    ),
    "cloud with a product of long vectors": (
        cloud(matrix_product_of_long_vectors),
        r"cloud\.onnx .* MatMul: .* more than",
    ),
}

# -- the tests -----------------------------------------------------------------------------


def open_all(path: Path) -> None:
    """What a device, and a worker, do before the first instance."""
    bundle = Bundle.open(path)
    self_test(bundle)
    check_cloud_graph(bundle.read("cloud.onnx"), file="cloud.onnx")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every kind, written once."""
    folder = tmp_path_factory.mktemp("hostile")
    return {
        name: make(folder / str(i) / "bundle")
        for i, (name, (make, _)) in enumerate(HOSTILE.items())
    }


def test_the_bundle_that_they_are_made_of_is_good(tmp_path: Path) -> None:
    open_all(write(tmp_path / "bundle"))
    open_all(zipped(tmp_path / "archive"))


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_bundle_is_refused_in_words(
    name: str, hostile: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(*args: Any, **settings: Any) -> None:
        pytest.fail("a graph was opened")

    if not name.startswith("cloud"):  # a device may run its stages, a worker refuses the rest
        monkeypatch.setattr("onnxruntime.InferenceSession", opened)
    with pytest.raises(BundleError, match=HOSTILE[name][1]) as caught:
        open_all(hostile[name])
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("name", [n for n in HOSTILE if not n.startswith(("cloud", "sample"))])
def test_the_runner_without_onnxruntime_refuses_them_too(
    name: str, hostile: dict[str, Path]
) -> None:
    with pytest.raises(BundleError, match=HOSTILE[name][1]):
        StageRunner(Bundle.open(hostile[name]), runner="numpy")


OPEN_ALL = """
import json, pathlib, re, resource, sys
import onnxruntime
from gatewise_edge.stages.stages import self_test
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.bundle.errors import BundleError
from gatewise_export.onnx_files.graph_rules import check_cloud_graph

def opened(*args, **settings):
    raise SystemExit("a graph was opened")

def peak():
    status = pathlib.Path("/proc/self/status")
    if status.exists():  # Linux: ru_maxrss begins with what the parent had
        return 1024 * int(re.search(r"VmHWM:\\s+(\\d+) kB", status.read_text())[1])
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

onnxruntime.InferenceSession = opened
said = {}
for name, path in json.load(sys.stdin).items():
    try:
        bundle = Bundle.open(path)
        if name.startswith("cloud"):
            check_cloud_graph(bundle.read("cloud.onnx"), file="cloud.onnx")
        else:
            self_test(bundle)
    except BundleError as error:
        said[name] = str(error), peak()
print(json.dumps(said))
"""


def test_all_of_them_in_one_process_stay_small(hostile: dict[str, Path]) -> None:
    """Peak memory of a process that holds onnxruntime, numpy and every refusal."""
    done = subprocess.run(
        [sys.executable, "-c", OPEN_ALL],
        input=json.dumps({n: str(p) for n, p in hostile.items()}),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    refusals = json.loads(done.stdout)
    assert set(refusals) == set(HOSTILE)
    assert not [n for n, (text, _) in refusals.items() if not re.search(HOSTILE[n][1], text)]
    peaks = {name: peak / 1e6 for name, (_, peak) in refusals.items()}
    first = max(peaks, key=lambda name: peaks[name])
    assert peaks[first] < PEAK_MB, f"{PEAK_MB} MB exceeded, first at {first!r}"
