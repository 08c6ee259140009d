"""The benchmark of the simulated fleet: figures, judged each its way, and a page of them."""

import json

import pytest

from benchmarks import bench_fleet
from benchmarks.bench_fleet import RUNS, TARGETS, document, markdown, run_part, write_inputs


def parts(error: float) -> dict:
    run = {"cpu_seconds": 10.0, "peak_mb": 100.0, "policies": {"system": "all of 5 devices"}}
    compared = {"whole": {"cost": [2.0, 1.9, 2.1]}, "part": {"cost": [2.0 * error, 1.8, 2.2]}}
    return {name: dict(run) for name in RUNS} | {"error": compared}


def test_targets_are_judged():
    found = document(parts(1.08), "1day")
    assert found["holds"] == dict.fromkeys(TARGETS, True) | {"largest_error": False}
    assert found["figures"]["largest_error"] == 8.0
    assert json.loads(json.dumps(found)) == found
    page = markdown(found)
    assert page.count("| missed |") == 1
    assert all(text in page for text, _, _ in TARGETS.values())


@pytest.mark.slow
def test_a_run_says_what_it_took(monkeypatch):
    monkeypatch.setitem(bench_fleet.RUNS, "1,000 devices", (5, 1, ("cloud:+1min-+2min",)))
    write_inputs()
    found = run_part("1,000 devices", "5min")
    assert found["instances"] > 10
    assert found["cpu_seconds"] > 0
    assert set(found["policies"]) >= {"system", "edge_only", "cloud_only"}
    json.dumps(found, allow_nan=False)
