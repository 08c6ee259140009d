"""Tests of ``verify`` and ``simulate`` with a backend for the high-cost model."""

from __future__ import annotations

import json
import sys

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_iris

from gatewise_cloud import ModelError
from gatewise_export import pack
from gatewise_sim import simulate
from gatewise_sim.experiment.row_table import make_row_table
from gatewise_sim.report.findings import caveats
from gatewise_sim.scenario import Scenario
from gatewise_training import ConfidenceCascade
from tests.support.processes import run_in_process

pytestmark = pytest.mark.slow  # fits a model, starts processes

#: Backend that classifies irises by their petal length, with a backend whose classes are in another
#: order and one that takes 50 ms a call.
BACKEND_MODULE = """
import time
import numpy as np

def probabilities(X):
    distance = np.abs(X[:, 2:3] - np.array([[1.5, 4.3, 5.6]]))
    likelihood = np.exp(-2.0 * distance)
    return likelihood / likelihood.sum(axis=1)[:, None]

def permuted(X): return probabilities(X)[:, [1, 2, 0]]

def slow(X):
    time.sleep(0.05)
    return probabilities(X)
"""
BACKEND = "python:iris_backend:probabilities"
COLUMN_NAMES = ("sepal_length", "sepal_width", "petal_length", "petal_width")


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A folder with a backend module, a bundle that needs it and a table, and the fitted system."""
    folder = tmp_path_factory.mktemp("backend")
    (folder / "iris_backend.py").write_text(BACKEND_MODULE)
    sys.path.insert(0, str(folder))
    X, species = load_iris(return_X_y=True)
    frame = pd.DataFrame(X.astype(np.float32), columns=COLUMN_NAMES)
    y = np.array(["setosa", "versicolor", "virginica"])[species]
    system = ConfidenceCascade(BACKEND, random_state=0).fit(frame, y)
    # the point with most offloads, so that the backend matters
    system.operating_point_ = max(system.frontier_.points, key=lambda point: point.offload_rate)
    bundle = pack(system, folder / "bundle", sample=frame[::5])
    frame.assign(species=y).to_csv(folder / "iris.csv", index=False)
    yield folder, system, bundle, frame, y
    sys.path.remove(str(folder))


@pytest.fixture
def run_in_project(project):
    """A function that runs a command in the folder and returns its status and both outputs."""

    def run_command(*arguments):
        process = run_in_process(*arguments, folder=project[0])
        return process.returncode, process.stdout, process.stderr

    return run_command


def test_verify_runs_the_backend_on_sample_and_data(project, run_in_project):
    _, system, _, frame, y = project
    arguments = ("verify", "bundle", "--data", "iris.csv", "--target", "species")
    status, output, error_output = run_in_project(*arguments)
    assert (status, output) == (2, "")
    assert "--backend python:module:attribute" in error_output
    status, output, _ = run_in_project(*arguments, "--backend", BACKEND, "--json")
    document = json.loads(output)
    assert (status, document["agrees"]) == (0, True)
    assert document["data"]["accuracy"] == np.mean(system.predict(frame) == y)
    assert document["data"]["offload_rate"] == np.mean(system.offload(frame))
    assert document["data"]["offload_rate"] > 0.1
    assert f"probabilities of the sample, by {BACKEND}" in " ".join(document["checked"])


def test_verify_finds_a_backend_with_another_model(project, run_in_project):
    status, output, _ = run_in_project(
        "verify", "bundle", "--backend", "python:iris_backend:permuted", "--json"
    )
    document = json.loads(output)
    assert (status, document["agrees"]) == (1, False)
    # the sample is every fifth of 150 rows, and every label is another class
    assert document["sample"]["cloud_label_differences"] == 30


@pytest.mark.parametrize(
    ("backend", "message"),
    [
        ("model.onnx", "give python:module:attribute"),
        ("http://h/v2/models/iris", "give python:module:attribute"),
        ("python:iris_backend:absent", "iris_backend has no 'absent'"),
    ],
)
def test_wrong_backend_is_refused_in_one_line(run_in_project, backend, message):
    status, output, error_output = run_in_project("verify", "bundle", "--backend", backend)
    assert (status, output, error_output.count("\n")) == (2, "", 1)
    assert message in error_output


def test_simulation_uses_the_answers_of_the_backend(project, run_in_project):
    _, system, bundle, frame, y = project
    table, _ = make_row_table(bundle, frame, backend=BACKEND)
    label = np.where(table.is_offloaded, table.cloud_label, table.local_label)
    assert system.classes_[label].tolist() == system.predict(frame).tolist()
    with pytest.raises(ModelError, match="--backend python:module:attribute"):
        make_row_table(bundle, frame)
    arguments = ("simulate", "bundle", "--data", "iris.csv", "--target", "species")
    status, output, _ = run_in_project(*arguments, "--devices", "5", "--backend", BACKEND, "--json")
    report = json.loads(output)
    assert status == 0
    assert f"--backend {BACKEND}" in report["command"]
    assert report["answers"]["cloud"] > 0
    # the fleet draws its instances from the rows
    assert report["accuracy"]["system"] == pytest.approx(np.mean(system.predict(frame) == y), 0.1)


def test_calls_of_a_slow_backend_are_timed(project):
    _, _, bundle, frame, y = project
    changes = {"devices": 20, "workload": "poisson:6/min", "time": "10min", "link": "none"}
    backend = "python:iris_backend:slow"
    report = simulate(bundle, frame, y, backend=backend, baselines=False, **changes).report
    # the 50 ms that the backend sleeps, and up to 30 ms for a call on a busy machine
    assert 50 <= report.timings.run_us / 1000 < 80
    assert report.system.latency_ms["offloaded_p50"].value > 50
    offloads_per_second = report.offload_rate * 2.0  # 20 devices with 6 instances a minute
    assert report.system.utilisation == pytest.approx(0.05 * offloads_per_second, rel=0.3)
    # the report names the times that are assumed
    assert "Assumed, not measured on this machine: a worker's time for a message" in (
        " ".join(caveats(report))
    )


def test_live_run_uses_the_backend(project, monkeypatch):
    folder, _, bundle, frame, y = project
    monkeypatch.chdir(folder)
    scenario = Scenario(
        engine="live", devices=4, time="5s", workload="periodic:200ms", link="none",
        baselines=False, backend=BACKEND,
    )  # fmt: skip
    report = simulate(bundle, frame, y, scenario=scenario).report
    assert report.checked.compared > 50  # of 4 * 5 s / 200 ms = 100 instances
    assert not any(report.checked.differing.values())
    assert report.answers.cloud > 0
