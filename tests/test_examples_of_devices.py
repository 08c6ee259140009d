"""Tests of the examples of devices: a gateway and custom policies."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import gatewise as gw
from gatewise_cloud import MosquittoBroker, Worker
from gatewise_edge import DecisionPoint
from tests.support import small_bundle
from tests.support.mqtt_clients import MqttClient
from tests.support.waiting import wait_until

EXAMPLES = Path(__file__).parents[1] / "examples"
#: Rows for which the first stage of the small bundle stops, and for which no stage stops.
SURE_ROW = [1, 0, 0, 0, 0, 0]
HARD_ROW = [0.1, 0, 0.1, 0, 1, 0]

pytestmark = pytest.mark.slow  # brokers, a worker, a process


@pytest.fixture
def broker(tmp_path):
    """Broker with a worker that serves the small bundle."""
    with MosquittoBroker() as broker, Worker(write_small_bundle(tmp_path), broker.url):
        yield broker


def write_small_bundle(folder):
    """Write the small bundle once; return its path."""
    path = folder / "bundle"
    return path if path.exists() else small_bundle.write_bundle(path).path


def test_gateway_answers_rows_of_the_sensors_at_its_site(tmp_path, broker):
    with MosquittoBroker() as site_broker:
        command = [
            sys.executable,
            EXAMPLES / "gateway.py",
            write_small_bundle(tmp_path),
            site_broker.url,
            broker.url,
        ]
        gateway = subprocess.Popen(command)
        sensor = MqttClient(site_broker.url, "site/+/answer")
        try:

            def ask_gateway(name, row):
                sensor.publish(f"site/{name}/row", json.dumps(row).encode())
                topic, payload = sensor.get()
                assert topic == f"site/{name}/answer"
                return json.loads(payload)

            # Wait until the gateway has subscribed and its link to the cloud is connected.
            wait_until(
                lambda: _does_gateway_reach_cloud(sensor),
                "the gateway to answer from the cloud",
                30.0,
            )
            assert ask_gateway("valve-1", SURE_ROW)["route"] == "edge"
            assert ask_gateway("valve-2", HARD_ROW)["route"] == "cloud"
            assert "error" in ask_gateway("valve-3", [1, 2])
            assert "missing" in ask_gateway("valve-3", [None, 0, 0, 0, 0, 0])["error"]
            sensor.publish("site/valve-3/row", b"[" * 100_000)
            assert "recursion" in json.loads(sensor.get()[1])["error"]
            assert ask_gateway("row-1", SURE_ROW)["route"] == "edge"
        finally:
            gateway.terminate()
            gateway.wait(30)  # seconds, for a busy machine
            sensor.close()


def _does_gateway_reach_cloud(sensor):
    """Send a row, read answers until none comes for 0.5 s; tell whether one is the cloud's."""
    sensor.publish("site/probe/row", json.dumps(HARD_ROW).encode())
    answers = []
    while True:
        try:
            answers.append(json.loads(sensor.get(0.5)[1]))
        except queue.Empty:
            return any(answer["route"] == "cloud" for answer in answers)


def test_custom_policy_offloads_at_most_a_share(tmp_path, broker, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from offload_share import OffloadShare

    link = gw.MqttLink(broker.url)
    policy = OffloadShare(0.25, burst=2.0)
    with gw.Device(
        write_small_bundle(tmp_path), link=link, deadline_ms=20_000, policy=policy
    ) as device:
        link.connect(30)  # seconds, for a busy machine
        routes = [device.answer(HARD_ROW).route for _ in range(20)]
    assert routes[:2] == ["cloud", "cloud"]
    assert routes.count("cloud") == 6  # the burst of 2, and a quarter of the other 18 instances
    assert set(routes) == {"cloud", "edge"}


def test_link_aware_policy_offloads_only_with_time_for_a_round_trip(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from link_aware import decide

    unsure_decision = DecisionPoint(
        stage=1, is_last_stage=True, score=0.1, threshold=0.5, probabilities=np.array([0.5, 0.5]),
        cost=1.0, time_left_ms=400.0, is_connected=True, round_trip_ms=300.0, n_in_flight=0,
    )  # fmt: skip
    assert decide(unsure_decision) == "continue"
    assert decide(replace(unsure_decision, time_left_ms=200.0)) == "stop"
    assert decide(replace(unsure_decision, is_last_stage=False, time_left_ms=200.0)) == "continue"
    assert decide(replace(unsure_decision, score=0.6)) == "stop"
