import contextlib
import random
import socket
import socketserver
import statistics
import threading
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatewise.errors import InputError
from gatewise_sim.fleet.network.link import Direction, LinkProfile
from gatewise_sim.fleet.network.profiles import PROFILES, profile
from gatewise_sim.fleet.network.proxy import DelayProxy
from tests.support.ports import free_port

arrivals = st.lists(
    st.tuples(st.floats(0, 1), st.integers(1, 20_000)), min_size=1, max_size=40
)  # (seconds since the one before, bytes)


@given(arrivals, st.sampled_from(sorted(PROFILES)), st.integers(0, 1000))
def test_bytes_keep_their_order_and_never_arrive_early(steps, name, seed):
    link = PROFILES[name]
    direction = Direction(link, link.up_kbps, random.Random(seed))
    now, last = 0.0, 0.0
    for gap, size in steps:
        now += gap
        due = direction.due(now, size)
        assert due >= last
        assert due >= now + max(0.0, link.rtt_ms - link.jitter_ms) / 2e3 - 1e-9
        last = due


@given(arrivals, st.integers(0, 1000))
def test_bandwidth_bounds_the_rate(steps, seed):
    direction = Direction(LinkProfile("slow"), 100.0, random.Random(seed))
    now, total, due = 0.0, 0, 0.0
    for gap, size in steps:
        now += gap
        total += size
        due = direction.due(now, size)
    first = steps[0][0]
    assert due - first >= total * 8e-3 / 100.0 - 1e-9


def test_without_jitter_or_loss_the_delay_is_half_the_round_trip():
    direction = Direction(LinkProfile("x", rtt_ms=100), float("inf"), random.Random(0))
    assert [direction.due(t, 10) for t in (0.0, 1.0)] == [0.05, 1.05]


def test_a_lost_segment_stalls_what_follows_for_one_timeout():
    class Unlucky(random.Random):
        draws = iter([0.0, 0.9, 0.9])  # lost once, then never

        def random(self) -> float:
            return next(self.draws)

        def uniform(self, a: float, b: float) -> float:
            return 0.0

    link = LinkProfile("x", rtt_ms=100, loss=0.5)
    direction = Direction(link, float("inf"), Unlucky())
    first = direction.due(0.0, 100)
    assert first == pytest.approx((50 + link.rto_ms) / 1e3)
    assert direction.due(0.001, 100) == first  # head of line: nothing overtakes


def test_an_unknown_link_is_named_with_the_choices():
    with pytest.raises(InputError, match=r"no link 'wlan'; choose one of none, wifi"):
        profile("wlan")


def test_tls_cannot_be_delayed():
    with pytest.raises(InputError, match="mqtt://host:port"):
        DelayProxy("mqtts://example.org", PROFILES["wifi"])


class _Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        while data := self.request.recv(65536):
            self.request.sendall(data)


class _Twice(socketserver.BaseRequestHandler):
    """Answers in two parts, as a broker does that acknowledges first."""

    def handle(self) -> None:
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while self.request.recv(65536):
            self.request.sendall(b"ack")
            time.sleep(0.002)
            self.request.sendall(b"answer")


@contextlib.contextmanager
def echo_server(handler: type[socketserver.BaseRequestHandler] = _Echo) -> Iterator[str]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"mqtt://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def connect(url: str) -> socket.socket:
    parts = urlsplit(url)
    client = socket.create_connection((parts.hostname, parts.port), timeout=20)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client


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
        ping(client, b"connect")  # the first waits for the handshake too
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


def test_the_handshake_takes_a_round_trip():
    link = LinkProfile("x", rtt_ms=100)
    with echo_server() as target, DelayProxy(target, link) as proxy, connect(proxy.url) as client:
        assert ping(client, b"x") >= 199


def test_closing_one_end_closes_the_other():
    with echo_server() as target, DelayProxy(target, LinkProfile("x", rtt_ms=10)) as proxy:
        with connect(proxy.url) as client:
            client.sendall(b"last words")
            client.shutdown(socket.SHUT_WR)
            received = b""
            while chunk := client.recv(100):
                received += chunk
        assert received == b"last words"


def test_nobody_behind_the_proxy_means_a_closed_connection():
    port = free_port()
    with (
        DelayProxy(f"mqtt://127.0.0.1:{port}", LinkProfile("x")) as proxy,
        connect(proxy.url) as client,
    ):
        assert client.recv(1) == b""


def test_leaving_with_connections_open_ends_the_thread():
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
