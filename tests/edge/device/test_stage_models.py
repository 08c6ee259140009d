"""Stages run by onnxruntime and by numpy alike; what is not the packed model is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from gatewise.errors import InputError
from gatewise_edge.device.device import Device
from gatewise_edge.device.self_checks import self_test
from gatewise_edge.device.stage_models import FlatRunner, GraphSession
from gatewise_edge.device.stages import load_stages
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.bundle.errors import BundleError, DamagedFileError
from tests.support import tiny_bundle
from tests.support.bundle_files import replace_file
from tests.support.processes import run_python
from tests.support.small_bundle import linear_onnx, write_bundle
from tests.support.stage_runs import run_all

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
def test_a_device_without_onnxruntime_answers_alike(bundle: Bundle, tmp_path: Path) -> None:
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
    with pytest.raises(DamagedFileError, match=r"stage_0\.onnx is not the graph of stage_0\.npz"):
        load_stages(Bundle.open(path), runner="onnxruntime")


# -- given graphs --------------------------------------------------------------------------


def test_a_given_graph_runs_as_it_is(tmp_path: Path) -> None:
    bundle = Bundle.open(tiny_bundle.write_bundle(tmp_path / "tiny"))
    assert bundle.manifest.stages[0].kind == "graph"
    assert self_test(bundle) == 8
    with pytest.raises(BundleError, match=r"stage_0\.onnx was given as a graph: it needs onnxru"):
        load_stages(bundle, runner="numpy")


@pytest.mark.parametrize(
    ("graph", "why"),
    [
        (b"no graph at all", "is not a model that runs here"),
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
from gatewise_export.bundle.errors import BundleError
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
