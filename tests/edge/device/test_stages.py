"""Stages decide as the manifest states, and the self-test detects results that differ."""

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
from tests.support.stage_runs import exit_indices, run_all


@pytest.mark.parametrize(
    ("margins", "link", "rule_name", "stop_score", "label"),
    # The score of the rule "margin" is the absolute margin, or the difference of the two largest
    # margins. The score of the rule "column" is the last output.
    [
        ([2.0], "sigmoid", "margin", 2.0, 1),
        ([-0.5], "sigmoid", "margin", 0.5, 0),
        ([1.0, 3.0, 3.0], "softmax", "margin", 0.0, 1),
        ([5.0, 1.0, 2.5], "softmax", "margin", 2.5, 0),
        ([-1.0, 7.0], "sigmoid", "column", 7.0, 0),
        ([1.0, 0.25], "sigmoid", "column", 0.25, 1),
    ],
)
def test_stop_score_label_and_probabilities_of_a_stage(margins, link, rule_name, stop_score, label):
    stage_output = make_stage_output(margins, link, rule_name, 0.5)
    row_label, probabilities = stage_output.stage.rule.row_outcome(margins, link)
    assert (stage_output.score, row_label, probabilities.argmax()) == (stop_score, label, label)
    assert probabilities.sum() == pytest.approx(1.0)
    assert stage_output.stops == (stop_score >= 0.5)
    assert not make_stage_output(margins, link, rule_name, None).stops
    assert make_stage_output(margins, link, rule_name, ALWAYS_STOP).stops


def make_stage_output(margins, link, rule_name, threshold):
    """Make the output of a stage with one input and the given margins."""
    spec = StageSpec("s.onnx", ("a",), 1, link, rule_name, len(margins))
    rule = STOP_RULES[rule_name]
    inputs = np.array([0])
    stage = DeviceStage(0, spec, rule, inputs, threshold, model=None, input_list=[0])
    return StageOutput(stage, margins)


def test_nan_score_never_stops_an_instance():
    assert not make_stage_output([float("nan")], "sigmoid", "margin", ALWAYS_STOP).stops


def test_margins_and_exits_of_stages_equal_their_formulas(bundle):
    stages = load_stages(bundle)
    X = sample_rows()
    stage_runs = run_all(stages, X)
    np.testing.assert_array_equal(stage_runs[0].margins[:, 0], 4 * X[:, 0])
    np.testing.assert_array_equal(stage_runs[1].margins[:, 0], 4 * X[:, 2])
    expected_exits = np.where(np.abs(4 * X[:, 0]) >= 1, 0, np.where(np.abs(4 * X[:, 2]) >= 1, 1, 2))
    np.testing.assert_array_equal(exit_indices(stages, stage_runs), expected_exits)
    assert len(set(expected_exits)) == 3
    single_row_margins = stages[0].run(np.ascontiguousarray(X[3:4, stages[0].inputs]))
    np.testing.assert_array_equal(single_row_margins, stage_runs[0].outputs[3:4])


def test_self_test_passes_at_every_operating_point(bundle, make_bundle):
    assert self_test(bundle) == 32  # the rows of the sample
    assert self_test(bundle.with_active(1)) == 32
    thresholds = [stage.threshold for stage in load_stages(bundle.with_active(1))]
    assert thresholds == [None, 1.0]
    assert self_test(make_bundle(has_cloud=False)) == 32


def overwrite_weights(bundle: Bundle, weights: np.ndarray) -> Bundle:
    """Replace a stage's files and their hashes, so that only the self-test can detect it."""
    replace_file(bundle.path, "stage_0.npz", write_model(linear_model(weights)))
    replace_file(bundle.path, "stage_0.onnx", linear_onnx(weights))
    return Bundle.open(bundle.path)


def test_self_test_detects_a_graph_with_other_outputs(make_bundle):
    # The smallest possible change of the weights 4 and 0.
    weights = np.nextafter(np.float32([[4.0], [0.0]]), np.float32(10))
    with pytest.raises(SelfTestError, match="gives other results here than where") as error_info:
        self_test(overwrite_weights(make_bundle(), weights))
    assert set(error_info.value.differences) == {"stage_0"}
    assert (
        error_info.value.differences["stage_0"] > 10
    )  # of 32 rows; rounding hides the change in some
    negated_weights = np.array([[-4.0], [0.0]])
    with pytest.raises(SelfTestError) as error_info:
        self_test(overwrite_weights(make_bundle("negated"), negated_weights))
    assert set(error_info.value.differences) == {"stage_0", "label"}


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones((3, 1)), r"stage_0\.npz: 'mean' has 3 inputs, not 2"),
        (np.ones((2, 2)), r"stage_0\.npz: 'weights' has 2 outputs, not 1"),
    ],
)
def test_model_of_another_shape_is_refused(make_bundle, weights, message):
    with pytest.raises(BundleError, match=message):
        load_stages(overwrite_weights(make_bundle(), weights))


# -- models ----------------------------------------------------------------------------------

