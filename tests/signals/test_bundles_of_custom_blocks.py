"""Bundles and devices with blocks that are Python functions or parts of a network."""

from __future__ import annotations

import json
import threading

import numpy as np
import onnx
import onnx.helper as helper
import pytest
from sklearn.linear_model import LogisticRegression

import gatewise as gw
import gatewise_signals as sig
from gatewise.cli import main
from gatewise.errors import InputError
from gatewise_edge.device import stages as device_stages
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.bundle.errors import BundleError
from gatewise_export.bundle.repacking import repack
from gatewise_export.commands.run_verify import check_data
from gatewise_signals.blocks import block


def spread(windows):
    return np.std(windows, axis=1)


def save_network(path, activation="Relu"):
    """Save a network x (n, 16) -> hidden (n, 3) -> largest of hidden."""
    weights = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["sums"]),
        helper.make_node(activation, ["sums"], ["hidden"]),
        helper.make_node("ReduceMax", ["hidden"], ["largest"], axes=[1]),
    ]
    graph = helper.make_graph(
        nodes,
        "layer",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 16])],
        [helper.make_tensor_value_info("largest", onnx.TensorProto.FLOAT, ["n", 1])],
        [onnx.numpy_helper.from_array(weights, "w")],
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


def make_blocks(path):
    return [
        sig.Block.from_function(spread, ["spread"], price=1.0),
        sig.Block.from_onnx(path, output="hidden", price=5.0),
    ]


def draw_windows(n):
    rng = np.random.default_rng(1)
    y = rng.integers(0, 2, n)
    return (rng.normal(0, 1 + y[:, None], (n, 16)) * 50).astype(np.int16), y


@pytest.fixture(scope="module")
def system(tmp_path_factory):
    x, y = draw_windows(240)
    path = save_network(tmp_path_factory.mktemp("network") / "layer.onnx")
    settings = {"families": ("linear",), "effort": "low", "n_stages": 2, "random_state": 0}
    model = LogisticRegression()
    return gw.StagedCascade(high_cost_model=model, blocks=make_blocks(path), **settings).fit(x, y)


@pytest.fixture(scope="module")
def bundle_path(system, tmp_path_factory):
    path = tmp_path_factory.mktemp("custom") / "bundle"
    return gw.pack(system, path, sample=draw_windows(20)[0]).path


@pytest.mark.slow
def test_a_device_with_custom_blocks_answers_as_the_system(system, bundle_path, tmp_path):
    archive = repack(bundle_path, tmp_path / "whole.gwb")
    x, _ = draw_windows(30)
    for bundle in (Bundle.open(bundle_path), archive):
        with pytest.raises(InputError, match=r":spread in training\), which the bundle"):
            bundle.manifest.signal.features(x)
        bundle = bundle.with_functions({"spread": spread})
        with pytest.raises(InputError, match="its model is missing"):
            bundle.manifest.signal.features(x)
        bundle.read_block_models()
        np.testing.assert_array_equal(
            bundle.manifest.signal.features(x), system.signal_input_.features(x)
        )
    device = gw.Device(bundle_path, blocks={"spread": spread})
    answers = [device.answer(row) for row in x]
    edge_rows = [k for k, answer in enumerate(answers) if answer.route == "edge"]
    assert edge_rows
    assert [answers[k].label for k in edge_rows] == system.predict(x)[edge_rows].tolist()


def test_an_instance_whose_network_is_late_gets_the_fallback_answer(bundle_path, monkeypatch):
    may_return = threading.Event()
    run_network = block._run_network

    def run_late(model, row, label):
        may_return.wait(60)
        return run_network(model, row, label)

    def run_all_stages(point):
        return "stop" if point.is_last_stage else "continue"

    x, _ = draw_windows(1)
    with gw.Device(
        bundle_path, blocks={"spread": spread}, policy=run_all_stages, deadline_ms=150
    ) as device:
        assert device.answer(x[0]).stage == 1  # which reads the network
        with monkeypatch.context() as patch:
            patch.setattr(block, "_run_network", run_late)
            answer = device.answer(x[0])
            may_return.set()  # before assertions, which may fail while the network's thread waits
        assert (answer.route, answer.stage) == ("fallback", 0)
        assert answer.reason == "sensor-late:layer[hidden]"
        # far below the 60 s of the network, even on a loaded machine
        assert answer.latency_ms < 5_000


def test_networks_are_checked_before_the_device_loads_them(bundle_path, monkeypatch):
    session_counts = []

    def check_loads(graph, x, limits):
        session_counts.append(block._open_session.cache_info().currsize)

    monkeypatch.setattr(device_stages, "check_loads", check_loads)
    block._open_session.cache_clear()
    gw.Device(bundle_path, blocks={"spread": spread}).close()
    assert session_counts == [0]  # no session of a block existed during the check


@pytest.mark.slow
def test_simulations_and_verify_accept_the_functions(system, bundle_path, tmp_path):
    x, y = draw_windows(40)
    np.savez(tmp_path / "rows.npz", X=x, y=y)
    for call_without_functions in (
        lambda: gw.simulate(bundle_path, x, y),
        lambda: check_data(Bundle.open(bundle_path), str(tmp_path / "rows.npz"), None),
    ):
        with pytest.raises(InputError, match=r"'spread' is .*give blocks=.*or --block spread="):
            call_without_functions()
    # The bundle object that pack returns holds the functions.
    bundle_with_functions = gw.pack(system, tmp_path / "again", sample=x[:20])
    options = {"devices": 2, "time": "60s", "baselines": False, "link": "none"}
    report = gw.simulate(bundle_path, x, y, blocks={"spread": spread}, **options).report
    options["timings"] = report.timings  # otherwise each run measures its own timings
    assert report.policies == gw.simulate(bundle_with_functions, x, y, **options).report.policies
    verification, figures = check_data(bundle_with_functions, str(tmp_path / "rows.npz"), None)
    assert verification.agrees
    assert figures["cost"] == pytest.approx(system.cost(x).mean())


def test_calibrate_measures_functions_and_networks(bundle_path, tmp_path, capsys):
    command = ["calibrate", str(bundle_path), "--out", str(tmp_path / "prices.json"), "--json"]
    assert main([*command, "--block", f"spread={__name__}:spread"]) == 0
    microseconds = json.loads(capsys.readouterr().out)["microseconds"]
    assert min(microseconds[label] for label in ("spread", "layer[hidden]")) > 0
    assert main(command) == 2
    assert "or --block spread=" in capsys.readouterr().err


def test_a_network_other_than_the_packed_one_is_refused(bundle_path, tmp_path):
    copied_bundle = repack(bundle_path, tmp_path / "copy")
    (file,) = copied_bundle.manifest.signal.models
    (copied_bundle.path / file).write_bytes(b"other")
    with pytest.raises(BundleError, match=f"{file} is not the file that was packed"):
        Bundle.open(copied_bundle.path)
    (copied_bundle.path / file).unlink()
    with pytest.raises(BundleError, match=file):
        Bundle.open(copied_bundle.path)


def test_a_manifest_with_an_invalid_hash_of_a_network_is_refused(bundle_path, tmp_path):
    copied_bundle = repack(bundle_path, tmp_path / "copy")
    manifest = json.loads((copied_bundle.path / "manifest.json").read_text())
    network_step = next(step for step in manifest["signal"]["steps"] if step["kind"] == "onnx")
    network_step["sha256"] = "../" + network_step["sha256"][3:]
    (copied_bundle.path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match="not a SHA-256"):
        Bundle.open(copied_bundle.path)
