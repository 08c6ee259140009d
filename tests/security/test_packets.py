"""Tests that malformed packets may end a connection, but not the network thread."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest

from gatewise.errors import GatewiseError
from gatewise_cloud.worker.serving import BatchServer
from gatewise_cloud.worker.worker import Worker
from gatewise_edge.link import wire
from gatewise_edge.link.mqtt_link import MqttLink
from tests.support.raw_broker import RawBroker, publish_packet
from tests.support.waiting import wait_until

#: Malformed packets, and whether the connection stays open. The first byte of a packet is its type
#: (0x30 PUBLISH, 0x90 SUBACK), and the next ones are the length of the rest.
PACKETS = {
    "topic-not-utf8": (publish_packet(b"gw/v1/\xff/req", b"x"), True),
    "topic-longer-than-packet": (b"\x30\x05\xff\xffabc", False),
    "no-topic": (b"\x30\x00", False),
    "empty-suback": (b"\x90\x00", False),
    "unknown-type": (b"\xf0\x00", False),
    "endless-length": (b"\x30\xff\xff\xff\xff\x7f", False),
}


@pytest.fixture
def raw_broker():
    """A broker that sends any bytes."""
    with RawBroker() as broker:
        yield broker


def send_each_packet(raw_broker):
    """Send each of the packets; yield its name once the client is connected."""
    n_connections = 1
    for name, (packet, stays_connected) in PACKETS.items():
        raw_broker.send(packet)
        if not stays_connected:
            n_connections += 1
            raw_broker.wait_for_connection(n_connections)
        yield name


@pytest.mark.slow
@pytest.mark.usefixtures("quick_reconnects")
def test_a_worker_answers_after_malformed_packets(raw_broker, bundle):
    with Worker(bundle, raw_broker.url, shared=False) as worker:
        for name in send_each_packet(raw_broker):
            request = wire.Request(
                id=wire.new_id(), model="small", version="7", ttl_ms=30_000, X=np.zeros((1, 3))
            )
            raw_broker.send(publish_packet(b"gw/v1/pi-1/req", wire.encode_request(request)))
            topic, payload = raw_broker.published_messages.get(timeout=30)  # s
            assert topic == b"gw/v1/pi-1/rsp", name
            assert wire.decode_response(payload).id == request.id
            assert worker.trouble is None


@pytest.mark.slow
@pytest.mark.usefixtures("quick_reconnects")
def test_a_device_gets_responses_after_malformed_packets(raw_broker):
    link = MqttLink(raw_broker.url, device="pi-1")
    received_payloads, sent_payloads = [], []
    link.open(received_payloads.append)
    for name in send_each_packet(raw_broker):
        sent_payloads.append(name.encode())
        raw_broker.send(publish_packet(b"gw/v1/pi-1/rsp", sent_payloads[-1]))
        wait_until(lambda: received_payloads == sent_payloads, f"the response after {name}")
    link.close()


@pytest.mark.parametrize("client_kind", ["worker", "device"])
def test_a_message_of_250_mb_is_refused_at_its_header(raw_broker, bundle, client_kind):
    # The length 250,000,000 of a PUBLISH in digits of base 128, the lowest first; no body follows.
    huge_header = b"\x30\x80\xe5\x9a\x77"
    if client_kind == "worker":
        with Worker(bundle, raw_broker.url, shared=False) as worker:
            raw_broker.send(huge_header)
            wait_until(lambda: worker.counters["oversized"] == 1, "the refusal")
        return
    with closing(MqttLink(raw_broker.url, device="pi-1")) as link:
        link.open(lambda payload: None)
        raw_broker.send(huge_header)
        wait_until(lambda: link.n_oversized == 1, "the refusal")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_worker_ends_with_an_error_if_its_network_thread_ends(raw_broker, bundle, monkeypatch):
    def end_thread(*_):
        raise SystemExit

    monkeypatch.setattr(BatchServer, "receive", end_thread)
    worker = Worker(bundle, raw_broker.url, shared=False)
    troubles = []

    def send_message(worker):
        raw_broker.send(publish_packet(b"gw/v1/pi-1/req", b"x"))
        wait_until(lambda: worker.trouble is not None)
        troubles.append(worker.trouble)

    with pytest.raises(GatewiseError, match="network thread"):
        worker.run(send_message)
    assert "network thread" in troubles[0]
