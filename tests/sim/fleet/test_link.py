"""Tests of link profiles, delivery times and message sizes."""

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatewise.formats import DAY
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

#: Lists of (seconds since the previous message, bytes, whether the device sends it).
MESSAGE_LISTS = st.lists(
    st.tuples(st.floats(0, 2), st.integers(1, 60_000), st.booleans()), min_size=1, max_size=30
)
#: Lists of (seconds since the previous packet, bytes), in one direction.
PACKET_LISTS = st.lists(st.tuples(st.floats(0, 1), st.integers(1, 20_000)), min_size=1, max_size=40)
#: Tolerance of a bound on times, for rounding.
TOLERANCE_S = 1e-9


def parse_outage(text: str) -> Outages:
    """Parse an outage of a run of a day."""
    return Outages.parse([text], run_seconds=DAY)


@given(MESSAGE_LISTS, st.sampled_from(sorted(PROFILES)), st.integers(0, 2**32))
def test_virtual_link_equals_a_proxy_for_each_chunk(messages, profile_name, seed):
    profile = PROFILES[profile_name]
    # equal seeds, so that both links draw the same jitter and losses
    message_link = VirtualLink(profile, random.Random(seed))
    chunk_link = VirtualLink(profile, random.Random(seed))
    now = 0.0
    for gap_s, n_bytes, is_uplink in messages:
        now += gap_s
        chunk_starts = range(0, n_bytes, CHUNK_BYTES)
        chunk_arrivals = [
            chunk_link.send(now, min(CHUNK_BYTES, n_bytes - start), is_uplink=is_uplink)
            for start in chunk_starts
        ]
        assert message_link.send(now, n_bytes, is_uplink=is_uplink) == chunk_arrivals[-1]


def test_packets_in_an_outage_are_retransmitted_after_doubling_waits():
    # TCP waits for the round trip and 200 ms (MIN_RTO_MS): 0.3 s, then 0.6, 1.2, ...
    profile = LinkProfile("x", rtt_ms=100)
    direction = Direction(profile, math.inf, random.Random(0), parse_outage("link:+1s-+2s"))
    # sent before the outage, and under way for half the round trip, 50 ms
    assert direction.delivery_time(0.999, 100) == pytest.approx(1.049)
    # sent at 1.0 and again at 1.3, 1.9 and 3.1
    assert direction.delivery_time(1.0, 100) == pytest.approx(3.15)
    # queued behind the packet before
    assert direction.delivery_time(1.5, 100) == pytest.approx(3.15)
    assert direction.delivery_time(4.0, 100) == pytest.approx(4.05)
    # the first packet of a handshake waits 1 s (SYN_RTO_S), then 2 s; the handshake takes a round
    # trip of 0.1 s
    reconnecting_link = VirtualLink(profile, random.Random(0), parse_outage("link:+0s-+2s"))
    assert reconnecting_link.connection_time(0.5) == pytest.approx(0.5 + 1 + 2 + 0.1)
    # nothing arrives over a link that is always down
    down_direction = Direction(profile, 1e6, random.Random(0), parse_outage("link:00:00-24:00"))
    assert [down_direction.delivery_time(now, 100) for now in (5.0, 6.0)] == [math.inf, math.inf]


@given(st.floats(0, 100), st.floats(0.1, 3000), st.floats(0, 4000))
def test_outage_delays_by_at_most_one_more_wait(begin, outage_seconds, now):
    window = OutageWindow("link", begin, begin + outage_seconds)
    outages = Outages([window], run_seconds=DAY)
    profile = LinkProfile("x", rtt_ms=50)
    direction = Direction(profile, math.inf, random.Random(0), outages)
    departure_time = direction.delivery_time(now, 1) - 0.025  # half the round trip, in seconds
    outage_end = outages.recovery_time("link", now)
    if outage_end is None:
        assert departure_time == pytest.approx(now)
    else:
        # Waits double: w, 2w, 4w, ... Each is w longer than the sum of those before it, and the
        # waits before the last one end before the outage does.
        longest_wait_s = min(outage_end - now + profile.rto_ms / 1e3, MAX_RTO_S)
        assert departure_time >= outage_end - TOLERANCE_S
        assert departure_time <= outage_end + longest_wait_s + TOLERANCE_S


