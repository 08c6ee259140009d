"""A tiny bundle made by hand: one stage and a high-cost model, linear in four features."""

from __future__ import annotations

import hashlib
import io
import json

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from gatewise import decision

FEATURES = 4
CLASSES = 3


def weights(seed=0, classes=CLASSES):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(FEATURES, classes)).astype(np.float32)


CLOUD_W = np.ascontiguousarray(weights()[::-1])


def expected(X):
    """Labels and probabilities of the high-cost model for rows in its own order."""
    margins = np.asarray(X, float) @ CLOUD_W
    exponents = np.exp(margins - margins.max(1, keepdims=True))
    return margins.argmax(1), exponents / exponents.sum(1, keepdims=True)


def rows(n, seed=0):
    return np.random.default_rng(seed).normal(size=(n, FEATURES)).astype(np.float32)


def _graph(nodes, outputs, constants, inputs=FEATURES):
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, inputs])],
        [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in outputs],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="test"
    )
    onnx.checker.check_model(model)
    return model.SerializeToString()


def linear_graph(W):
    return _graph(
        [helper.make_node("MatMul", ["x", "W"], ["margins"])],
        [("margins", TensorProto.FLOAT, [None, None])],
        {"W": W},
    )


def classifier_graph(W):
    return _graph(
        [
            helper.make_node("MatMul", ["x", "W"], ["m"]),
            helper.make_node("Softmax", ["m"], ["probabilities"], axis=1),
            helper.make_node("ArgMax", ["m"], ["label"], axis=1, keepdims=0),
        ],
        [("label", TensorProto.INT64, [None]), ("probabilities", TensorProto.FLOAT, [None, None])],
        {"W": W},
    )


def slow_graph(W, size=1024, turns=4, limit=None):
    """The linear graph, after matrix products that depend on x and change nothing.

    With a limit, it fails at run time where a value of x reaches that.
    """
    constants = {
        "W": W,
        "C": np.full((size, size), 1e-4, np.float32),
        "zero": np.float32(0.0),
        "zeros": np.zeros(limit or 1, np.float32),
    }
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["total"], keepdims=0),
        helper.make_node("Mul", ["total", "zero"], ["nothing"]),
        helper.make_node("Add", ["C", "nothing"], ["A0"]),
    ]
    nodes += [helper.make_node("MatMul", [f"A{t}", "C"], [f"A{t + 1}"]) for t in range(turns)]
    nodes += [
        helper.make_node("ReduceSum", [f"A{turns}"], ["sum"], keepdims=0),
        helper.make_node("Mul", ["sum", "zero"], ["void"]),
        helper.make_node("ReduceMax", ["x"], ["largest"], keepdims=0),
        helper.make_node("Mul", ["largest", "zero" if limit is None else "one"], ["scaled"]),
        helper.make_node("Abs", ["scaled"], ["size"]),
        helper.make_node("Cast", ["size"], ["index"], to=TensorProto.INT64),
        helper.make_node("Gather", ["zeros", "index"], ["none"]),
        helper.make_node("MatMul", ["x", "W"], ["m"]),
        helper.make_node("Sum", ["m", "void", "none"], ["margins"]),
    ]
    constants["one"] = np.float32(1.0)
    return _graph(nodes, [("margins", TensorProto.FLOAT, [None, None])], constants)


def growing_graph(W, size=22_600):
    """The linear graph, after a product of two vectors that takes 2 GB and changes nothing.

    Each is a reshaped constant, so that no shape says beforehand how large their product is.
    """
    constants = {
        "W": W,
        "v": np.ones(size, np.float32),
        "column": np.array([size, 1]),
        "row": np.array([1, size]),
        "zero": np.float32(0.0),
    }
    nodes = [
        helper.make_node("Reshape", ["v", "column"], ["a"]),
        helper.make_node("Reshape", ["v", "row"], ["b"]),
        helper.make_node("MatMul", ["a", "b"], ["product"]),
        helper.make_node("ReduceSum", ["product"], ["sum"], keepdims=0),
        helper.make_node("Mul", ["sum", "zero"], ["nothing"]),
        helper.make_node("MatMul", ["x", "W"], ["m"]),
        helper.make_node("Add", ["m", "nothing"], ["margins"]),
    ]
    return _graph(nodes, [("margins", TensorProto.FLOAT, [None, None])], constants)


def write_bundle(
    path,
    *,
    name="tiny",
    version="1",
    kind="margins",
    graph=None,
    missing="refused",
    spoil=False,
    has_cloud=True,
    classes=CLASSES,
):
    """Write a bundle of one stage and a high-cost model that is linear in four features."""
    W = weights(classes=classes)
    # The high-cost model reads the features in another order than the manifest lists them.
    cloud_w = np.ascontiguousarray(W[::-1])
    cloud = graph or (linear_graph(cloud_w) if kind == "margins" else classifier_graph(cloud_w))
    stage = linear_graph(W)
    X = np.random.default_rng(1).normal(size=(8, FEATURES)).astype(np.float32)
    margins = X @ W
    exponents = np.exp(margins.astype(float) - margins.max(1, keepdims=True))
    labels = margins.argmax(1).astype(np.int64)
    sample = io.BytesIO()
    np.savez(
        sample,
        X=X,
        stage_0=margins,
        exit=np.ones(8, np.int64),
        label=labels,
        cloud_label=(labels + 1) % classes if spoil else labels,
        cloud_probabilities=(exponents / exponents.sum(1, keepdims=True)).astype(np.float32),
        cost=np.full(8, float(FEATURES)),
    )
    files = {"stage_0.onnx": stage, "sample.npz": sample.getvalue()}
    if has_cloud:
        files["cloud.onnx"] = cloud
    names = [f"f{k}" for k in range(FEATURES)]
    manifest = {
        "schema_version": 1,
        "name": name,
        "version": version,
        "created": "2026-01-01T00:00:00+00:00",
        "min_runtime_version": "0.1.0",
        "task": "classify",
        "classes": list("abcdefghijklmnopqrstuvwxyz"[:classes]),
        "link": "softmax",
        "features": [{"name": n, "own": 1.0, "group": None} for n in names],
        "groups": [],
        "prices": {"request": 0.0, "byte": 0.0, "evaluation": 0.0},
        "missing": {"stages": missing, "cloud": missing},
        "stages": [
            {
                "file": "stage_0.onnx",
                "kind": "graph",
                "inputs": names,
                "carry": [],
                "tier": "device",
                "bytes": len(stage),
                "link": "softmax",
                "score": "margin",
                "outputs": classes,
            }
        ],
        "cloud": {"file": "cloud.onnx", "inputs": names[::-1], "kind": kind, "link": "softmax"},
        "operating_points": [
            {
                "thresholds": [None],
                "expected_cost": 4.0,
                "accuracy": 1.0,
                "offload_rate": 1.0,
                "guarantee": None,
            }
        ],
        "active": 0,
        "files": {
            file: {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
            for file, content in files.items()
        },
    }
    if not has_cloud:
        manifest["cloud"] = None
        manifest["operating_points"][0]["thresholds"] = [decision.ALWAYS_STOP]
    path.mkdir(parents=True)
    for file, content in files.items():
        (path / file).write_bytes(content)
    (path / "manifest.json").write_text(json.dumps(manifest))
    return path


def fragile_graph():
    """The slow graph that fails where a value reaches 100."""
    return slow_graph(CLOUD_W, limit=100)
