"""``gatewise pair`` packs two models into a bundle."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from gatewise_export import Bundle
from gatewise_export.bundle.errors import VerifyReport
from tests.support.onnx_graphs import graph_of

FLOAT = TensorProto.FLOAT


@pytest.fixture
def model_files(tmp_path, monkeypatch):
    """Two graphs that mostly agree, and rows with labels, in the current folder."""
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(6, 3)).astype(np.float32)
    X = rng.integers(-50, 50, (300, 2, 3)).astype(np.int16)
    for name, noise in (("small", 0.3), ("big", 0.0)):
        noisy_weights = weights + noise * rng.normal(size=(6, 3)).astype(np.float32)
        nodes = [
            helper.make_node("Flatten", ["v"], ["flat"], axis=1),
            helper.make_node("MatMul", ["flat", "weights"], ["logits"]),
        ]
        graph = graph_of(
            nodes, ("v", FLOAT, ["n", 2, 3]), ("logits", FLOAT, ["n", 3]), weights=noisy_weights
        )
        (tmp_path / f"{name}.onnx").write_bytes(graph)
    y = np.array(["c", "a", "b"])[(X.reshape(300, 6) @ weights).argmax(axis=1)]
    np.savez(tmp_path / "rows.npz", X=X, y=y)
    np.save(tmp_path / "rows.npy", X)
    (tmp_path / "rows.csv").write_text("v,y\n1,a\n2,b\n")
    monkeypatch.chdir(tmp_path)


def test_rows_without_labels_measure_agreement(model_files, run_command, caplog):
    command = ("pair", "small.onnx", "big.onnx", "--data", "rows.npy", "--out", "bundle")
    status, output, message = run_command(*command, "--offload-rate", "0.2")
    assert status == 0, message
    for model in ("low_cost_model", "high_cost_model"):  # how the command reads both models
        assert (
            f"{model}: the input 'v' gets float instances of shape (2, 3); "
            "it gives logits of 3 classes in output 0"
        ) in caplog.messages
    assert "agreement" in output
    assert "(95 %:" in output
    assert "differ in 0 of 128" in output
    assert "note:" not in message
    status, output, message = run_command("inspect", "bundle", "--json")
    document = json.loads(output)["manifest"]
    assert document["instance"] == {"shape": [2, 3], "dtype": "int16"}
    status, output, message = run_command("verify", "bundle", "--data", "rows.npy", "--json")
    assert status == 0, message
    assert json.loads(output)["data"]["rows"] == 300
    assert json.loads(output)["data"]["offload_rate"] < 0.3  # 0.2 and its random variation


def test_rows_with_labels_measure_accuracy(model_files, run_command):
    command = ("pair", "small.onnx", "big.onnx", "--data", "rows.npz", "--out", "bundle", "--json")
    status, output, message = run_command(*command, "--target", "y", "--classes", "c,a,b")
    assert status == 0, message
    summary = json.loads(output)
    assert Bundle.open("bundle").manifest.classes == ("c", "a", "b")
    assert summary["measured"] == "accuracy"
    assert summary["reference_accuracy"] == 1.0
    assert summary["operating_point"]["accuracy"] >= 0.98
    assert summary["verify"]["differing_decisions"] == 0
    status, output, message = run_command("verify", "bundle", "--data", "rows.npz", "--json")
    assert json.loads(output)["data"]["accuracy"] >= 0.97


def test_classes_in_numbers_are_those_of_labels_in_floats(model_files, run_command):
    X = np.load("rows.npy")
    y = np.load("rows.npz")["y"]
    np.savez("numbers.npz", X=X, y=np.select([y == "c", y == "a"], [0.0, 1.0], 2.0))
    command = ("pair", "small.onnx", "big.onnx", "--data", "numbers.npz", "--out", "bundle")
    status, _, message = run_command(*command, "--target", "y", "--classes", "0,1,2")
    assert status == 0, message
    assert Bundle.open("bundle").manifest.classes == (0, 1, 2)


def test_status_is_1_if_only_a_label_differs(model_files, run_command, monkeypatch):
    report = VerifyReport(64, 0, 1, 0, 0.0, 0, 0.0)
    monkeypatch.setattr("gatewise_export.packing.verification.verify", lambda *_: report)
    status, *_ = run_command(
        "pair", "small.onnx", "big.onnx", "--data", "rows.npy", "--out", "bundle"
    )
    assert status == 1


def test_a_note_names_a_label_array_that_is_not_read(model_files, run_command):
    Path("rows.npz").rename("run#1.npz")
    command = ("pair", "small.onnx", "big.onnx", "--data", "run#1.npz", "--out", "bundle")
    _, _, message = run_command(*command, "--offload-rate", "0.2")
    assert "note: run#1.npz has an array 'y', which is not read: with --target y" in message
    assert Bundle.open("bundle").manifest.name == "run-1"  # a level of MQTT topics


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--data", "none.npz"], "none.npz does not exist"),
        (["--data", "none.npz", "--name", "a/b"], "--name 'a/b' cannot be a level of MQTT topics"),
        (["--data", "rows.npz", "--target", "z"], "no array 'z'"),
        (["--data", "small.onnx"], "the file extension must be"),
        (["--data", "rows.csv"], "'y' holds no numbers; if it is the label, give --target"),
        (["--data", "rows.npz", "--target", "y", "--classes", "a,b"], "3 different labels"),
        (["--data", "rows.npz", "--target", "y"], "the order ['c', 'a', 'b'] on 300: give"),
        (["--data", "rows.npy", "--budget", "1", "--max-loss", "0"], "only one of"),
        (["--data", "rows.npy", "--budget", "0.5"], "costs at most 0.5"),
        (["--data", "rows.npy", "--max-message", "80"], "81 bytes, more than max_message=80"),
    ],
)
def test_invalid_input_is_one_line_on_stderr(model_files, assert_refused, options, message):
    assert message in assert_refused("pair", "small.onnx", "big.onnx", "--out", "bundle", *options)
