"""A tiny handwritten bundle with one stage and a high-cost model, both linear in four features."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from gatewise import decision
from gatewise_export.bundle.arrays import write_arrays
from tests.support.hand_made_bundle import (
    DOCUMENT,
    complete_document,
    make_stage_entry,
    write_directory,
)
from tests.support.onnx_graphs import graph_of, node

N_FEATURES = 4
N_CLASSES = 3
NAMES = [f"f{k}" for k in range(N_FEATURES)]


def draw_weights(seed=0, n_classes=N_CLASSES):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(N_FEATURES, n_classes)).astype(np.float32)


CLOUD_WEIGHTS = np.ascontiguousarray(draw_weights()[::-1])


def softmax(margins):
    exponentials = np.exp(margins - margins.max(1, keepdims=True))
    return exponentials / exponentials.sum(1, keepdims=True)


def cloud_answers(X):
    """Compute labels and probabilities of the high-cost model for rows in its column order."""
    margins = np.asarray(X, float) @ CLOUD_WEIGHTS
    return margins.argmax(1), softmax(margins)


def random_rows(n, seed=0):
    return np.random.default_rng(seed).normal(size=(n, N_FEATURES)).astype(np.float32)


def _margins_graph(nodes, **constants):
    margins = ("margins", TensorProto.FLOAT, ["n", "m"])
    return graph_of(nodes, ("x", TensorProto.FLOAT, ["n", N_FEATURES]), margins, **constants)


def linear_graph(weight_matrix):
    return _margins_graph([node("MatMul", "x W", "margins")], W=weight_matrix)


def classifier_graph(weight_matrix):
    return graph_of(
        [
            node("MatMul", "x W", "m"),
            node("Softmax", "m", "probabilities", axis=1),
            node("ArgMax", "m", "label", axis=1, keepdims=0),
        ],
        ("x", TensorProto.FLOAT, ["n", N_FEATURES]),
        ("label", TensorProto.INT64, ["n"]),
        ("probabilities", TensorProto.FLOAT, ["n", "m"]),
        W=weight_matrix,
    )


def slow_graph(matrix_size=1024, n_products=4, limit=None):
    """Make a slow graph of the high-cost model, with matrix products that do not affect the result.

    With a `limit` it fails at run time if a value of x reaches the limit.
    """
    products = [node("MatMul", f"A{k} C", f"A{k + 1}") for k in range(n_products)]
    return _margins_graph(
        [
            node("ReduceSum", "x", "total", keepdims=0),
            node("Mul", "total zero", "nothing"),
            node("Add", "C nothing", "A0"),
            *products,
            node("ReduceSum", f"A{n_products}", "sum", keepdims=0),
            node("Mul", "sum zero", "void"),
            node("ReduceMax", "x", "largest", keepdims=0),
            node("Mul", "largest zero" if limit is None else "largest one", "scaled"),
            node("Abs", "scaled", "size"),
            node("Cast", "size", "index", to=TensorProto.INT64),
            node("Gather", "zeros index", "none"),
            node("MatMul", "x W", "m"),
            node("Sum", "m void none", "margins"),
        ],
        W=CLOUD_WEIGHTS,
        C=np.full((matrix_size, matrix_size), 1e-4, np.float32),
        zero=np.float32(0.0),
        one=np.float32(1.0),
        zeros=np.zeros(limit or 1, np.float32),
    )


def growing_graph(vector_size=22_600):
    """Make a graph of the high-cost model with an intermediate product of 2 GB.

    Its factors are reshaped constants, so that shape inference does not know the size.
    """
    return _margins_graph(
        [
            node("Reshape", "v column", "a"),
            node("Reshape", "v row", "b"),
            node("MatMul", "a b", "product"),
            node("ReduceSum", "product", "sum", keepdims=0),
            node("Mul", "sum zero", "nothing"),
            node("MatMul", "x W", "m"),
            node("Add", "m nothing", "margins"),
        ],
        W=CLOUD_WEIGHTS,
        v=np.ones(vector_size, np.float32),
        column=np.array([vector_size, 1]),
        row=np.array([1, vector_size]),
        zero=np.float32(0.0),
    )


def costly_graph(matrix_size=256, n_products=2000):
    """Make a graph of the high-cost model with products of constants that are slow to load."""
    products = [node("MatMul", f"A{k} A0", f"A{k + 1}") for k in range(n_products)]
    return _margins_graph(
        [
            node("Expand", "zero shape", "A0"),
            *products,
            node("ReduceSum", f"A{n_products}", "nothing", keepdims=0),
            node("MatMul", "x W", "m"),
            node("Add", "m nothing", "margins"),
        ],
        W=CLOUD_WEIGHTS,
        zero=np.float32(0.0),
        shape=np.array([matrix_size, matrix_size]),
    )


def write_bundle(
    path,
    *,
    name="tiny",
    version="1",
    kind="margins",
    graph=None,
    missing="refused",
    has_wrong_sample=False,
    has_cloud=True,
    n_classes=N_CLASSES,
    loading=None,
):
    """Write the tiny bundle; `has_wrong_sample` makes the labels in its sample wrong."""
    weight_matrix = draw_weights(n_classes=n_classes)
    # The order of the high-cost model's inputs differs from that of the manifest's features.
    cloud_graph = linear_graph if kind == "margins" else classifier_graph
    X = random_rows(8, seed=1)
    margins = X @ weight_matrix
    labels = margins.argmax(1)
    sample = {
        "X": X,
        "stage_0": margins,
        "cloud_label": (labels + 1) % n_classes if has_wrong_sample else labels,
        "cloud_probabilities": softmax(margins.astype(float)).astype(np.float32),
    }
    files = {"stage_0.onnx": linear_graph(weight_matrix), "sample.npz": write_arrays(sample)}
    if has_cloud:
        files["cloud.onnx"] = graph or cloud_graph(np.ascontiguousarray(weight_matrix[::-1]))
    cloud = {"file": "cloud.onnx", "inputs": NAMES[::-1], "kind": kind, "link": "softmax"}
    threshold = None if has_cloud else decision.ALWAYS_STOP
    document = DOCUMENT | {
        "name": name,
        "version": version,
        "classes": list("abcdefghijklmnopqrstuvwxyz"[:n_classes]),
        "link": "softmax",
        "features": [{"name": feature, "own": 1.0} for feature in NAMES],
        "groups": [],
        "prices": {"request": 0.0, "byte": 0.0, "evaluation": 0.0},
        "missing": {"stages": missing, "cloud": missing},
        "chains": [[0]],
        "stages": [make_stage_entry(0, NAMES, "graph", link="softmax", outputs=n_classes)],
        "cloud": cloud if has_cloud else None,
        "loading": loading,
        "operating_points": [DOCUMENT["operating_points"][0] | {"thresholds": [threshold]}],
    }
    return write_directory(path, complete_document(document, files), files)
