"""The link over a real broker: it is fast, sends nothing stale, and never delays an answer."""

from __future__ import annotations

import fcntl
import resource
import socket
import threading
import time

import numpy as np
import paho.mqtt.client as paho
import pytest
from paho.mqtt import publish

from gatewise.errors import InputError
from gatewise_edge.device.device import Device
from gatewise_edge.errors import LinkError, WireError
from gatewise_edge.link import wire
from gatewise_edge.link.endpoint import Endpoint, make_client
from gatewise_edge.link.mqtt_link import MqttLink
from tests.support.mosquitto import make_broker_folder
from tests.support.mqtt_clients import MqttClient
from tests.support.ports import free_port
from tests.support.small_bundle import HARD_ROW, SURE_ROW, answer_to
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow  # processes and brokers start

#: Seconds to wait for the first connection on a loaded machine.
CONNECT_TIMEOUT_S = 60


def make_request_payload(ttl_ms: int = 500) -> bytes:
    X = np.ones((1, 3), np.float32)
    return wire.encode_request(
        wire.Request(id=wire.new_id(), model="small", version="7", ttl_ms=ttl_ms, X=X)
    )


def test_hard_instances_get_answers_of_the_cloud(bundle, broker, make_peer):
    peer = make_peer()
    link = MqttLink(broker.url, device="pi-1")
    with Device(bundle, link=link) as device:
        link.connect(CONNECT_TIMEOUT_S)
        answers = [device.answer(HARD_ROW) for _ in range(30)]
        counters = device.counters
        assert counters["bytes_up"] == sum(map(len, peer.payloads))
    assert {(answer.route, answer.label) for answer in answers} == {("cloud", "no")}
    # On a loaded machine a request may be retried, with the same id.
    assert len({request.id for request in peer.requests}) == 30
    assert len(peer.requests) == 30 + counters["retries"]
    # The default deadline is 500 ms.
    assert all(0 < request.ttl_ms <= 500 for request in peer.requests)


def test_nagle_algorithm_is_off(broker):
    link = MqttLink(broker.url)
    link.connect(CONNECT_TIMEOUT_S)
    link_socket = link._broker._client.socket()
    assert link_socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # detects a dead peer before the keepalive
        assert link_socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 3000  # ms
    link.close()


