"""Profiles, one's own from a file, and the link of virtual time beside the proxy's arithmetic."""

import contextlib
import math
import random
import socket
import socketserver
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatewise.errors import InputError
from gatewise_sim.fleet.energy.radio import HEADER, RADIOS, SEGMENT, Radio, ip_bytes, packets
from gatewise_sim.fleet.network.link import (
    CHUNK,
    MAX_RTO_S,
    Direction,
    LinkProfile,
    VirtualLink,
    both_ways,
)
from gatewise_sim.fleet.network.outages import Outages
from gatewise_sim.fleet.network.profiles import PROFILES, profile, read_profile
from gatewise_sim.fleet.network.proxy import DelayProxy

messages = st.lists(
    st.tuples(st.floats(0, 2), st.integers(1, 60_000), st.booleans()), min_size=1, max_size=30
)  # (seconds since the one before, bytes, from the device)


@given(messages, st.sampled_from(sorted(PROFILES)), st.integers(0, 2**32))
def test_the_virtual_link_is_the_proxys_arithmetic_chunk_by_chunk(steps, name, seed):
    link = PROFILES[name]
    virtual = VirtualLink(link, random.Random(seed))
    # As DelayProxy has it: both directions of a connection, fed with what it reads at a time.
    up, down = both_ways(link, random.Random(seed))
    now = 0.0
    for gap, size, is_up in steps:
        now += gap
        pieces = [CHUNK] * (size // CHUNK) + [size % CHUNK] * bool(size % CHUNK)
        due = [(up if is_up else down).due(now, piece) for piece in pieces]
        assert virtual.send(now, size, is_up) == due[-1]


def test_the_virtual_link_takes_a_numpy_generator():
    link = PROFILES["4g"]
    dues = [
        [VirtualLink(link, np.random.default_rng(seed)).send(0.0, 9000, up) for up in (True, False)]
        for seed in (1, 1, 2)
    ]
    assert dues[0] == dues[1] != dues[2]
    assert all(type(due) is float for due in dues[0])


def test_a_connection_takes_a_round_trip():
    assert VirtualLink(PROFILES["satellite"], random.Random(0)).connect(3.0) == 3.6


def test_what_leaves_during_an_outage_is_sent_again_after_doubling_waits():
    link = LinkProfile("x", rtt_ms=100)  # waits 0.3 s, then 0.6, 1.2, ...
    outages = Outages.parse("link:+1s-+2s")
    way = Direction(link, math.inf, random.Random(0), outages)
    assert way.due(0.999, 100) == pytest.approx(1.049)  # left before
    # First at 1.0, again at 1.3, 1.9, 3.1.
    assert way.due(1.0, 100) == pytest.approx(3.15)
    assert way.due(1.5, 100) == pytest.approx(3.15)  # waits behind it
    assert way.due(4.0, 100) == pytest.approx(4.05)


def test_a_connection_waits_for_the_link():
    link = VirtualLink(
        LinkProfile("x", rtt_ms=100), random.Random(0), Outages.parse("link:+0s-+2s")
    )
    assert link.connect(0.5) == pytest.approx(0.5 + 1 + 2 + 0.1)


def test_nothing_passes_a_link_that_never_comes_back():
    way = Direction(PROFILES["wifi"], 1e6, random.Random(0), Outages.parse("link:00:00-24:00"))
    assert way.due(5.0, 100) == math.inf
    assert way.due(6.0, 100) == math.inf


@given(st.floats(0, 100), st.floats(0.1, 3000), st.floats(0, 4000))
def test_an_outage_delays_by_no_more_than_one_more_wait(begin, length, now):
    outages = Outages.parse(f"link:+{begin:.3f}s-+{begin + length:.3f}s")
    link = LinkProfile("x", rtt_ms=50)
    due = Direction(link, math.inf, random.Random(0), outages).due(now, 1) - 0.025
    until = outages.down("link", now)
    if until is None:
        assert due == pytest.approx(now)
    else:
        # Waits double, so the last one is at most what passed before and the first one.
        longest = min(until - now + link.rto_ms / 1e3, MAX_RTO_S)
        assert until - 1e-9 <= due <= until + longest + 1e-9


@contextlib.contextmanager
def echo():
    class Echo(socketserver.BaseRequestHandler):
        def handle(self):
            while data := self.request.recv(65536):
                self.request.sendall(data)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"mqtt://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def test_the_proxy_holds_bytes_during_an_outage_and_loses_none():
    link = LinkProfile("x", rtt_ms=2)
    with (
        echo() as target,
        DelayProxy(target, link, outages=Outages.parse("link:+5s-+5500ms")) as proxy,
        socket.create_connection(("127.0.0.1", int(proxy.url.rsplit(":", 1)[1]))) as client,
    ):
        client.settimeout(60)
        client.sendall(b"a")
        assert client.recv(1) == b"a"
        proxy.began = time.monotonic() - 5.0  # now the outage begins
        client.sendall(b"b")
        assert client.recv(1) == b"b"
        assert time.monotonic() - proxy.began >= 5.5


def test_a_run_that_begins_later_holds_up_no_bytes():
    link = LinkProfile("x", rtt_ms=2)
    with (
        echo() as target,
        DelayProxy(target, link, outages=Outages.parse("link:+100s-+200s")) as proxy,
        socket.create_connection(("127.0.0.1", int(proxy.url.rsplit(":", 1)[1]))) as client,
    ):
        client.settimeout(60)
        client.sendall(b"a")
        assert client.recv(1) == b"a"
        # As a live run does once all devices are connected. What was sent before has not come out
        # in the future.
        proxy.began = began = time.monotonic() + 80.0
        client.sendall(b"b")
        assert client.recv(1) == b"b"
        assert time.monotonic() < began


def test_every_profile_has_a_radio_and_round_trips():
    assert {name for name, link in PROFILES.items() if link.radio.name == "none"} == {"none"}
    assert not PROFILES["none"].delays
    assert all(link.delays for name, link in PROFILES.items() if name != "none")
    assert not LinkProfile("free", radio=RADIOS["lte"]).delays


def test_an_own_profile_from_a_file(tmp_path):
    file = tmp_path / "link.toml"
    file.write_text(
        'like = "4g"\nname = "ours"\nrtt_ms = 60\nup_kbps = inf\n[radio]\nlike = "3g"\ntail_s = 5\n'
    )
    link = profile(str(file))
    wanted = RADIOS["3g"]
    assert link.radio == Radio(
        "ours", wanted.wake_w, wanted.wake_s, wanted.active_w, wanted.up_uj_per_byte,
        wanted.down_uj_per_byte, tail_w=wanted.tail_w, tail_s=5.0,
    )  # fmt: skip
    assert link == LinkProfile("ours", 60, 15, 100_000, math.inf, 0.002, link.radio)


def test_a_file_without_likeness_delays_only_what_it_says(tmp_path):
    file = tmp_path / "slow.toml"
    file.write_text("up_kbps = 10\n")
    assert read_profile(file) == LinkProfile("slow", up_kbps=10)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("rtt = 5", "unknown key 'rtt'; there are like, name, rtt_ms"),
        ('rtt_ms = "5"', "rtt_ms is '5', not a number"),
        ("rtt_ms = true", "rtt_ms is True, not a number"),
        ("rtt_ms = -1", "rtt_ms is -1, must be at least 0"),
        ("rtt_ms = inf", "rtt_ms is inf, must be finite"),
        ("loss = nan", "loss is nan, not a number"),
        ("loss = 1.0", "loss is 1.0, must be below 1"),
        ("up_kbps = 0", "up_kbps is 0.0, must be above 0"),
        ("rtt_ms = 5\njitter_ms = 6", "jitter_ms is 6.0, must not be above rtt_ms"),
        ("name = 3", "name is 3, not a text"),
        ('like = "5g"', "like is '5g'; choose one of none, wifi"),
        ("radio = 3", "radio is 3, not a table"),
        ("[radio]\ntail = 3", "radio: unknown key 'tail'"),
        ("[radio]\ntail_s = -3", "radio.tail_s is -3, must be at least 0"),
        ('[radio]\nlike = "x"', "radio: like is 'x'; choose one of none, wifi, lte"),
        ("rtt_ms = ", "link.toml: Invalid value"),
    ],
)
def test_a_bad_file_is_refused_by_the_name_of_its_field(tmp_path, text, complaint):
    file = tmp_path / "link.toml"
    file.write_text(text)
    with pytest.raises(InputError) as error:
        profile(str(file))
    assert complaint in str(error.value)
    assert str(file) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there():
    with pytest.raises(InputError, match=r"link file nowhere\.toml: No such file"):
        profile("nowhere.toml")


@pytest.mark.parametrize("size", [0, 1, SEGMENT, SEGMENT + 1, 10 * SEGMENT])
def test_headers_count_on_every_segment(size):
    assert packets(size) == math.ceil(size / SEGMENT)
    assert ip_bytes(size) == size + HEADER * packets(size)
