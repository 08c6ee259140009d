"""Tests of the load client and a quick run of the benchmark of a cloud worker."""

import json

import pytest
from sklearn.datasets import load_digits

from benchmarks.bench_cloud import BENCHMARK
from benchmarks.cloud.load import connected, payloads
from gatewise_cloud.broker.broker import MosquittoBroker


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
