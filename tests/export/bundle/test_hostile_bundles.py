"""Hostile bundles: each is refused, in words, before any graph is opened, in little memory.

Every bundle below is written once and opened twice: here, kind by kind, and in one process of its
own that measures its memory. There onnxruntime is real, but opening a session ends the process.
Bundles with a bad signature are in test_signing.py beside this file.
"""

from __future__ import annotations

import copy
import hashlib
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

from gatewise.models.linear import LinearModel
from gatewise.models.trees import TreeEnsemble
from gatewise_edge.stages.stages import StageRunner, self_test
from gatewise_export.bundle.arrays import read_arrays, write_arrays
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.bundle.errors import BundleError
from gatewise_export.bundle.flat_trees import write_trees
from gatewise_export.onnx_files.graph_rules import check_cloud_graph
from gatewise_export.packing.graph_parts import constant, tensor
from gatewise_export.packing.onnx_graph import flat_graph

F = np.float32
Document = dict[str, Any]
NAMES = ("age", "chol", "fbs", "thal")
INPUTS = {"stage_0.onnx": (0, 3), "stage_1.onnx": (2, 0, 1), "stage_2.npz": (0, 1)}
PEAK_MB = 200


def linear(width: int, outputs: int) -> LinearModel:
    rng = np.random.default_rng(width)
    return LinearModel(
        np.zeros(width, F),
        np.ones(width, F),
        rng.normal(size=(width, outputs)).astype(F),
        np.zeros(outputs, F),
    )


def trees(width: int) -> TreeEnsemble:
    """Three trees with two levels of tests each."""
    n = 3
    one = np.array([0, 1, -1, -1, 0, -1, -1], np.int32)
    left, right = (
        np.array(a, np.int32) for a in ([1, 2, -1, -1, 5, -1, -1], [4, 3, -1, -1, 6, -1, -1])
    )
    roots = np.arange(n, dtype=np.int32) * 7
    moved = [np.concatenate([np.where(a < 0, a, a + r) for r in roots]) for a in (left, right)]
    return TreeEnsemble(
        feature=np.tile(one, n),
        threshold=np.linspace(-1, 1, 7 * n).astype(F),
        left=moved[0].astype(np.int32),
        right=moved[1].astype(np.int32),
        nan_left=np.zeros(7 * n, bool),
        value=np.linspace(-2, 2, 7 * n).astype(F)[:, None],
        roots=roots,
        output=np.zeros(n, np.int32),
        base=np.zeros(1, F),
        n_features=width,
    )


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
    lazy = MODELS["stage_2.npz"]
    assert isinstance(lazy, TreeEnsemble)
    sample["bought_2"] = lazy.visited(x[:, INPUTS["stage_2.npz"]])
    margins = trees(4).margins(x)[:, 0].astype(float)
    sample["cloud_label"] = (margins > 0).astype(np.int64)
    chances = 1 / (1 + np.exp(-margins))
    sample["cloud_probabilities"] = np.column_stack([1 - chances, chances]).astype(F)
    files["sample.npz"] = write_arrays(sample)
    return files


FILES = good_files()


def document(files: dict[str, bytes]) -> Document:
    """A manifest that agrees with the files."""
    return {
        "schema_version": 1,
        "name": "stranger",
        "version": "1",
        "created": "2026-01-31T12:00:00+00:00",
        "min_runtime_version": "0.1.0",
        "task": "classify",
        "classes": ["absent", "present"],
        "link": "sigmoid",
        "features": [{"name": n, "own": 1.0, "group": None} for n in NAMES],
        "groups": [],
        "prices": {"request": 1.0, "byte": 0.01, "evaluation": 0.5},
        "missing": {"stages": "refused", "cloud": "refused"},
        "stages": [
            {
                "file": name,
                "kind": "lazy" if name.endswith(".npz") else "graph",
                "inputs": [NAMES[i] for i in inputs],
                "carry": [],
                "tier": "device",
                "bytes": len(files.get(name, b"")),
                "link": "sigmoid",
                "score": "margin",
                "outputs": 1,
            }
            for name, inputs in INPUTS.items()
        ],
        "cloud": {
            "file": "cloud.onnx",
            "inputs": list(NAMES),
            "kind": "margins",
            "link": "sigmoid",
        },
        "operating_points": [
            {
                "thresholds": [0.5, 0.5, 0.25],
                "expected_cost": 4.0,
                "accuracy": 0.8,
                "offload_rate": 0.25,
                "guarantee": None,
            }
        ],
        "active": 0,
        "files": {
            n: {"sha256": hashlib.sha256(c).hexdigest(), "size": len(c)} for n, c in files.items()
        },
    }


