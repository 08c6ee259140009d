"""Tests of live runs on the embedded broker and on a given broker."""

import threading

import pytest

from gatewise.errors import InputError
from gatewise_cloud.broker.broker import EmbeddedBroker, MosquittoBroker
from gatewise_cloud.broker.mqtt_client import close_client, open_client
from gatewise_edge.link.mqtt import Endpoint, make_client
from gatewise_sim.live.run import check_live
from tests.sim.live.runs import make_live_scenario, run_live_fleet

pytestmark = pytest.mark.slow


@pytest.mark.usefixtures("nothing_left")
def test_run_uses_the_embedded_or_a_given_broker(digits, table, monkeypatch):
    with EmbeddedBroker() as broker:
        with pytest.raises(InputError, match="does not support shared subscriptions"):
            check_live(make_live_scenario(workers=2, broker=broker.url))
        live_run = run_live_fleet(
            digits, table, make_live_scenario(devices=2, time="2s", broker=broker.url)
        )
        assert (live_run.broker, live_run.fleet.n_lost) == (broker.url, 0)
    monkeypatch.setattr("gatewise_sim.live.brokers.find_mosquitto", lambda: None)
    live_run = run_live_fleet(
        digits, table, make_live_scenario(devices=2, time="4s", outage=("broker:+1s-+2s",))
    )
    assert (live_run.broker, live_run.fleet.n_lost) == ("embedded", 0)
    assert [(fault["what"], fault["up"]) for fault in live_run.faults] == [
        ("broker", False),
        ("broker", True),
    ]


def test_given_broker_keeps_no_status_of_the_devices(digits, table):
    with MosquittoBroker() as broker:
        run_live_fleet(digits, table, make_live_scenario(devices=2, time="1s", broker=broker.url))
        retained_topics = list_retained_topics(broker.url)
    assert retained_topics == []


def list_retained_topics(url: str) -> list[str]:
    """List the topics of retained messages, which a broker sends before any new message.

    A publication after the subscription therefore marks their end.
    """
    topics: list[str] = []
    end_topic = "last"
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
