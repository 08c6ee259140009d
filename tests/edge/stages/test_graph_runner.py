"""Graphs in numpy alone give onnxruntime's bits, and a device without onnxruntime decides alike."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gatewise.errors import InputError
from gatewise.models.kernel_machine import KernelModel
from gatewise.models.linear import LinearModel
from gatewise_edge.device.device import Device
from gatewise_edge.stages.graph_runner import GraphRunner
from gatewise_edge.stages.stage_models import GraphSession
from gatewise_edge.stages.stages import StageRunner, self_test
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.bundle.errors import BundleError
from gatewise_export.onnx_files.graph_rules import StageGraph, read_stage_graph
from gatewise_export.packing.onnx_graph import flat_graph
from tests.support.trees import random_trees

F = np.float32


def stage_graph(model) -> StageGraph:
    return read_stage_graph(
        flat_graph(model).SerializeToString(),
        file="stage.onnx",
        n_inputs=model.n_features,
        n_outputs=model.n_outputs,
    )


def runner_of(model) -> GraphRunner:
    return GraphRunner(stage_graph(model), "stage.onnx")


def in_onnxruntime(model, x):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        flat_graph(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, {"x": x})[0]


def assert_same_bits(model, x) -> None:
    got, runner = in_onnxruntime(model, x), runner_of(model)
    with np.errstate(all="ignore"):  # 3e38 squared
        trained = model.margins(x)
    for mine in (runner.run(x), np.concatenate([runner.run(x[i : i + 1]) for i in range(len(x))])):
        assert mine.dtype == np.float32
        assert mine.shape == got.shape == (len(x), model.n_outputs)
        for expected in (got, trained):
            nan = np.isnan(expected)
            assert (np.isnan(mine) == nan).all()
            same = np.ascontiguousarray(mine).view(np.uint32) == expected.view(np.uint32)
            assert same[~nan].all()


def linear(rng, n_features: int, n_outputs: int) -> LinearModel:
    size = 10.0 ** rng.integers(-3, 4, (n_features, 1))
    return LinearModel(
        mean=rng.normal(size=n_features).astype(F),
        scale=rng.exponential(size=n_features).astype(F),
        weights=(rng.normal(size=(n_features, n_outputs)) * size).astype(F),
        bias=rng.normal(size=n_outputs).astype(F),
    )


def kernel(rng, n_features: int, n_outputs: int) -> KernelModel:
    plain, n = linear(rng, n_features, n_outputs), int(rng.integers(1, 30))
    return KernelModel(
        mean=plain.mean,
        scale=plain.scale,
        landmarks=rng.normal(size=(n, n_features)).astype(F),
        rate=F(rng.exponential() / 64),
        weights=rng.normal(size=(n, n_outputs)).astype(F),
        bias=plain.bias,
    )


def rows(rng, n: int, n_features: int):
    """Ordinary, missing, tiny, huge, offset by a million, and zeros of both signs."""
    x = np.round(rng.normal(size=(n, n_features)), 1).astype(F)
    strange = [np.nan, 1e-41, -1e-41, 1e6 + 0.1, 3e38, -0.0, 0.0]
    return np.where(rng.random(x.shape) < 0.2, rng.choice(strange, x.shape), x).astype(F)


def model_and_rows(kind: str, seed: int):
    if kind.endswith("trees"):
        return random_trees(seed, mixed=kind == "mixed trees")
    rng = np.random.default_rng(seed)
    n_features = int(rng.integers(0, 12))
    make = linear if kind == "linear" else kernel
    model = make(rng, n_features, int(rng.integers(1, 6)))
    return model, rows(rng, int(rng.integers(1, 40)), n_features)


@pytest.mark.parametrize("kind", ["linear", "kernel", "trees", "mixed trees"])
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_graphs_give_the_same_bits(kind, seed):
    assert_same_bits(*model_and_rows(kind, seed))


def test_many_rows_go_in_parts():
    rng = np.random.default_rng(0)
    model = kernel(rng, 40, 3)
    runner = runner_of(model)
    runner._rows = 7
    x = rows(rng, 50, 40)
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
from gatewise_edge.stages.graph_runner import GraphRunner

X = np.load(sys.argv[2])
said = []
with Device(sys.argv[1]) as device:
    tested = self_test(device.bundle)
    for x in X:
        a = device.answer(x)
        said.append([a.label, a.stage, a.cost, a.route, a.reason, list(a.probabilities)])
assert "onnxruntime" not in sys.modules
runner = StageRunner(device.bundle)
bits = [o.outputs.view(np.uint32).tolist() for o in runner.run_all(X)]
print(json.dumps({"tested": tested, "said": said, "bits": bits}, default=str))
"""


@pytest.mark.slow
def test_a_device_without_onnxruntime_answers_alike(bundle: Bundle, tmp_path: Path) -> None:
    for runner in ("auto", "onnxruntime", "numpy"):
        assert self_test(bundle, StageRunner(bundle, runner=runner)) == 32
    x = np.random.default_rng(1).normal(0, 0.4, (200, 6)).astype(F)
    np.save(tmp_path / "rows.npy", x)
    command = [sys.executable, "-c", WITHOUT, str(bundle.path), str(tmp_path / "rows.npy")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["tested"] == 32
    with Device(bundle) as device:
        answers = [device.answer(row) for row in x]
    said = [[a.label, a.stage, a.cost, a.route, a.reason, list(a.probabilities)] for a in answers]
    assert found["said"] == json.loads(json.dumps(said, default=str))
    runner = StageRunner(bundle, runner="onnxruntime")
    assert any(isinstance(m, GraphSession) for m in runner._models)
    assert found["bits"] == [o.outputs.view(np.uint32).tolist() for o in runner.run_all(x)]
    assert len({(a.stage, a.route) for a in answers}) > 1


def test_what_is_not_to_be_had_is_said(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(InputError, match=r"'onnxruntime' cannot be used: .*install onnxruntime"):
        StageRunner(bundle, runner="onnxruntime")
    assert all(isinstance(m, GraphRunner) for m in StageRunner(bundle)._models)
    with pytest.raises(InputError, match="runner 'tpu'; choose one of auto, onnxruntime, numpy"):
        StageRunner(bundle, runner="tpu")
