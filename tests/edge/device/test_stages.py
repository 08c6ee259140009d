"""Stages decide as the manifest says, and a bundle that computes otherwise is found out."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from gatewise.decision import ALWAYS_STOP, STOP_RULES
from gatewise.errors import InputError
from gatewise_edge.device.device import Device
from gatewise_edge.device.self_checks import self_test
from gatewise_edge.device.stages import (
    DeviceStage,
    FlatRunner,
    GraphSession,
    StageOutput,
    load_stages,
)
from gatewise_edge.errors import SelfTestError
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.bundle.errors import BundleError, DamagedFileError
from gatewise_export.bundle.flat_models import write_model
from gatewise_export.bundle.manifest_records import StageSpec
from tests.support import tiny_bundle
from tests.support.bundle_files import replace_file
from tests.support.processes import run_python
from tests.support.small_bundle import linear_model, linear_onnx, sample_rows, write_bundle
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
def test_stage_gives_scores_labels_and_probabilities(outputs, link, score, stop_score, label):
    out = output_of(outputs, link, score, 0.5)
    outcome, probabilities = out.stage.rule.row_outcome(outputs, link)
    assert (out.score, outcome, probabilities.argmax()) == (stop_score, label, label)
    assert probabilities.sum() == pytest.approx(1.0)
    assert out.stops == (stop_score >= 0.5)
    assert not output_of(outputs, link, score, None).stops
    assert output_of(outputs, link, score, ALWAYS_STOP).stops


def output_of(outputs, link, score, threshold):
    spec = StageSpec("s.onnx", ("a",), 1, link, score, len(outputs))
    rule = STOP_RULES[score]
    inputs = np.array([0])
    stage = DeviceStage(0, spec, rule, inputs, threshold, model=None, columns=[0])
    return StageOutput(stage, outputs)


def test_nan_score_never_stops_an_instance():
    assert not output_of([float("nan")], "sigmoid", "margin", ALWAYS_STOP).stops


def test_stages_give_the_margins_and_exits_of_their_formulas(bundle):
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


def test_self_test_finds_a_graph_that_computes_other_outputs(make_bundle):
    weights = np.nextafter(np.float32([[4.0], [0.0]]), np.float32(10))
    with pytest.raises(SelfTestError, match="gives other results here than where") as caught:
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


# -- models ----------------------------------------------------------------------------------

F = np.float32

WITHOUT = """
import json, sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("onnxruntime", "numba", "onnx"):
            raise ImportError(f"no {name} here")

sys.meta_path.insert(0, Hidden())
import numpy as np
from gatewise_edge import Device, self_test
from gatewise_edge.device.stages import load_stages

X = np.load(sys.argv[2])
said = []
with Device(sys.argv[1]) as device:
    tested = self_test(device.bundle)
    for x in X:
        a = device.answer(x)
        said.append([a.label, a.stage, a.cost, a.route, a.reason, list(a.probabilities)])
assert "onnxruntime" not in sys.modules
stages = load_stages(device.bundle)
outputs = [stage.run(np.ascontiguousarray(X[:, stage.inputs])) for stage in stages]
bits = [o.view(np.uint32).tolist() for o in outputs]
print(json.dumps({"tested": tested, "said": said, "bits": bits}, default=str))
"""


@pytest.mark.slow
def test_device_without_onnxruntime_gives_the_same_bits(bundle: Bundle, tmp_path: Path) -> None:
    for runner in ("auto", "onnxruntime", "numpy"):
        assert self_test(bundle, load_stages(bundle, runner=runner)) == 32
    x = np.random.default_rng(1).normal(0, 0.4, (200, 6)).astype(F)
    np.save(tmp_path / "rows.npy", x)
    found = json.loads(run_python(WITHOUT, bundle.path, tmp_path / "rows.npy"))
    assert found["tested"] == 32
    with Device(bundle) as device:
        answers = [device.answer(row) for row in x]
    said = [[a.label, a.stage, a.cost, a.route, a.reason, list(a.probabilities)] for a in answers]
    assert found["said"] == json.loads(json.dumps(said, default=str))
    stages = load_stages(bundle, "onnxruntime")
    assert any(isinstance(stage.model, GraphSession) for stage in stages)
    assert found["bits"] == [o.outputs.view(np.uint32).tolist() for o in run_all(stages, x)]
    assert len({(a.stage, a.route) for a in answers}) > 1


def test_a_runner_that_is_missing_or_unknown_is_named(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(InputError, match=r"'onnxruntime' cannot be used: .*install onnxruntime"):
        load_stages(bundle, runner="onnxruntime")
    assert all(isinstance(stage.model, FlatRunner) for stage in load_stages(bundle))
    with pytest.raises(InputError, match="runner 'tpu'; choose one of auto, onnxruntime, numpy"):
        load_stages(bundle, runner="tpu")


def test_a_graph_that_is_not_written_from_its_arrays_is_refused(tmp_path: Path) -> None:
    path = write_bundle(tmp_path / "bundle").path
    replace_file(path, "stage_0.onnx", linear_onnx(np.array([[4.0], [1.0]])))
    with pytest.raises(DamagedFileError, match=r"stage_0\.onnx does not match stage_0\.npz"):
        load_stages(Bundle.open(path), runner="onnxruntime")


# -- given graphs --------------------------------------------------------------------------


def test_given_graph_runs_unchanged(tmp_path: Path) -> None:
    bundle = Bundle.open(tiny_bundle.write_bundle(tmp_path / "tiny"))
    assert bundle.manifest.stages[0].kind == "graph"
    assert self_test(bundle) == 8
    with pytest.raises(BundleError, match=r"stage_0\.onnx is a given graph and needs onnxru"):
        load_stages(bundle, runner="numpy")


@pytest.mark.parametrize(
    ("graph", "why"),
    [
        (b"no graph at all", "cannot be run on this device"),
        (tiny_bundle.linear_graph(np.ones((4, 2), F)), r"gives float32 \(1, 2\), not .*\(1, 3\)"),
        (tiny_bundle.linear_graph(np.ones((5, 3), F)), "stage_0"),
    ],
    ids=["no graph", "other outputs", "other inputs"],
)
def test_a_given_graph_of_another_form_is_refused(tmp_path: Path, graph: bytes, why: str) -> None:
    path = tiny_bundle.write_bundle(tmp_path / "tiny")
    replace_file(path, "stage_0.onnx", graph)
    with pytest.raises(BundleError, match=why):
        load_stages(Bundle.open(path))


LIMITED = """
import re, sys
from pathlib import Path
from gatewise_edge.device.stages import load_stages
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.bundle.errors import BundleError, DamagedFileError
try:
    load_stages(Bundle.open(sys.argv[1]))
except BundleError as error:
    # ru_maxrss would be that of the process before exec, the tests' own
    peak = int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024
    print(f"{peak} {error}")
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited on Linux alone")
def test_a_given_graph_that_grows_is_refused_within_its_memory(tmp_path: Path) -> None:
    path = tiny_bundle.write_bundle(tmp_path / "tiny")
    replace_file(path, "stage_0.onnx", tiny_bundle.growing_graph())
    peak, _, message = run_python(LIMITED, path).partition(" ")
    assert "stage_0.onnx" in message
    assert int(peak) < 700