def test_unread_bytes_are_detected_on_descriptors_above_1024(monkeypatch):
    """`select` refuses such descriptors; a process with many sockets has them."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(2048, limits[1]), limits[1]))
    try:
        near_socket, far_socket = socket.socketpair()
        # A copy with the lowest free descriptor from 1100.
        high_socket = socket.socket(fileno=fcntl.fcntl(near_socket, fcntl.F_DUPFD, 1100))
        connection = MqttLink("mqtt://127.0.0.1:1")._broker
        monkeypatch.setattr(connection._client, "socket", lambda: high_socket)
        with near_socket, far_socket, high_socket:
            assert not connection.has_unread
            far_socket.send(b"x")
            assert connection.has_unread
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_clients_speak_mqtt_3_1_1():
    client = make_client(Endpoint("mqtt://h"), "c", max_inflight=8)
    assert client.protocol == paho.MQTTv311


def test_attempts_to_connect_are_spread_over_time():
    pauses = []
    link = MqttLink(f"mqtt://127.0.0.1:{free_port()}")
    link._broker._is_closing = EndingAfterEightWaits(pauses)
    link.open(lambda payload: None)
    wait_until(lambda: len(pauses) == 8)
    # The mean doubles up to a minute.
    for pause, mean_pause in zip(pauses, (1, 2, 4, 8, 16, 32, 60, 60), strict=True):
        assert 0.5 * mean_pause <= pause <= 1.5 * mean_pause
    assert len(set(pauses)) == 8


class EndingAfterEightWaits:
    """An event that records the time of each wait, and is set after eight waits."""

    def __init__(self, pauses: list[float]) -> None:
        self._pauses = pauses

    def is_set(self) -> bool:
        return len(self._pauses) == 8

    def wait(self, timeout: float) -> None:
        self._pauses.append(timeout)


def test_status_is_published_on_connecting_closing_and_loss(broker, make_peer):
    """It names the active model."""
    peer = make_peer()

    def wait_for_status(device, status):
        wait_until(lambda: peer.statuses[-1:] == [(device, status)], f"{device} {status}")

    link = MqttLink(broker.url, device="leaves")
    link.set_status("small/7")
    link.connect(CONNECT_TIMEOUT_S)
    wait_for_status("leaves", "online small/7")
    link.set_status("small/8")
    wait_for_status("leaves", "online small/8")
    link.set_status("")
    wait_for_status("leaves", "online")
    with pytest.raises(InputError, match="300 bytes"):
        link.set_status("x" * 301)
    link.close()
    link.close()
    wait_for_status("leaves", "offline")
    link = MqttLink(broker.url, device="dies")
    link.connect(CONNECT_TIMEOUT_S)
    wait_for_status("dies", "online")
    # The socket breaks without a DISCONNECT, and the device does not reconnect.
    link._broker._is_closing.set()
    link._broker._client.socket().shutdown(socket.SHUT_RDWR)
    wait_for_status("dies", "offline")
    link.close()


def test_unreachable_broker_is_reported_in_one_line():
    url = f"mqtt://user:secret@127.0.0.1:{free_port()}"
    link = MqttLink(url)
    started_at = time.monotonic()
    with pytest.raises(
        LinkError, match=r"broker mqtt://127.* cannot be used: Conn.* refused"
    ) as error_info:
        link.connect(CONNECT_TIMEOUT_S)
    assert time.monotonic() - started_at < 30  # it does not wait for the whole timeout
    assert "secret" not in str(error_info.value) + error_info.value.url
    assert not link.is_ready
    assert not link.send(make_request_payload())
    # A second call waits for the next attempt, and has the same reason.
    started_at = time.monotonic()
    with pytest.raises(LinkError, match="refused"):
        link.connect(0.2)
    assert time.monotonic() - started_at >= 0.2
    link.close()


def test_connect_gives_up_on_a_silent_broker():
    with socket.create_server(("127.0.0.1", 0)) as silent_server:
        link = MqttLink(f"mqtt://127.0.0.1:{silent_server.getsockname()[1]}")
        with pytest.raises(LinkError, match=r"no answer within 0\.3 s"):
            link.connect(0.3)
        link.close()


@pytest.mark.usefixtures("quick_reconnects")
def test_a_device_starts_before_its_broker(bundle, broker, make_peer):
    broker.kill()
    link = MqttLink(broker.url)
    with Device(bundle, link=link) as device:
        answer = device.answer(HARD_ROW)
        # Prices of the small bundle: a 1, b 0.5, c 2 and its group 10.
        assert (answer.route, answer.reason, answer.cost) == ("fallback", "link-down", 13.5)
        assert answer.latency_ms < 250  # half of the deadline: it does not wait for the broker
        broker.start()
        make_peer()
        wait_until(lambda: link.is_ready, "the link to connect")
        assert device.answer(HARD_ROW).route == "cloud"


@pytest.mark.usefixtures("quick_reconnects")
def test_link_reconnects_after_the_broker_was_killed(bundle, broker, make_peer):
    peer = make_peer()
    link = MqttLink(broker.url, device="pi-1")
    deadline_ms = 2000.0
    has_killed = threading.Event()

    def kill_broker_once(request):
        if len(peer.requests) == 20 and not has_killed.is_set():
            has_killed.set()
            broker.kill()
            return []
        return [answer_to(request)]

    peer.respond_to = kill_broker_once
    with Device(bundle, link=link, deadline_ms=deadline_ms) as device:
        link.connect(CONNECT_TIMEOUT_S)
        answers = []
        for row_number in range(60):  # 30 hard rows, so that the broker is killed in the middle
            started_at = time.monotonic()
            answers.append(device.answer(HARD_ROW if row_number % 2 else SURE_ROW))
            # A loaded machine may be late, but no answer waits for the broker.
            assert 1000 * (time.monotonic() - started_at) < 10 * deadline_ms
        counters = device.counters
        assert has_killed.is_set()
        assert counters["edge"] + counters["cloud"] + counters["fallback"] == 60
        assert {answer.reason for answer in answers} >= {"stopped", "offloaded", "link-down"}
        # The broker starts again: the link reconnects, and no stale request is sent.
        n_requests_before = len(peer.requests)
        broker.start()
        wait_until(lambda: link.is_ready and peer.client.is_connected(), "both to reconnect")
        wait_until(lambda: device.answer(HARD_ROW).route == "cloud", "an answer of the cloud")
        new_requests = peer.requests[n_requests_before:]
        assert {request.id for request in new_requests}.isdisjoint(
            request.id for request in peer.requests[:n_requests_before]
        )


@pytest.mark.usefixtures("quick_reconnects")
def test_requests_in_flight_are_dropped_on_reconnect(broker, tmp_path):
    """A server accepts requests without acknowledging them; then a real broker has its port."""
    broker.kill()
    with socket.create_server(("127.0.0.1", broker.port)) as silent_server:
        link = MqttLink(broker.url, device="pi-1", max_inflight=3)
        link.open(lambda payload: None)
        # Packets of MQTT 3.1.1: CONNECT, CONNACK (3.2), SUBSCRIBE (3.8) and SUBACK (3.9), which has
        # the packet id of the SUBSCRIBE and the granted QoS 1.
        connection, _ = silent_server.accept()
        connection.recv(1000)
        connection.sendall(b"\x20\x02\x00\x00")
        packets = connection.recv(1000)
        subscribe_start = packets.index(b"\x82")
        packet_id = packets[subscribe_start + 2 : subscribe_start + 4]
        connection.sendall(b"\x90\x03" + packet_id + b"\x01")
        wait_until(lambda: link.is_ready, "the subscription")
        is_accepted = [link.send(make_request_payload()) for _ in range(5)]
        assert is_accepted == [True, True, True, False, False]  # `max_inflight` is 3
        connection.close()
    wait_until(lambda: not link.is_ready, "the link to notice")
    assert not link.send(make_request_payload())
    broker.start()
    received_payloads: list[bytes] = []
    subscriber = paho.Client(paho.CallbackAPIVersion.VERSION2)
    subscriber.on_message = lambda client, _, message: received_payloads.append(message.payload)
    subscriber.connect("127.0.0.1", broker.port)
    subscriber.subscribe(wire.REQUEST_TOPICS, 1)
    subscriber.loop_start()
    wait_until(lambda: link.is_ready, "the link to reconnect", timeout_s=60)
    new_request = make_request_payload()
    assert link.send(new_request)
    wait_until(lambda: new_request in received_payloads, "the new request")
    assert received_payloads == [new_request]
    subscriber.disconnect()
    subscriber.loop_stop()
    link.close()


@pytest.mark.usefixtures("quick_reconnects")
def test_watched_topics_are_subscribed_again_on_each_connection(broker, caplog):
    announcements: list[tuple[str, bytes]] = []
    link = MqttLink(broker.url, device="pi-1")

    def handle_small(payload: bytes) -> None:
        announcements.append(("small", payload))

    def handle_any(payload: bytes) -> None:
        announcements.append(("any", payload))
        raise ValueError("a bug")

    link.watch("gw/v1/model/small/manifest", handle_small)
    link.watch("gw/v1/model/+/manifest", handle_any)
    with pytest.raises(InputError, match="already watched"):
        link.watch("gw/v1/model/+/manifest", handle_any)
    responses: list[bytes] = []

    def receive(payload: bytes) -> None:
        responses.append(payload)
        raise ValueError("a bug")

    link.open(receive)
    link.connect(CONNECT_TIMEOUT_S)
    with pytest.raises(InputError, match="before the link is opened"):
        link.watch("gw/v1/model/other/manifest", handle_any)

    def publish_message(topic: str, payload: bytes, retain: bool = False) -> None:
        publish.single(topic, payload, 1, retain, "127.0.0.1", broker.port)

    publish_message("gw/v1/model/small/manifest", b"1", retain=True)
    wait_until(lambda: {("small", b"1"), ("any", b"1")} <= {*announcements}, "an announcement")
    broker.kill()
    wait_until(lambda: not link.is_ready, "the link to notice")
    broker.start()
    publish_message("gw/v1/model/small/manifest", b"2", retain=True)
    wait_until(lambda: ("small", b"2") in announcements, "the retained announcement", timeout_s=60)
    for payload in (b"r", b"s"):
        publish_message("gw/v1/pi-1/rsp", payload)
    wait_until(lambda: responses == [b"r", b"s"], "the responses, despite the errors")
    assert {handler_name for handler_name, _ in announcements} == {"small", "any"}
    link.close()
    assert "could not be handled" in caplog.text


def test_device_id_must_be_a_topic_level_and_is_random_by_default():
    with pytest.raises(WireError):
        MqttLink("mqtt://h", device="a/b")
    assert MqttLink("mqtt://h").device != MqttLink("mqtt://h").device


def test_device_id_is_the_name_in_a_certificate_of_the_broker_command(tmp_path):
    arguments = make_broker_folder(tmp_path / "broker").client_arguments("pi-1")
    link = MqttLink("mqtts://h", **arguments)
    assert link.device == link.certificate_name == "pi-1"
    with pytest.raises(InputError, match=r"certificate of 'pi-1'.* for device 'pi-2': give --dev"):
        MqttLink("mqtts://h", device="pi-2", **arguments)


@pytest.mark.usefixtures("quick_reconnects")
def test_two_devices_with_the_same_id_both_report_it(broker, caplog):
    first_link, second_link = (
        MqttLink(broker.url, device="twin"),
        MqttLink(broker.url, device="twin"),
    )
    with caplog.at_level("ERROR"):
        for link in (first_link, second_link):
            link.open(lambda payload: None)
        wait_until(lambda: first_link.trouble and second_link.trouble, "both to detect it")
        warning = "another process uses the device id twin"
        wait_until(lambda: caplog.text.count(warning) >= 2, "both to log it")
    assert warning in str(first_link.trouble)
    first_link.close()
    second_link.close()


@pytest.mark.usefixtures("quick_reconnects")
def test_device_that_reconnects_is_not_taken_for_another(broker):
    """The retained mark of a killed process and lost connections are no takeovers."""
    client = MqttClient(broker.url)
    client.publish("gw/v1/alone/session", b"0" * 32, retain=True)  # any id of a session
    link = MqttLink(broker.url, device="alone")
    link.connect(CONNECT_TIMEOUT_S)
    for _ in range(3):
        link._broker._client.socket().shutdown(socket.SHUT_RDWR)
        wait_until(lambda: not link.is_ready)
        wait_until(lambda: link.is_ready)
    assert (link.n_takeovers, link.trouble) == (0, None)
    link.close()
    client.subscribe("gw/v1/alone/session")
    assert client.is_silent()
    client.close()
