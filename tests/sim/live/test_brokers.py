"""Tests of live runs on the embedded broker and on a given broker."""

import threading

import pytest

from gatewise_cloud.broker.broker import MosquittoBroker
from gatewise_cloud.broker.mqtt_client import close_client, open_client
from gatewise_edge.link.endpoint import Endpoint, make_client
from gatewise_sim.fleet.results import REASON
from tests.sim.live.runs import make_live_scenario, run_live_fleet

pytestmark = pytest.mark.slow  # runs in real time


@pytest.mark.usefixtures("nothing_left")
def test_run_without_mosquitto_uses_and_restarts_the_embedded_broker(digits, table, monkeypatch):
    monkeypatch.setattr("gatewise_sim.live.brokers.find_mosquitto", lambda: None)
    scenario = make_live_scenario(
        devices=2, time="3s", workload="periodic:100ms", outage=("broker:+1s-+2s",)
    )
    live_run = run_live_fleet(digits, table, scenario)
    assert (live_run.broker, live_run.fleet.n_lost) == ("embedded", 0)
    faults = [(fault["what"], fault["up"]) for fault in live_run.faults]
    assert faults == [("broker", False), ("broker", True)]
    assert REASON["link-down"] in live_run.fleet.answers.reason


@pytest.mark.usefixtures("nothing_left")
def test_given_broker_is_used_and_keeps_no_status_of_the_devices(digits, table):
    """A run deletes the retained statuses of its devices, which a given broker would keep."""
    with MosquittoBroker() as broker:
        scenario = make_live_scenario(devices=2, time="1s", broker=broker.url)
        live_run = run_live_fleet(digits, table, scenario)
        assert (live_run.broker, live_run.fleet.n_lost) == (broker.url, 0)
        assert list_retained_topics(broker.url) == []


def list_retained_topics(url: str) -> list[str]:
    """List the topics of the messages that a broker retains.

    A broker sends retained messages after a subscription and before new ones, so a message that is
    published after the subscription marks their end.
    """
    topics: list[str] = []
    end_topic = "last"  # no topic of a run
    endpoint, all_received = Endpoint(url), threading.Event()
    client = make_client(endpoint, "topic-lister", max_inflight=1)
    client.on_connect = lambda *_: client.subscribe([("#", 0), (end_topic, 0)])
    client.on_subscribe = lambda *_: client.publish(end_topic, b"")
    client.on_message = lambda _client, _userdata, message: (
        all_received.set() if message.topic == end_topic else topics.append(message.topic)
    )
    open_client(client, endpoint)
    client.loop_start()
    try:
        assert all_received.wait(30.0)  # seconds, for a busy machine
    finally:
        close_client(client)
    return topics
