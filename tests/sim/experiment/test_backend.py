"""Tests of ``verify`` and ``simulate`` with a backend for the high-cost model."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from sklearn.datasets import load_iris

from gatewise_cloud import ModelError
from gatewise_export import pack
from gatewise_export.bundle.bundle import Bundle
from gatewise_sim import simulate
from gatewise_sim.experiment.row_table import make_row_table
from gatewise_sim.report.caveats import list_caveats
from gatewise_sim.scenario import Scenario
from gatewise_training import ConfidenceCascade
from tests.support.processes import run_in_process

# fits a model, starts processes
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick_timings")]

#: A module with three backends. `probabilities` classifies irises by the distance of their petal
#: length (cm) from the class means of Fisher's data, rounded. `permuted` has its classes in another
#: order, and `slow` takes 50 ms a call.
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


@dataclass
class Project:
    """Folder with a backend module, a bundle that needs it, and its rows in ``iris.csv``."""

    folder: Path
    system: ConfidenceCascade
    bundle: Bundle
    rows: pd.DataFrame
    species: NDArray[np.str_]


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project with a system that is fitted with the backend."""
    folder = tmp_path_factory.mktemp("backend")
    (folder / "iris_backend.py").write_text(BACKEND_MODULE)
    sys.path.insert(0, str(folder))  # fit imports the backend in this process
    X, class_numbers = load_iris(return_X_y=True)
    rows = pd.DataFrame(X.astype(np.float32), columns=COLUMN_NAMES)
    species = np.array(["setosa", "versicolor", "virginica"])[class_numbers]
    system = ConfidenceCascade(BACKEND, random_state=0).fit(rows, species)
    # the point with most offloads, so that the backend matters
    system.operating_point_ = max(system.frontier_.points, key=lambda point: point.offload_rate)
    # every fifth row, because the rows are sorted by class
    bundle = pack(system, folder / "bundle", sample=rows[::5])
    rows.assign(species=species).to_csv(folder / "iris.csv", index=False)
    yield Project(folder, system, bundle, rows, species)
    sys.path.remove(str(folder))


@pytest.fixture
def run_in_project(project):
    """Function that runs a command in the folder and returns its status and both outputs."""

    def run_command(*arguments):
        process = run_in_process(*arguments, folder=project.folder)
        return process.returncode, process.stdout, process.stderr

    return run_command


def test_verify_runs_the_backend_on_sample_and_data(project, run_in_project):
    system, rows = project.system, project.rows
    arguments = ("verify", "bundle", "--data", "iris.csv", "--target", "species")
    status, output, error_output = run_in_project(*arguments)
    assert (status, output) == (2, "")
    assert "--backend python:module:attribute" in error_output
    status, output, _ = run_in_project(*arguments, "--backend", BACKEND, "--json")
    document = json.loads(output)
    assert (status, document["agrees"]) == (0, True)
    assert document["data"]["accuracy"] == np.mean(system.predict(rows) == project.species)
    assert document["data"]["offload_rate"] == np.mean(system.offload(rows))
    assert document["data"]["offload_rate"] > 0.1  # so that the backend matters
    assert f"probabilities of the sample, by {BACKEND}" in " ".join(document["checked"])


def test_verify_finds_a_backend_with_another_model(run_in_project):
    status, output, _ = run_in_project(
        "verify", "bundle", "--backend", "python:iris_backend:permuted", "--json"
    )
    document = json.loads(output)
    assert (status, document["agrees"]) == (1, False)
    # all 30 labels of the sample, every fifth of 150 rows, are of another class
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
    system, rows = project.system, project.rows
    table, _ = make_row_table(project.bundle, rows, backend=BACKEND)
    class_numbers = np.where(table.is_offloaded, table.cloud_label, table.local_label)
    assert system.classes_[class_numbers].tolist() == system.predict(rows).tolist()
    with pytest.raises(ModelError, match="--backend python:module:attribute"):
        make_row_table(project.bundle, rows)
    arguments = ("simulate", "bundle", "--data", "iris.csv", "--target", "species")
    status, output, _ = run_in_project(*arguments, "--devices", "5", "--backend", BACKEND, "--json")
    report = json.loads(output)
    assert status == 0
    assert f"--backend {BACKEND}" in report["command"]
    assert report["answers"]["cloud"] > 0
    # by a tenth, because the fleet draws its instances from the rows at random
    accuracy = np.mean(system.predict(rows) == project.species)
    assert report["accuracy"]["system"] == pytest.approx(accuracy, rel=0.1)


def test_calls_of_a_slow_backend_are_timed(project):
    scenario = Scenario(
        devices=20, workload="poisson:6/min", time="10min", link="none",
        baselines=False, backend="python:iris_backend:slow",
    )  # fmt: skip
    result = simulate(project.bundle, project.rows, project.species, scenario=scenario)
    report = result.report
    # the 50 ms that the backend sleeps, and up to 30 ms for a call on a busy machine
    assert 50 <= report.timings.run_us / 1000 < 80
    assert report.system.latency_ms["offloaded_p50"].value > 50
    offloads_per_second = report.offload_rate * 2.0  # 20 devices with 6 instances a minute
    # a call takes 0.05 s; 1,200 instances are drawn at random, and calls take a little longer
    assert report.system.utilisation == pytest.approx(0.05 * offloads_per_second, rel=0.3)
    # the report names the times that are assumed
    assert "Assumed, not measured on this machine: a worker's time for a message" in (
        " ".join(list_caveats(report))
    )
