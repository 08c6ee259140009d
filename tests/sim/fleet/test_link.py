"""Tests of link profiles, delivery times and message sizes."""

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatewise_edge.link.messages import AuditMark
from gatewise_sim.fleet.link import (
    CHUNK_BYTES,
    MAX_RTO_S,
    PROFILES,
    Direction,
    LinkProfile,
    MessageSizes,
    VirtualLink,
    read_profile,
)
from gatewise_sim.fleet.outages import Outages, OutageWindow
from tests.support.refused import assert_file_refused, assert_refused

message_steps = st.lists(
    st.tuples(st.floats(0, 2), st.integers(1, 60_000), st.booleans()), min_size=1, max_size=30
)  # (seconds since the previous message, bytes, whether the device sends it)
arrival_steps = st.lists(
    st.tuples(st.floats(0, 1), st.integers(1, 20_000)), min_size=1, max_size=40
)  # (seconds since the previous arrival, bytes)


def parse_outage(text: str) -> Outages:
    """Parse an outage of a run of a day."""
    return Outages.parse([text], run_seconds=86_400.0)


@given(message_steps, st.sampled_from(sorted(PROFILES)), st.integers(0, 2**32))
def test_virtual_link_equals_a_proxy_for_each_chunk(steps, profile_name, seed):
    whole_link, chunk_link = (
        VirtualLink(PROFILES[profile_name], random.Random(seed)) for _ in range(2)
    )
    now = 0.0
    for gap, n_bytes, is_uplink in steps:
        now += gap
        chunks = [CHUNK_BYTES] * (n_bytes // CHUNK_BYTES) + [n_bytes % CHUNK_BYTES] * bool(
            n_bytes % CHUNK_BYTES
        )
        chunk_arrivals = [chunk_link.send(now, chunk, is_uplink) for chunk in chunks]
        assert whole_link.send(now, n_bytes, is_uplink) == chunk_arrivals[-1]


def test_packets_in_an_outage_are_retransmitted_after_doubling_waits():
    profile = LinkProfile("x", rtt_ms=100)  # waits 0.3 s, then 0.6, 1.2, ...
    direction = Direction(profile, math.inf, random.Random(0), parse_outage("link:+1s-+2s"))
    # sent before the outage, and under way for half the round trip, 50 ms
    assert direction.delivery_time(0.999, 100) == pytest.approx(1.049)
    # sent at 1.0 and again at 1.3, 1.9 and 3.1
    assert direction.delivery_time(1.0, 100) == pytest.approx(3.15)
    # queued behind the packet before
    assert direction.delivery_time(1.5, 100) == pytest.approx(3.15)
    assert direction.delivery_time(4.0, 100) == pytest.approx(4.05)
    # the first packet of a handshake waits 1 s, then 2 s; the handshake takes a round trip
    reconnecting_link = VirtualLink(profile, random.Random(0), parse_outage("link:+0s-+2s"))
    assert reconnecting_link.connection_time(0.5) == pytest.approx(0.5 + 1 + 2 + 0.1)
    # nothing arrives over a link that is always down
    dead_direction = Direction(profile, 1e6, random.Random(0), parse_outage("link:00:00-24:00"))
    assert [dead_direction.delivery_time(now, 100) for now in (5.0, 6.0)] == [math.inf, math.inf]


@given(st.floats(0, 100), st.floats(0.1, 3000), st.floats(0, 4000))
def test_outage_delays_by_at_most_one_more_wait(begin, outage_seconds, now):
    window = OutageWindow("link", begin, begin + outage_seconds)
    outages = Outages([window], run_seconds=86_400.0)
    profile = LinkProfile("x", rtt_ms=50)
    direction = Direction(profile, math.inf, random.Random(0), outages)
    departure_time = direction.delivery_time(now, 1) - 0.025  # half the round trip
    outage_end = outages.recovery_time("link", now)
    if outage_end is None:
        assert departure_time == pytest.approx(now)
    else:
        # waits double, so the last wait is at most the sum of the waits before and the first wait
        longest_wait = min(outage_end - now + profile.rto_ms / 1e3, MAX_RTO_S)
        assert outage_end - 1e-9 <= departure_time <= outage_end + longest_wait + 1e-9


