"""Real requests to a real server, well meant and not."""

import base64
import contextlib
import hashlib
import json
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from gatewise.errors import InputError
from gatewise_sim.fleet.progress import Snapshot
from gatewise_sim.view import serve as serving
from gatewise_sim.view.serve import PageServer
from gatewise_sim.view.tracker import Tracker

DEADLINE = 30.0


def told() -> Tracker:
    tracker = Tracker()
    tracker.begin("two devices", 60.0, 100)
    tracker.policy("system", "Gatewise")
    tracker.fault("cloud", False, 20.0)
    for k in range(1, 11):
        snapshot = Snapshot(
            at=3.0 * k, answered=5 * k, edge=4 * k, cloud=k, p50_ms=3.0, done=0.05 * k
        )
        tracker.advance(snapshot)
    return tracker


@pytest.fixture(scope="module")
def server():
    """One that nobody changes."""
    server = PageServer(told())
    yield server
    server.close()


@pytest.fixture
def own():
    server = PageServer(told())
    yield server
    server.close()


def ask(server: PageServer, path: str = "/", **headers: str):
    request = urllib.request.Request(server.url.rstrip("/") + path, headers=headers)
    return urllib.request.urlopen(request, timeout=DEADLINE)


def raw(server: PageServer, text: str | bytes) -> bytes:
    """Send bytes as they are; all that comes back."""
    port = int(server.url.rsplit(":", 1)[1].strip("/"))
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE) as line:
        line.sendall(text.encode() if isinstance(text, str) else text)
        got = b""
        # What was sent beyond the refusal was not read.
        with contextlib.suppress(ConnectionResetError):
            while piece := line.recv(65536):
                got += piece
        return got


def get(server: PageServer, path: str, *more: str, method: str = "GET", host: str | None = None):
    host = server.url[7:-1] if host is None else host
    return raw(server, f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n" + "".join(more) + "\r\n")


def test_the_page_is_one_document_under_a_strict_policy(server):
    answer = ask(server)
    html, policy = answer.read().decode(), answer.headers["Content-Security-Policy"]
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert not re.search(r"""(src|href)\s*=\s*["'](?!data:,)""", html)
    assert set(re.findall(r"https?://[^\"'\s<>]+", html)) == {"http://www.w3.org/2000/svg"}
    for name in ("script", "style"):
        (inside,) = re.findall(f"<{name}>(.*?)</{name}>", html, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}';" in policy
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert not re.search(r"innerHTML|insertAdjacent|document\.write|eval\(", html)


def test_the_state_is_what_was_told(own):
    server = own
    state = json.load(ask(server, "/state.json"))
    assert state["title"] == "two devices"
    assert state["status"] == "running: Gatewise; down: cloud"
    assert state["routes"][1] == ["cloud", pytest.approx(0.2), "10"]
    assert state["done"] == 0.5
    assert sum(sum(b[:4]) for b in state["bins"]) == pytest.approx(50, abs=0.2)
    assert state["faults"][0]["end"] is None
    assert (state["final"], state["report"]) == (False, None)
    server._tracker.advance(Snapshot(at=40.0, answered=80, edge=60, cloud=20, done=0.7))
    assert json.load(ask(server, "/state.json"))["answered"][0] == "80 answered"


def test_every_answer_forbids_what_is_not_needed(server):
    for path in ("/", "/state.json"):
        headers = ask(server, path).headers
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert headers["Cache-Control"] == "no-store"
        assert "Access-Control-Allow-Origin" not in headers
        assert "Python" not in str(headers)


def test_it_listens_on_this_machine_alone(server):
    assert server.url.startswith("http://127.0.0.1:")
    assert server._server.socket.getsockname()[0] == "127.0.0.1"


def test_head_has_no_body(server):
    head, _, body = get(server, "/", method="HEAD").partition(b"\r\n\r\n")
    assert b" 200 " in head
    assert body == b""
    length = int(re.search(rb"Content-Length: (\d+)", head)[1])
    assert length == len(ask(server).read())


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "127.0.0.1", "127.0.0.1:1", "127.0.0.1.evil.example:{port}", "[::1]:{port}",
        "", "localhost:{port}.", "localhost:{port}@evil.example", "0.0.0.0:{port}",
    ],
)  # fmt: skip
def test_a_rebound_name_is_refused(server, host):
    port = server.url.rsplit(":", 1)[1].strip("/")
    for path in ("/", "/state.json", "/nowhere"):
        got = get(server, path, host=host.format(port=port))
        assert got.startswith(b"HTTP/1.0 403 ")
        assert b"two devices" not in got