def write(
    path: Path,
    files: dict[str, bytes] | None = None,
    text: str | bytes | None = None,
    *,
    agree: bool = True,
    **changed: bytes,
) -> Path:
    """Write a directory; `changed` files (dots as __) are known to the manifest if it `agree`s."""
    path.mkdir(parents=True)
    held = dict(FILES if files is None else files)
    new = held | {name.replace("__", "."): content for name, content in changed.items()}
    for name, content in new.items():
        (path / name).write_bytes(content)
    if text is None:
        text = json.dumps(document(new if agree else held))
    (path / "manifest.json").write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def zipped(path: Path, files: dict[str, bytes] | None = None, **options: Any) -> Path:
    files = dict(FILES if files is None else files)
    files["manifest.json"] = json.dumps(options.pop("document", document(files))).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path = path.with_suffix(".gwb")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, content in files.items():
            archive.writestr(name, content, **options)
    return path


# -- the kinds -----------------------------------------------------------------------------

Make = Callable[[Path], Path]
KINDS: dict[str, tuple[Make, str]] = {}


def kind(says: str) -> Callable[[Make], Make]:
    def keep(make: Make) -> Make:
        KINDS[make.__name__.replace("_", " ")] = make, says
        return make

    return keep


def edited(edit: Callable[[Document], object]) -> str:
    changed = copy.deepcopy(document(FILES))
    edit(changed)
    return json.dumps(changed)


def set_point(text: str) -> str:
    return json.dumps(document(FILES)).replace("[0.5, 0.5, 0.25]", f"[0.5, {text}, 0.25]")


@kind(r"files: '\.\./\.\./etc/passwd' is not a plain file name")
def path_traversal_in_the_manifest(path: Path) -> Path:
    entry = {"sha256": "0" * 64, "size": 1}
    return write(path, text=edited(lambda d: d["files"].update({"../../etc/passwd": entry})))


@kind(r"stages\[0\]\.file: '/etc/passwd' is not a plain file name")
def absolute_path_in_the_manifest(path: Path) -> Path:
    return write(path, text=edited(lambda d: d["stages"][0].update(file="/etc/passwd")))


@kind(r"stage_0\.onnx is missing")
def path_traversal_in_the_zip(path: Path) -> Path:
    files = dict(FILES)
    files["../stage_0.onnx"] = files.pop("stage_0.onnx")
    return zipped(path, files, document=document(FILES))


@kind(r"stage_0\.onnx cannot be opened as a plain file")
def symlink(path: Path) -> Path:
    write(path)
    (path.parent / "outside").write_bytes(FILES["stage_0.onnx"])
    (path / "stage_0.onnx").unlink()
    (path / "stage_0.onnx").symlink_to(path.parent / "outside")
    return path


@kind(r"stage_0\.onnx is not the file that was packed")
def symlink_in_the_zip(path: Path) -> Path:
    path = zipped(
        path, {n: c for n, c in FILES.items() if n != "stage_0.onnx"}, document=document(FILES)
    )
    link = zipfile.ZipInfo("stage_0.onnx")
    link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(link, "/etc/passwd")
    return path


@kind(r"stage_0\.onnx is not a plain file")
def pipe(path: Path) -> Path:
    write(path)
    (path / "stage_0.onnx").unlink()
    os.mkfifo(path / "stage_0.onnx")
    return path


@kind(r"stage_0\.onnx is not a plain file|cannot be opened")
def directory_in_place_of_a_file(path: Path) -> Path:
    write(path)
    (path / "stage_0.onnx").unlink()
    (path / "stage_0.onnx").mkdir()
    return path


@kind(r"stage_1\.onnx is not the file that was packed \(SHA-256 differs")
def wrong_hash(path: Path) -> Path:
    content = bytearray(FILES["stage_1.onnx"])
    content[-1] ^= 1
    return write(path, agree=False, stage_1__onnx=bytes(content))


@kind(r"stage_1\.onnx is not the file that was packed \(size differs")
def wrong_size(path: Path) -> Path:
    return write(path, agree=False, stage_1__onnx=FILES["stage_1.onnx"] + b"\0")