#: Answers rows without onnxruntime; prints the answers and the bits of the stages' outputs.
WITHOUT_ONNXRUNTIME = """
import json, sys

class HidingFinder:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("onnxruntime", "numba", "onnx"):
            raise ImportError(f"no {name} here")

sys.meta_path.insert(0, HidingFinder())
import numpy as np
from gatewise_edge import Device, self_test
from gatewise_edge.device.stages import load_stages

X = np.load(sys.argv[2])
answers = []
with Device(sys.argv[1]) as device:
    n_tested = self_test(device.bundle)
    for row in X:
        answer = device.answer(row)
        answers.append(
            [
                answer.label, answer.stage, answer.cost, answer.route, answer.reason,
                list(answer.probabilities),
            ]
        )
assert "onnxruntime" not in sys.modules
stages = load_stages(device.bundle)
outputs = [stage.run(np.ascontiguousarray(X[:, stage.inputs])) for stage in stages]
bits = [output.view(np.uint32).tolist() for output in outputs]
print(json.dumps({"n_tested": n_tested, "answers": answers, "bits": bits}, default=str))
"""


@pytest.mark.slow
def test_device_without_onnxruntime_gives_the_same_bits(bundle: Bundle, tmp_path: Path) -> None:
    for runner in ("auto", "onnxruntime", "numpy"):
        assert self_test(bundle, load_stages(bundle, runner=runner)) == 32
    X = np.random.default_rng(1).normal(0, 0.4, (200, 6)).astype(np.float32)
    np.save(tmp_path / "rows.npy", X)
    script_output = json.loads(run_python(WITHOUT_ONNXRUNTIME, bundle.path, tmp_path / "rows.npy"))
    assert script_output["n_tested"] == 32
    with Device(bundle) as device:
        answers = [device.answer(row) for row in X]
    expected_answers = [
        [
            answer.label,
            answer.stage,
            answer.cost,
            answer.route,
            answer.reason,
            list(answer.probabilities),
        ]
        for answer in answers
    ]
    assert script_output["answers"] == json.loads(json.dumps(expected_answers, default=str))
    stages = load_stages(bundle, "onnxruntime")
    assert any(isinstance(stage.model, GraphSession) for stage in stages)
    assert script_output["bits"] == [
        stage_run.outputs.view(np.uint32).tolist() for stage_run in run_all(stages, X)
    ]
    assert len({(answer.stage, answer.route) for answer in answers}) > 1


def test_error_names_a_runner_that_is_missing_or_unknown(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(InputError, match=r"'onnxruntime' cannot be used: .*install onnxruntime"):
        load_stages(bundle, runner="onnxruntime")
    assert all(isinstance(stage.model, FlatRunner) for stage in load_stages(bundle))
    with pytest.raises(InputError, match="runner 'tpu'; choose one of auto, onnxruntime, numpy"):
        load_stages(bundle, runner="tpu")


def test_graph_that_does_not_match_its_arrays_is_refused(tmp_path: Path) -> None:
    path = write_bundle(tmp_path / "bundle").path
    replace_file(path, "stage_0.onnx", linear_onnx(np.array([[4.0], [1.0]])))
    with pytest.raises(DamagedFileError, match=r"stage_0\.onnx does not match stage_0\.npz"):
        load_stages(Bundle.open(path), runner="onnxruntime")


# -- given graphs --------------------------------------------------------------------------


def test_given_graph_runs_in_onnxruntime_only(tmp_path: Path) -> None:
    bundle = Bundle.open(tiny_bundle.write_bundle(tmp_path / "tiny"))
    assert bundle.manifest.stages[0].kind == "graph"
    assert self_test(bundle) == 8  # the rows of the tiny bundle's sample
    with pytest.raises(BundleError, match=r"stage_0\.onnx is a given graph and needs onnxru"):
        load_stages(bundle, runner="numpy")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (b"no graph at all", "cannot be run on this device"),
        (
            tiny_bundle.linear_graph(np.ones((4, 2), np.float32)),
            r"gives float32 \(1, 2\), not .*\(1, 3\)",
        ),
        (tiny_bundle.linear_graph(np.ones((5, 3), np.float32)), "stage_0"),
    ],
    ids=["no graph", "other outputs", "other inputs"],
)
def test_given_graph_with_other_inputs_or_outputs_is_refused(
    tmp_path: Path, graph: bytes, message: str
) -> None:
    path = tiny_bundle.write_bundle(tmp_path / "tiny")
    replace_file(path, "stage_0.onnx", graph)
    with pytest.raises(BundleError, match=message):
        load_stages(Bundle.open(path))


#: Loads a bundle's stages; prints the process's peak memory in MB and the error.
LOAD_STAGES = """
import re, sys
from pathlib import Path
from gatewise_edge.device.stages import load_stages
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.bundle.errors import BundleError, DamagedFileError
try:
    load_stages(Bundle.open(sys.argv[1]))
except BundleError as error:
    # ru_maxrss also counts the memory of the test process before exec
    peak = int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024
    print(f"{peak} {error}")
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited on Linux only")
def test_given_graph_that_grows_is_refused_within_the_memory_limit(tmp_path: Path) -> None:
    path = tiny_bundle.write_bundle(tmp_path / "tiny")
    replace_file(path, "stage_0.onnx", tiny_bundle.growing_graph())
    peak_mb, _, message = run_python(LOAD_STAGES, path).partition(" ")
    assert "stage_0.onnx" in message
    # Far less than the 2 GB of the graph's product.
    assert int(peak_mb) < 700
