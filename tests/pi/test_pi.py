"""The wheel on aarch64: a bundle proves itself there and is answered for, broker and cloud here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier

from gatewise_cloud.broker.broker import MosquittoBroker
from gatewise_export import pack
from gatewise_training import CEGBClassifier, FeatureCosts, StagedCascade

K = 8
COSTS = FeatureCosts(
    np.linspace(0.5, 2.0, K), group=["g"] * 3 + [None] * 5, shared={"g": 1.0},
)  # fmt: skip
# The emulator's cpu cannot be compared with a Pi's; a minute is enough for anything.
DEADLINE_MS = 60_000
COMMAND = "import sys; from gatewise.cli import main; sys.exit(main(sys.argv[1:]))"
SELF_TEST = """
import json, platform, sys
from gatewise_edge import self_test
from gatewise_edge.device.stages import load_stages
from gatewise_export import Bundle
bundle = Bundle.open(sys.argv[1], for_device=True)
stages = load_stages(bundle, sys.argv[2])
rows = self_test(bundle, stages)
import numpy, paho.mqtt, cbor2
loaded = [m for m in ("sklearn", "scipy", "lightgbm", "onnx", "numba", "onnxruntime")
          if m in sys.modules]
print(json.dumps({"machine": platform.machine(), "rows": rows, "loaded": loaded}))
"""


@pytest.fixture(scope="session")
def packed(tmp_path_factory):
    """Two bundles: a staged cascade with a cloud, and trees bought node by node."""
    X, y = make_classification(900, K, n_informative=5, flip_y=0.05, random_state=0)
    X = X.astype(np.float32)
    folder: Path = tmp_path_factory.mktemp("packed")
    staged = StagedCascade(
        RandomForestClassifier(50, random_state=0), COSTS, n_stages=3,
        families=("linear",), random_state=0,
    )  # fmt: skip
    lazy = CEGBClassifier(COSTS, penalties=(0.01, 0.05), n_rounds=20, random_state=0)
    made = {}
    for name, system in {"staged": staged, "lazy": lazy}.items():
        system.fit(X[:600], y[:600])
        if name == "staged":  # a point that sends a good part to the cloud
            points = [p for p in system.frontier_.points if p.offload_rate < 0.6]
            system = system.at(budget=max(points, key=lambda p: p.offload_rate).cost)
        made[name] = system, pack(system, folder / name, sample=X[:32])
    return made, X[600:680]


def test_it_is_another_machine(pi):
    done = pi.run("-c", "import platform, sys; print(platform.machine(), sys.version_info[:2])")
    assert done.stdout.split(None, 1)[0] == "aarch64", done.stderr


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("runner", ["onnxruntime", "numpy"])
@pytest.mark.parametrize("name", ["staged", "lazy"])
def test_a_bundle_proves_itself(pi, packed, name, runner):
    _, bundle = packed[0][name]
    done = pi.run("-c", SELF_TEST, bundle.path, runner)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["machine"], said["rows"]) == ("aarch64", 32)
    light = ["onnxruntime"] if (name, runner) == ("staged", "onnxruntime") else []
    assert said["loaded"] == light


@pytest.mark.timeout(1200)
def test_the_command_answers_as_training_did(pi, packed, tmp_path):
    made, rows = packed
    system, bundle = made["lazy"]
    done = pi.run("-c", COMMAND, "edge", bundle.path, "--data", write(rows, tmp_path), "--json")
    assert done.returncode == 0, done.stderr
    *answers, _ = [json.loads(line) for line in done.stdout.splitlines()]
    assert [a["label"] for a in answers] == system.predict(rows).tolist()
    assert [a["cost"] for a in answers] == pytest.approx(system.cost(rows).tolist(), abs=1e-8)


@pytest.mark.timeout(1800)
def test_an_exchange_with_a_cloud_on_this_machine(pi, packed, tmp_path):
    made, rows = packed
    system, bundle = made["staged"]
    settings = tmp_path / "settings.toml"
    settings.write_text("connect_timeout = 60.0\n")
    with MosquittoBroker() as broker:
        worker = subprocess.Popen(
            [sys.executable, "-c", COMMAND, "cloud", str(bundle.path), "--broker", broker.url],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert worker.stdout is not None
            assert worker.stdout.readline().startswith("ready:")
            done = pi.run(
                "-c", COMMAND, "edge", bundle.path, "--broker", broker.url, "--device", "pi-4",
                "--data", write(rows, tmp_path), "--deadline-ms", DEADLINE_MS,
                "--settings", settings, "--json",
            )  # fmt: skip
        finally:
            worker.terminate()
            worker.communicate(timeout=60)
    assert done.returncode == 0, done.stderr
    *answers, last = [json.loads(line) for line in done.stdout.splitlines()]
    exits = system.exit_stage(rows)
    assert [a["stage"] for a in answers] == exits.tolist()
    assert [a["label"] for a in answers] == system.predict(rows).tolist()
    assert [a["cost"] for a in answers] == pytest.approx(system.cost(rows).tolist(), abs=1e-8)
    assert last["summary"]["answers"]["fallback"] == 0
    assert last["summary"]["answers"]["cloud"] == int((exits == len(bundle.manifest.stages)).sum())
    assert last["summary"]["answers"]["cloud"] > 0


def write(rows, folder: Path) -> Path:
    table = folder / "rows.csv"
    header = ",".join(f"x{k}" for k in range(K))
    np.savetxt(table, rows, "%.9g", ",", header=header, comments="")
    return table
