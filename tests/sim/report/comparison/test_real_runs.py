"""Reports of a real demo and of real simulations, held against each other."""

import json

import pytest

from gatewise_sim.experiment.sweep.run import run_sweep
from gatewise_sim.report.comparison.differences import compare_runs
from gatewise_sim.report.comparison.reading import read_runs
from gatewise_sim.report.comparison.views import comparison_page
from tests.sim.command import gatewise

pytestmark = pytest.mark.slow  # a model is fitted, processes start


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A demo, and a simulation of its bundle on its rows over two links."""
    folder = tmp_path_factory.mktemp("real")
    done = gatewise(
        None, "demo", "--dataset", "breast_cancer", "--method", "confidence", "--instances", "90",
        "--devices", "2", "--out", str(folder / "demo"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    from gatewise_sim.experiment.scenario import Scenario
    from gatewise_sim.experiment.simulation import Job

    job = Job(
        str(folder / "demo" / "bundle"), str(folder / "demo" / "instances.csv"), "label",
        Scenario(devices=20, seconds=1200.0),
    )  # fmt: skip
    run_sweep(job, ["link=wifi,nb-iot"], folder=folder / "sweep")
    return folder


def test_a_demo_beside_simulations_of_its_bundle(runs):
    demo, wifi, slow = read_runs([runs / "demo", runs / "sweep" / "sweep.json"])
    report = json.loads((runs / "demo" / "report.json").read_text())
    assert demo.figures["accuracy"].value == report["accuracy"]["system"]
    assert [wifi.name, slow.name] == ["link=wifi", "link=nb-iot"]
    found = compare_runs([demo, wifi, slow])
    table = {(d["run"], d["figure"]): d for d in found["differences"]}
    # The same rows by the same models, drawn at random: as accurate, up to chance.
    assert table["link=wifi", "accuracy"]["beyond"] is False
    assert table["link=wifi", "offload_rate"]["beyond"] is False
    # NB-IoT's round trip is far beyond the default deadline.
    assert slow.figures["fallback"].value > wifi.figures["fallback"].value
    names = {s["name"] for s in found["settings"]}
    assert {"kind", "engine", "link"} <= names
    assert "<svg" in comparison_page(found)


def test_the_command_on_real_reports(runs, tmp_path):
    sweep = runs / "sweep" / "sweep.json"
    done = gatewise(None, "report", str(sweep), "--html", str(tmp_path / "x.html"))
    assert (done.returncode, done.stderr) == (0, "")
    assert "link=wifi" in done.stdout
    assert "95 % of the offloaded within" in done.stdout
    as_json = gatewise(None, "report", str(runs / "demo"), str(sweep), "--json")
    assert len(json.loads(as_json.stdout)["runs"]) == 3
