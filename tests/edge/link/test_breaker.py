"""The breaker blocks requests to a silent cloud, but not to a slow or busy one."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatewise.errors import InputError
from gatewise_edge.device.device import Device
from gatewise_edge.link import wire
from gatewise_edge.link.breaker import Breaker
from gatewise_edge.link.offload_rules import OffloadRules
from tests.edge.virtual_time import Clock
from tests.edge.virtual_time import answer_in_virtual_time as answer
from tests.support.small_bundle import FakeLink, respond

EASY = [1.0, 0, 0, 0, 0, 0]


def fail(breaker: Breaker, times: int, now: float) -> None:
    for _ in range(times):
        breaker.record(False, sent=now, now=now)


def test_breaker_opens_after_failures_in_a_row_and_not_before():
    breaker = Breaker(failures=5)
    fail(breaker, 4, 1.0)
    breaker.record(True, sent=1.0, now=1.0)
    fail(breaker, 4, 2.0)
    assert breaker.state == "closed"
    fail(breaker, 1, 2.0)
    assert (breaker.state, breaker.counts.breaker_opened) == ("open", 1)


def test_breaker_opens_when_a_share_of_the_window_failed():
    breaker = Breaker(failures=100, share=0.8, window=20)
    for i in range(20):
        assert breaker.state == "closed"
        breaker.record(i % 5 == 0, sent=float(i), now=float(i))
    assert breaker.state == "open"


def test_breaker_admits_one_probe_at_a_time_and_closes_after_a_reply():
    breaker = Breaker(failures=1, pause=2.0, draw=lambda: 0.5)
    fail(breaker, 1, 10.0)
    assert not breaker.admit(11.9, until=12.4)
    assert breaker.admit(12.0, until=12.5)
    assert not breaker.admit(12.1, until=12.6)
    breaker.record(True, sent=12.0, now=12.2)
    assert breaker.admit(12.2, until=13.0)
    assert breaker.admit(12.2, until=13.0)
    assert breaker.counts.breaker_probes == 1
    assert breaker.counts.breaker_blocked == 2


@given(st.floats(0, 1, exclude_max=True), st.integers(0, 12))
def test_pause_is_50_to_150_percent_of_its_mean_which_doubles(draw, openings):
    breaker = Breaker(failures=1, pause=1.0, longest=30.0, draw=lambda: draw)
    now = 0.0
    fail(breaker, 1, now)
    for _ in range(openings):
        now += 100.0
        assert breaker.admit(now, until=now + 1)
        breaker.record(False, sent=now, now=now)
    mean = min(30.0, 2.0**openings)
    assert not breaker.admit(math.nextafter(now + 0.5 * mean, -math.inf), until=now + 99)
    assert breaker.admit(now + 1.5 * mean, until=now + 99)
    breaker.record(True, sent=now, now=now + 50)
    fail(breaker, 1, now + 50)  # after a reply the pauses begin with the shortest again
    assert not breaker.admit(now + 50.49, until=now + 99)
    assert breaker.admit(now + 51.5, until=now + 99)


def test_requests_sent_before_it_opened_do_not_lengthen_the_pause():
    breaker = Breaker(failures=2, pause=1.0, draw=lambda: 0.5)
    fail(breaker, 2, 1.0)
    assert breaker.admit(2.0, until=2.5)
    breaker.record(False, sent=0.9, now=2.1)
    assert breaker.state == "half-open"
    breaker.record(True, sent=0.9, now=2.2)  # a late reply shows that the cloud works
    assert breaker.state == "closed"


def test_probe_that_was_not_sent_or_never_ended_does_not_block():
    breaker = Breaker(failures=1, pause=1.0, draw=lambda: 0.5)
    fail(breaker, 1, 0.0)
    assert breaker.admit(1.0, until=1.5)
    breaker.release(1.1)
    assert breaker.counts.breaker_probes == 0
    assert breaker.admit(1.1, until=1.6)
    assert not breaker.admit(1.5, until=2.0)
    assert breaker.admit(1.6, until=2.1)


@pytest.mark.parametrize(
    "settings",
    [
        {"failures": 0},
        {"window": 0},
        {"share": 0.0},
        {"share": 1.1},
        {"pause": 0.0},
        {"pause": 9.0, "longest": 1.0},
        {"longest": math.inf},
    ],
)
def test_settings_are_checked(settings):
    with pytest.raises(InputError, match="breaker"):
        Breaker(**settings)


# -- in a device ---------------------------------------------------------------------------


def test_silent_cloud_gets_no_requests_and_costs_no_features(bundle):
    clock, link = Clock(), FakeLink(lambda *a: None)
    breaker = Breaker(pause=1.0, draw=lambda: 0.5)
    with Device(
        bundle, link=link, deadline_ms=100, clock=clock, offload_rules=OffloadRules(breaker=breaker)
    ) as device:
        reasons = [answer(device, clock).reason for _ in range(5)]
        assert reasons == ["timeout"] * 5
        n_sent = len(link.sent)
        blocked = [answer(device, clock) for _ in range(20)]
        assert {(a.route, a.reason, a.latency_ms) for a in blocked} == {
            ("fallback", "breaker-open", 0.0)
        }
        # Feature e, which only the cloud reads, was not acquired.
        assert {a.acquired for a in blocked} == {(0, 1, 2)}
        assert len(link.sent) == n_sent
        assert answer(device, clock, EASY).route == "edge"
        assert device.gauges["breaker_open"] == 1.0
        # After the pause the first instance is the probe, which the cloud answers.
        clock.now += 1.0
        link.behave = respond
        assert [answer(device, clock).route for _ in range(3)] == ["cloud"] * 3
        counters = device.counters
        assert (counters["breaker_opened"], counters["breaker_probes"]) == (1, 1)
        assert counters["breaker_blocked"] == 20
        assert device.gauges["breaker_open"] == 0.0


@pytest.mark.parametrize("code", ["busy", "no-model", "failed"])
def test_cloud_that_refuses_gets_further_requests(bundle, code):
    def refuse(payload, receive):
        refusal = wire.Response.refusal(wire.decode_request(payload), code)
        receive(wire.encode_response(refusal))

    clock, link = Clock(), FakeLink(refuse)
    with Device(bundle, link=link, deadline_ms=100, clock=clock) as device:
        reasons = {answer(device, clock).reason for _ in range(50)}
        assert device.counters["breaker_opened"] == 0
    assert reasons == {f"cloud:{code}"}


def test_busy_cloud_gets_no_request_for_the_time_that_it_states(bundle):
    def refuse(payload, receive):
        request = wire.decode_request(payload)
        busy = wire.Response.refusal(request, "busy")
        receive(wire.encode_response(replace(busy, wait_ms=500)))

    clock, link = Clock(), FakeLink(refuse)
    with Device(bundle, link=link, deadline_ms=100, clock=clock) as device:
        answers = [answer(device, clock) for _ in range(10)]
        assert {(a.route, a.reason) for a in answers} == {("fallback", "cloud:busy")}
        assert len(link.sent) == 1
        clock.now += 0.5
        link.behave = respond
        assert answer(device, clock).route == "cloud"


def test_link_that_refuses_all_requests_opens_the_breaker_if_there_is_one(bundle):
    clock, link = Clock(), FakeLink()
    link.takes = False
    with Device(bundle, link=link, clock=clock) as device:
        reasons = [answer(device, clock).reason for _ in range(6)]
    assert reasons == ["unsent"] * 5 + ["breaker-open"]
    with Device(
        bundle, link=link, clock=clock, offload_rules=OffloadRules(breaker=False)
    ) as device:
        assert {answer(device, clock).reason for _ in range(50)} == {"unsent"}


def test_probe_without_its_features_does_not_block_the_next_probe(bundle):
    clock, link = Clock(), FakeLink(lambda *a: None)
    breaker = Breaker(failures=1, pause=1.0, draw=lambda: 0.5)
    with Device(
        bundle, link=link, deadline_ms=100, clock=clock, offload_rules=OffloadRules(breaker=breaker)
    ) as device:
        assert answer(device, clock).reason == "timeout"
        clock.now += 1.0
        assert answer(device, clock, [0.1, 0, 0.1, 0, np.nan, 0]).reason == "missing:e"
        link.behave = respond
        assert answer(device, clock).route == "cloud"


def test_share_of_one_and_equal_pauses_are_allowed():
    breaker = Breaker(failures=9, share=1.0, window=2, pause=3.0, longest=3.0, draw=lambda: 0.5)
    for now in (1.0, 2.0):
        breaker.record(False, sent=now, now=now)
    assert breaker.state == "open"
    assert not breaker.admit(4.9, until=9.0)
    assert breaker.admit(5.0, until=6.0)
    breaker.record(False, sent=5.0, now=5.5)
    assert not breaker.admit(8.4, until=9.0)
    assert breaker.admit(8.5, until=9.0)
    for settings in ({"share": 0.0}, {"share": 1.01}, {"pause": 0.0}, {"longest": math.inf}):
        with pytest.raises(InputError):
            Breaker(**settings)
