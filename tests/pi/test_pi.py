"""Tests of the wheel on an emulated Pi: self-tests, answers, and offloads to this machine."""

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

N_FEATURES = 8
COSTS = FeatureCosts(
    np.linspace(0.5, 2.0, N_FEATURES), group=["g"] * 3 + [None] * 5, shared={"g": 1.0},
)  # fmt: skip
#: The emulator's processor cannot be compared with a Pi's; a minute is enough for any answer.
DEADLINE_MS = 60_000
COMMAND_CODE = "import sys; from gatewise.cli import main; sys.exit(main(sys.argv[1:]))"
SELF_TEST_CODE = """
import json, platform, sys
from gatewise_edge import self_test
from gatewise_edge.device.stages import load_stages
from gatewise_export import Bundle
bundle = Bundle.open(sys.argv[1], for_device=True)
stages = load_stages(bundle, sys.argv[2])
rows = self_test(bundle, stages)
import numpy, paho.mqtt, cbor2
loaded = [name for name in ("sklearn", "scipy", "lightgbm", "onnx", "numba", "onnxruntime")
          if name in sys.modules]
print(json.dumps({"machine": platform.machine(), "rows": rows, "loaded": loaded}))
"""


@pytest.fixture(scope="session")
def packed_systems(tmp_path_factory):
    """Two bundles: a staged cascade with a cloud, and trees bought node by node."""
    X, y = make_classification(900, N_FEATURES, n_informative=5, flip_y=0.05, random_state=0)
    X = X.astype(np.float32)
    folder: Path = tmp_path_factory.mktemp("packed")
    staged_cascade = StagedCascade(
        RandomForestClassifier(50, random_state=0), COSTS, n_stages=3,
        families=("linear",), random_state=0,
    )  # fmt: skip
    lazy_model = CEGBClassifier(COSTS, penalties=(0.01, 0.05), n_rounds=20, random_state=0)
    systems = {}
    for name, system in {"staged": staged_cascade, "lazy": lazy_model}.items():
        system.fit(X[:600], y[:600])
        if name == "staged":  # a point that sends a good part to the cloud
            points = [point for point in system.frontier_.points if point.offload_rate < 0.6]
            system = system.at(budget=max(points, key=lambda point: point.offload_rate).cost)
        systems[name] = system, pack(system, folder / name, sample=X[:32])
    return systems, X[600:680]


def test_emulated_machine_is_aarch64(pi):
    process = pi.run("-c", "import platform, sys; print(platform.machine(), sys.version_info[:2])")
    assert process.stdout.split(None, 1)[0] == "aarch64", process.stderr


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("runner", ["onnxruntime", "numpy"])
@pytest.mark.parametrize("system_name", ["staged", "lazy"])
def test_self_test_passes_with_both_runners(pi, packed_systems, system_name, runner):
    _, bundle = packed_systems[0][system_name]
    process = pi.run("-c", SELF_TEST_CODE, bundle.path, runner)
    assert process.returncode == 0, process.stderr
    report = json.loads(process.stdout)
    assert (report["machine"], report["rows"]) == ("aarch64", 32)  # rows of the sample
    # The trees of the lazy model run without onnxruntime.
    needs_onnxruntime = (system_name, runner) == ("staged", "onnxruntime")
    expected_modules = ["onnxruntime"] if needs_onnxruntime else []
    assert report["loaded"] == expected_modules


@pytest.mark.timeout(1200)
def test_command_answers_like_the_trained_system(pi, packed_systems, tmp_path):
    systems, rows = packed_systems
    system, bundle = systems["lazy"]
    process = pi.run(
        "-c", COMMAND_CODE, "edge", bundle.path, "--data", write_table(rows, tmp_path), "--json"
    )
    assert process.returncode == 0, process.stderr
    *answers, _ = [json.loads(line) for line in process.stdout.splitlines()]
    assert [answer["label"] for answer in answers] == system.predict(rows).tolist()
    # sums of prices in another order
    assert [answer["cost"] for answer in answers] == pytest.approx(
        system.cost(rows).tolist(), abs=1e-8
    )


@pytest.mark.timeout(1800)
def test_hard_instances_are_answered_by_a_worker_on_this_machine(pi, packed_systems, tmp_path):
    systems, rows = packed_systems
    system, bundle = systems["staged"]
    settings_file = tmp_path / "settings.toml"
    settings_file.write_text("connect_timeout = 60.0\n")  # seconds, for the slow emulator
    with MosquittoBroker() as broker:
        worker = subprocess.Popen(
            [sys.executable, "-c", COMMAND_CODE, "cloud", str(bundle.path), "--broker", broker.url],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert worker.stdout is not None
            assert worker.stdout.readline().startswith("ready:")
            process = pi.run(
                "-c", COMMAND_CODE, "edge", bundle.path, "--broker", broker.url, "--device", "pi-4",
                "--data", write_table(rows, tmp_path), "--deadline-ms", DEADLINE_MS,
                "--settings", settings_file, "--json",
            )  # fmt: skip
        finally:
            worker.terminate()
            worker.communicate(timeout=60)
    assert process.returncode == 0, process.stderr
    *answers, last_line = [json.loads(line) for line in process.stdout.splitlines()]
    exit_stages = system.exit_stage(rows)
    assert [answer["stage"] for answer in answers] == exit_stages.tolist()
    assert [answer["label"] for answer in answers] == system.predict(rows).tolist()
    # sums of prices in another order
    assert [answer["cost"] for answer in answers] == pytest.approx(
        system.cost(rows).tolist(), abs=1e-8
    )
    assert last_line["summary"]["answers"]["fallback"] == 0
    assert last_line["summary"]["answers"]["cloud"] == int(
        (exit_stages == len(bundle.manifest.stages)).sum()
    )
    assert last_line["summary"]["answers"]["cloud"] > 0


def write_table(rows, folder: Path) -> Path:
    """Write the rows into a CSV file; nine digits keep every 32-bit number."""
    path = folder / "rows.csv"
    header = ",".join(f"x{index}" for index in range(N_FEATURES))
    np.savetxt(path, rows, "%.9g", ",", header=header, comments="")
    return path
