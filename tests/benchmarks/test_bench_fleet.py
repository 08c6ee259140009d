"""The benchmark of the simulated fleet: figures, judged each its way, and a page of them."""

import json

import pytest

from benchmarks import bench_fleet
from benchmarks.bench_fleet import JUDGED, ONCE, RUNS, TARGETS, document, main, markdown
from benchmarks.fleet import run as fleet_run
from benchmarks.fleet.run import Run, measure
from tests.support.routes import make_routes


def run(cpu: float, **changes) -> dict:
    found = {
        "devices": 1, "workers": 1, "jobs": 1, "outage": 0.0, "stepped": "all", "seconds": cpu,
        "cpu_seconds": cpu, "peak_mb": 100.0, "events": 5, "instances_stepped": 5, "instances": 5.0,
        "utilisation": 0.1, "figures": {name: [1.0, 0.9, 1.1] for name in JUDGED},
    }  # fmt: skip
    return found | changes


def test_targets_are_judged():
    found = {name: [run(10.0), run(12.0)] for name in RUNS}
    found["stepped 2,000"] = [run(21.0), run(25.0)]
    found["two million"] = [run(30.0), run(36.0)]
    off = {name: [1.0, 0.9, 1.1] for name in JUDGED} | {"cost": [0.92, 0.9, 0.95]}
    found["sampled 1,000"] = [run(1.0, figures=off)] * 2
    told = document(found, seconds=60.0, quick=True)
    assert told["holds"] == dict.fromkeys(TARGETS, True) | {
        "sampled_ratio": False,
        "largest_error": False,
    }
    assert told["figures"]["largest_error"] == 8.0
    assert told["figures"]["day_seconds"] == 11.0
    assert not told["errors_of_sampling"]["cost"]["inside"]
    assert json.loads(json.dumps(told)) == told
    page = markdown(told)
    assert page.count("| missed |") == 2
    assert all(text in page for text, _, _ in TARGETS.values())


def test_a_run_tells_what_it_took():
    told = measure(make_routes(50, 0), Run(20, 1, seconds=1800.0, offload=0.2, outage=60.0))
    assert told["figures"]["offload_rate"][0] == pytest.approx(0.2, abs=0.1)
    assert told["figures"]["fallback"][0] > 0
    assert told["events"] > 0
    assert told["peak_mb"] > 20
    json.dumps(told, allow_nan=False)


@pytest.mark.slow
def test_a_quick_look(tmp_path, monkeypatch):
    small = {
        name: run._replace(
            devices=run.devices // 500, workers=1, jobs=run.jobs if name == "a million" else 1
        )
        for name, run in RUNS.items()
        if name not in ONCE
    }
    monkeypatch.setattr(bench_fleet, "RUNS", small)
    monkeypatch.setattr(fleet_run, "TRAIN", 200)
    assert main(["--quick", "--out", str(tmp_path)]) == 0
    told = json.loads((tmp_path / "fleet.json").read_text())
    assert set(told["runs"]) == set(small)
    assert (tmp_path / "fleet.md").read_text().startswith("# A simulated fleet")
