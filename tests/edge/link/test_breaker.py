"""The breaker blocks requests to a silent cloud, but not to a slow or busy one."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatewise_edge.device.device import Device
from gatewise_edge.link.breaker import MAX_FAILURES, Breaker
from tests.edge.virtual_time import Clock, answer_in_virtual_time
from tests.support.small_bundle import SURE_ROW, FakeLink, refuse, respond

# A pause is ``0.5 + draw()`` times its mean, so that `draw=lambda: 0.5` makes it equal to its mean.


def record_failures(breaker: Breaker, n_failures: int, now: float) -> None:
    for _ in range(n_failures):
        breaker.record(False, sent_at=now, now=now)


def make_breaker(draw=lambda: 0.5) -> Breaker:
    return Breaker(draw=draw)


def open_breaker(now: float, draw=lambda: 0.5) -> Breaker:
    breaker = make_breaker(draw)
    record_failures(breaker, MAX_FAILURES, now)
    return breaker


def test_breaker_opens_after_failures_in_a_row_and_not_before():
    breaker = make_breaker()
    record_failures(breaker, 4, 1.0)
    breaker.record(True, sent_at=1.0, now=1.0)
    record_failures(breaker, 4, 2.0)
    assert breaker.state == "closed"
    record_failures(breaker, 1, 2.0)
    assert (breaker.state, breaker.counts.breaker_opened) == ("open", 1)


@pytest.mark.parametrize(
    "replies",
    [
        [number % 5 == 0 for number in range(20)],  # 80 % are silent
        [True, *(number % 5 == 0 for number in range(20))],  # of the latest 20
    ],
)
def test_breaker_opens_when_a_share_of_the_latest_requests_failed(replies):
    breaker = make_breaker()
    for now, has_reply in enumerate(replies):
        assert breaker.state == "closed"
        breaker.record(has_reply, sent_at=float(now), now=float(now))
    assert breaker.state == "open"


def test_breaker_stays_closed_if_fewer_requests_failed():
    breaker = make_breaker()
    for now in range(200):
        breaker.record(now % 4 == 0, sent_at=float(now), now=float(now))
    assert breaker.state == "closed"


def test_breaker_admits_one_probe_at_a_time_and_closes_after_a_reply():
    breaker = open_breaker(10.0)
    assert not breaker.admit(10.9, probe_deadline=11.4)
    assert breaker.admit(11.0, probe_deadline=11.5)
    assert not breaker.admit(11.1, probe_deadline=11.6)
    breaker.record(True, sent_at=11.0, now=11.2)
    assert breaker.admit(11.2, probe_deadline=12.0)
    assert breaker.admit(11.2, probe_deadline=12.0)
    assert breaker.counts.breaker_probes == 1
    assert breaker.counts.breaker_blocked == 2


@given(st.floats(0, 1, exclude_max=True), st.integers(0, 12))
def test_pause_is_50_to_150_percent_of_its_mean_which_doubles(drawn_number, n_openings):
    now = 0.0
    breaker = open_breaker(now, lambda: drawn_number)
    for _ in range(n_openings):
        now += 100.0  # longer than each pause
        assert breaker.admit(now, probe_deadline=now + 1)
        breaker.record(False, sent_at=now, now=now)
    mean_pause_s = min(30.0, 2.0**n_openings)
    assert not breaker.admit(
        math.nextafter(now + 0.5 * mean_pause_s, -math.inf), probe_deadline=now + 99
    )
    assert breaker.admit(now + 1.5 * mean_pause_s, probe_deadline=now + 99)
    breaker.record(True, sent_at=now, now=now + 50)
    # after a reply the pauses begin with the shortest again
    record_failures(breaker, MAX_FAILURES, now + 50)
    assert not breaker.admit(now + 50.49, probe_deadline=now + 99)
    assert breaker.admit(now + 51.5, probe_deadline=now + 99)


def test_requests_sent_before_it_opened_do_not_lengthen_the_pause():
    breaker = open_breaker(1.0)
    assert breaker.admit(2.0, probe_deadline=2.5)
    breaker.record(False, sent_at=0.9, now=2.1)
    assert breaker.state == "half-open"
    breaker.record(True, sent_at=0.9, now=2.2)  # a late reply shows that the cloud works
    assert breaker.state == "closed"


def test_probe_that_was_not_sent_or_never_ended_does_not_block():
    breaker = open_breaker(0.0)
    assert breaker.admit(1.0, probe_deadline=1.5)
    breaker.release(1.1)
    assert breaker.counts.breaker_probes == 0
    assert breaker.admit(1.1, probe_deadline=1.6)
    assert not breaker.admit(1.5, probe_deadline=2.0)
    assert breaker.admit(1.6, probe_deadline=2.1)


# -- in a device ---------------------------------------------------------------------------


def test_silent_cloud_gets_no_requests_and_costs_no_features(bundle):
    clock, link = Clock(), FakeLink(lambda *arguments: None)
    with Device(bundle, link=link, deadline_ms=100, clock=clock) as device:
        device._uplink._breaker.draw = lambda: 0.5
        reasons = [answer_in_virtual_time(device, clock).reason for _ in range(5)]
        assert reasons == ["timeout"] * 5
        n_sent = len(link.sent_payloads)
        blocked_answers = [answer_in_virtual_time(device, clock) for _ in range(20)]
        assert {(answer.route, answer.reason, answer.latency_ms) for answer in blocked_answers} == {
            ("fallback", "breaker-open", 0.0)
        }
        # Feature e, which only the cloud reads, was not acquired.
        assert {answer.acquired for answer in blocked_answers} == {(0, 1, 2)}
        assert len(link.sent_payloads) == n_sent
        assert answer_in_virtual_time(device, clock, SURE_ROW).route == "edge"
        assert device.gauges["breaker_open"] == 1.0
        # After the pause the first instance is the probe, which the cloud answers.
        clock.now += 1.0
        link.handle_payload = respond
        assert [answer_in_virtual_time(device, clock).route for _ in range(3)] == ["cloud"] * 3
        counters = device.counters
        assert (counters["breaker_opened"], counters["breaker_probes"]) == (1, 1)
        assert counters["breaker_blocked"] == 20
        assert device.gauges["breaker_open"] == 0.0


@pytest.mark.parametrize("code", ["busy", "no-model", "failed"])
def test_cloud_that_refuses_gets_further_requests(bundle, code):
    clock, link = Clock(), FakeLink(partial(refuse, code=code))
    with Device(bundle, link=link, deadline_ms=100, clock=clock) as device:
        reasons = {answer_in_virtual_time(device, clock).reason for _ in range(50)}
        assert device.counters["breaker_opened"] == 0
    assert reasons == {f"cloud:{code}"}


def test_busy_cloud_gets_no_request_for_the_time_that_it_states(bundle):
    clock, link = Clock(), FakeLink(partial(refuse, wait_ms=500))
    with Device(bundle, link=link, deadline_ms=100, clock=clock) as device:
        answers = [answer_in_virtual_time(device, clock) for _ in range(10)]
        assert {(answer.route, answer.reason) for answer in answers} == {("fallback", "cloud:busy")}
        assert len(link.sent_payloads) == 1
        clock.now += 0.5
        link.handle_payload = respond
        assert answer_in_virtual_time(device, clock).route == "cloud"


def test_link_that_refuses_all_requests_opens_the_breaker(bundle):
    clock, link = Clock(), FakeLink()
    link.accepts = False
    with Device(bundle, link=link, clock=clock) as device:
        reasons = [answer_in_virtual_time(device, clock).reason for _ in range(6)]
    assert reasons == ["unsent"] * 5 + ["breaker-open"]


def test_probe_without_its_features_does_not_block_the_next_probe(bundle):
    clock, link = Clock(), FakeLink(lambda *arguments: None)
    with Device(bundle, link=link, deadline_ms=100, clock=clock) as device:
        device._uplink._breaker.draw = lambda: 0.5
        for _ in range(MAX_FAILURES):
            assert answer_in_virtual_time(device, clock).reason == "timeout"
        clock.now += 1.0
        assert (
            answer_in_virtual_time(device, clock, [0.1, 0, 0.1, 0, np.nan, 0]).reason == "missing:e"
        )
        link.handle_payload = respond
        assert answer_in_virtual_time(device, clock).route == "cloud"
