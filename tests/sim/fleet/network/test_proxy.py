import contextlib
import random
import socket
import socketserver
import statistics
import threading
import time
from collections.abc import Iterator

import pytest

from gatewise.errors import InputError
from gatewise_edge.link.mqtt import MqttLink
from gatewise_sim.fleet.network.link import LinkProfile, VirtualLink
from gatewise_sim.fleet.network.outages import Outages
from gatewise_sim.fleet.network.profiles import PROFILES
from gatewise_sim.fleet.network.proxy import DelayProxy
from tests.sim.fleet.network.echo import connect, echo_server
from tests.support.mosquitto import Mosquitto
from tests.support.ports import free_port


class _Twice(socketserver.BaseRequestHandler):
    """Answers in two parts, as a broker does that acknowledges first."""

    def handle(self) -> None:
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while self.request.recv(65536):
            self.request.sendall(b"ack")
            time.sleep(0.002)
            self.request.sendall(b"answer")


@pytest.mark.slow
def test_a_real_link_needs_the_handshakes_of_virtual_time(tmp_path):
    slow = LinkProfile("slow", rtt_ms=400.0)
    foreseen = VirtualLink(slow, random.Random(0)).session(0.0)
    assert foreseen == pytest.approx(1.2)
    taken = []
    with Mosquitto(tmp_path) as broker, DelayProxy(broker.url, slow) as proxy:
        for _ in range(3):
            link = MqttLink(proxy.url)
            began = time.monotonic()
            link.open(lambda payload: None)
            try:
                link.connect(30.0)
                taken.append(time.monotonic() - began)
            finally:
                link.close()
    # Fewer round trips are not possible; a busy machine only adds to one of the three.
    assert 0.95 * foreseen < min(taken) < foreseen + slow.rtt_ms / 1e3


def ping(client: socket.socket, message: bytes) -> float:
    began = time.monotonic()
    client.sendall(message)
    received = b""
    while len(received) < len(message):
        chunk = client.recv(65536)
        assert chunk, "the proxy hung up"
        received += chunk
    assert received == message
    return 1e3 * (time.monotonic() - began)


def test_the_proxy_delays_by_the_round_trip_and_carries_every_byte():
    link = LinkProfile("x", rtt_ms=40)
    with echo_server() as target, DelayProxy(target, link) as proxy, connect(proxy.url) as client:
        assert ping(client, b"connect") >= 79  # the first waits for the handshake too
        took = [ping(client, b"hello") for _ in range(15)]
        assert min(took) >= 39
        assert statistics.median(took) < 40 + 15  # a few ms, and room for a busy machine
        blob = random.Random(0).randbytes(300_000)
        ping(client, blob)
        assert proxy.up_bytes == proxy.down_bytes == len(blob) + 7 + 15 * 5


def test_no_write_waits_for_an_acknowledgement_of_the_one_before():
    link = LinkProfile("x", rtt_ms=2)
    with (
        echo_server(_Twice) as target,
        DelayProxy(target, link) as proxy,
        connect(proxy.url) as client,
    ):
        took = []
        for _ in range(60):  # the kernel delays no acknowledgement on a new connection
            began = time.monotonic()
            client.sendall(b"request")
            while not client.recv(100).endswith(b"answer"):
                pass
            took.append(1e3 * (time.monotonic() - began))
    assert statistics.median(took) < 25  # Nagle's algorithm makes it 44


def test_closing_one_end_closes_the_other():
    with echo_server() as target, DelayProxy(target, LinkProfile("x", rtt_ms=10)) as proxy:
        with connect(proxy.url) as client:
            client.sendall(b"last words")
            client.shutdown(socket.SHUT_WR)
            received = b""
            while chunk := client.recv(100):
                received += chunk
        assert received == b"last words"
    nobody = f"mqtt://127.0.0.1:{free_port()}"
    with DelayProxy(nobody, LinkProfile("x")) as proxy, connect(proxy.url) as client:
        assert client.recv(1) == b""


def test_leaving_with_connections_open_ends_the_thread():
    with pytest.raises(InputError, match="mqtt://host:port"):  # TLS cannot be delayed
        DelayProxy("mqtts://example.org", PROFILES["wifi"])
    before = threading.active_count()
    with echo_server() as target:
        with DelayProxy(target, PROFILES["satellite"]) as proxy:
            client = connect(proxy.url)
            client.sendall(b"never seen again")
            began = time.monotonic()
        assert time.monotonic() - began < 30
        with client, contextlib.suppress(ConnectionResetError):
            assert client.recv(1) == b""
    assert threading.active_count() == before


@contextlib.contextmanager
def proxy_and_client(outage: str) -> Iterator[tuple[DelayProxy, socket.socket]]:
    link, outages = LinkProfile("x", rtt_ms=2), Outages.parse(outage)
    with (
        echo_server() as target,
        DelayProxy(target, link, outages=outages) as proxy,
        connect(proxy.url) as client,
    ):
        ping(client, b"a")
        yield proxy, client


def test_the_proxy_holds_bytes_during_an_outage_and_loses_none():
    with proxy_and_client("link:+5s-+5500ms") as (proxy, client):
        proxy.began = time.monotonic() - 5.0  # now the outage begins
        ping(client, b"b")
        assert time.monotonic() - proxy.began >= 5.5


def test_a_run_that_begins_later_holds_up_no_bytes():
    with proxy_and_client("link:+100s-+200s") as (proxy, client):
        # As a live run does once all devices are connected. What was sent before has not come out
        # in the future.
        proxy.began = began = time.monotonic() + 80.0
        ping(client, b"b")
        assert time.monotonic() < began
