"""A device without onnxruntime decides alike; its bits are proved with those of all graphs."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gatewise.errors import InputError
from gatewise_edge.device.device import Device
from gatewise_edge.device.graph_runner import GraphRunner
from gatewise_edge.device.stage_models import GraphSession
from gatewise_edge.device.stages import StageRunner, self_test
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.bundle.errors import BundleError
from tests.support.flat_models import random_kernel, random_rows, stage_graph
from tests.support.processes import run_python
from tests.support.stage_runs import run_all
from tests.support.trees import random_trees

F = np.float32


def runner_of(model) -> GraphRunner:
    return GraphRunner(stage_graph(model), "stage.onnx")


def test_many_rows_go_in_parts():
    rng = np.random.default_rng(0)
    model = random_kernel(rng, 40, 20, 3)
    runner = runner_of(model)
    runner._rows = 7
    x = random_rows(rng, 50, 40, strange=True)
    np.testing.assert_array_equal(runner.run(x), runner_of(model).run(x))


def test_trees_of_many_outputs_are_refused_before_their_table_is_made():
    trees, _ = random_trees(0)
    graph = stage_graph(trees)
    ((name, found),) = graph.trees.items()
    n = len(found.leaf)
    targets, ones = np.arange(n, dtype=np.int32), np.ones(n, F)
    wide = replace(found, base=np.zeros(1 << 24, F), target=targets, weight=ones)
    with pytest.raises(BundleError, match=r"s\.onnx is too large to be run without onnxruntime"):
        GraphRunner(replace(graph, trees={name: wide}), "s.onnx")


# -- whole devices -------------------------------------------------------------------------

WITHOUT = """
import json, sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "onnxruntime":
            raise ImportError("no onnxruntime here")

sys.meta_path.insert(0, Hidden())
import numpy as np
from gatewise_edge import Device, StageRunner, self_test
from gatewise_edge.device.graph_runner import GraphRunner

X = np.load(sys.argv[2])
said = []
with Device(sys.argv[1]) as device:
    tested = self_test(device.bundle)
    for x in X:
        a = device.answer(x)
        said.append([a.label, a.stage, a.cost, a.route, a.reason, list(a.probabilities)])
assert "onnxruntime" not in sys.modules
runner = StageRunner(device.bundle)
outputs = [runner.run(s, np.ascontiguousarray(X[:, c])) for s, c in enumerate(runner.inputs)]
bits = [o.outputs.view(np.uint32).tolist() for o in outputs]
print(json.dumps({"tested": tested, "said": said, "bits": bits}, default=str))
"""


@pytest.mark.slow
def test_a_device_without_onnxruntime_answers_alike(bundle: Bundle, tmp_path: Path) -> None:
    for runner in ("auto", "onnxruntime", "numpy"):
        assert self_test(bundle, StageRunner(bundle, runner=runner)) == 32
    x = np.random.default_rng(1).normal(0, 0.4, (200, 6)).astype(F)
    np.save(tmp_path / "rows.npy", x)
    found = json.loads(run_python(WITHOUT, bundle.path, tmp_path / "rows.npy"))
    assert found["tested"] == 32
    with Device(bundle) as device:
        answers = [device.answer(row) for row in x]
    said = [[a.label, a.stage, a.cost, a.route, a.reason, list(a.probabilities)] for a in answers]
    assert found["said"] == json.loads(json.dumps(said, default=str))
    runner = StageRunner(bundle, runner="onnxruntime")
    assert any(isinstance(m, GraphSession) for m in runner._models)
    assert found["bits"] == [o.outputs.view(np.uint32).tolist() for o in run_all(runner, x)]
    assert len({(a.stage, a.route) for a in answers}) > 1


def test_what_is_not_to_be_had_is_said(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(InputError, match=r"'onnxruntime' cannot be used: .*install onnxruntime"):
        StageRunner(bundle, runner="onnxruntime")
    assert all(isinstance(m, GraphRunner) for m in StageRunner(bundle)._models)
    with pytest.raises(InputError, match="runner 'tpu'; choose one of auto, onnxruntime, numpy"):
        StageRunner(bundle, runner="tpu")
