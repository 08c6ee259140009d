"""Both brokers: ready when they say so, gone when they are left; and what each really does."""

import os
import socket
import threading

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from gatewise_cloud import shared_subscriptions_work
from gatewise_cloud.broker import broker as broker_module
from gatewise_cloud.broker.broker import (
    EmbeddedBroker,
    MosquittoBroker,
    find_mosquitto,
    mosquitto_config,
)
from gatewise_cloud.broker.mqtt_client import close_client
from gatewise_cloud.errors import BrokerError
from gatewise_edge.errors import LinkError

BROKERS = [EmbeddedBroker, MosquittoBroker]


def listens(host, port):
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True


class Client:
    """A paho client that keeps what it gets."""

    def __init__(self, broker, subscribe=(), will=None):
        self.got = []
        self.ready = threading.Event()
        self.client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv311)
        if will:
            self.client.will_set(*will)
        self.client.on_connect = self._on_connect
        self.client.on_subscribe = lambda *_: self.ready.set()
        self.client.on_message = lambda _c, _u, m: self.got.append((m.topic, m.payload, m.retain))
        self._subscribe = [(topic, 1) for topic in subscribe]
        self.client.connect(broker.host, broker.port)
        self.client.loop_start()
        assert self.ready.wait(5)

    def _on_connect(self, client, *_):
        if self._subscribe:
            client.subscribe(self._subscribe)
        else:
            self.ready.set()

    def publish(self, topic, payload, retain=False):
        self.client.publish(topic, payload, qos=1, retain=retain).wait_for_publish(5)

    def drop(self):
        """Vanish without a farewell."""
        self.client.loop_stop()
        self.client.reinitialise()

    def close(self):
        close_client(self.client)


@pytest.mark.parametrize("kind", BROKERS)
def test_ready_inside_gone_after_and_the_port_is_free_again(kind):
    with kind() as broker:
        assert broker.alive
        assert broker.url == f"mqtt://127.0.0.1:{broker.port}"
        assert shared_subscriptions_work(broker.url) is broker.shared_subscriptions
        pid = broker.pid
    assert not broker.alive
    assert not listens("127.0.0.1", broker.port)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    broker.close()
    with kind(broker.port) as again:
        assert again.port == broker.port


@pytest.mark.parametrize("kind", BROKERS)
def test_a_port_in_use_is_named(kind):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BrokerError, match=f"port {port} on 127.0.0.1 is in use") as caught:
            kind(port)
    assert (caught.value.host, caught.value.port) == ("127.0.0.1", port)


@pytest.mark.parametrize("kind", BROKERS)
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "broker.example"])
def test_listens_on_loopback_only(kind, host):
    with pytest.raises(BrokerError, match="loopback only"):
        kind(host=host)


@pytest.mark.parametrize("port", [-1, 70000])
def test_a_port_that_is_none(port):
    with pytest.raises(BrokerError, match=f"port {port} on 127.0.0.1 cannot be used"):
        EmbeddedBroker(port)


def test_a_program_that_ends_at_once_says_why(monkeypatch):
    monkeypatch.setattr(broker_module, "mosquitto_config", lambda *_, **__: "nonsense 1\n")
    with pytest.raises(BrokerError, match=r"ended while it started: .*nonsense"):
        MosquittoBroker()


def test_no_mosquitto_says_how_to_get_one(monkeypatch):
    monkeypatch.setattr(broker_module, "find_mosquitto", lambda: None)
    with pytest.raises(BrokerError, match="apt install mosquitto"):
        MosquittoBroker()


def test_mosquitto_is_found_beside_the_path(monkeypatch):
    program = find_mosquitto()
    monkeypatch.setenv("PATH", "/nowhere")
    assert program is not None
    assert find_mosquitto() is not None


def test_the_configuration_of_mosquitto():
    lines = mosquitto_config(1234, host="::1").splitlines()
    assert {"listener 1234 ::1", "set_tcp_nodelay true", "persistence false"} <= set(lines)


@pytest.mark.parametrize("kind", BROKERS)
def test_ipv6(kind):
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    with kind(host="::1") as broker:
        assert broker.url == f"mqtt://[::1]:{broker.port}"
        assert listens("::1", broker.port)


# What the rooms build on, on each broker. A newer amqtt may change the facts that the module
# docstring of gatewise_cloud.broker.broker lists: these tests would tell.


def test_retained_messages_and_last_wills(any_broker, wait_until):
    topic = f"test/{any_broker.kind}/status"
    dying = Client(any_broker, will=(topic, b"offline", 1, True))
    dying.publish(topic, b"online", retain=True)
    watcher = Client(any_broker, [topic])
    wait_until(lambda: (topic, b"online", True) in watcher.got)
    dying.drop()
    wait_until(lambda: (topic, b"offline", False) in watcher.got)
    late = Client(any_broker, [topic])
    wait_until(lambda: (topic, b"offline", True) in late.got)
    late.publish(topic, b"", retain=True)
    # The embedded broker acknowledges before it acts.
    wait_until(lambda: (topic, b"", False) in watcher.got)
    fresh = Client(any_broker, [topic, f"{topic}/end"])
    fresh.publish(f"{topic}/end", b"")
    wait_until(lambda: fresh.got)
    assert [t for t, _, _ in fresh.got] == [f"{topic}/end"]
    for client in (watcher, late, fresh):
        client.close()


def test_no_will_after_a_clean_farewell(any_broker, wait_until):
    topic = f"test/{any_broker.kind}/farewell"
    watcher = Client(any_broker, [topic])
    Client(any_broker, will=(topic, b"offline", 1, False)).close()
    watcher.publish(topic, b"end")
    wait_until(lambda: watcher.got)
    assert watcher.got == [(topic, b"end", False)]
    watcher.close()


@pytest.mark.parametrize("kind", BROKERS)
def test_retained_messages_that_nobody_asked_for(kind, wait_until):
    with kind() as broker:
        watcher = Client(broker, ["test/+"])
        watcher.publish("test/a", b"kept", retain=True)
        stranger = Client(broker, ["other"])
        stranger.publish("other", b"end")
        wait_until(lambda: ("other", b"end", False) in stranger.got)
        unasked = [topic for topic, _, _ in stranger.got if topic != "other"]
        assert unasked == (["test/a"] if kind is EmbeddedBroker else [])
        watcher.close()
        stranger.close()


# -- shared subscriptions, found out by a round trip -----------------------------------------


def test_nobody_listens():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(LinkError, match="cannot be reached") as caught:
        shared_subscriptions_work(f"mqtt://user:secret@127.0.0.1:{port}")
    assert caught.value.url == f"mqtt://127.0.0.1:{port}"
    assert "secret" not in str(caught.value)


def test_a_broker_that_lets_nobody_in(locked_mosquitto):
    with pytest.raises(LinkError, match="refuses this client"):
        shared_subscriptions_work(locked_mosquitto)


def test_where_nothing_comes_back_nothing_is_learned(tmp_path, mosquitto_with):
    rules = tmp_path / "rules"
    rules.write_text("topic readwrite elsewhere/#\n")
    # Run by root, mosquitto would become a user who may not read the rules.
    lines = ["allow_anonymous true", f"acl_file {rules}", "user root"]
    with mosquitto_with(*lines) as url:
        assert shared_subscriptions_work(url, timeout=0.5) is None
