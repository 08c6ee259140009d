"""The benchmark of the simulated fleet: figures, judged each its way, and a page of them."""

import json
import pickle

import numpy as np
import pytest

from benchmarks import bench_fleet
from benchmarks.bench_fleet import JUDGED, ONCE, RUNS, TARGETS, document, main, markdown
from benchmarks.fleet_run import Run, measure


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


def test_a_run_tells_what_it_took(made_up_routes):
    told = measure(made_up_routes, Run(20, 1, seconds=1800.0, offload=0.2, outage=60.0))
    assert told["figures"]["offload_rate"][0] == pytest.approx(0.2, abs=0.1)
    assert told["figures"]["fallback"][0] > 0
    assert told["events"] > 0
    assert told["peak_mb"] > 20
    json.dumps(told, allow_nan=False)


@pytest.fixture
def made_up_routes(tmp_path):
    from gatewise_edge.stages.plan import StagePlan
    from gatewise_sim.fleet.messages import Sizes
    from gatewise_sim.fleet.routes import Routes

    n = 50
    plan = StagePlan(
        model="m", version="1", names=("a", "b"), classes=(0, 1), n_stages=1, n_here=1,
        tiers=("device",), stage_inputs=np.array([0]), request_inputs=np.array([0, 1]),
        has_cloud=True, stages_take_nan=False, cloud_takes_nan=False, offload_price=0.0,
        gateway_price=0.0, request_price=0.0,
    )  # fmt: skip
    ones, zeros = np.ones(n, np.int64), np.zeros(n, np.int64)
    routes = Routes(
        plan=plan, sizes=Sizes.from_plan(plan, exits=False), truth=ones, exit=zeros,
        offload=np.zeros(n, bool), local_route=zeros, local_label=ones, local_cost=np.ones(n),
        cloud_label=ones, cloud_stage=ones, asked_cost=np.full(n, 2.0), alone_cost=2.0,
        score=np.zeros(n, np.float32), sets=np.array([[True, False], [True, True]]),
        local_set=zeros, asked_set=ones, threshold=0.0,
        confidence=np.linspace(0, 1, n, dtype=np.float32),
    )  # fmt: skip
    return pickle.loads(pickle.dumps(routes))


@pytest.mark.slow
def test_a_quick_look(tmp_path, monkeypatch):
    small = {
        name: run._replace(
            devices=run.devices // 100, workers=1, jobs=1 if run.outage else run.jobs
        )
        for name, run in RUNS.items()
        if name not in ONCE
    }
    monkeypatch.setattr(bench_fleet, "RUNS", small)
    assert main(["--quick", "--out", str(tmp_path)]) == 0
    told = json.loads((tmp_path / "fleet.json").read_text())
    assert set(told["runs"]) == set(small)
    assert (tmp_path / "fleet.md").read_text().startswith("# A simulated fleet")
