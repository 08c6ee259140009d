"""Start, end and MQTT behaviour of the embedded broker and mosquitto."""

import os
import socket

import pytest

from gatewise_cloud import shared_subscriptions_work
from gatewise_cloud.broker import broker as broker_module
from gatewise_cloud.broker.broker import EmbeddedBroker, MosquittoBroker, find_mosquitto
from gatewise_cloud.broker.mqtt_client import unreachable_error
from gatewise_cloud.errors import BrokerError
from gatewise_edge.errors import LinkError
from gatewise_edge.link.endpoint import Endpoint
from tests.support.mosquitto import Mosquitto
from tests.support.mqtt_clients import MqttClient
from tests.support.ports import free_port, listens
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow  # starts workers and brokers as processes

BROKERS = [EmbeddedBroker, MosquittoBroker]


@pytest.mark.parametrize("broker_class", BROKERS)
def test_a_broker_is_ready_in_its_context_and_frees_its_port(broker_class):
    with broker_class() as broker:
        assert broker.is_alive
        assert broker.url == f"mqtt://127.0.0.1:{broker.port}"
        assert shared_subscriptions_work(broker.url) is broker.has_shared_subscriptions
        pid = broker.pid
    assert not broker.is_alive
    assert not listens(broker.port)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    broker.close()
    with broker_class(broker.port) as restarted_broker:
        assert restarted_broker.port == broker.port


@pytest.mark.parametrize("broker_class", BROKERS)
def test_brokers_refuse_ports_that_they_cannot_use(broker_class):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(BrokerError, match=f"port {port} on 127.0.0.1 is in use") as error_info:
            broker_class(port)
    assert error_info.value.port == port
    for port in (-1, 70000):
        with pytest.raises(BrokerError, match=f"port {port} on 127.0.0.1 cannot be used"):
            broker_class(port)


def test_a_mosquitto_that_does_not_start_raises_the_reason(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(broker_module, "mosquitto_config", lambda port: "nonsense 1\n")
        with pytest.raises(BrokerError, match=r"ended while it started: .*nonsense"):
            MosquittoBroker()
    monkeypatch.setenv("PATH", "/nowhere")
    assert find_mosquitto() is not None  # in a folder that PATH does not list
    monkeypatch.setattr(broker_module, "find_mosquitto", lambda: None)
    with pytest.raises(BrokerError, match="apt install mosquitto"):
        MosquittoBroker()


# The packages rely on these properties of each broker. The tests fail if a newer amqtt changes
# the facts that the module docstring of gatewise_cloud.broker.broker lists.


def test_brokers_keep_retained_messages_and_send_last_wills(any_broker):
    topic = f"test/{any_broker.kind}/status"
    dropped_client = MqttClient(any_broker.url, will=(topic, b"offline", 1, True))
    dropped_client.publish(topic, b"online", retain=True)
    watcher = MqttClient(any_broker.url, topic)
    wait_until(lambda: (topic, b"online", True) in watcher.messages)
    dropped_client.break_connection()
    wait_until(lambda: (topic, b"offline", False) in watcher.messages)
    late_client = MqttClient(any_broker.url, topic)
    wait_until(lambda: (topic, b"offline", True) in late_client.messages)
    late_client.publish(topic, b"", retain=True)
    # The embedded broker acknowledges a message before it stores it.
    wait_until(lambda: (topic, b"", False) in watcher.messages)
    last_client = MqttClient(any_broker.url, topic, f"{topic}/end")
    last_client.publish(f"{topic}/end", b"")
    wait_until(lambda: last_client.messages)
    assert [topic for topic, _, _ in last_client.messages] == [f"{topic}/end"]
    for client in (watcher, late_client, last_client):
        client.close()


def test_brokers_send_no_last_will_after_a_clean_disconnect(any_broker):
    topic = f"test/{any_broker.kind}/farewell"
    watcher = MqttClient(any_broker.url, topic)
    MqttClient(any_broker.url, will=(topic, b"offline", 1, False)).close()
    watcher.publish(topic, b"end")
    wait_until(lambda: watcher.messages)
    assert watcher.messages == [(topic, b"end", False)]
    watcher.close()


@pytest.mark.parametrize("broker_class", BROKERS)
def test_only_the_embedded_broker_sends_retained_messages_of_other_topics(broker_class):
    with broker_class() as broker:
        watcher = MqttClient(broker.url, "test/+")
        watcher.publish("test/a", b"kept", retain=True)
        other_client = MqttClient(broker.url, "other")
        other_client.publish("other", b"end")
        wait_until(lambda: ("other", b"end", False) in other_client.messages)
        foreign_topics = [topic for topic, _, _ in other_client.messages if topic != "other"]
        assert foreign_topics == (["test/a"] if broker_class is EmbeddedBroker else [])
        watcher.close()
        other_client.close()


# -- support of shared subscriptions, found by a round trip ----------------------------------


def test_an_unreachable_or_refusing_broker_raises_a_link_error(locked_mosquitto):
    port = free_port()
    with pytest.raises(LinkError, match="cannot be reached") as error_info:
        shared_subscriptions_work(f"mqtt://user:secret@127.0.0.1:{port}")
    assert error_info.value.url == f"mqtt://127.0.0.1:{port}"
    assert "secret" not in str(error_info.value)
    with pytest.raises(LinkError, match="refuses this client"):
        shared_subscriptions_work(locked_mosquitto)


def test_error_of_a_certificate_recommends_no_other_broker():
    reason = "[SSL: CERTIFICATE_VERIFY_FAILED] certificate has expired"
    text = str(unreachable_error(Endpoint("mqtts://broker.example"), reason))
    assert "renew its certificate, or set the clock" in text
    assert "start one" not in text


def test_support_is_unknown_if_the_round_trip_fails(tmp_path):
    access_file = tmp_path / "rules"
    access_file.write_text("topic readwrite elsewhere/#\n")
    with Mosquitto(tmp_path, "allow_anonymous true", f"acl_file {access_file}") as broker:
        assert shared_subscriptions_work(broker.url, timeout=0.5) is None