@given(arrival_steps, st.sampled_from(sorted(PROFILES)), st.integers(0, 1000))
def test_bytes_keep_their_order_and_never_arrive_early(steps, profile_name, seed):
    profile = PROFILES[profile_name]
    direction = Direction(profile, profile.up_kbps, random.Random(seed))
    now = 0.0
    previous_arrival = 0.0
    for gap, n_bytes in steps:
        now += gap
        arrival = direction.delivery_time(now, n_bytes)
        assert arrival >= previous_arrival
        # half the shortest round trip; rounding gets 1e-9
        assert arrival >= now + max(0.0, profile.rtt_ms - profile.jitter_ms) / 2e3 - 1e-9
        previous_arrival = arrival


@given(arrival_steps, st.integers(0, 1000))
def test_bandwidth_bounds_the_rate(steps, seed):
    direction = Direction(LinkProfile("slow"), 100.0, random.Random(seed))
    now = 0.0
    total_bytes = 0
    arrival = 0.0
    for gap, packet_bytes in steps:
        now += gap
        total_bytes += packet_bytes
        arrival = direction.delivery_time(now, packet_bytes)
    # 8e-3 kilobits per byte over 100 kbit/s; rounding gets 1e-9
    assert arrival - steps[0][0] >= total_bytes * 8e-3 / 100.0 - 1e-9


def test_lost_segment_delays_later_data_by_one_timeout():
    class FixedDraws(random.Random):
        draws = iter([0.0, 0.9, 0.9])  # only the first segment is lost

        def random(self) -> float:
            return next(self.draws)

    profile = LinkProfile("x", rtt_ms=100, loss=0.5)
    direction = Direction(profile, float("inf"), FixedDraws())
    first_arrival = direction.delivery_time(0.0, 100)
    assert first_arrival == pytest.approx((50 + profile.rto_ms) / 1e3)
    assert direction.delivery_time(0.001, 100) == first_arrival  # TCP delivers in order


# -- profiles ---------------------------------------------------------------------------------


def test_profile_from_a_file_extends_the_profile_named_by_like(tmp_path):
    path = tmp_path / "site.toml"
    path.write_text('like = "4g"\nrtt_ms = 60\n[radio]\nlike = "3g"\ntail_s = 5\n')
    profile = read_profile(str(path))
    assert (profile.name, profile.rtt_ms) == ("site", 60)
    assert profile.jitter_ms == PROFILES["4g"].jitter_ms
    assert profile.up_kbps == PROFILES["4g"].up_kbps
    assert (profile.radio.name, profile.radio.tail_s) == ("site", 5)
    assert profile.radio.wake_w == PROFILES["3g"].radio.wake_w
    path.write_text("up_kbps = inf\n")
    assert not read_profile(str(path)).delays_messages


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rtt = 5", "unknown key 'rtt'"),
        ("rtt_ms = -1", "rtt_ms: must be a number of at least 0, not -1"),
        ("loss = 1.0", "loss: must be a number"),
        ('like = "5g"', "like: must be one of none, wifi, 4g"),
        ("rtt_ms = 1\njitter_ms = 2", "jitter_ms is 2"),
        ('[radio]\nlike = "x"', "radio.like: must be one of none, wifi"),
        ("[radio]\ntail = 1", "radio: has an unknown key 'tail'"),
    ],
)
def test_error_of_an_invalid_link_file_names_the_key(tmp_path, text, message):
    path = tmp_path / "link.toml"
    path.write_text(text)
    assert_refused(read_profile, str(path), message=message)


def test_error_of_an_unknown_link_lists_the_profiles(tmp_path):
    assert_refused(read_profile, "5g", message="unknown link '5g'; choose one of none, wifi, 4g")
    assert_file_refused(lambda path: read_profile(str(path)), tmp_path / "l.toml", "[", "l.toml")


# -- messages ---------------------------------------------------------------------------------


def test_message_sizes_grow_with_the_numbers_in_them():
    """CBOR writes numbers below 24 in one byte, below 256 in two and below 65536 in three."""
    sizes = MessageSizes(model="m", version="1", n_values=3, n_classes=2, dtype=np.float32)
    assert sizes.request(23) + 1 == sizes.request(24)
    assert sizes.request(255) + 1 == sizes.request(256)
    assert sizes.request(65_535) + 2 == sizes.request(65_536)
    assert sizes.response(1000) - sizes.response(0) == 2
    assert sizes.refusal(24) - sizes.refusal(1) == 1
    assert sizes.audit(AuditMark(0, 0.5, 3), 500) > sizes.request(500)