@given(PACKET_LISTS, st.sampled_from(sorted(PROFILES)), st.integers(0, 1000))
def test_bytes_keep_their_order_and_never_arrive_early(packets, profile_name, seed):
    profile = PROFILES[profile_name]
    direction = Direction(profile, profile.up_kbps, random.Random(seed))
    now = 0.0
    previous_arrival = 0.0
    for gap_s, n_bytes in packets:
        now += gap_s
        arrival = direction.delivery_time(now, n_bytes)
        assert arrival >= previous_arrival
        # half the shortest round trip, in seconds
        assert arrival >= now + (profile.rtt_ms - profile.jitter_ms) / 2e3 - TOLERANCE_S
        previous_arrival = arrival


@given(PACKET_LISTS, st.integers(0, 1000))
def test_bandwidth_bounds_the_rate(packets, seed):
    bandwidth_kbps = 100.0
    direction = Direction(LinkProfile("slow"), bandwidth_kbps, random.Random(seed))
    now = 0.0
    total_bytes = 0
    last_arrival = 0.0
    for gap_s, n_bytes in packets:
        now += gap_s
        total_bytes += n_bytes
        last_arrival = direction.delivery_time(now, n_bytes)
    first_departure = packets[0][0]
    # a byte has 8e-3 kilobits
    transfer_s = total_bytes * 8e-3 / bandwidth_kbps
    assert last_arrival - first_departure >= transfer_s - TOLERANCE_S


def test_lost_segment_delays_later_data_by_one_timeout():
    class FixedDraws(random.Random):
        # A draw below the loss of 0.5 loses a segment: only the first one is lost, and neither its
        # repetition nor the second segment.
        draws = iter([0.0, 0.9, 0.9])

        def random(self) -> float:
            return next(self.draws)

    profile = LinkProfile("x", rtt_ms=100, loss=0.5)
    direction = Direction(profile, math.inf, FixedDraws())
    first_arrival = direction.delivery_time(0.0, 100)
    # half the round trip after the timeout
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
        ('like = "pigeon"', "like: must be one of none, wifi, 4g"),
        ('like = ["4g"]', "like: must be one of none, wifi, 4g"),
        ("rtt_ms = 1\njitter_ms = 2", "jitter_ms is 2"),
        ('[radio]\nlike = "x"', "radio.like: must be one of none, wifi"),
        ("[radio]\ntail = 1", "radio: has an unknown key 'tail'"),
    ],
)
def test_error_of_an_invalid_link_file_names_the_key(tmp_path, text, message):
    path = tmp_path / "link.toml"
    path.write_text(text)
    assert_refused(read_profile, str(path), message=message)


def test_error_of_an_unknown_link_lists_the_profiles():
    assert_refused(
        read_profile, "pigeon", message="unknown link 'pigeon'; choose one of none, wifi, 4g"
    )


def test_error_of_a_file_that_is_no_toml_names_the_file(tmp_path):
    assert_file_refused(lambda path: read_profile(str(path)), tmp_path / "l.toml", "[", "l.toml")


# -- messages ---------------------------------------------------------------------------------


def test_message_sizes_grow_with_the_numbers_in_them():
    """CBOR has 1 byte for numbers below 24, 2 below 256, 3 below 2^16 and 5 above (RFC 8949, 3)."""
    sizes = MessageSizes(model="m", version="1", n_values=3, n_classes=2, dtype=np.float32)
    assert sizes.request(23) + 1 == sizes.request(24)
    assert sizes.request(255) + 1 == sizes.request(256)
    assert sizes.request(65_535) + 2 == sizes.request(65_536)
    assert sizes.response(1000) - sizes.response(0) == 2
    assert sizes.refusal(24) - sizes.refusal(1) == 1
    # the mark of an audit comes in addition
    assert sizes.audit(AuditMark(0, 0.5), 500) > sizes.request(500)
