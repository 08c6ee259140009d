"""Tests of targets, page and load client of the benchmark of a cloud worker."""

import json

import pytest
from sklearn.datasets import load_digits

from benchmarks import harness
from benchmarks.bench_cloud import BENCHMARK, TARGETS, page
from benchmarks.cloud.load import connected, payloads
from gatewise_cloud.broker.broker import MosquittoBroker

#: Figures of an example run, of which one misses its target.
SPREAD = {"p50": 1.0, "p95": 2.0, "p99": 3.0, "n": 9}
RATE = {"median": 10, "low": 9, "high": 11, "n": 3}
FIGURES = {
    "echo_us": SPREAD,
    "bare_us": SPREAD,
    "round_trip_us": SPREAD,
    "round_trip_svm_us": SPREAD,
    "half_load": {"messages_per_second": 5.0, **SPREAD},
    "bare_half_load": SPREAD,
    "onnxruntime_per_second": RATE,
    "worker_per_second": RATE,
    "worker_single_per_second": RATE,
    "bare_single_per_second": RATE,
    "by_workers": {"1": RATE, "2": RATE},
    "archive_per_second": RATE,
    "no_archive_per_second": RATE,
    "share_with_archive": 0.95,
    "round_trip_over_echo": 2.6,
    "share_of_onnxruntime": 0.6,
    "share_of_echo": 0.7,
    "p99_over_bound": 0.9,
}


def test_each_target_is_compared_with_its_bound():
    holds = harness.targets_met(TARGETS, FIGURES)
    assert holds == {
        "round_trip_over_echo": False,
        "share_of_onnxruntime": True,
        "share_of_echo": True,
        "p99_over_bound": True,
        "share_with_archive": True,
    }
    document = {"figures": FIGURES, "holds": holds, "settings": {"f0": "none"}}
    page_text = "\n".join(page(document | {"machine": {"cores": 2}}))
    assert page_text.count("| missed |") == 1
    assert all(target in page_text for target, _, _ in TARGETS.values())


def test_client_receives_every_echo():
    X = load_digits(return_X_y=True)[0].astype("float32")
    with MosquittoBroker() as broker, connected(broker.port) as client:
        assert len(client.time_echoes(payloads(X, 1, 1, model="m")[0], 20)) == 20


@pytest.mark.slow
def test_quick_run_writes_its_page(tmp_path):
    assert BENCHMARK.main(["--quick", "--out", str(tmp_path)]) == 0
    figures = json.loads((tmp_path / "cloud.json").read_text())["figures"]
    assert figures["round_trip_us"]["n"] == figures["echo_us"]["n"]
    assert figures["by_workers"].keys() == {"1", "2"}
    assert figures["archive_per_second"]["median"] > 0
    assert (tmp_path / "cloud.md").read_text().startswith("# A cloud worker")