def test_hosts_that_are_this_machine(server):
    port = server.url.rsplit(":", 1)[1].strip("/")
    for host in (f"localhost:{port}", f"LOCALHOST:{port}", f"127.0.0.1:{port}"):
        assert get(server, "/state.json", host=host).startswith(b"HTTP/1.0 200 ")


def test_none_or_two_hosts_are_refused(server):
    host = server.url[7:-1]
    assert raw(server, "GET / HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.0 403 ")
    twice = f"GET / HTTP/1.1\r\nHost: {host}\r\nHost: {host}\r\n\r\n"
    assert raw(server, twice).startswith(b"HTTP/1.0 403 ")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "<b>"])
def test_only_reading_is_allowed(server, method):
    got = get(server, "/state.json", "Content-Length: 0\r\n", method=method)
    assert got.startswith(b"HTTP/1.0 405 ")
    assert b"Allow: GET, HEAD" in got
    assert b"two devices" not in got
    assert b"<b>" not in got


@pytest.mark.parametrize(
    "path",
    [
        "/..", "/../../etc/passwd", "/%2e%2e/etc/passwd", "//etc/passwd", "/page.js", "/state",
        "/state.json/", "/report.html", "/report.json", "/instances.csv", "http://evil.example/",
        "*", "/\\..\\x", "/report.html%00",
    ],
)  # fmt: skip
def test_there_are_a_few_paths_and_no_files(server, path):
    got = get(server, path)
    assert got.startswith(b"HTTP/1.0 404 "), got
    assert got.endswith(b"\r\n\r\nnot here\n")


def test_requests_that_are_none(server):
    for junk in ("\r\n\r\n", "GET\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "\x00\xff\r\n\r\n",
                 "GET / HTTP/1.1\r\n" + "x: y\r\n" * 500 + "\r\n",
                 "GET /" + "a" * 100_000 + " HTTP/1.1\r\n\r\n",
                 b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"):  # fmt: skip
        assert b"two devices" not in raw(server, junk)
    assert ask(server).status == 200


def test_the_finished_report_is_served_with_what_lies_beside_it(own, tmp_path):
    server = own
    (tmp_path / "report.html").write_text("<h1>é</h1>", encoding="utf-8")
    (tmp_path / "legs.csv").write_text("a,b\n")
    (tmp_path / "secret.csv").write_text("no")
    with pytest.raises(urllib.error.HTTPError):
        ask(server, "/report.html")
    server.finish(tmp_path / "report.html")
    assert ask(server, "/report.html").read().decode() == "<h1>é</h1>"
    assert ask(server, "/legs.csv").headers["Content-Type"] == "text/csv; charset=utf-8"
    policy = ask(server, "/report.html").headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    for path in ("/secret.csv", "/timeline.csv", "/report.json"):
        assert get(server, path).startswith(b"HTTP/1.0 404 ")
    state = json.load(ask(server, "/state.json"))
    assert state["final"]
    assert Path(state["report"]) == tmp_path / "report.html"


def test_a_port_that_is_taken_is_said(server):
    port = int(server.url.rsplit(":", 1)[1].strip("/"))
    with pytest.raises(
        InputError, match=rf"--serve: port {port} cannot be used \(.*choose another"
    ):
        PageServer(told(), port)
    with pytest.raises(InputError, match="port 70000"):
        PageServer(told(), 70_000)


def test_idle_connections_do_not_keep_anybody_out(own):
    """Ever so many that say nothing: the oldest go, and the page is answered at once."""
    server = own
    port = int(server.url.rsplit(":", 1)[1].strip("/"))
    idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(3 * serving._CONNECTIONS)]
    try:
        began = time.monotonic()
        for _ in range(5):
            assert ask(server).status == 200
        assert threading.active_count() <= serving._CONNECTIONS + 10
        assert len(server._server._open) <= serving._CONNECTIONS
        assert time.monotonic() - began < DEADLINE
    finally:
        for line in idle:
            line.close()


def test_close_ends_it_all_even_with_connections_open():
    server = PageServer(told())
    port = int(server.url.rsplit(":", 1)[1].strip("/"))
    ours = server._thread
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE) as line:
        line.sendall(b"GET / HTTP/1.1\r\nHos")
        deadline = time.monotonic() + DEADLINE
        while not server._server._open and time.monotonic() < deadline:
            time.sleep(0.01)
        server.close()
        server.close()
        with contextlib.suppress(ConnectionResetError):
            assert line.recv(100) == b""
    assert not ours.is_alive()
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=DEADLINE).close()


def test_one_waits_for_a_page_that_looks_on_and_for_no_other(own):
    server = own
    server.finish()
    server.wait_seen(3600.0)  # nobody looks: at once
    ask(server, "/state.json")
    server.wait_seen(3600.0)  # has seen it
