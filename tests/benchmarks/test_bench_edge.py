"""Tests of figures and processes of the edge benchmark."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from benchmarks import bench_edge
from benchmarks.edge import process as edge_process

#: Figures of an example model and of example processes; one of them misses its target.
MODEL_FIGURES = {
    "stages": 1, "kinds": ["graph"], "file_bytes": 4268, "flat_bytes": 4268,
    "first_stage_features": 16, "first_stage_stops": 1.0, "offload_rate": 0.0,
    "accuracy": 0.9, "mean_cost": 16.0,
}  # fmt: skip
PROCESSES = {
    "nothing": {"seconds": 0.03, "cpu": 0.03, "rss_mb": 9.0, "peak_mb": 9.0},
    "import": {"seconds": 0.7, "cpu": 0.7, "rss_mb": 60.0, "peak_mb": 61.0},
    "serve letters-64kb": {"seconds": 0.4, "cpu": 0.4, "rss_mb": 70.0, "peak_mb": 72.0},
    "serve letters-64kb, numpy": {"seconds": 0.4, "cpu": 0.4, "rss_mb": 50.0, "peak_mb": 51.0},
}
#: Microseconds of three rounds of each item.
RUNS = {
    "noop": [8.0, 10.0, 100.0],
    "trees-50 decide": [12.0, 15.0, 150.0],
    "trees-50 c99": [1.5, 2.0, 30.0],
}


def make_document() -> dict:
    """Make the document of the example figures."""
    models = {"trees-50": SimpleNamespace(title="50 trees", figures=MODEL_FIGURES)}
    skipped = {"trees-50 c99": "no C compiler"}
    return bench_edge.document(RUNS, models, PROCESSES, skipped, n_calls=7)


def test_ratios_are_medians_of_the_ratios_per_round():
    document = make_document()
    assert document["items"]["trees-50 decide"]["us"] == 15.0
    assert document["items"]["trees-50 decide"]["noops"] == 1.5
    figures = {target["what"]: target["figure"] for target in document["targets"]}
    assert figures["`trees-50 decide` / `noop`"] == 1.5
    assert figures["us of `trees-50 c99`"] == 2.0
    json.dumps(document)


def test_every_round_times_all_items():
    order = []
    runs = bench_edge.time_calls(
        {name: lambda name=name: order.append(name) for name in "ab"}, n_rounds=2, n_calls=3
    )
    assert order == (["a"] * 3 + ["b"] * 3) * 3  # the first round is not counted
    assert [len(round_times) for round_times in runs.values()] == [2, 2]
    assert all(microseconds > 0 for name in "ab" for microseconds in runs[name])


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["nothing", "import"])
def test_new_process_reports_time_and_memory(mode):
    sample = edge_process.measure(mode, [])
    # less than five minutes: the clocks have the same unit and start
    assert 0 < sample["seconds"] < 300
    assert 0 < sample["cpu"] < 300
    assert 0 <= sample["rss"] <= sample["peak"]
