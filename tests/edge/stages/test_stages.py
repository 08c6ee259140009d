"""Stages decide as the manifest says, and a bundle that computes otherwise is found out."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest

from gatewise.decision import ALWAYS_STOP
from gatewise_edge.errors import SelfTestError
from gatewise_edge.stages.stage_output import StageOutput
from gatewise_edge.stages.stages import StageRunner, self_test
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.bundle.errors import BundleError
from gatewise_export.bundle.manifest import StageSpec


def spec(link: str, score: str, outputs: int) -> StageSpec:
    return StageSpec("s.onnx", ("a",), 1, link, score, outputs)  # type: ignore[arg-type]


def test_binary_margins():
    out = StageOutput(np.float32([[2.0], [-0.5], [0.0]]), spec("sigmoid", "margin", 1))
    assert out.score.tolist() == [2.0, 0.5, 0.0]
    assert out.labels.tolist() == [1, 0, 0]
    assert out.stops(0.5).tolist() == [True, True, False]
    assert out.stops(None).tolist() == [False] * 3
    assert out.stops(ALWAYS_STOP).tolist() == [True] * 3
    np.testing.assert_allclose(out.probabilities[0], [1 - 1 / (1 + np.exp(-2.0)), 0.880797], 1e-6)


def test_multiclass_margins_and_ties():
    out = StageOutput(np.float32([[1.0, 3.0, 3.0], [5.0, 1.0, 2.5]]), spec("softmax", "margin", 3))
    assert out.score.tolist() == [0.0, 2.5]
    assert out.labels.tolist() == [1, 0]
    np.testing.assert_allclose(out.probabilities.sum(axis=1), 1.0)


def test_score_column():
    out = StageOutput(np.float32([[-1.0, 7.0], [1.0, np.nan]]), spec("sigmoid", "column", 2))
    assert out.margins.tolist() == [[-1.0], [1.0]]
    assert out.labels.tolist() == [0, 1]
    assert out.stops(7.0).tolist() == [True, False]


def test_nan_goes_on_even_where_everything_stops():
    out = StageOutput(np.float32([[np.nan]]), spec("sigmoid", "margin", 1))
    assert out.stops(ALWAYS_STOP).tolist() == [False]


def test_runner_follows_the_manifest(bundle, tools):
    runner = StageRunner(bundle)
    X = tools.sample_rows()
    outputs = runner.run_all(X)
    np.testing.assert_array_equal(outputs[0].margins[:, 0], 4 * X[:, 0])
    np.testing.assert_array_equal(outputs[1].margins[:, 0], 4 * X[:, 2])
    sure = [np.abs(4 * X[:, 0]) >= 1, np.abs(4 * X[:, 2]) >= 1]
    expected = np.where(sure[0], 0, np.where(sure[1], 1, 2))
    np.testing.assert_array_equal(runner.exits(outputs), expected)
    assert len(set(expected)) == 3
    one = runner.run(0, np.ascontiguousarray(X[3:4, runner.inputs[0]]))
    np.testing.assert_array_equal(one.outputs, outputs[0].outputs[3:4])


def test_self_test_passes_at_every_operating_point(bundle):
    assert self_test(bundle) == 32
    assert self_test(bundle.with_active(1)) == 32
    assert StageRunner(bundle.with_active(1)).thresholds == (None, 1.0)


def test_self_test_of_a_bundle_without_a_cloud(make_bundle):
    assert self_test(make_bundle(cloud=False)) == 32


def forge(bundle: Bundle, name: str, content: bytes) -> Bundle:
    """Replace a file and make the manifest agree: only the self-test can find it."""
    (bundle.path / name).write_bytes(content)
    manifest = json.loads((bundle.path / "manifest.json").read_text())
    manifest["files"][name] = {
        "sha256": hashlib.sha256(content).hexdigest(),
        "size": len(content),
    }
    for stage in manifest["stages"]:
        if stage["file"] == name:
            stage["bytes"] = len(content)
    (bundle.path / "manifest.json").write_text(json.dumps(manifest))
    return Bundle.open(bundle.path)


def test_a_graph_that_computes_otherwise_is_found(make_bundle, tools):
    weights = np.nextafter(np.float32([[4.0], [0.0]]), np.float32(10))
    forged = forge(make_bundle(), "stage_0.onnx", tools.linear_onnx(weights))
    with pytest.raises(SelfTestError, match="computes otherwise here than where") as caught:
        self_test(forged)
    assert set(caught.value.differences) == {"stage_0"}
    assert caught.value.differences["stage_0"] > 10
    turned = forge(make_bundle("turned"), "stage_0.onnx", tools.linear_onnx(-4 * np.eye(2)[:, :1]))
    with pytest.raises(SelfTestError) as caught:
        self_test(turned)
    assert set(caught.value.differences) == {"stage_0", "label"}


@pytest.mark.parametrize(
    ("weights", "says"),
    [
        (
            np.ones((3, 1)),
            r"its graph's inputs are \[x tensor \('n', 3\)\], not 'x', float32 \(n, 2\)",
        ),
        (np.ones((2, 2)), r"its graph's outputs are"),
    ],
)
def test_a_graph_of_another_shape_is_refused(make_bundle, tools, weights, says):
    forged = forge(make_bundle(), "stage_0.onnx", tools.linear_onnx(weights))
    with pytest.raises(BundleError, match=says):
        StageRunner(forged)


def test_no_graph_at_all_is_refused(make_bundle):
    forged = forge(make_bundle(), "stage_1.onnx", b"this is not a protobuf")
    with pytest.raises(BundleError, match=r"stage_1\.onnx is not a usable ONNX file"):
        StageRunner(forged)
