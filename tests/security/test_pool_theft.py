"""Tests that devices cannot take requests of the workers' pool or fill the broker's memory."""

from __future__ import annotations

import json
import re
import threading

import pytest

from gatewise_cloud.broker.broker_init import find_plugin
from gatewise_cloud.broker.mqtt_client import close_client
from gatewise_cloud.worker.worker import Worker
from gatewise_edge.link import wire
from gatewise_edge.link.endpoint import Endpoint, make_client
from tests.support.mosquitto import SecureBroker, make_broker_folder
from tests.support.mqtt_clients import MqttClient

#: Enough that a broker that shares requests evenly would give an intruder some.
N_REQUESTS = 40
#: Time to live (ms) that no request exceeds, even on a busy machine.
TTL_MS = 30_000

needs_plugin = pytest.mark.skipif(find_plugin() is None, reason="needs the plugin")


def make_request() -> bytes:
    """Make a request to the small bundle's model."""
    request = wire.Request(
        id=wire.new_id(), model="small", version="7", ttl_ms=TTL_MS, X=[[0.1, 0.1, -1.0]]
    )
    return wire.encode_request(request)


def make_json_request() -> bytes:
    """Make such a request in JSON."""
    entries = {"id": wire.new_id().hex(), "m": "small", "mv": "7", "ttl": TTL_MS, "x": [0, 0, 0]}
    return json.dumps(entries).encode()


@pytest.mark.parametrize("plugin", [pytest.param("auto", marks=needs_plugin), "none"])
def test_a_device_in_the_pool_takes_no_request(tmp_path, bundle, plugin):
    broker_folder = make_broker_folder(tmp_path / "broker", plugin=plugin)
    with SecureBroker(broker_folder) as broker:
        # Without the plugin the broker grants every subscription, but the thief does not know the
        # name of the pool.
        pools = ["gw", broker_folder.roster.pool] if plugin == "auto" else ["gw"]
        topics = (wire.REQUEST_TOPICS, wire.JSON_REQUEST_TOPICS)
        topic_filters = [
            wire.shared_subscription(pool, topic) for pool in pools for topic in topics
        ]
        pool_intruder = MqttClient(
            broker.url, *topic_filters, files=broker_folder.client_arguments("pi-2")
        )
        # MQTT reports a refused subscription by a code of at least 128
        assert all(code >= 128 for code in pool_intruder.subscription_codes) == (plugin == "auto")
        topics = ["gw/v1/pi-1/rsp", "gw/v1/pi-1/rsp/json"]
        device = MqttClient(broker.url, *topics, files=broker_folder.client_arguments("pi-1"))
        with Worker(bundle, broker.url, **broker_folder.worker_arguments("w-1")):
            for _ in range(N_REQUESTS):
                device.publish("gw/v1/pi-1/req", make_request())
                device.publish("gw/v1/pi-1/req/json", make_json_request())
            for _ in range(2 * N_REQUESTS):
                topic, payload = device.get()
                if topic.endswith("/json"):
                    assert "e" not in json.loads(payload)
                else:
                    assert wire.decode_response(payload).error is None
        pool_intruder.close()
        device.close()


def leave_sleeping_session(broker: SecureBroker, client_id: str) -> None:
    """Subscribe to responses in a persistent session, and disconnect."""
    endpoint = Endpoint(broker.url, **broker.broker_folder.client_arguments("pi-1"))
    client = make_client(endpoint, client_id, max_inflight=1)
    client._clean_session = False
    is_subscribed = threading.Event()
    client.on_connect = lambda *_: client.subscribe("gw/v1/pi-1/rsp", qos=1)
    client.on_subscribe = lambda *_: is_subscribed.set()
    client.connect(endpoint.host, endpoint.port)
    client.loop_start()
    assert is_subscribed.wait(30)  # seconds, for a busy machine
    close_client(client)


def test_sleeping_sessions_do_not_fill_the_broker(secure_broker, connect_client):
    for session_number in range(5):
        leave_sleeping_session(secure_broker, f"sleeper-{session_number}")
    # one session per certificate
    assert len(re.findall(r"New client connected from \S+ as pi-1", secure_broker.log)) == 5
    assert "as sleeper" not in secure_broker.log
    worker = connect_client("w-1")
    for _ in range(200):
        worker.publish("gw/v1/pi-1/rsp", bytes(wire.MAX_PAYLOAD))
    secure_broker.close()
    n_bytes = (secure_broker.broker_folder.folder / "data" / "mosquitto.db").stat().st_size
    # the broker keeps at most 8 MiB for a session, of 200 payloads for each of five
    assert 1e6 < n_bytes < 10e6
