"""Images of digits, and classifiers of them as ONNX files that this project did not write."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier

from gatewise_export.bundle.bundle import Bundle
from gatewise_export.packing.bundle_writer import pack
from gatewise_training import PairCascade
from tests.support.onnx_graphs import TensorSpec, graph_of, node


def load_digit_images() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Load images, uint8 of shape (1797, 8, 8), and their digits."""
    X, y = load_digits(return_X_y=True)
    return X.reshape(-1, 8, 8).astype(np.uint8), y


def fit_conv_graph(images: NDArray[np.uint8], y: NDArray[np.int64]) -> bytes:
    """Make a small convolutional classifier from ``image``, float32 (n, 1, 8, 8), to ``logits``.

    It has random filters, batch normalisation and a fitted last layer.
    """
    rng = np.random.default_rng(0)
    filters = rng.normal(size=(12, 1, 3, 3)).astype(np.float32)
    scale = np.full(12, 1 / 16, np.float32)  # pixels are 0 to 16
    zeros = np.zeros(12, np.float32)
    ones = np.ones(12, np.float32)
    trunk_nodes = [
        node("Conv", "image filters", "convolved", kernel_shape=[3, 3], pads=[1] * 4),
        node("BatchNormalization", "convolved scale zeros zeros ones", "normalised"),
        node("Relu", "normalised", "rectified"),
        node("MaxPool", "rectified", "pooled", kernel_shape=[2, 2], strides=[2, 2]),
        node("Flatten", "pooled", "flat", axis=1),
    ]
    constants = {"filters": filters, "scale": scale, "zeros": zeros, "ones": ones}
    graph_input: TensorSpec = ("image", TensorProto.FLOAT, ["n", 1, 8, 8])
    # padding keeps 8 x 8 pixels, and pooling leaves 4 x 4 of each filter
    flat_output: TensorSpec = ("flat", TensorProto.FLOAT, ["n", 12 * 4 * 4])
    session = onnxruntime.InferenceSession(
        graph_of(trunk_nodes, graph_input, flat_output, **constants),
        providers=["CPUExecutionProvider"],
    )
    x = images[:, None].astype(np.float32)
    regression = LogisticRegression(C=0.1, max_iter=1000).fit(session.run(None, {"image": x})[0], y)
    weights = regression.coef_.T.astype(np.float32)
    bias = regression.intercept_.astype(np.float32)
    last_node = node("Gemm", "flat weights bias", "logits")
    return graph_of(
        [*trunk_nodes, last_node],
        graph_input,
        ("logits", TensorProto.FLOAT, ["n", 10]),
        weights=weights,
        bias=bias,
        **constants,
    )


def fit_mlp_graph(images: NDArray[np.uint8], y: NDArray[np.int64]) -> bytes:
    """Export a scikit-learn network by skl2onnx, with flat input, labels and a ZipMap."""
    import skl2onnx
    from skl2onnx.common.data_types import FloatTensorType

    x = images.reshape(len(images), -1).astype(np.float32)
    network = MLPClassifier((64,), max_iter=60, early_stopping=True, random_state=0).fit(x, y)
    input_types = [("pixels", FloatTensorType([None, 64]))]
    return bytes(skl2onnx.to_onnx(network, initial_types=input_types).SerializeToString())


def pack_image_pair(path: Path) -> Bundle:
    """Pack a pair of models of the images, whose requests have uint8 values."""
    images, y = load_digit_images()
    pair = PairCascade(
        low_cost_model=fit_mlp_graph(images[:100], y[:100]),
        high_cost_model=fit_mlp_graph(images[:700], y[:700]),
        offload_rate=0.3,
        random_state=0,
    ).fit(images[700:])
    return pack(pair, path, sample=images[700:720], name="digits")
