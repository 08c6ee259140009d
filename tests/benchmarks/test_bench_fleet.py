"""Tests of figures and targets of the benchmark of a simulated fleet."""

import json

import pytest

from benchmarks import bench_fleet
from benchmarks.bench_fleet import RUNS, TARGETS, Run, collect_results, run_part, write_inputs
from benchmarks.data import fleet_bundles
from benchmarks.data.fleet_bundles import FleetBundle
from tests.support.digits_system import fit_digits_system


def make_figures(cost_ratio: float) -> dict:
    """Make figures of runs in which a part has `cost_ratio` times the cost of the whole fleet."""
    run = {"cpu_seconds": 10.0, "peak_mb": 100.0, "policies": {"system": "all of 5 devices"}}
    compared = {"whole": {"cost": [2.0, 1.9, 2.1]}, "part": {"cost": [2.0 * cost_ratio, 1.8, 2.2]}}
    return {name: dict(run) for name in RUNS} | {"error": compared}


def test_each_target_is_compared_with_its_bound():
    figures_of_runs = make_figures(1.08)
    figures = collect_results(figures_of_runs, "1day")
    assert figures_of_runs == make_figures(1.08)  # not changed
    assert figures["holds"] == dict.fromkeys(TARGETS, True) | {"largest_error": False}
    assert figures["figures"]["largest_error"] == 8.0  # in %
    assert json.loads(json.dumps(figures)) == figures


@pytest.mark.slow
def test_run_reports_time_and_instances(monkeypatch, make_once, tmp_path):
    digits = make_once("digits-system", fit_digits_system)
    fleet_bundle = FleetBundle("digits", digits.bundle, digits.rows, digits.truth)
    monkeypatch.setattr(fleet_bundles, "fleet_bundle", lambda _name: fleet_bundle)
    monkeypatch.setattr(bench_fleet, "_FOLDER", tmp_path)
    monkeypatch.setitem(bench_fleet.RUNS, "1,000 devices", Run(5, 1, ("cloud:+1min-+2min",)))
    write_inputs()
    figures = run_part("1,000 devices", "5min")
    assert figures["instances"] > 10
    assert figures["cpu_seconds"] > 0
    assert set(figures["policies"]) >= {"system", "edge_only", "cloud_only"}
    json.dumps(figures, allow_nan=False)
