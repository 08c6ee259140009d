import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatewise_sim.fleet.network.link import (
    CHUNK,
    MAX_RTO_S,
    DeviceDraws,
    Direction,
    LinkProfile,
    VirtualLink,
)
from gatewise_sim.fleet.network.outages import Outages
from gatewise_sim.fleet.network.profiles import PROFILES

messages = st.lists(
    st.tuples(st.floats(0, 2), st.integers(1, 60_000), st.booleans()), min_size=1, max_size=30
)  # (seconds since the one before, bytes, from the device)
arrivals = st.lists(
    st.tuples(st.floats(0, 1), st.integers(1, 20_000)), min_size=1, max_size=40
)  # (seconds since the one before, bytes)


def test_it_is_splitmix64():
    """The first outputs after the state 1234567, as the algorithm's reference code prints them."""
    draws = DeviceDraws(0, 0)
    draws._state = 1234567
    reference = (6457827717110365317, 3203168211198807973, 9817491932198370423)
    assert [draws.random() for _ in reference] == [(z >> 11) * 2.0**-53 for z in reference]


def test_streams_of_devices_and_seeds_have_nothing_to_do_with_each_other():
    table = np.array(
        [
            [
                [draws.random() for _ in range(4)]
                for draws in (DeviceDraws(s, d) for d in range(2000))
            ]
            for s in range(2)
        ]
    )
    flat = table.transpose(0, 2, 1).reshape(8, -1)  # by seed and place in the stream
    assert np.abs(flat.mean(axis=1) - 0.5).max() < 5 * np.sqrt(1 / 12 / 2000)
    apart = np.corrcoef(flat) - np.eye(8)
    assert np.abs(apart).max() < 5 / np.sqrt(2000)
    neighbours = np.corrcoef(flat[0, :-1], flat[0, 1:])[0, 1]
    assert abs(neighbours) < 5 / np.sqrt(2000)
    assert len(np.unique(table)) == table.size


@given(messages, st.sampled_from(sorted(PROFILES)), st.integers(0, 2**32))
def test_the_virtual_link_is_the_proxys_arithmetic_chunk_by_chunk(steps, name, seed):
    link = PROFILES[name]
    virtual, proxys = (VirtualLink(link, random.Random(seed)) for _ in range(2))
    now = 0.0
    for gap, size, is_up in steps:
        now += gap
        pieces = [CHUNK] * (size // CHUNK) + [size % CHUNK] * bool(size % CHUNK)
        due = [proxys.send(now, piece, is_up) for piece in pieces]  # as DelayProxy reads it
        assert virtual.send(now, size, is_up) == due[-1]


def test_what_leaves_during_an_outage_is_sent_again_after_doubling_waits():
    link = LinkProfile("x", rtt_ms=100)  # waits 0.3 s, then 0.6, 1.2, ...
    outages = Outages.parse("link:+1s-+2s")
    way = Direction(link, math.inf, random.Random(0), outages)
    assert way.due(0.999, 100) == pytest.approx(1.049)  # left before
    # First at 1.0, again at 1.3, 1.9, 3.1.
    assert way.due(1.0, 100) == pytest.approx(3.15)
    assert way.due(1.5, 100) == pytest.approx(3.15)  # waits behind it
    assert way.due(4.0, 100) == pytest.approx(4.05)
    # A handshake's first packet waits 1 s, then 2 s; what never comes back lets nothing through.
    shut = VirtualLink(link, random.Random(0), Outages.parse("link:+0s-+2s"))
    assert shut.connect(0.5) == pytest.approx(0.5 + 1 + 2 + 0.1)
    gone = Direction(link, 1e6, random.Random(0), Outages.parse("link:00:00-24:00"))
    assert [gone.due(at, 100) for at in (5.0, 6.0)] == [math.inf, math.inf]


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
