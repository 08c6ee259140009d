"""Stages decide as the manifest says, and a bundle that computes otherwise is found out."""

from __future__ import annotations

import numpy as np
import pytest

from gatewise.decision import ALWAYS_STOP, STOP_RULES
from gatewise_edge.device.self_checks import self_test
from gatewise_edge.device.stages import DeviceStage, StageOutput, load_stages
from gatewise_edge.errors import SelfTestError
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.bundle.errors import BundleError
from gatewise_export.bundle.flat_models import write_model
from gatewise_export.bundle.manifest_records import StageSpec
from tests.support.bundle_files import replace_file
from tests.support.small_bundle import linear_model, linear_onnx, sample_rows
from tests.support.stage_runs import exits, run_all


@pytest.mark.parametrize(
    ("outputs", "link", "score", "stop_score", "label"),
    [
        ([2.0], "sigmoid", "margin", 2.0, 1),
        ([-0.5], "sigmoid", "margin", 0.5, 0),
        ([1.0, 3.0, 3.0], "softmax", "margin", 0.0, 1),
        ([5.0, 1.0, 2.5], "softmax", "margin", 2.5, 0),
        ([-1.0, 7.0], "sigmoid", "column", 7.0, 0),
        ([1.0, 0.25], "sigmoid", "column", 0.25, 1),
    ],
)
def test_scores_labels_and_probabilities(outputs, link, score, stop_score, label):
    out = output_of(outputs, link, score)
    assert (out.score, out.label, out.probabilities.argmax()) == (stop_score, label, label)
    assert out.probabilities.sum() == pytest.approx(1.0)
    assert out.stops(0.5) == (stop_score >= 0.5)
    assert not out.stops(None)
    assert out.stops(ALWAYS_STOP)


def output_of(outputs, link, score):
    spec = StageSpec("s.onnx", ("a",), 1, link, score, len(outputs))
    rule = STOP_RULES[score]
    stage = DeviceStage(
        index=0, spec=spec, rule=rule, inputs=np.array([0]), threshold=None, model=None, columns=[0]
    )
    return StageOutput(stage, outputs)


def test_nan_goes_on_even_where_everything_stops():
    assert not output_of([float("nan")], "sigmoid", "margin").stops(ALWAYS_STOP)


def test_stages_follow_the_manifest(bundle):
    stages = load_stages(bundle)
    X = sample_rows()
    runs = run_all(stages, X)
    np.testing.assert_array_equal(runs[0].margins[:, 0], 4 * X[:, 0])
    np.testing.assert_array_equal(runs[1].margins[:, 0], 4 * X[:, 2])
    expected = np.where(np.abs(4 * X[:, 0]) >= 1, 0, np.where(np.abs(4 * X[:, 2]) >= 1, 1, 2))
    np.testing.assert_array_equal(exits(stages, runs), expected)
    assert len(set(expected)) == 3
    one = stages[0].run(np.ascontiguousarray(X[3:4, stages[0].inputs]))
    np.testing.assert_array_equal(one, runs[0].outputs[3:4])


def test_the_self_test_passes_at_every_operating_point(bundle, make_bundle):
    assert self_test(bundle) == 32
    assert self_test(bundle.with_active(1)) == 32
    thresholds = [stage.threshold for stage in load_stages(bundle.with_active(1))]
    assert thresholds == [None, 1.0]
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
        load_stages(forged(make_bundle(), weights))
