"""Test of an early exit after the first layer of a network that otherwise runs in the cloud."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import onnxruntime
import pytest
from onnx import helper
from sklearn.neural_network import MLPClassifier

import gatewise as gw
import gatewise_signals as sig
from tests.support.image_models import load_digit_images
from tests.support.onnx_graphs import graph_of

HIDDEN_SIZES = (16, 256, 128)
LAYER_SIZES = (64, *HIDDEN_SIZES, 10)
#: Thousands of multiplications per layer.
OPERATIONS = [n_inputs * n_outputs / 1000 for n_inputs, n_outputs in pairwise(LAYER_SIZES)]


def make_network(images, y):
    """Make a network from ``image`` (n, 8, 8) to ``logits``; ``layer0`` is its first layer."""
    x = images.reshape(-1, 64).astype(np.float32) / 16
    classifier = MLPClassifier(
        HIDDEN_SIZES,
        alpha=0.1,
        max_iter=300,
        early_stopping=True,
        n_iter_no_change=20,
        random_state=0,
    ).fit(x, y)
    constants = {"scale": np.float32(1 / 16)}
    nodes = [
        helper.make_node("Flatten", ["image"], ["flat"], axis=1),
        helper.make_node("Mul", ["flat", "scale"], ["x"]),
    ]
    input_name = "x"
    for k, (weights, bias) in enumerate(
        zip(classifier.coefs_, classifier.intercepts_, strict=True)
    ):
        constants |= {f"w{k}": weights.astype(np.float32), f"b{k}": bias.astype(np.float32)}
        is_output = k == len(HIDDEN_SIZES)
        pre_activation_name = "logits" if is_output else f"sums{k}"
        nodes.append(
            helper.make_node("Gemm", [input_name, f"w{k}", f"b{k}"], [pre_activation_name])
        )
        if not is_output:
            nodes.append(helper.make_node("Relu", [pre_activation_name], [f"layer{k}"]))
        input_name = f"layer{k}"
    return graph_of(nodes, ("image", 1, ["n", 8, 8]), ("logits", 1, ["n", 10]), **constants)


@pytest.mark.slow
def test_an_early_exit_saves_operations_without_a_loss_of_accuracy(tmp_path):
    x, y = load_digit_images()
    path = tmp_path / "network.onnx"
    path.write_bytes(make_network(x[:900], y[:900]))
    first_layer = sig.Block.from_onnx(path, output="layer0", price=OPERATIONS[0])
    cascade = gw.StagedCascade(
        gw.OnnxModel(path), blocks=[first_layer], high_cost_input="window", max_loss=0.0,
        cloud_prices=gw.CloudPrices(evaluation=sum(OPERATIONS)), n_stages=1,
        families=("linear",), effort="low", random_state=0,
    )  # fmt: skip
    cascade.fit(x[:900], y[:900], validation=(x[900:1500], y[900:1500]))
    x_test, y_test = x[1500:], y[1500:]  # digits of other writers
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    logits = session.run(None, {"image": x_test.astype(np.float32)})[0]
    network_labels = logits.argmax(axis=1)
    is_offloaded = cascade.offload(x_test)
    labels = cascade.predict(x_test)
    assert 0.02 < is_offloaded.mean() < 0.5  # some images need the whole network, but most do not
    np.testing.assert_array_equal(labels[is_offloaded], network_labels[is_offloaded])
    # 0.01 allows two more errors in the 297 test images
    assert (labels == y_test).mean() >= (network_labels == y_test).mean() - 0.01
    operations_of_rows = OPERATIONS[0] + is_offloaded * sum(OPERATIONS)
    np.testing.assert_allclose(cascade.cost(x_test), operations_of_rows)
    # the cost leaves out the stage's own model, which is free for the cascade
    stage_operations = HIDDEN_SIZES[0] * 10 / 1000
    # on average, less than a third of the operations of the network
    assert sum(OPERATIONS) / (operations_of_rows.mean() + stage_operations) > 3
    bundle = gw.pack(cascade, tmp_path / "bundle", sample=x[1200:1240])
    assert gw.verify(cascade, bundle, x_test).agrees
    with gw.Device(bundle) as device:
        answers = [device.answer(image) for image in x_test[~is_offloaded][:50]]
    np.testing.assert_array_equal([answer.label for answer in answers], labels[~is_offloaded][:50])
    assert {answer.cost for answer in answers} == {OPERATIONS[0]}
