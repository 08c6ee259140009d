"""Reports of a real demo and of real simulations, held against each other."""

import json

import pytest

from gatewise_sim.experiment.scenario import Scenario
from gatewise_sim.experiment.simulation import Job
from gatewise_sim.experiment.sweep.run import run_sweep
from gatewise_sim.report.comparison.figures import compare_runs
from gatewise_sim.report.comparison.reading import read_runs
from gatewise_sim.report.comparison.views import comparison_page
from tests.support.processes import run_here

pytestmark = pytest.mark.slow  # a model is fitted, processes start


@pytest.fixture(scope="module")
def runs(quick_demo, make_once):
    """Folders of a demo, and of a simulation of its bundle on its rows over two links."""

    def make(folder):
        job = Job(
            str(quick_demo.folder / "bundle"), str(quick_demo.folder / "instances.csv"), "label",
            Scenario(devices=20, seconds=600.0),
        )  # fmt: skip
        run_sweep(job, ["link=wifi,nb-iot"], folder=folder)
        return quick_demo.folder, folder

    return make_once("quick-demo-sweep", make)


def test_a_demo_beside_simulations_of_its_bundle(runs):
    demo, wifi, slow = read_runs([runs[0], runs[1] / "sweep.json"])
    report = json.loads((runs[0] / "report.json").read_text())
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
    done = run_here("report", runs[0], runs[1] / "sweep.json", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == json.loads(json.dumps(found))
