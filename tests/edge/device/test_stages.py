"""Stages decide as the manifest says, and a bundle that computes otherwise is found out."""

from __future__ import annotations

import numpy as np
import pytest

from gatewise.decision import ALWAYS_STOP
from gatewise_edge.device.stage_output import StageOutput
from gatewise_edge.device.stages import StageRunner, self_test
from gatewise_edge.errors import SelfTestError
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.bundle.errors import BundleError
from gatewise_export.bundle.flat_models import write_model
from gatewise_export.bundle.manifest import StageSpec
from tests.support.bundle_files import replace_file
from tests.support.small_bundle import linear_model, linear_onnx, sample_rows
from tests.support.stage_runs import exits, run_all


@pytest.mark.parametrize(
    ("outputs", "link", "score", "scores", "labels"),
    [
        ([[2.0], [-0.5], [0.0]], "sigmoid", "margin", [2.0, 0.5, 0.0], [1, 0, 0]),
        ([[1.0, 3.0, 3.0], [5.0, 1.0, 2.5]], "softmax", "margin", [0.0, 2.5], [1, 0]),
        ([[-1.0, 7.0], [1.0, 0.25]], "sigmoid", "column", [7.0, 0.25], [0, 1]),
    ],
)
def test_scores_labels_and_probabilities(outputs, link, score, scores, labels):
    spec = StageSpec("s.onnx", ("a",), 1, link, score, len(outputs[0]))
    out = StageOutput(np.float32(outputs), spec)
    assert out.score.tolist() == scores
    assert out.labels.tolist() == labels
    assert out.probabilities.argmax(axis=1).tolist() == labels
    np.testing.assert_allclose(out.probabilities.sum(axis=1), 1.0)
    assert out.stops(0.5).tolist() == [value >= 0.5 for value in scores]
    assert out.stops(None).tolist() == [False] * len(scores)
    assert out.stops(ALWAYS_STOP).tolist() == [True] * len(scores)


def test_nan_goes_on_even_where_everything_stops():
    spec = StageSpec("s.onnx", ("a",), 1, "sigmoid", "margin", 1)
    assert StageOutput(np.float32([[np.nan]]), spec).stops(ALWAYS_STOP).tolist() == [False]


def test_runner_follows_the_manifest(bundle):
    runner = StageRunner(bundle)
    X = sample_rows()
    outputs = run_all(runner, X)
    np.testing.assert_array_equal(outputs[0].margins[:, 0], 4 * X[:, 0])
    np.testing.assert_array_equal(outputs[1].margins[:, 0], 4 * X[:, 2])
    sure = [np.abs(4 * X[:, 0]) >= 1, np.abs(4 * X[:, 2]) >= 1]
    expected = np.where(sure[0], 0, np.where(sure[1], 1, 2))
    np.testing.assert_array_equal(exits(runner, outputs), expected)
    assert len(set(expected)) == 3
    one = runner.run(0, np.ascontiguousarray(X[3:4, runner.inputs[0]]))
    np.testing.assert_array_equal(one.outputs, outputs[0].outputs[3:4])


def test_the_self_test_passes_at_every_operating_point(bundle, make_bundle):
    assert self_test(bundle) == 32
    assert self_test(bundle.with_active(1)) == 32
    assert StageRunner(bundle.with_active(1)).thresholds == (None, 1.0)
    assert self_test(make_bundle(cloud=False)) == 32


def forged(bundle: Bundle, weights: np.ndarray) -> Bundle:
    """Replace a stage's files and make the manifest agree: only the self-test can find it."""
    replace_file(bundle.path, "stage_0.npz", write_model(linear_model(weights)))
    replace_file(bundle.path, "stage_0.onnx", linear_onnx(weights))
    return Bundle.open(bundle.path)


def test_a_graph_that_computes_otherwise_is_found(make_bundle):
    weights = np.nextafter(np.float32([[4.0], [0.0]]), np.float32(10))
    with pytest.raises(SelfTestError, match="computes otherwise here than where") as caught:
        self_test(forged(make_bundle(), weights))
    assert set(caught.value.differences) == {"stage_0"}
    assert caught.value.differences["stage_0"] > 10
    turned = -4 * np.eye(2)[:, :1]
    with pytest.raises(SelfTestError) as caught:
        self_test(forged(make_bundle("turned"), turned))
    assert set(caught.value.differences) == {"stage_0", "label"}


@pytest.mark.parametrize(
    ("weights", "says"),
    [
        (np.ones((3, 1)), r"stage_0\.npz: 'mean' is of 3 inputs, not 2"),
        (np.ones((2, 2)), r"stage_0\.npz: 'weights' is of 2 outputs, not 1"),
    ],
)
def test_a_model_of_another_shape_is_refused(make_bundle, weights, says):
    with pytest.raises(BundleError, match=says):
        StageRunner(forged(make_bundle(), weights))