@kind("neither a directory nor a .gwb zip file|cut off")
def truncated_zip(path: Path) -> Path:
    path = zipped(path)
    path.write_bytes(path.read_bytes()[:-30])
    return path


@kind("cannot be read|is not the file that was packed|is missing")
def zip_cut_in_the_middle(path: Path) -> Path:
    path = zipped(path)
    content = path.read_bytes()
    path.write_bytes(content[:700] + content[900:])
    return path


@kind(r"stage_0\.onnx is not the file that was packed \(size differs")
def zip_bomb(path: Path) -> Path:
    return zipped(path, FILES | {"stage_0.onnx": bytes(256 << 20)}, document=document(FILES))


@kind(r"stage_0\.onnx is too large: 268435456 B")
def zip_bomb_with_its_true_size_and_hash(path: Path) -> Path:
    return zipped(path, FILES | {"stage_0.onnx": bytes(256 << 20)})


@kind("list of entries is larger")
def zip_with_a_million_entries(path: Path) -> Path:
    """As many entries as 40 MB hold; each would take half a kilobyte of memory."""
    path = zipped(path)
    content = path.read_bytes()
    at = content.rfind(b"PK\x05\x06")
    end = list(struct.unpack("<4s4H2LH", content[at : at + 22]))
    entry = struct.pack("<4s6H3L5H2L", b"PK\1\2", 20, 20, 0, 0, 0, 33, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    filler = entry * 800_000
    end[5] += len(filler)
    path.write_bytes(content[:at] + filler + struct.pack("<4s4H2LH", *end))
    return path


@kind(r"manifest\.json is compressed otherwise than by deflate")
def zip_with_another_method(path: Path) -> Path:
    return zipped(path, compress_type=zipfile.ZIP_LZMA)


@kind(r"stage_1\.onnx is missing")
def missing_file(path: Path) -> Path:
    write(path)
    (path / "stage_1.onnx").unlink()
    return path


@kind("is not the file that was packed")
def swapped_stages(path: Path) -> Path:
    return write(
        path,
        agree=False,
        stage_0__onnx=FILES["stage_1.onnx"],
        stage_1__onnx=FILES["stage_0.onnx"],
    )


@kind(r"stage_0\.onnx is refused: its graph's inputs are \[x tensor \('n', 3\)\]")
def swapped_stages_with_their_true_hashes(path: Path) -> Path:
    return write(path, stage_0__onnx=FILES["stage_1.onnx"], stage_1__onnx=FILES["stage_0.onnx"])


@kind("stage_1.onnx (is missing, or )?stands in it twice")
def duplicate_zip_entries(path: Path) -> Path:
    path = zipped(path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.NameToInfo.pop("stage_1.onnx")  # or it would warn
        archive.writestr("stage_1.onnx", FILES["stage_1.onnx"])
    return path


# graphs


def graph_of(nodes: list[onnx.NodeProto], *constants: onnx.TensorProto) -> bytes:
    """A graph of one input of two columns and one output; nothing checks it here."""
    graph = helper.make_graph(
        nodes,
        "hostile",
        [tensor("x", TensorProto.FLOAT, "n", 2)],
        [tensor("margins", TensorProto.FLOAT, "n", 1)],
        list(constants),
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


def node(kind: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(kind, inputs.split(), outputs.split(), **attributes)


def changed_graph(name: str, edit: Callable[[onnx.ModelProto], object]) -> bytes:
    model = onnx.load_model_from_string(FILES[name])
    edit(model)
    return bytes(model.SerializeToString())


def bomb() -> bytes:
    return graph_of(
        [
            node("ConstantOfShape", "size", "many"),
            node("ReduceSum", "many", "sum"),
            node("ReduceSum", "x one", "own"),
            node("Add", "own sum", "margins"),
        ],
        constant("size", np.array([1 << 29])),
        constant("one", np.array([1])),
    )


@kind(r"stage_0\.onnx is refused: ConstantOfShape: an operator that no stage may use")
def constant_of_shape(path: Path) -> Path:
    return write(path, stage_0__onnx=bomb())


@kind("Tile: an operator that no stage may use")
def tile(path: Path) -> Path:
    content = graph_of(
        [node("Tile", "one times", "many"), node("ReduceSum", "many", "margins")],
        constant("one", np.ones(1, F)),
        constant("times", np.array([1 << 30])),
    )
    return write(path, stage_0__onnx=content)


@kind("Mul: its values hold more than 16777216 numbers a row")
def product_of_two_long_vectors(path: Path) -> Path:
    """Operators that are allowed; onnxruntime would fold the constants while it loads."""
    content = graph_of(
        [
            node("Mul", "column row", "many"),
            node("CumSum", "many axis", "sums"),
            node("ReduceSum", "x axes", "sum"),
            node("Add", "sum zero", "margins"),
        ],
        constant("column", np.ones((20_000, 1), F)),
        constant("row", np.ones((1, 20_000), F)),
        constant("axis", np.array(1)),
        constant("axes", np.array([1])),
        constant("zero", np.zeros(1, F)),
    )
    return write(path, stage_0__onnx=content)


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
    return graph_of(
        [node("ReduceSum", "x axes", "sum"), node("Loop", "turns go sum", "margins", body=body)],
        constant("axes", np.array([1])),
        constant("turns", np.array(1 << 60)),
        constant("go", np.array(True)),
    )


@kind("is refused: ")
def loop_in_a_stage(path: Path) -> Path:
    return write(path, stage_0__onnx=loop())


@kind("is refused: it asks for the custom domain 'com.evil'")
def custom_domain(path: Path) -> Path:
    def edit(model: onnx.ModelProto) -> None:
        model.opset_import.append(helper.make_opsetid("com.evil", 1))
        model.graph.node[0].domain = "com.evil"

    return write(path, stage_0__onnx=changed_graph("stage_0.onnx", edit))


@kind("Sub: an operator of domain 'com.microsoft' that no stage may use")
def domain_of_a_runtime(path: Path) -> Path:
    def edit(model: onnx.ModelProto) -> None:
        model.graph.node[0].domain = "com.microsoft"

    return write(path, stage_0__onnx=changed_graph("stage_0.onnx", edit))


@kind("it brings along the function 'Sub'")
def function(path: Path) -> Path:
    def edit(model: onnx.ModelProto) -> None:
        opsets = [helper.make_opsetid("", 17)]
        body = [node("Identity", "a", "c")]
        made = helper.make_function("", "Sub", ["a", "b"], ["c"], body, opsets)
        model.functions.append(made)

    return write(path, stage_0__onnx=changed_graph("stage_0.onnx", edit))


def outside(model: onnx.ModelProto) -> None:
    weights = model.graph.initializer[0]
    weights.ClearField("raw_data")
    weights.data_location = TensorProto.EXTERNAL
    weights.external_data.add(key="location", value="/etc/passwd")


@kind("keeps its data in another file")
def external_data(path: Path) -> Path:
    return write(path, stage_0__onnx=changed_graph("stage_0.onnx", outside))


@kind("tensor 'mean' has an impossible shape|does not hold")
def tensor_larger_than_its_bytes(path: Path) -> Path:
    def edit(model: onnx.ModelProto) -> None:
        model.graph.initializer[0].dims[:] = [1 << 40]

    return write(path, stage_0__onnx=changed_graph("stage_0.onnx", edit))


def tree_graph(**changes: Callable[[list[Any]], list[Any] | None]) -> bytes:
    """The graph of trees with lists changed."""

    def edit(model: onnx.ModelProto) -> None:
        for attribute in model.graph.node[0].attribute:
            if attribute.name in changes:
                found = list(helper.get_attribute_value(attribute))
                new = helper.make_attribute(attribute.name, changes[attribute.name](found))
                attribute.CopyFrom(new)

    return changed_graph("stage_1.onnx", edit)


def put(place: int, value: Any) -> Callable[[list[Any]], list[Any]]:
    return lambda found: [value if i == place else v for i, v in enumerate(found)]


@kind(r"stage_1\.onnx is refused: TreeEnsembleRegressor: a cyclic tree")
def cyclic_tree(path: Path) -> Path:
    return write(path, stage_1__onnx=tree_graph(nodes_truenodeids=put(1, 0)))


@kind("a cyclic tree: nodes that no root leads to")
def cycle_apart_from_the_root(path: Path) -> Path:
    """Every node has one parent, and yet there is a cycle."""

    def cycle(found: list[Any]) -> list[Any]:
        return put(1, 4)(put(0, 2)(found))  # 0 -> 2; 1 -> 4

    def other(found: list[Any]) -> list[Any]:
        return put(4, 1)(put(0, 3)(found))  # 0 -> 3; 4 -> 1

    content = tree_graph(
        nodes_truenodeids=lambda v: put(4, 5)(cycle(v)),
        nodes_falsenodeids=lambda v: put(1, 6)(other(v)),
    )
    return write(path, stage_1__onnx=content)


@kind("feature id 3, out of range for 3 columns")
def feature_id_out_of_range(path: Path) -> Path:
    return write(path, stage_1__onnx=tree_graph(nodes_featureids=put(0, 3)))


@kind("'nodes_featureids' holds a number that is negative")
def negative_feature_id(path: Path) -> Path:
    return write(path, stage_1__onnx=tree_graph(nodes_featureids=put(0, -1)))


@kind("'nodes_falsenodeids' points to a child that its tree does not have")
def child_out_of_range(path: Path) -> Path:
    return write(path, stage_1__onnx=tree_graph(nodes_falsenodeids=put(0, 1 << 30)))


@kind("'target_ids' holds 7, out of range for 1 outputs")
def target_out_of_range(path: Path) -> Path:
    return write(path, stage_1__onnx=tree_graph(target_ids=put(0, 7)))


@kind("'target_nodeids' names a node that is not there, or no leaf")
def leaf_that_is_none(path: Path) -> Path:
    return write(path, stage_1__onnx=tree_graph(target_nodeids=put(0, 0)))


@kind("'nodes_values' has 20 entries for 21 nodes")
def lists_of_several_lengths(path: Path) -> Path:
    return write(path, stage_1__onnx=tree_graph(nodes_values=lambda found: found[:-1]))


@kind("a tree deeper than 1024 nodes")
def tree_as_deep_as_a_stack(path: Path) -> Path:
    depth = 5_000
    n = 2 * depth + 1
    inner = np.arange(n) % 2 == 0
    inner[-1] = False
    chain = TreeEnsemble(
        feature=np.where(inner, 0, -1).astype(np.int32),
        threshold=np.zeros(n, F),
        left=np.where(inner, np.arange(n) + 1, -1).astype(np.int32),
        right=np.where(inner, np.arange(n) + 2, -1).astype(np.int32),
        nan_left=np.zeros(n, bool),
        value=np.ones((n, 1), F),
        roots=np.zeros(1, np.int32),
        output=np.zeros(1, np.int32),
        base=np.zeros(1, F),
        n_features=3,
    )
    return write(path, stage_1__onnx=flat_graph(chain).SerializeToString())


@kind(r"its graph's outputs are \[margins tensor \('n', 2\)\], not 'margins', float32 \(n, 1\)")
def mismatched_outputs(path: Path) -> Path:
    return write(path, stage_0__onnx=flat_graph(linear(2, 2)).SerializeToString())


@kind(r"its nodes give \(n, 2\) as 'margins', not \(n, 1\)")
def outputs_that_are_not_what_they_say(path: Path) -> Path:
    def edit(model: onnx.ModelProto) -> None:
        model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 1

    model = onnx.load_model_from_string(flat_graph(linear(2, 2)).SerializeToString())
    edit(model)
    return write(path, stage_0__onnx=model.SerializeToString())


def delimited(number: int, content: bytes) -> bytes:
    size, head = len(content), bytearray([number << 3 | 2])
    while size > 127:
        head.append(size & 127 | 128)
        size >>= 7
    return bytes(head) + bytes([size]) + content


@kind("graphs inside graphs, more than 4 deep|too large")
def deep_nesting(path: Path) -> Path:
    graph = b""
    for _ in range(400):
        attribute = delimited(1, b"body") + delimited(6, graph) + b"\xa0\x01\x05"
        graph = delimited(1, delimited(5, attribute))
    return write(path, stage_0__onnx=delimited(7, graph))


@kind("a length of 18446744073709551615 B where")
def huge_length(path: Path) -> Path:
    return write(path, stage_0__onnx=b"\x08\x08\x3a" + b"\xff" * 9 + b"\x01" + b"\0" * 20)


@kind("is not a usable ONNX file: ")
def truncated_graph(path: Path) -> Path:
    return write(path, stage_0__onnx=FILES["stage_0.onnx"][:-7])


@kind("too many nodes, attributes, tensors or names")
def graph_of_empty_nodes(path: Path) -> Path:
    return write(path, stage_0__onnx=delimited(7, b"\x0a\x00" * 8_000_000))


@kind("has 0 entries for|entries for .* nodes|2097152 are allowed")
def tree_of_numbers_alone(path: Path) -> Path:
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
    return write(path, stage_1__onnx=frame.SerializeToString() + delimited(7, graph))


@kind("stage_0.onnx is too large: 52428800 B")
def graph_beyond_its_size(path: Path) -> Path:
    return write(path, stage_0__onnx=bytes(50 << 20))


# lazy stages, samples


def lazy(**changes: Callable[[NDArray[Any]], NDArray[Any]]) -> bytes:
    arrays = dict(read_arrays(FILES["stage_2.npz"]))
    for name, change in changes.items():
        arrays[name] = change(arrays[name].copy())
    return write_arrays(arrays)


def at(place: int, value: Any) -> Callable[[NDArray[Any]], NDArray[Any]]:
    def change(array: NDArray[Any]) -> NDArray[Any]:
        array[place] = value
        return array

    return change


@kind(r"stage_2\.npz: 'left' must point to a later node of the same tree")
def cyclic_lazy_tree(path: Path) -> Path:
    return write(path, stage_2__npz=lazy(left=at(1, 0)))


@kind(r"stage_2\.npz: 'feature' points outside the stage's 2 inputs")
def lazy_tree_with_a_strange_feature(path: Path) -> Path:
    return write(path, stage_2__npz=lazy(feature=at(0, 9)))


@kind(r"stage_2\.npz cannot be read: arrays larger than")
def npz_bomb(path: Path) -> Path:
    return write(path, stage_2__npz=lazy(feature=lambda a: np.full(1 << 25, -1, np.int32)))


@kind("arrays larger than")
def npz_bomb_of_many_arrays(path: Path) -> Path:
    sixty = {name: lambda a: np.zeros(7 << 20, F) for name in ("feature", "threshold", "left")}
    return write(path, stage_2__npz=lazy(**sixty))


@kind("stage_2.npz cannot be read: .*not all there")
def npz_with_a_header_that_lies(path: Path) -> Path:
    member = io.BytesIO()
    header = {"descr": "<i4", "fortran_order": False, "shape": (1 << 40,)}
    np.lib.format.write_array_header_1_0(member, header)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name in read_arrays(FILES["stage_2.npz"]):
            archive.writestr(f"{name}.npy", member.getvalue())
    return write(path, stage_2__npz=content.getvalue())


@kind("stage_2.npz cannot be read: .*not plain numbers")
def npz_with_a_pickle(path: Path) -> Path:
    content = io.BytesIO()
    np.savez(content, feature=np.array([{"a": 1}], object))
    return write(path, stage_2__npz=content.getvalue())


def sample(**changes: NDArray[Any] | None) -> bytes:
    arrays = dict(read_arrays(FILES["sample.npz"])) | changes
    return write_arrays({n: a for n, a in arrays.items() if a is not None})


@kind(r"sample\.npz: 'stage_1' is float32 of shape \(12, 3\)")
def sample_of_the_wrong_shape(path: Path) -> Path:
    return write(path, sample__npz=sample(stage_1=np.zeros((12, 3), F)))


@kind("sample.npz lacks the array 'bought_2'")
def sample_without_an_array(path: Path) -> Path:
    return write(path, sample__npz=sample(bought_2=None))


@kind("sample.npz cannot be read: arrays larger than")
def sample_bomb(path: Path) -> Path:
    return write(path, sample__npz=sample(X=np.zeros((1 << 23, 4), F)))


# manifests


@kind("not readable JSON")
def deep_manifest(path: Path) -> Path:
    return write(path, text="[" * 300_000)


@kind("lists and objects, more than")
def manifest_of_empty_lists(path: Path) -> Path:
    return write(path, text="[" + "[]," * 1_300_000 + "[]]")


@kind("manifest.json is larger than")
def manifest_beyond_its_size(path: Path) -> Path:
    return write(path, text=b" " * (60 << 20))


@kind("NaN is not JSON")
def threshold_that_is_no_number(path: Path) -> Path:
    return write(path, text=set_point("NaN"))


@kind(r"operating_points\[0\]\.thresholds\[1\]: must be")
def infinite_threshold(path: Path) -> Path:
    return write(path, text=set_point("1e999"))


@kind("key 'active' stands twice")
def manifest_with_a_key_twice(path: Path) -> Path:
    text = json.dumps(document(FILES))
    return write(path, text=text[:-1] + ', "active": 0}')


@kind("files: of more than 2147483648 B together")
def more_bytes_than_a_bundle_may_have(path: Path) -> Path:
    def edit(d: Document) -> None:
        for spec in d["files"].values():
            spec["size"] = 1 << 30
        for stage in d["stages"]:
            stage["bytes"] = 1 << 30

    return write(path, text=edited(edit))


# cloud models: a device passes them over, a worker must not


def cloud(content: bytes) -> Make:
    return lambda path: write(path, cloud__onnx=content)


@kind("cloud.onnx is refused: ConstantOfShape: a result of more than")
def cloud_with_constant_of_shape(path: Path) -> Path:
    return write(path, cloud__onnx=bomb())


@kind("cloud.onnx is refused: Loop: an operator that a cloud model may not use")
def cloud_with_a_loop(path: Path) -> Path:
    return write(path, cloud__onnx=loop())


@kind("cloud.onnx is refused: .*in another file")
def cloud_with_external_data(path: Path) -> Path:
    return write(path, cloud__onnx=changed_graph("stage_0.onnx", outside))


@kind("cloud.onnx is refused: TreeEnsembleRegressor: a cyclic tree")
def cloud_with_a_cyclic_tree(path: Path) -> Path:
    return write(path, cloud__onnx=tree_graph(nodes_truenodeids=put(1, 0)))


@kind("cloud.onnx is refused: Range: a result of a size that only a run will know")
def cloud_with_a_size_from_its_input(path: Path) -> Path:
    content = graph_of(
        [
            node("ReduceMax", "x", "most", keepdims=0),
            node("Range", "zero most one", "many"),
            node("ReduceSum", "many", "margins"),
        ],
        constant("zero", np.array(0, F)),
        constant("one", np.array(1, F)),
    )
    return write(path, cloud__onnx=content)


@kind("cloud.onnx is refused: MatMul: a result of more than")
def cloud_with_a_product_of_long_vectors(path: Path) -> Path:
    content = graph_of(
        [node("MatMul", "column row", "many"), node("ReduceSum", "many", "margins")],
        constant("column", np.ones((10_000, 1), F)),
        constant("row", np.ones((1, 10_000), F)),
    )
    return write(path, cloud__onnx=content)


# -- the tests -----------------------------------------------------------------------------


def open_all(path: Path) -> None:
    """What a device, and a worker, do before the first instance."""
    bundle = Bundle.open(path)
    self_test(bundle)
    cloud = bundle.manifest.cloud
    assert cloud is not None
    check_cloud_graph(bundle.read(cloud.file), file=cloud.file)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every kind, written once."""
    folder = tmp_path_factory.mktemp("hostile")
    return {
        name: make(folder / str(i) / "bundle") for i, (name, (make, _)) in enumerate(KINDS.items())
    }


def test_the_bundle_that_they_are_made_of_is_good(tmp_path: Path) -> None:
    open_all(write(tmp_path / "bundle"))
    open_all(zipped(tmp_path / "archive"))
    assert len(KINDS) >= 20


@pytest.mark.parametrize("name", KINDS)
def test_a_hostile_bundle_is_refused_in_words(
    name: str, hostile: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not name.startswith("cloud"):  # a device may run its stages, a worker refuses the rest
        monkeypatch.setattr("onnxruntime.InferenceSession", opened)
    with pytest.raises(BundleError, match=KINDS[name][1]) as caught:
        open_all(hostile[name])
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


def opened(*args: Any, **settings: Any) -> None:
    pytest.fail("a graph was opened")


@pytest.mark.parametrize("name", [n for n in KINDS if not n.startswith(("cloud", "sample"))])
def test_the_runner_without_onnxruntime_refuses_them_too(
    name: str, hostile: dict[str, Path]
) -> None:
    with pytest.raises(BundleError, match=KINDS[name][1]):
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
    said = json.loads(done.stdout)
    assert set(said) == set(KINDS)
    unlike = [n for n, (text, _) in said.items() if not re.search(KINDS[n][1], text)]
    assert not unlike
    peaks = {name: peak / 1e6 for name, (_, peak) in said.items()}
    grew = {n: round(p) for n, p in peaks.items() if p == max(peaks.values())}
    assert max(peaks.values()) < PEAK_MB, f"{PEAK_MB} MB exceeded, first at {next(iter(grew))!r}"
